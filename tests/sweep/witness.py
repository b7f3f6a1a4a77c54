"""What must be as it was after a cancellation, and what must not have happened."""

import asyncio
import gc
import logging
import os
import re
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from asyncnn.callbacks import CallbackObject, ExecutionFuture, PreparedModelFuture
from asyncnn.devices import ReferenceDevice
from asyncnn.memory import slabs
from asyncnn.runtime.device import Device
from asyncnn.service import Server

_EXECUTORS = ("asyncio_", "uvloop_")

POOL = re.compile("-(pool|slab)")
"""Names of memory that a client shares with a driver."""

SETTLE_S = 1.0
"""How long threads, other tasks and a driver may take to end what was cancelled."""


class Witness:
    """Watches this process, its loop, ``hals``, ``servers`` and drivers by their pids.

    What there is when it is told to `remember` may stay; nothing may be added to it.
    """

    def __init__(
        self,
        hals: Sequence[ReferenceDevice] = (),
        servers: Sequence[Server] = (),
        devices: Sequence[Device] = (),
        pids: Sequence[int] = (),
    ) -> None:
        self._devices = devices
        self._servers = servers
        self._hals = hals
        self._pids = pids
        self._before: Counter[str] = Counter()
        self._callbacks = _Callbacks()
        self._errors = _Errors()
        self._notices: list[Callable[[], str]] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch callbacks and logs inside the block."""
        with ExitStack() as stack:
            for name in ("asyncnn", "asyncio"):
                logger = logging.getLogger(name)
                logger.addHandler(self._errors)
                stack.callback(logger.removeHandler, self._errors)
            stack.enter_context(self._callbacks.patched())
            gc.freeze()  # or each collection would go through all that is imported
            stack.callback(gc.unfreeze)
            yield

    def notice(self, fault: Callable[[], str]) -> None:
        """Have ``fault`` return no word of a fault once all has settled."""
        self._notices.append(fault)

    async def remember(self) -> None:
        """Take what there is, as soon as it does not change, as what may stay."""
        before = Counter[str]()
        while before != self._before or not before:
            self._before = before
            await asyncio.sleep(0.005)
            gc.collect()
            before = self._held()
        self._callbacks.faults.clear()
        self._callbacks.waiting.clear()
        self._errors.messages.clear()
        self._notices.clear()

    async def quiet(self) -> None:
        """Wait until nothing is under way."""
        ends = time.monotonic() + SETTLE_S
        while time.monotonic() < ends:
            if not self._under_way() and not await self._has_work():
                return
            await asyncio.sleep(0.001)

    async def _has_work(self) -> bool:
        """Ask the devices, as a client can, and as often as their answers matter."""
        for device in self._devices:
            work = (await device.statistics()).executions
            if work.queued or work.running:
                return True
        return False

    async def settled(self) -> list[str]:
        """Wait until all is as it was; return what is not, and forget it."""
        ends = time.monotonic() + SETTLE_S
        pause = 0.0
        while self._unsettled() and time.monotonic() < ends:
            await asyncio.sleep(pause)
            pause = min(2 * pause + 0.0005, 0.02)
            gc.collect()
        gc.collect()  # what nobody retrieved is logged only now
        faults = [*self._unsettled(), *self._callbacks.faults, *self._errors.messages]
        if faults:
            await self.remember()
        self._notices.clear()
        return faults

    def _unsettled(self) -> list[str]:
        left = self._held() - self._before
        return self._under_way() + [f"left behind: {what}" for what in left]

    def _under_way(self) -> list[str]:
        faults = [
            f"never notified: {name}" for name in self._callbacks.waiting.values()
        ]
        for hal in self._hals:
            statistics = hal.statistics()
            for name in ("preparations", "executions"):
                work = getattr(statistics, name)
                if work.queued or work.running:
                    faults.append(
                        f"{work.queued} {name} queued, {work.running} running"
                    )
        return faults + [fault for notice in self._notices if (fault := notice())]

    def _held(self) -> Counter[str]:
        """Count what this process and the drivers hold, by kind."""
        # What is kept for the next call is neither lost nor always the same.
        for server in self._servers:
            for session in server._sessions:
                session._pools._mapper.trim()
        for device in self._devices:
            connection = getattr(device.hal, "_connection", None)
            if connection is not None:
                connection._free_idle()
        slabs.trim()
        found = Counter(traces_of("self"))
        for pid in self._pids:
            # A driver keeps a connection's pools for a while, which `process` looks at.
            traces = [what for what in traces_of(str(pid)) if not POOL.search(what)]
            found.update(f"driver's {what}" for what in traces)
        found.update(f"thread {_numberless(t.name)}" for t in _threads())
        this = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not this:
                found[f"task {task.get_coro()!r}".partition(" at ")[0]] += 1
        loop: Any = asyncio.get_running_loop()
        for timer in getattr(loop, "_scheduled", ()):  # others do not tell
            if not timer.cancelled():
                callback = timer._callback
                found[f"timer {getattr(callback, '__qualname__', callback)}"] += 1
        return found


class _Callbacks:
    """The callbacks that were given to drivers: each is to be notified once."""

    def __init__(self) -> None:
        self.waiting: dict[int, str] = {}
        self.faults: list[str] = []

    @contextmanager
    def patched(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kind in (ExecutionFuture, PreparedModelFuture):
                for name, seen in (
                    ("__init__", self._made),
                    ("notify_1_3", self._notified),
                ):
                    method = _preceded(getattr(kind, name), seen)
                    stack.enter_context(patch.object(kind, name, method))
            yield

    def _made(self, callback: CallbackObject) -> None:
        former = self.waiting.get(id(callback))
        if former is not None:  # it is gone, as there is another at its place
            self.faults.append(f"never notified, and gone: {former}")
        self.waiting[id(callback)] = type(callback).__name__

    def _notified(self, callback: CallbackObject) -> None:
        if self.waiting.pop(id(callback), None) is None:
            self.faults.append(f"notified twice: {type(callback).__name__}")


class _Errors(logging.Handler):
    """Keeps the words of what is logged as an error, and nothing that it refers to."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        words = f"logged by {record.name}: {record.getMessage()}"
        if record.exc_info:
            words += "\n" + "".join(traceback.format_exception(record.exc_info[1]))
        self.messages.append(words)


def _preceded(
    method: Callable[..., None], seen: Callable[[Any], None]
) -> Callable[..., None]:
    def both(callback: CallbackObject, *args: Any) -> None:
        seen(callback)
        method(callback, *args)

    return both


def _threads() -> list[threading.Thread]:
    """Return the threads but for those that a loop keeps for its executor."""
    return [t for t in threading.enumerate() if not t.name.startswith(_EXECUTORS)]


def traces_of(process: str) -> Iterator[str]:
    """Yield descriptors, mapped pools and names of shared memory, without numbers."""
    folder = Path("/proc", process)
    for number in os.listdir(folder / "fd"):
        try:
            yield f"descriptor of {_numberless(os.readlink(folder / 'fd' / number))}"
        except FileNotFoundError:
            continue  # the descriptor of the listing itself
    for line in (folder / "maps").read_text().splitlines():
        if "memfd:" in line or "/dev/shm/" in line:
            yield f"mapping of {_numberless(line.split(maxsplit=5)[5])}"
    own = f"asyncnn-{os.getpid() if process == 'self' else process}-"
    for name in os.listdir("/dev/shm"):
        if name.startswith(own):
            yield f"/dev/shm/{_numberless(name)}"


def _numberless(name: str) -> str:
    return re.sub(r"\d+", "N", name)
