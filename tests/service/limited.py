"""Driver processes that the system gives little."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncnn.service import process
from asyncnn.service.process import DriverProcess, driver_process


@contextmanager
def limited_driver(
    folder: Path, *limits: str, before: str = ""
) -> Iterator[DriverProcess]:
    """Run a driver under limits of the shell's ``ulimit``, like ``-n 256``.

    ``before`` is Python that its process executes first.
    """
    program = folder / "program.py"
    run = (
        "runpy.run_module('asyncnn.service.start', run_name='__main__', alter_sys=True)"
    )
    program.write_text(f"import runpy\n{before}\n{run}\n")
    shell = folder / "limited"
    # The first two arguments are ``-m asyncnn.service.start``.
    start = f'shift 2\nexec {sys.executable} {program} "$@"'
    lines = [f"ulimit {limit} || exit 9" for limit in limits]
    shell.write_text("\n".join(("#!/bin/sh", *lines, start)))
    shell.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "sys", SimpleNamespace(executable=str(shell)))
        with driver_process(device="reference") as driver:
            patch.undo()
            yield driver
