"""Times of the device held against LiteRT's."""

import msgspec

LITERT = "litert"
"""LiteRT as it comes, which runs XNNPACK kernels."""

LITERT_REF = "litert_ref"
"""LiteRT with its reference kernels."""


class Goal(msgspec.Struct, frozen=True):
    """``limit`` is the largest ratio of the device's time to that of ``peer``."""

    peer: str
    limit: float


class Verdict(msgspec.Struct, frozen=True):
    """A goal and the ratio that was measured."""

    peer: str
    limit: float
    ratio: float
    met: bool

    @classmethod
    def of(cls, goal: Goal, ratio: float) -> "Verdict":
        """Hold ``ratio`` against ``goal``."""
        return cls(goal.peer, goal.limit, ratio, ratio <= goal.limit)
