"""How a lost driver is replaced: settings, pauses, and the calls that wait for it."""

import asyncio
import math
import time
from collections.abc import Callable
from functools import partial

import msgspec

from asyncnn.callbacks import CallbackObject
from asyncnn.deadlines import format_duration, lateness
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    check_least,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.service.client.remote_device import RemoteDevice
from asyncnn.service.client.unanswered import Cause, forked
from asyncnn.service.limits import RecordingSettings

SETTLED_S = 2.0
"""A driver that lived that long was not part of the trouble before it."""


class Supervision(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a supervised connection; all in seconds.

    :param wait: how long calls that are made while there is no driver wait for the
        next one; 0 makes them fail at once.
    :param first_delay: pause before the first attempt to reconnect; it doubles with
        every further one.
    :param max_delay: the longest pause.
    :param give_up_after: how long there may be no driver, or only drivers that die
        soon, until every call fails for good.
    :param hang_after: how long a driver may answer nobody while a call waits for it,
        until it counts as lost; infinity waits for ever.
    :param record_to: file that the last calls of a driver that is lost are written to.
    :param recording: what a driver of one's own keeps of its calls; None is the usual
        if there is such a file, and else nothing.
    :raises InvalidArgumentError: if one is no number or negative, or ``hang_after`` 0.
    """

    wait: float = 10.0
    first_delay: float = 0.02
    max_delay: float = 1.0
    give_up_after: float = 60.0
    hang_after: float = 10.0
    record_to: str = ""
    recording: RecordingSettings | None = None

    def __post_init__(self) -> None:
        check_least(
            self, 0, "wait", "first_delay", "max_delay", "give_up_after", "hang_after"
        )
        if not self.hang_after > 0:
            raise InvalidArgumentError(
                f"hang_after is {self.hang_after} s",
                hint="it is positive; math.inf waits",
            )


_LOOKS = 4
"""How often a driver is asked within `Supervision.hang_after`, all but once in vain.

A stop of this process, or a loop that is busy with other things, makes none vain.
"""


async def watch_for_hanging(remote: RemoteDevice, hang_after_s: float) -> None:
    """Give a driver up that answers nobody while a call waits for it."""
    if math.isinf(hang_after_s):
        return
    loop, pause_s, in_vain = asyncio.get_running_loop(), hang_after_s / _LOOKS, 0
    while in_vain < _LOOKS - 1:
        asked_s = loop.time()
        answers = not remote.is_awaited or await remote.answers(pause_s)
        in_vain = 0 if answers else in_vain + 1
        await asyncio.sleep(asked_s + pause_s - loop.time())
    remote.give_up(
        f"has answered nobody for {format_duration(pause_s * in_vain * 1e6)}; it hangs "
        "or is stopped"
    )


class Backoff:
    """Decides when to try again. Time is the caller's, in seconds."""

    def __init__(self, supervision: Supervision) -> None:
        self._supervision = supervision
        self._trouble_since: float | None = None
        self._delay = supervision.first_delay

    def lost(self, now: float, lived: float) -> float | None:
        """Return the pause before the next attempt, or None to give up.

        :param lived: how long the driver that is lost was there; 0 if it never was.
        """
        if self._trouble_since is None or lived >= SETTLED_S:
            self._trouble_since = now
            self._delay = self._supervision.first_delay
        if now - self._trouble_since >= self._supervision.give_up_after:
            return None
        delay = self._delay
        self._delay = min(2 * delay, self._supervision.max_delay)
        return delay


class Life:
    """What a supervised device and its prepared models know of their drivers.

    ``loss`` is why the last one was lost, ``end`` why there is going to be no other.

    A caller that asks for the cause of death was just refused, maybe by a driver that
    has a successor by now: the last loss is the cause until the device ends.
    """

    def __init__(self) -> None:
        self.end: Cause | None = None
        self.loss: Cause | None = None
        disown_in_children(self)

    def check(self) -> None:
        """Check that there may be another driver.

        :raises DeviceUnavailableError: if not.
        """
        if self.end is not None:
            raise self.end()

    def cause_of_death(
        self, remote: RemoteDevice | None
    ) -> DeviceUnavailableError | None:
        """Return a new error that says what was lost; None while nothing was.

        ``remote``, which has refused a call, may be lost and nobody has noticed.
        """
        if self.end is None and remote is not None and remote.is_lost:
            return remote.cause_of_death()
        cause = self.end or self.loss
        return None if cause is None else cause()

    def disown(self) -> None:
        """Give up hope in a forked child, which has no driver."""
        self.end = forked


Launch = Callable[[], object]
Fail = Callable[[ErrorStatus], None]

NO_DRIVER = "there is no driver at the moment (DEAD_OBJECT)"


class _Held(msgspec.Struct, eq=False):
    """A call, how to launch it, and how to notify its callback otherwise."""

    callback: CallbackObject
    launch: Launch
    fail: Fail
    timer: asyncio.TimerHandle | None = None


class Waiting:
    """Holds calls for at most ``wait_s`` seconds, in the order of their arrival.

    Each is either launched, or its callback is notified of the failure, exactly once.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._held: dict[_Held, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(
        self, callback: CallbackObject, deadline: int | None, launch: Launch, fail: Fail
    ) -> ErrorStatus:
        """Keep a call until it is released, or fail it at once if calls do not wait."""
        held = _Held(callback, launch, fail)
        self._held[held] = None
        if self._wait_s <= 0:
            self._end(held, ErrorStatus.DEVICE_UNAVAILABLE, NO_DRIVER)
            return ErrorStatus.DEVICE_UNAVAILABLE
        delay = self._wait_s
        end = partial(self._end, held, ErrorStatus.DEVICE_UNAVAILABLE, NO_DRIVER)
        if deadline is not None:
            asked_ns = time.monotonic_ns()
            until_deadline = (deadline - asked_ns) / 1e9
            if until_deadline < delay:
                delay = max(0.0, until_deadline)
                end = partial(self._expire, held, deadline, asked_ns)
        held.timer = asyncio.get_running_loop().call_later(delay, end)
        callback.link_to_death(
            lambda: self._end(
                held, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, "the call was cancelled"
            )
        )
        return ErrorStatus.NONE

    def release(self) -> None:
        """Launch every call that is held."""
        for held in list(self._held):
            if self._take(held):
                held.launch()

    def fail(self, error: AsyncnnError) -> None:
        """Notify the callback of every call that is held."""
        for held in list(self._held):
            self._end(held, error.status, str(error))

    def _end(self, held: _Held, status: ErrorStatus, reason: str) -> None:
        if self._take(held):
            held.callback.reason = reason
            held.fail(status)

    def _expire(self, held: _Held, deadline: int, asked_ns: int) -> None:
        words = f"{lateness(deadline, asked_ns)}; {NO_DRIVER}"
        self._end(held, ErrorStatus.MISSED_DEADLINE_TRANSIENT, words)

    def _take(self, held: _Held) -> bool:
        # The first of release, timer, cancellation and end has it, and no other.
        if held not in self._held:
            return False
        del self._held[held]
        if held.timer is not None:
            held.timer.cancel()
        held.callback.unlink_to_death()
        return True
