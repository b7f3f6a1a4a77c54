"""The owner's end of a fence."""

import time

from asyncnn.fences.core import Core
from asyncnn.fences.local import LocalCore
from asyncnn.fences.outcome import Outcome
from asyncnn.fences.pipe import OWNER_IS_GONE, WriteEnd
from asyncnn.hal.types import ErrorStatus


class FenceSource:
    """The one thing that can signal a fence; made with it by `SyncFence.pair`.

    It may be used from any thread. Whoever is first decides: later calls change
    nothing. A source that is collected unused fails its fence with DEVICE_UNAVAILABLE.
    """

    __slots__ = ("__weakref__", "_core")

    def __init__(self, core: Core) -> None:
        self._core = core

    @classmethod
    def adopt(cls, fd: int) -> "FenceSource":
        """Become the owner of a fence of another process, that handed over ``fd``.

        The descriptor, the write end of the fence's pipe, is duplicated.

        :raises InvalidArgumentError: if ``fd`` is no pipe that can be written.
        """
        return cls(LocalCore(write_end=WriteEnd.received(fd)))

    @property
    def is_done(self) -> bool:
        """Whether the fence was signalled or failed."""
        return self._core.outcome is not None

    def signal(self, *, at_ns: int | None = None) -> bool:
        """Signal the fence; False if it was done before.

        ``at_ns`` is when that happened on the steady clock, if it was not just now.
        """
        if at_ns is None:
            at_ns = time.monotonic_ns()
        return self._core.resolve(Outcome(ErrorStatus.NONE, "", at_ns))

    def fail(
        self, status: ErrorStatus, reason: str = "", *, at_ns: int | None = None
    ) -> bool:
        """Put the fence into the error state, likewise.

        :raises ValueError: if ``status`` is NONE.
        """
        if status is ErrorStatus.NONE:
            raise ValueError("a fence does not fail with NONE; signal it")
        if at_ns is None:
            at_ns = time.monotonic_ns()
        return self._core.resolve(Outcome(status, reason, at_ns))

    def __del__(self) -> None:
        if self._core.outcome is None:
            self.fail(ErrorStatus.DEVICE_UNAVAILABLE, OWNER_IS_GONE)

    def __repr__(self) -> str:
        return f"<FenceSource {'done' if self.is_done else 'pending'}>"
