"""Who is told when a device becomes busy, and when it is no longer."""

import asyncio
from collections.abc import Callable

from asyncnn.hal.types import DeviceStatus

TOLD_AFTER_S = 0.02
"""How late a change is told: a queue that is about full changes with each execution."""


class StatusListeners:
    """Tells listeners the status of a device when it may have changed.

    ``status`` returns the present one. Belongs to the event loop.
    """

    def __init__(self, status: Callable[[], DeviceStatus]) -> None:
        self._status = status
        self._listeners: dict[object, Callable[[DeviceStatus], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, listener: Callable[[DeviceStatus], None]) -> Callable[[], None]:
        """Have ``listener`` called until the result is; the status may be as before."""
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def stir(self) -> None:
        """Look at the status soon: it may have changed."""
        if self._timer is None and self._listeners:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(TOLD_AFTER_S, self._tell)

    def close(self) -> None:
        """Tell nobody any more."""
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self._timer = None
        status = self._status()
        for listener in tuple(self._listeners.values()):
            listener(status)
