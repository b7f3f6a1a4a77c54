"""Measures capabilities where none were, for a driver that has nothing else to do.

``python -m asyncnn.tools.capabilities.once FILE SECONDS``: an empty FILE is the usual
one. The process ends by SIGALRM after so many seconds. Reference models that have not
come to be measured within three quarters of them are left out.
"""

import asyncio
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from asyncnn.devices.measured_capabilities import (
    default_path,
    load_measurement,
    store_measurement,
)
from asyncnn.devices.private_files import check_place
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.logs import errors_as_lines
from asyncnn.tools.bench.rounds import MIN_ROUNDS
from asyncnn.tools.capabilities.calibration import Subject, measure_capabilities
from asyncnn.tools.capabilities.network import Workload


def main(file: str, seconds: str) -> None:
    """Measure and keep that, unless something is kept or another process does it."""
    most_s = float(seconds)
    signal.setitimer(signal.ITIMER_REAL, most_s)
    latest = time.monotonic() + most_s * 3 / 4

    def in_time(subjects: Sequence[Subject]) -> Iterable[Subject]:
        for each in subjects:
            if isinstance(each, Workload) or time.monotonic() < latest:
                yield each

    with errors_as_lines():
        held = _held(file)
        if held is None:
            return
        with suppress(GeneralFailureError):  # it was measured with other versions
            if load_measurement(file) is not None:
                return
        measuring = measure_capabilities(rounds=MIN_ROUNDS, progress=in_time)
        store_measurement(asyncio.run(measuring), file)


def check_kept(file: str = "") -> Path:
    """Return the folder of a file that can be kept; an empty one is the usual one.

    :raises GeneralFailureError: if none can be kept there.
    """
    try:
        path = Path(file) if file else default_path()
        check_place(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise GeneralFailureError(f"nothing could be kept: {error}") from error
    return path.parent


def _held(file: str) -> int | None:
    """Lock the folder for this process, which can write there; None if another has it.

    :raises GeneralFailureError: if nothing can be kept there.
    """
    try:
        held = os.open(check_kept(file), os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None
    except OSError as error:
        raise GeneralFailureError(f"nothing could be kept: {error}") from error
    return held


if __name__ == "__main__":
    main(*sys.argv[1:])
