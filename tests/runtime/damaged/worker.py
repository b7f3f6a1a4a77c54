"""Loads damaged files in a process of its own, which may die of them.

``python -m tests.runtime.damaged.worker ORDER`` takes an `Order` as JSON, and prints a
line for each file that ends otherwise than with a model or one error of the family,
soon and in little memory. What it is at lies in a file all the while, to be read when
the process has died.
"""

import asyncio
import faulthandler
import mmap
import resource
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TypeAlias

import msgspec

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices import DeviceSettings, InProcessDevice, ReferenceDevice
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.pacing import completed
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load as sound_load
from asyncnn.runtime.translation import translating
from tests.runtime.damaged.files import files
from tests.runtime.damaged.mutators import damaged

Load: TypeAlias = Callable[[bytes], NamedModel]
Originals: TypeAlias = Sequence[tuple[str, bytes]]

ADDRESS_SPACE = 512 << 20
"""Bytes that loading may map beyond what the process has when it begins."""

MOST_GROWTH_KIB = 192 << 10
"""Resident memory that one file may take beside the most that others have taken."""

MOST_SECONDS = 10.0
"""For one file, beside others on the machine; most take less than a millisecond."""

PREPARED_ONE_IN = 10
"""Models that load are rare, and their preparation takes longer than their loading."""

MOST_CHARACTERS = 25_000
"""Of a message, which may list many operators that cannot be imported."""

NOTE_BYTES = 64


class Order(msgspec.Struct, frozen=True):
    """What to do: so many seeds from the ``first`` on, with a note of each in a file.

    ``loader`` is what loads files, as MODULE:NAME.
    """

    first: int
    count: int
    note: str
    models: str | None = None
    loader: str = "asyncnn.runtime.model_file:load"


class _TooLongError(BaseException):
    """The alarm; nothing of the package catches it."""


def _ring(_: int, __: FrameType | None) -> None:
    raise _TooLongError


@contextmanager
def _alarm() -> Iterator[None]:
    signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _resident_kib() -> int:
    """Return the most that has been resident; the system's own figure is inherited."""
    with open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1])
    raise AssertionError("the system does not tell")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * mmap.PAGESIZE + ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _problem_of(error: BaseException) -> str:
    """Return what is wrong with how a file was refused; empty if nothing is."""
    if isinstance(error, _TooLongError):
        return f"took more than {MOST_SECONDS} s"
    if not isinstance(error, AsyncnnError):
        return "not an error of the family"
    if not str(error).isprintable() or len(str(error)) > MOST_CHARACTERS:
        return "a message that is not one line"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | RecursionError):
            return f"{type(cause).__name__} on the way"
        cause = cause.__cause__ or cause.__context__
    return ""


async def _prepare(device: InProcessDevice, named: NamedModel) -> None:
    callback = PreparedModelFuture()
    device.prepare_model_1_3(
        named.model,
        ExecutionPreference.FAST_SINGLE_ANSWER,
        Priority.MEDIUM,
        None,
        (),
        (),
        bytes(32),
        callback,
    )
    await callback


async def _try(
    load: Load, data: bytes, device: InProcessDevice, *, prepares: bool
) -> str:
    """Load a file, translate it, prepare it if asked to; return what came of it."""
    try:
        with _alarm():
            named = completed(translating(load(data)))
    except AsyncnnError as error:
        problem = _problem_of(error)
        if problem:
            raise AssertionError(problem) from error
        return "refused"
    if not prepares:
        return "loaded"
    try:
        with _alarm():
            await _prepare(device, named)
    except AsyncnnError:
        return "refused by the device"
    return "prepared"


async def work(order: Order, originals: Originals, note: mmap.mmap) -> int:
    """Try all seeds; return how many went wrong."""
    module, _, function = order.loader.partition(":")
    load: Load = getattr(import_module(module), function)
    outcomes: Counter[str] = Counter()
    wrong = 0
    async with ReferenceDevice(DeviceSettings()) as device:
        for name, data in originals:
            # What a process needs once, such as the code of libraries.
            if await _try(sound_load, data, device, prepares=True) != "prepared":
                raise ValueError(f"{name} is damaged already")
        _limit_memory()
        most = _resident_kib()
        for seed in range(order.first, order.first + order.count):
            name, data = originals[seed % len(originals)]
            note[:] = f"{name}, seed {seed}".encode().ljust(NOTE_BYTES)
            prepares = seed % PREPARED_ONE_IN == 0
            try:
                outcome = await _try(
                    load, damaged(data, seed), device, prepares=prepares
                )
                outcomes[outcome] += 1
                if _resident_kib() - most > MOST_GROWTH_KIB:
                    raise AssertionError("large allocations")
            except BaseException as error:
                wrong += 1
                sys.stdout.write(f"{name}, seed {seed}: {_told(error)}\n")
            most = max(most, _resident_kib())
    counts = [f"{count} {outcome}" for outcome, count in sorted(outcomes.items())]
    sys.stdout.write(f"{', '.join(counts)}\n")
    return wrong


def _told(error: BaseException) -> str:
    what = str(error) if isinstance(error, AssertionError) else _problem_of(error)
    cause = error.__cause__ or error
    where = traceback.extract_tb(cause.__traceback__)[-3:]
    lines = " < ".join(f"{Path(at.filename).name}:{at.lineno}" for at in where[::-1])
    return f"{what} ({type(cause).__name__} at {lines})"


def main(order: Order) -> int:
    """Do as ordered; return 1 if something went wrong."""
    faulthandler.enable()
    signal.signal(signal.SIGALRM, _ring)
    models = None if order.models is None else Path(order.models)
    Path(order.note).write_bytes(bytes(NOTE_BYTES))
    with Path(order.note).open("r+b") as file:
        note = mmap.mmap(file.fileno(), NOTE_BYTES)
    return int(asyncio.run(work(order, list(files(models)), note)) > 0)


if __name__ == "__main__":
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=Order)))
