"""Fences that stand for several others."""

from asyncnn.fences.fence import SyncFence
from asyncnn.fences.source import FenceSource
from asyncnn.hal.types import ErrorStatus


def merge(*fences: SyncFence) -> SyncFence:
    """Return a fence that is signalled once all of ``fences`` are.

    It fails as soon as the first of them does, with the same status and reason. While
    any is active the running loop watches over them; without any at all the result is
    signalled. The fences may be closed afterwards.

    :raises InvalidArgumentError: if one of them is closed.
    :raises RuntimeError: if one is active and no loop runs.
    """
    active = set()
    for fence in fences:
        status = fence.status
        if status is None:
            active.add(fence.duplicate())
        elif status is not ErrorStatus.NONE:
            return fence.duplicate()
    if not active:
        return fences[0].duplicate() if len(fences) == 1 else SyncFence.signalled()
    merged, source = SyncFence.pair()
    _Countdown(source, active)
    return merged


class _Countdown:
    """Waits for fences, whose callbacks keep it, and with it the source."""

    __slots__ = ("_active", "_source")

    def __init__(self, source: FenceSource, active: set[SyncFence]) -> None:
        self._source = source
        self._active = active
        for fence in list(active):
            fence.add_done_callback(self._done)

    def _done(self, fence: SyncFence) -> None:
        status = fence.status
        if status:
            self._source.fail(status, fence.reason)
            for other in self._active:
                other.remove_done_callback(self._done)
            self._active.clear()
            return
        self._active.remove(fence)
        if not self._active:
            self._source.signal()
