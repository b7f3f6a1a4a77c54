"""Where a run by LiteRT can stop: barriers and segments, by estimated times.

A run ends at the next *barrier* when it is interrupted, for a cancellation, a deadline
or a pause; what it has computed is lost. Behind a *segment* its results are kept, so
that a pause costs at most one segment.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

BARRIER_NS, MOST_BARRIER_NS = 150_000, 300_000
"""Estimated time between two barriers, at most; which of both, operations decide."""

SEGMENT_NS = 3_000_000
"""Estimated time of a segment.

Each has activations of its own, so that many of them cost cache misses.
"""

MOST_STEPS = 1_000
"""Steps of a segment.

LiteRT reads a graph in a time that grows with the square of its operators, and cannot
be stopped meanwhile: a preparation that is given up waits for its end.
"""

SLACK = 0.3
"""Share of a part by which a cut moves to where the fewest tensors cross."""

WORTH_CUTTING = 1.5
"""Times that something takes longer than a part may, to be divided at all."""


class Timed(Protocol):
    """A step, or an operator of a file."""

    @property
    def cost_ns(self) -> int:
        """About what it takes."""

    @property
    def inputs(self) -> Sequence[int]:
        """What it reads, by number."""

    @property
    def outputs(self) -> Sequence[int]:
        """What it makes."""


def barriers(steps: Sequence[Timed]) -> list[int]:
    """Return where barriers divide the steps of a segment; see `cuts`.

    What is interrupted goes on for as long as the longest operation, at worst, whatever
    the other parts are. So these may be as long, up to `MOST_BARRIER_NS`.
    """
    longest_ns = max([step.cost_ns for step in steps])
    return cuts(steps, min(max(longest_ns, BARRIER_NS), MOST_BARRIER_NS))


def is_short(costs: Sequence[int], part_ns: float = BARRIER_NS) -> bool:
    """Return whether steps of such times have no `cuts`, or `barriers`."""
    return sum(costs) < WORTH_CUTTING * part_ns and len(costs) <= MOST_STEPS


def cuts(steps: Sequence[Timed], part_ns: float) -> list[int]:
    """Return where to divide ``steps`` into parts of ``part_ns`` nanoseconds at most.

    No part has more than `MOST_STEPS`, and an operation that takes longer is one by
    itself. Each number is the first step behind a cut. Cuts are moved back a
    little to where the fewest tensors cross.
    """
    ends = [0, *accumulate([step.cost_ns for step in steps])]
    if ends[-1] < WORTH_CUTTING * part_ns and len(steps) <= MOST_STEPS:
        return []
    crossing = _crossing(steps)
    chosen = [0]
    while True:
        start, began_ns = chosen[-1], ends[chosen[-1]]
        # At least one step, and as many as end in time.
        furthest = max(bisect_right(ends, began_ns + part_ns) - 1, start + 1)
        furthest = min(furthest, start + MOST_STEPS)
        if furthest >= len(steps):
            return chosen[1:]
        length_ns = min(part_ns, ends[furthest] - began_ns)
        earliest_ns = began_ns + (1 - SLACK) * length_ns
        earliest = min(max(bisect_left(ends, earliest_ns), start + 1), furthest)
        candidates = range(earliest, furthest + 1)
        chosen.append(min(candidates, key=lambda at: (crossing[at], -at)))


def _crossing(steps: Sequence[Timed]) -> list[int]:
    """Return, for each boundary, how many tensors made before are read behind it."""
    last = last_reads(steps)
    changes = [0] * (len(steps) + 1)
    for at, step in enumerate(steps):
        for index in step.outputs:
            if last.get(index, at) > at:
                changes[at + 1] += 1
                changes[last[index] + 1] -= 1
    crossing = [0]
    for change in changes[1:]:
        crossing.append(crossing[-1] + change)
    return crossing


def last_reads(steps: Sequence[Timed]) -> dict[int, int]:
    """Return which step is the last to read each tensor that any does."""
    return {index: at for at, step in enumerate(steps) for index in step.inputs}
