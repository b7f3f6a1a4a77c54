"""Work that would keep an event loop for long, on a thread of its own.

Each call has a thread that ends with it: such work is rare and large, and no idle
thread stays behind. While one runs, the interpreter switches between threads often
enough for the loop to keep its pace, and what says where it may rest makes way for
executions.
"""

import asyncio
import mmap
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Generic, ParamSpec, TypeVar, cast
from weakref import WeakSet

from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.pacing import Steps, Stepwise, long_work, make_way

P = ParamSpec("P")
T = TypeVar("T")

_MOMENT_NS = 200_000

_FIRST_BYTES = 1 << 20
"""What a thread may take at first: one arena of Python's allocator."""

_HEAP_BYTES = 64 << 20
"""The addresses that glibc wants for a thread's allocations, or has them one by one."""

_USUAL_STACK_BYTES = 8 << 20
"""The stack of a thread whose size nothing limits."""

_promised: dict[object, int] = {}
"""Bytes that others are to get, and no thread."""

SWITCH_INTERVAL_S = 0.001
"""How long a thread that computes keeps the interpreter from an event loop."""


async def offload(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call ``function`` on a thread and return what it returns.

    Cancelling waits for its end, as it may own something by then, unless the loop is
    about to end (`abandon_cancelled`); the outcome is dropped. What may hang in a file
    system is for `asyncnn.input_files.offload_abandonable`.

    :raises ResourceExhaustedTransientError: if no thread can be started.
    """
    return await _offload(lambda: function(*args, **kwargs), lambda: None)


async def offload_steps(steps: Steps[T], moment_ns: int = _MOMENT_NS) -> T:
    """Take cooperative steps on a thread; cancelling stops before the next one.

    What is done in a moment is done at once: to start a thread keeps a busy loop for
    longer, which a peer could bring about as often as it likes. Steps that may each
    take long have no moment: the first one alone is taken at once.

    :raises ResourceExhaustedTransientError: if no thread can be started.
    """
    stepwise = Stepwise(steps)
    until_ns = time.perf_counter_ns() + moment_ns
    if stepwise.advance(lambda: time.perf_counter_ns() >= until_ns):
        return stepwise.result
    stop = threading.Event()

    def must_stop() -> bool:
        make_way()
        return stop.is_set()

    def take() -> None:
        with long_work(stop.is_set):
            if not stepwise.advance(must_stop):
                stepwise.close()

    await _offload(take, stop.set)
    return stepwise.result


async def _offload(function: Callable[[], T], cancel: Callable[[], None]) -> T:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    call = _Call(function, ended)
    start_thread(threading.Thread(target=call.run, name="asyncnn-offload", daemon=True))
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        cancel()
        while not (ended.done() or ended.get_loop() in _ending):
            with suppress(asyncio.CancelledError):
                await asyncio.shield(ended)
        call.drop_error()
        raise
    return call.result()


_ending: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


def abandon_cancelled() -> None:
    """Have cancelled calls wait for no thread: this event loop is about to end."""
    _ending.add(asyncio.get_running_loop())


class SerialOffload:
    """Calls functions like `offload`, one at a time and in order."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def __call__(
        self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Call ``function`` on a thread once its turn has come; see `offload`.

        :raises ResourceExhaustedTransientError: if no thread can be started.
        """
        async with self._turn:
            return await offload(function, *args, **kwargs)


def call_on_thread(function: Callable[[], None]) -> threading.Thread | None:
    """Call a function that frees much on a thread of its own, which is returned.

    Nobody waits for it. Where no thread can be started, it is called here.
    """

    def call() -> None:
        with switching_at_least_every(SWITCH_INTERVAL_S), long_work():
            function()

    thread = threading.Thread(target=call, name="asyncnn-release", daemon=True)
    try:
        start_thread(thread)
    except ResourceExhaustedTransientError:
        function()
        return None
    return thread


def start_thread(thread: threading.Thread) -> None:
    """Start ``thread``.

    :raises ResourceExhaustedTransientError: if the system has no more.
    """
    try:
        require_room()
        thread.start()
    except (MemoryError, OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ResourceExhaustedTransientError(
            f"no thread can be started: {reason}",
            hint="the limit of processes (ulimit -u) or memory may be reached",
        ) from error


def require_room() -> None:
    """Check that there is memory for a thread to begin in. Takes no lock.

    One that has a stack and nothing else never says that it has begun, and Python waits
    for that for ever.

    :raises OSError: if there is too little.
    """
    stack_bytes = threading.stack_size()
    if not stack_bytes:
        stack_bytes, _ = resource.getrlimit(resource.RLIMIT_STACK)
        if stack_bytes == resource.RLIM_INFINITY:
            stack_bytes = _USUAL_STACK_BYTES
    _check_room(stack_bytes + _FIRST_BYTES + sum(tuple(_promised.values())))


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Leave ``size`` bytes of memory inside the block where threads are started.

    For native code that ends the process if it gets none. If the thread could not have
    a heap of its own any more, each of its allocations would take a page.

    :raises OSError: if there are not as many now.
    """
    promise = object()
    _promised[promise] = size
    limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    try:
        _check_room(size + _HEAP_BYTES * limited)
        yield
    finally:
        del _promised[promise]


def _check_room(size: int) -> None:
    mmap.mmap(-1, size, mmap.MAP_PRIVATE).close()


class _Call(Generic[T]):
    """One call, and what became of it."""

    def __init__(self, function: Callable[[], T], ended: asyncio.Future[None]) -> None:
        self._function = function
        self._ended = ended
        self._result: T | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, on the thread."""
        try:
            with switching_at_least_every(SWITCH_INTERVAL_S), long_work():
                self._result = self._function()
        except BaseException as error:
            self._error = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits
            self._ended.get_loop().call_soon_threadsafe(self._report)

    def _report(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def drop_error(self) -> None:
        """Forget an error that nobody takes: it refers to this, and to what it used."""
        self._error = None

    def result(self) -> T:
        """Return the result, or raise what the function has raised."""
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # it refers to this frame
        return cast("T", self._result)


class _SwitchInterval:
    """The interpreter's switch interval: the least of those that are held counts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[float] = []
        self._original_s: float | None = None

    @contextmanager
    def held(self, interval_s: float) -> Iterator[None]:
        """Hold an interval inside the block."""
        with self._lock:
            self._held.append(interval_s)
            self._apply()
        try:
            yield
        finally:
            with self._lock:
                if interval_s in self._held:  # not what a forked child has inherited
                    self._held.remove(interval_s)
                    self._apply()

    def renew(self) -> None:
        """Start over in a forked child: a thread of the parent may hold the lock."""
        self._lock = threading.Lock()
        self._held.clear()
        self._apply()

    def _apply(self) -> None:
        if self._original_s is None:
            self._original_s = sys.getswitchinterval()
        wanted_s = min([self._original_s, *self._held])
        if sys.getswitchinterval() != wanted_s:
            sys.setswitchinterval(wanted_s)
        if not self._held:
            self._original_s = None


_switch_interval = _SwitchInterval()
os.register_at_fork(after_in_child=_switch_interval.renew)


def switching_at_least_every(interval_s: float) -> AbstractContextManager[None]:
    """Have threads that compute give up the interpreter that often, inside the block.

    Of several such blocks in the process, the least interval counts.
    """
    return _switch_interval.held(interval_s)
