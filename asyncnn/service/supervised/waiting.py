"""Calls that are held back while there is no driver."""

import asyncio
import time
from collections.abc import Callable

from asyncnn.callbacks import CallbackObject
from asyncnn.hal.types import ErrorStatus

Launch = Callable[[], object]
Fail = Callable[[ErrorStatus], None]

NO_DRIVER = "there is no driver at the moment (DEAD_OBJECT)"


class _Held:
    """A call, how to launch it, and how to notify its callback otherwise."""

    __slots__ = ("callback", "fail", "launch", "timer")

    def __init__(self, callback: CallbackObject, launch: Launch, fail: Fail) -> None:
        self.callback = callback
        self.launch = launch
        self.fail = fail
        self.timer: asyncio.TimerHandle | None = None


class Waiting:
    """Holds calls for at most ``patience`` seconds, in the order of their arrival.

    Each is either launched, or its callback is told of the failure, exactly once.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._held: dict[_Held, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def hold(
        self,
        callback: CallbackObject,
        deadline: int | None,
        launch: Launch,
        fail: Fail,
    ) -> ErrorStatus:
        """Keep a call until it is released, or fail it now if there is no patience."""
        held = _Held(callback, launch, fail)
        self._held[held] = None
        if self._patience <= 0:
            self._end(held, ErrorStatus.DEVICE_UNAVAILABLE, NO_DRIVER)
            return ErrorStatus.DEVICE_UNAVAILABLE
        delay, outcome = self._patience, ErrorStatus.DEVICE_UNAVAILABLE
        if deadline is not None:
            until_deadline = (deadline - time.monotonic_ns()) / 1e9
            if until_deadline < delay:
                delay = max(0.0, until_deadline)
                outcome = ErrorStatus.MISSED_DEADLINE_TRANSIENT
        loop = asyncio.get_running_loop()
        held.timer = loop.call_later(delay, self._end, held, outcome, NO_DRIVER)
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

    def fail(self, status: ErrorStatus, reason: str) -> None:
        """Tell the callback of every call that is held."""
        for held in list(self._held):
            self._end(held, status, reason)

    def _end(self, held: _Held, status: ErrorStatus, reason: str) -> None:
        if self._take(held):
            held.callback.reason = reason
            held.fail(status)

    def _take(self, held: _Held) -> bool:
        """Tell whether ``held`` is still held, and do not hold it any more."""
        if held not in self._held:
            return False
        del self._held[held]
        if held.timer is not None:
            held.timer.cancel()
        held.callback.unlink_to_death()
        return True
