"""Runs tests on each Python that the machine has: ``python -m tests.interpreters``.

Arguments are versions, like ``3.13`` or, without a global lock, ``3.14t``; without any,
it is all that are found: on the path, and where pyenv and uv install them. Each has an
environment of its own, ``.venv-VERSION``, with what the tests need. What cannot be
installed there is said, and its tests are skipped.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
OLDEST, NEWEST = 11, 14
FIRST_WITH_EAGER_TASKS = 12

_NAME = re.compile(r"python3\.(\d+)t?$")
_VERSION = """
import ensurepip, sys, sysconfig, venv
print(*sys.version_info[:2], sep=".", end="")
print("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "")
"""


def interpreters() -> dict[str, Path]:
    """Return the interpreters that asyncnn is for, by version, each once.

    Only those count that make environments with pip.
    """
    found: dict[str, Path] = {}
    for path in _candidates():
        if path.name.removeprefix("python") in found:
            continue
        ran = subprocess.run(
            [path, "-c", _VERSION], capture_output=True, text=True, check=False
        )
        if not ran.returncode:
            found.setdefault(ran.stdout.strip(), path)
    return dict(sorted(found.items(), key=lambda item: _order(item[0])))


def _candidates() -> Iterator[Path]:
    yield Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    uv = home / ".local/share/uv/python"
    for folder in (
        *map(Path, os.get_exec_path()),
        *sorted((pyenv / "versions").glob("*/bin")),
        *sorted(uv.glob("*/bin")),
    ):
        for path in sorted(folder.glob("python3.*")):
            version = _NAME.match(path.name)
            if version and OLDEST <= int(version[1]) <= NEWEST:
                yield path


def _order(version: str) -> tuple[int, str]:
    return int(version.partition(".")[2].rstrip("t")), version


def environment(version: str, python: Path) -> Path:
    """Return the interpreter of an environment where asyncnn can be tested."""
    folder = ROOT / f".venv-{version}"
    ready = folder / ".ready"
    described = ROOT / "pyproject.toml"
    inside = folder / "bin" / "python"
    if ready.exists() and ready.stat().st_mtime > described.stat().st_mtime:
        return inside
    _say(f"installing asyncnn and what its tests need into {folder.name} ...")
    subprocess.run([python, "-m", "venv", "--clear", folder], check=True)
    if not _installs(inside, "--editable", f"{ROOT}[dev]"):
        subprocess.run(_pip(inside, "--editable", str(ROOT)), check=True)
        project = tomllib.loads(described.read_text())["project"]
        for each in project["optional-dependencies"]["dev"]:
            if not _installs(inside, each):
                _say(f"{version} has no {each}")
    models = ("--no-deps", "-r", str(ROOT / "tests" / "model_packages.txt"))
    if not _installs(inside, *models):
        _say(f"{version} has no packages of models")
    ready.touch()
    return inside


def _installs(python: Path, *arguments: str) -> bool:
    return not subprocess.run(
        _pip(python, *arguments), capture_output=True, check=False
    ).returncode


def _pip(python: Path, *arguments: str) -> list[str | Path]:
    options = ("--quiet", "--disable-pip-version-check")
    return [python, "-m", "pip", "install", *options, *arguments]


def _say(words: str) -> None:
    print(words, flush=True)  # noqa: T201


def main(*versions: str) -> int:
    """Run the quick tier on each, and what waits once more with eager tasks.

    :returns: 0 if all tests pass.
    """
    known = interpreters()
    missing = sorted(set(versions) - known.keys())
    if missing:
        _say(f"not found: {', '.join(missing)}; found: {', '.join(known)}")
        return 2
    failed = []
    for version in versions or known:
        python = environment(version, known[version])
        has_eager_tasks = _order(version)[0] >= FIRST_WITH_EAGER_TASKS
        tiers = ["quick", "eager"] if has_eager_tasks else ["quick"]
        _say(f"\n##### Python {version}: {', '.join(tiers)} #####")
        ran = subprocess.run(
            [python, "-m", "tests.tiers", *tiers], cwd=ROOT, check=False
        )
        if ran.returncode:
            failed.append(version)
    _say(f"failed on {', '.join(failed)}" if failed else "all passed on all")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
