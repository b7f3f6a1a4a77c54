"""When the CPU computes instead of another device, and which devices are left out.

An error that the CPU would give too is no reason: an argument that breaks a rule, an
output that is too small. What else a device may fail with is: it refuses, dies, or
misses a deadline. A late result is better than none, so the CPU goes by a deadline only
while that lies ahead.

A device that keeps failing for one cause is left out for a while: nothing is sent to
it. Then one execution tries it again; if that fails, the next pause is twice as long.
All who share the device feel that, so only what it did wrong counts: not a request that
is wrong or one too many, nor a deadline that was too short for it.

Source: the HAL's runtime (ExecutionBuilder: which errors are recoverable), which has no
pauses.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable

from asyncnn.devices.statistics import FallbackCount
from asyncnn.hal.errors import MISSED, AsyncnnError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import DeviceType, ErrorStatus
from asyncnn.runtime.framework import FrameworkSettings

logger = logging.getLogger(__name__)

Clock = Callable[[], float]
"""Seconds of a steady clock."""

FINAL = frozenset(
    {
        ErrorStatus.NONE,
        ErrorStatus.INVALID_ARGUMENT,
        ErrorStatus.OUTPUT_INSUFFICIENT_SIZE,
    }
)
"""What the CPU would end with, too."""

_OF_REQUESTS = FINAL | {
    ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
    ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT,
}
"""What requests are the cause of: they are wrong, too large or too many."""

AMPLE = 10
"""How many times as long as needed a device has that misses a deadline by its fault.

Needed is what it took for the latest request, and what the CPU then takes for the same:
one request may be a thousand times the work of the one before.
"""

LEAST_AMPLE_NS = 100_000_000
"""Nanoseconds that it has at least: less is lost by the way, or to other requests."""

_MOST_LOGGED = 256
"""Reasons of one device that the log distinguishes."""


class Health:
    """How a device has done lately, and whether it is left out.

    It belongs to the event loop. ``has_failed`` is False as long as all is well, which
    is all that executions look at then.
    """

    def __init__(self, settings: FrameworkSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._in_a_row: Counter[ErrorStatus] = Counter()
        self._pauses = 0
        self._until = 0.0
        self._is_tried = False
        self.has_failed = False

    def allows(self) -> bool:
        """Return whether the device may be tried now.

        After a pause one caller may, and the others not before that was notified how it
        went, or another pause has passed.
        """
        if not self._pauses:
            return True
        now = self._clock()
        if now < self._until:
            return False
        self._until = now + self._pause_s()
        self._is_tried = True
        return True

    def succeeded(self) -> None:
        """Note that an execution went well."""
        self._in_a_row.clear()
        self._pauses = 0
        self.has_failed = self._is_tried = False

    def learnt_nothing(self) -> None:
        """Note that an execution shows neither: after a pause another one may try."""
        if self._is_tried:
            self._is_tried = False
            self._until = self._clock()

    def failed(self, cause: ErrorStatus) -> bool:
        """Note a failure; return whether it has the device left out from now on."""
        self.has_failed = True
        if self.left_out_s and not self._is_tried:
            return False  # it was begun before, as others that have failed since
        self._is_tried = False
        self._in_a_row[cause] += 1
        has_died = cause is ErrorStatus.DEVICE_UNAVAILABLE
        most = self._settings.failures_to_leave_out
        if not has_died and not self._pauses and self._in_a_row[cause] < most:
            return False
        self._pauses += 1
        self._until = self._clock() + self._pause_s()
        return True

    @property
    def left_out_s(self) -> float:
        """Seconds for which the device is left out from now; 0 if it is not."""
        return max(0.0, self._until - self._clock()) if self._pauses else 0.0

    def _pause_s(self) -> float:
        longest = self._settings.longest_pause_s
        doublings = min(max(self._pauses - 1, 0), 60)
        return min(longest, self._settings.pause_s * 2.0**doublings)


class Member:
    """A device of a framework: its name, the device, and how it does.

    ``kind`` is the name of all of its kind, whichever process they are in.
    The one that ``is_cpu`` is the last resort. What ``is_remote`` runs in another
    process, which, if it ``copies``, does not see slabs of memory where they are. One
    that does not ``tell_shapes`` is a driver of before HAL 1.2.
    """

    def __init__(
        self,
        name: str,
        hal: IDevice,
        settings: FrameworkSettings,
        *,
        is_cpu: bool = False,
        is_remote: bool = False,
        copies: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        # The process of a driver has no part in what its device can compute.
        published = getattr(hal, "published", "") if is_remote else ""
        self.name = name
        self.kind = f"remote:{published}" if published else name
        self.hal = hal
        self.is_cpu = is_cpu
        self.is_remote = is_remote
        self.copies = copies
        self.tells_shapes = getattr(hal, "tells_shapes", True)
        self.health = Health(settings, clock)
        self._fallbacks: Counter[ErrorStatus] = Counter()
        self._logged: set[str] = set()

    @property
    def has_own_memory(self) -> bool:
        """Whether the device cannot work on memory of this process where it is."""
        return self.copies or self.hal.get_type()[1] is not DeviceType.CPU

    def fell_back(
        self, status: ErrorStatus, reason: str, *, had_time: bool = False
    ) -> None:
        """Count that the CPU computed instead, and whether that was the device's fault.

        A missed deadline is, if the device ``had_time``; see `had_ample_time`.
        """
        self.passed_over(status, reason)
        self.failed(status, had_time=had_time)

    def failed(self, status: ErrorStatus, *, had_time: bool = False) -> None:
        """Count a failure against the device, if it was its fault; see `fell_back`."""
        if status in _OF_REQUESTS or (status in MISSED and not had_time):
            self.health.learnt_nothing()
        elif self.health.failed(status):
            pause = self.health.left_out_s
            logger.info("device %s is left out for %.1f s", self.name, pause)

    def passed_over(self, status: ErrorStatus, reason: str) -> None:
        """Count that the CPU computed instead, and log it, once for each reason."""
        self._fallbacks[status] += 1
        if reason not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add(reason)
            logger.warning("the CPU computes instead of %s: %s", self.name, reason)

    def fallbacks(self) -> tuple[FallbackCount, ...]:
        """Return how often the CPU computed instead, by status."""
        return tuple(
            FallbackCount(self.name, status, count)
            for status, count in sorted(self._fallbacks.items())
        )

    def __repr__(self) -> str:
        return f"<Member {self.name}>"


def had_ample_time(given_ns: int, *needed_ns: int) -> bool:
    """Return whether a deadline was missed by the fault of the device."""
    return given_ns >= max(LEAST_AMPLE_NS, AMPLE * max(needed_ns))


def reason_of(status: ErrorStatus, words: str) -> str:
    """Return why a device has failed, in words and with the HAL's status."""
    return status.name if words in ("", status.name) else f"{status.name}: {words}"


def reason_of_error(error: AsyncnnError) -> str:
    """Return why a device has failed."""
    return reason_of(error.status, error.message)
