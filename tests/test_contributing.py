"""What contributors read can be followed: what is named exists, and examples work.

An example of docs/additions.md is a section whose blocks are applied in order to a copy
of the package: a block of ``diff`` changes a file, one that begins with ``# new file:
PATH`` makes one, and the last, which begins with ``# try it``, is a script that has to
succeed.
"""

import ast
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncnn
from tests.processes import executed

ROOT = Path(__file__).parents[1]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ADDITIONS = (ROOT / "docs/additions.md").read_text()
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
SECURITY = (ROOT / "docs/security.md").read_text()

MENTIONED = r"`([\w./-]+\.(?:py|c)|[\w/]+/)(?::\s+([\w.]+))?`"
MENTIONS = sorted(
    {
        mention
        for page in (CONTRIBUTING, ADDITIONS, ARCHITECTURE, SECURITY)
        for mention in re.findall(MENTIONED, page)
    }
)
EXAMPLES = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", ADDITIONS, re.M | re.S)
COMMANDS = re.findall(r"^\$ make ([\w-]+)", CONTRIBUTING, re.M)
MOST_LINES = 300

NEW_FILE, SCRIPT = "# new file: ", "# try it\n"


def names_in(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    """Yield all that a module or a class defines, members as ``Class.member``."""
    for node in body:
        match node:
            case ast.ClassDef(name=name):
                yield prefix + name
                yield from names_in(node.body, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.Assign(targets=[ast.Name(id=name), *_]):
                yield prefix + name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield prefix + name


@pytest.mark.parametrize(("path", "name"), MENTIONS)
def test_what_the_page_names_exists(path: str, name: str) -> None:
    made = {block.split()[3] for block in re.findall(r"# new file: .*", ADDITIONS)}
    if path in made:
        return
    assert (ROOT / path).exists()
    if name:
        assert name in names_in(ast.parse((ROOT / path).read_text()).body)


def test_the_make_targets_exist() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
    assert COMMANDS
    assert set(COMMANDS) <= set(targets)


def apply_diff(diff: str, folder: Path) -> str:
    """Change the file of the first line, ``--- PATH``; return its path.

    Each part that ``@@`` begins must fit exactly one place of the file.
    """
    header, *hunks = re.split(r"^@@.*\n", diff, flags=re.M)
    path = header.split()[1]
    text = (folder / path).read_text()
    for hunk in hunks:
        lines = hunk.splitlines(keepends=True)
        old, new = (
            "".join(line[1:] or "\n" for line in lines if line[0] in kept)
            for kept in (" -\n", " +\n")
        )
        assert text.count(old) == 1, f"{path} has not exactly one place for:\n{old}"
        text = text.replace(old, new)
    (folder / path).write_text(text)
    return path


@pytest.mark.exhaustive
@pytest.mark.parametrize("example", [pytest.param(e, id=t) for t, e in EXAMPLES])
def test_an_example_works(example: str, tmp_path: Path) -> None:
    pytest.importorskip("ruff", reason="ruff is not installed")
    shutil.copytree(Path(asyncnn.__file__).parent, tmp_path / "asyncnn")
    shutil.copytree(ROOT / "tests/kernels", tmp_path / "tests/kernels")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    *steps, (_, script) = re.findall(r"```(diff|python)\n(.*?)```", example, re.S)
    changed = []
    for kind, block in steps:
        if kind == "diff":
            changed.append(apply_diff(block, tmp_path))
        else:
            assert block.startswith(NEW_FILE)
            header, text = block.split("\n", 1)
            changed.append(header.removeprefix(NEW_FILE))
            (tmp_path / changed[-1]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / changed[-1]).write_text(text)
    assert script.startswith(SCRIPT)
    run = [sys.executable, "-W", "error", "-c", script]
    for command in (
        [sys.executable, "-m", "ruff", "check", *changed],
        [sys.executable, "-m", "ruff", "format", "--check", *changed],
        run,
    ):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        ended = executed(*command, cwd=tmp_path, env=environment, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_every_kind_of_part_has_steps_or_an_example() -> None:
    assert re.findall(r"^## Add (.*)", CONTRIBUTING, re.M) == [
        "an operation",
        "an operator",
        "a device",
        "a command",
        "a bench",
    ]
    assert [title for title, _ in EXAMPLES] == [
        "An operation",
        "A device",
        "A path",
        "A transport",
    ]


def test_the_page_is_read_at_once() -> None:
    assert len(CONTRIBUTING.splitlines()) <= MOST_LINES
