"""What work did between two looks at a driver."""

from collections.abc import Hashable

import msgspec

from asyncnn.qos import LatencyHistogram, WorkStatistics


class Recent(msgspec.Struct, frozen=True):
    """Some work, and what of it ended lately: since the look before, or ever.

    ``per_s`` is None at the first look, as nobody knows how long that was.
    """

    work: WorkStatistics
    ended: int
    per_s: float | None
    latency: LatencyHistogram


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
