"""Snapshots of a running driver for ``asyncnn top``, and what changed between two."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import msgspec

from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import LatencyHistogram, WorkStatistics
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect

ANSWER_TIMEOUT_S = 5.0

T = TypeVar("T")
Row = TypeVar("Row", ClientStatistics, ModelStatistics)


class Recent(msgspec.Struct, frozen=True):
    """Some work, and what of it ended lately: since the look before, or ever.

    ``per_s`` is None at the first look, as nobody knows how long that was.
    """

    work: WorkStatistics
    ended: int
    per_s: float | None
    latency: LatencyHistogram

    @property
    def succeeded(self) -> int:
        """Number of pieces of work that ended with NONE, ever."""
        return self.work.done.get(ErrorStatus.NONE, 0)

    @property
    def failed(self) -> int:
        """Number of pieces of work that ended with another status, ever."""
        return self.work.ended - self.succeeded

    @property
    def failures(self) -> dict[str, int]:
        """The failed ones by the name of their status."""
        return {
            status.name: count
            for status, count in self.work.done.items()
            if count and status is not ErrorStatus.NONE
        }


class Changes:
    """Compares each look with the one before.

    A look begins with `look`; then `of` is asked once for everything that is seen.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, WorkStatistics] = {}
        self._now: dict[Hashable, WorkStatistics] = {}
        self._looked_at: float | None = None
        self._elapsed_s: float | None = None

    def look(self, now_s: float) -> None:
        """Begin the look of time ``now_s``."""
        self._before, self._now = self._now, {}
        if self._looked_at is not None:
            self._elapsed_s = now_s - self._looked_at
        self._looked_at = now_s

    def of(self, key: Hashable, work: WorkStatistics) -> Recent:
        """Return what became of ``work``, which has the name ``key`` in every look."""
        self._now[key] = work
        before = self._before.get(key)
        ended = work.ended - (before.ended if before else 0)
        latency = work.latency.since(before.latency) if before else work.latency
        per_s = ended / self._elapsed_s if self._elapsed_s else None
        return Recent(work, ended, per_s, latency)

    def of_all(self, what: str, rows: Sequence[Row]) -> list[tuple[Recent, Row]]:
        """Return what became of the executions of clients, or of models."""
        return [(self.of((what, each.number), each.executions), each) for each in rows]


def busiest(rows: Iterable[T], recent_of: Callable[[T], Recent]) -> list[T]:
    """Return rows in order: those first of which most ended lately, then ever."""

    def least(row: T) -> tuple[int, int]:
        recent = recent_of(row)
        return -recent.ended, -recent.work.ended

    return sorted(rows, key=least)


async def connected(stack: AsyncExitStack, path: Path) -> Device:
    """Connect to the driver at ``path`` until the stack is closed.

    :raises AsyncnnError: if there is none, or it does not answer in time.
    """
    return await _in_time(stack.enter_async_context(connect(path)))


async def look(device: Device) -> DeviceStatistics:
    """Return the statistics of a driver.

    :raises AsyncnnError: if it has died, or does not answer in time.
    """
    return await _in_time(device.statistics())


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await answer
    except TimeoutError:
        raise DeviceUnavailableError("the driver does not answer") from None


async def statistics_of(path: Path) -> DeviceStatistics:
    """Return the statistics of the driver at ``path``.

    :raises AsyncnnError: if there is none, or it does not answer in time.
    """
    async with AsyncExitStack() as stack:
        return await look(await connected(stack, path))
