"""Counts of finished work, and the frozen records that are made of them.

`WorkAccounting` counts for a scheduler, a client or a model; each piece of work counts
in several of them when it ends. `WorkStatistics` is what users get. `LateCounts` keeps
what has ended elsewhere for the loop to count.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import msgspec

from asyncnn.hal.errors import MISSED
from asyncnn.hal.types import ErrorStatus

_BUCKETS = 26
_FIRST_BOUND_NS = 1024

BOUNDS_NS = tuple(_FIRST_BOUND_NS << exponent for exponent in range(_BUCKETS - 1))
"""Upper bounds of the latency buckets, exclusive: 1 us to 17 s, each twice the one
before. One more bucket holds what is longer.
"""


class LatencyHistogram(msgspec.Struct, frozen=True):
    """How long work took from submission to its end, by bucket of `BOUNDS_NS`."""

    counts: tuple[int, ...]
    total_ns: int

    @property
    def count(self) -> int:
        """Number of pieces of work."""
        return sum(self.counts)

    def quantile_ns(self, share: float) -> int:
        """Return a bound that ``share`` of the work did not exceed; 0 without work."""
        wanted = share * self.count
        below = 0
        for bound, count in zip(BOUNDS_NS, self.counts, strict=False):
            below += count
            if below >= wanted:
                return bound if below else 0
        return BOUNDS_NS[-1] * 2

    def since(self, earlier: "LatencyHistogram") -> "LatencyHistogram":
        """Return what has been added to an earlier record."""
        pairs = zip(self.counts, earlier.counts, strict=True)
        return LatencyHistogram(
            tuple(now - before for now, before in pairs),
            self.total_ns - earlier.total_ns,
        )


class WorkStatistics(msgspec.Struct, frozen=True):
    """The work of a device, a model or a client.

    ``queued`` has not begun; ``running`` has, even if it is suspended at the moment.
    ``done`` counts what ended, by status, refusals included. ``preemptions`` counts how
    often finished work made way for other work.
    """

    queued: int
    running: int
    done: dict[ErrorStatus, int]
    latency: LatencyHistogram
    preemptions: int

    @property
    def ended(self) -> int:
        """Number of pieces of work that ended, refusals included."""
        return sum(self.done.values())

    @property
    def deadline_misses(self) -> int:
        """Number of pieces of work that ended since their deadline passed."""
        return sum(self.done.get(status, 0) for status in MISSED)


def in_all(parts: Sequence[WorkStatistics]) -> WorkStatistics:
    """Return the work of several devices together."""
    done: Counter[ErrorStatus] = Counter()
    for part in parts:
        done.update(part.done)
    columns = zip(*(part.latency.counts for part in parts), strict=True)
    counts = tuple(map(sum, columns)) if parts else (0,) * _BUCKETS
    return WorkStatistics(
        queued=sum(part.queued for part in parts),
        running=sum(part.running for part in parts),
        done=dict(done),
        latency=LatencyHistogram(counts, sum(p.latency.total_ns for p in parts)),
        preemptions=sum(part.preemptions for part in parts),
    )


class WorkAccounting:
    """Counts pieces of work as they end. Belongs to one thread.

    Ends are counted by `count_end`, in several at once.
    """

    def __init__(self) -> None:
        # By status and bucket: one place to count up for each end.
        self._ended = [0] * (len(ErrorStatus) * _BUCKETS)
        self._refused = [0] * len(ErrorStatus)
        self._total_ns = 0
        self._preemptions = 0

    def count_refusal(self, status: ErrorStatus) -> None:
        """Count a piece of work that was not accepted: it has no latency."""
        self._refused[status] += 1

    def statistics(self, queued: int = 0, running: int = 0) -> WorkStatistics:
        """Return the counts, with the numbers of pieces that have not ended."""
        by_status = [
            self._ended[start : start + _BUCKETS]
            for start in range(0, len(self._ended), _BUCKETS)
        ]
        return WorkStatistics(
            queued=queued,
            running=running,
            done={s: sum(by_status[s]) + self._refused[s] for s in ErrorStatus},
            latency=LatencyHistogram(
                tuple(map(sum, zip(*by_status, strict=True))), self._total_ns
            ),
            preemptions=self._preemptions,
        )


def count_end(
    accountings: Iterable[WorkAccounting | None],
    latency_ns: int | None,
    status: ErrorStatus = ErrorStatus.NONE,
    preemptions: int = 0,
) -> None:
    """Count a piece of work that ended, in each of ``accountings`` that is not None.

    It has no latency if it was not accepted.
    """
    place = ((latency_ns or 0) // _FIRST_BOUND_NS).bit_length()
    if place >= _BUCKETS:
        place = _BUCKETS - 1
    if status:
        place += status * _BUCKETS
    for accounting in accountings:
        if accounting is None:
            continue
        if latency_ns is None:
            accounting.count_refusal(status)
            continue
        accounting._ended[place] += 1
        accounting._total_ns += latency_ns
        if preemptions:
            accounting._preemptions += preemptions


End: TypeAlias = tuple[tuple[WorkAccounting | None, ...], int | None, ErrorStatus, int]
"""What `count_end` takes."""

MOST_ENDED = 32
"""Ends on the loop that are counted together: one after the other takes longer."""

MOST_LATE = 256
"""Ends that may gather before the loop is woken for them."""


class LateCounts:
    """Ends of work that the event loop counts later, several at once.

    Counters belong to the loop, so that no execution pays for a lock around them. It
    settles for statistics, when it adds to ``ended`` and finds `MOST_ENDED`
    there, and when it was asked to by ``call``, which says whether the loop is open:
    by whoever adds one to many. Thread-safe, but for `settle`, which is the loop's.
    """

    def __init__(self, call: Callable[[Callable[[], None]], bool]) -> None:
        self._call = call
        self.ended: deque[End] = deque()
        self._lessons: deque[Callable[[], None]] = deque()
        self._is_due = False

    def add(self, end: End, lesson: Callable[[], None] | None = None) -> None:
        """Have ``end`` counted, then ``lesson`` called, by the next `settle`."""
        self.ended.append(end)
        if lesson is not None:
            self._lessons.append(lesson)
        if len(self.ended) > MOST_LATE and not self._is_due:
            self._is_due = True
            if not self._call(self.settle):
                self._is_due = False
                self.ended.clear()  # nobody asks for them
                self._lessons.clear()

    def settle(self) -> None:
        """Make all counts."""
        self._is_due = False
        while self.ended:
            count_end(*self.ended.popleft())
        while self._lessons:
            self._lessons.popleft()()
