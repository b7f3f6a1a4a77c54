"""What the page of ``asyncnn top --web`` shows: the last look, and the way there.

A `DriverWatch` looks at a driver again and again. When the driver is gone it says so,
goes on trying, and begins anew with the next driver at the same socket.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from asyncnn.cli.top_changes import Changes, LiveDevice, connected, look
from asyncnn.hal.errors import AsyncnnError

logger = logging.getLogger(__name__)

MAX_POINTS = 120

_MAX_PAUSE_S = 1.0
"""Between two attempts to connect."""


class Point(msgspec.Struct, frozen=True):
    """One look in the plots; all is None of a time at which there was no driver."""

    per_s: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    pending: int | None = None
    resident_bytes: int | None = None


class LiveReport(msgspec.Struct, frozen=True):
    """The document that the page fetches.

    ``looks`` counts up, so that the page can recognise a new one. ``gone_s`` is for how
    long there has been no driver, None while there is one, and ``reason`` says why;
    ``device`` is then the last that was seen. ``points`` are ``interval_s`` apart, the
    last one is the newest.
    """

    socket: str
    interval_s: float
    looks: int
    gone_s: float | None
    reason: str
    drivers: int
    device: LiveDevice | None
    points: Sequence[Point]


class DriverWatch:
    """Looks at the driver at ``path`` each ``interval`` seconds while it runs."""

    def __init__(self, path: Path, interval: float) -> None:
        self._path = path
        self._interval = interval
        self._looks = 0
        self._drivers = 0
        self._gone_since: float | None = time.monotonic()
        self._reason = "not connected yet"
        self._device: LiveDevice | None = None
        self._points: deque[Point] = deque(maxlen=MAX_POINTS)

    def report(self) -> LiveReport:
        """Return what there is to show at this moment."""
        since = self._gone_since
        return LiveReport(
            socket=str(self._path),
            interval_s=self._interval,
            looks=self._looks,
            gone_s=None if since is None else round(time.monotonic() - since, 1),
            reason=self._reason,
            drivers=self._drivers,
            device=self._device,
            points=list(self._points),
        )

    async def run(self) -> None:
        """Look until cancelled, whatever becomes of the driver."""
        while True:
            try:
                await self._follow()
            except (AsyncnnError, OSError) as error:  # such as no descriptor left
                self._lost(error)
            await asyncio.sleep(min(self._interval, _MAX_PAUSE_S))

    async def _follow(self) -> None:
        """Look at one driver until it is gone.

        :raises AsyncnnError: when that is.
        """
        changes = Changes()
        async with AsyncExitStack() as stack:
            device = await connected(stack, self._path)
            is_new = True
            while True:
                statistics = await look(device)
                changes.look(time.monotonic())
                self._seen(LiveDevice.of(statistics, changes))
                self._drivers += is_new
                is_new = False
                await asyncio.sleep(self._interval)

    def _seen(self, device: LiveDevice) -> None:
        self._looks += 1
        if self._gone_since is not None:
            # The time without a driver is as long in the plots as it was.
            gone_s = time.monotonic() - self._gone_since
            missed = (
                min(int(gone_s / self._interval), MAX_POINTS) if self._points else 0
            )
            self._points.extend([Point()] * missed)
        self._gone_since, self._reason, self._device = None, "", device
        work = device.executions
        self._points.append(
            Point(
                per_s=work.per_s,
                p50_us=None if work.per_s is None else work.p50_us,
                p99_us=None if work.per_s is None else work.p99_us,
                pending=work.queued + work.running,
                resident_bytes=device.resident_bytes,
            )
        )

    def _lost(self, error: AsyncnnError | OSError) -> None:
        if self._gone_since is None:
            self._looks += 1
            self._gone_since = time.monotonic()
            logger.warning("no driver at %s: %s", self._path, error)
        self._reason = str(error)
