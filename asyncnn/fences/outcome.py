"""How a fence ended, as everything in this folder passes it on."""

import time
from enum import Enum

import msgspec

from asyncnn.errors import AsyncnnError, error_for
from asyncnn.hal.types import ErrorStatus


class FenceState(Enum):
    """What can be seen of a fence; UNKNOWN is that of a closed one."""

    ACTIVE = "active"
    SIGNALLED = "signalled"
    ERROR = "error"
    UNKNOWN = "unknown"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The end of a fence; ``at_ns`` is of the steady clock, None if nobody noted it."""

    status: ErrorStatus
    reason: str
    at_ns: int | None

    @property
    def state(self) -> FenceState:
        """SIGNALLED or ERROR."""
        if self.status is ErrorStatus.NONE:
            return FenceState.SIGNALLED
        return FenceState.ERROR

    @property
    def error(self) -> AsyncnnError:
        """A new exception for an outcome that is not NONE."""
        return error_for(
            self.status, self.reason or f"fence failed: {self.status.name}"
        )


def outcome_now(status: ErrorStatus = ErrorStatus.NONE, reason: str = "") -> Outcome:
    """Return the outcome of a fence that ends at this moment."""
    return Outcome(status, reason, time.monotonic_ns())
