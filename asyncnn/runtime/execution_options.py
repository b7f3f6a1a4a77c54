"""What runs are given, and how many may be under way."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from asyncnn import hal
from asyncnn.deadlines import deadline_after, lateness, nanoseconds, seconds_until
from asyncnn.execution import Outputs
from asyncnn.hal.types import DEFAULT_OPTIONS, ExecutionOptions
from asyncnn.offload import offload
from asyncnn.runtime.buffers import SHORT_BYTES

Path: TypeAlias = Literal["async", "sync", "fenced"]
"""Which HAL call carries an execution."""

AnyPath: TypeAlias = Path | Literal["burst"]
"""All ways to execute; a burst is open for many executions."""


def check_path(path: str, *, bursts: bool = False) -> None:
    """Check that an execution can go that way; by burst, too, with ``bursts``.

    :raises InvalidArgumentError: if there is no such path.
    """
    known = (*get_args(Path), "burst") if bursts else get_args(Path)
    if path not in known:
        more = "; a burst is opened by prepared.burst()" if path == "burst" else ""
        raise hal.InvalidArgumentError(
            f"there is no path {path!r} here", hint=f"known: {', '.join(known)}{more}"
        )


def options_for(
    *,
    timeout: float | None = None,
    duration: float | None = None,
    loop_timeout: float | None = None,
    measure: bool = False,
) -> ExecutionOptions:
    """Return the HAL's options for a run that is given these, times in seconds.

    :raises InvalidArgumentError: if a time is not a number or infinite.
    """
    if not measure and timeout is duration is loop_timeout is None:
        return DEFAULT_OPTIONS
    return ExecutionOptions(
        hal.MeasureTiming.YES if measure else hal.MeasureTiming.NO,
        deadline_after(timeout),
        nanoseconds(loop_timeout),
        nanoseconds(duration),
    )


SYNC_EXEC_VARIABLE = "ASYNCNN_SYNCEXEC_HAL"
"""Stands for the property ``debug.nn.syncexec-hal``."""


def sync_exec_hal(setting: bool | None) -> bool | None:
    """Return which HAL call is forced: the synchronous one, that with a callback, none.

    Without a setting the environment decides: any number but 0 forces the synchronous
    call, 0 the other.

    Source: DeviceManager of the HAL's runtime (setSyncExecHal and the property).

    :raises InvalidArgumentError: if the variable is set to anything but a number.
    """
    if setting is not None:
        return setting
    text = os.environ.get(SYNC_EXEC_VARIABLE, "").strip()
    if not text:
        return None
    try:
        return int(text) != 0
    except ValueError:
        raise hal.InvalidArgumentError(
            f"{SYNC_EXEC_VARIABLE} is {text!r}",
            hint="1 forces synchronous execution, 0 execution with a callback",
        ) from None


class InFlight:
    """Bounds what is under way; the rest waits in the order of arrival.

    Does what `asyncio.Semaphore` does, for callers that nearly always find room: they
    take it themselves, ``room -= 1`` while that is positive, and `wait` otherwise. To
    give it back is ``room += 1`` while there are no ``waiters``, and `leave` otherwise.
    Belongs to one event loop.
    """

    __slots__ = ("room", "waiters")

    def __init__(self, maximum: int) -> None:
        self.room = maximum
        self.waiters: deque[asyncio.Future[None]] = deque()

    async def wait(self, deadline: int | None = None) -> None:
        """Wait for room, and take it.

        :raises MissedDeadlineTransientError: if there is none until the deadline.
        """
        asked_ns = time.monotonic_ns()
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await self._wait()
        except TimeoutError:
            late = lateness(deadline or 0, asked_ns)
            raise hal.MissedDeadlineTransientError(
                f"{late}; as many runs as max_in_flight were under way"
            ) from None

    async def _wait(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # it was given room, but cancelled before it ran
                self.leave()
            raise

    def leave(self) -> None:
        """Give room to the one that has waited for longest, if any does."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.room += 1


async def copies_of(views: Outputs, names: Iterable[str]) -> Outputs:
    """Return copies of outputs; ones of many bytes are made on a thread.

    :raises ResourceExhaustedError: if there is no memory for them.
    """
    names = tuple(names)
    if sum([views[name].nbytes for name in names]) > SHORT_BYTES:
        return await offload(copies_now, views, names)
    return copies_now(views, names)


def copies_now(views: Outputs, names: Iterable[str]) -> Outputs:
    """Return copies of these outputs, however many their elements.

    :raises ResourceExhaustedError: if there is no memory for them.
    """
    outputs = Outputs()
    try:
        for name in names:
            outputs[name] = views[name].copy()
    except MemoryError as error:
        raise hal.failure_of(error, "arrays for the outputs") from error
    outputs.timing, outputs.route = views.timing, views.route
    return outputs
