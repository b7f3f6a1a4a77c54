"""Packs temporaries that never live at the same time into the same memory."""

from bisect import insort
from collections import defaultdict

import msgspec

from asyncnn.pacing import Steps

ALIGNMENT_BYTES = 64
"""A cache line, and the widest vector load."""

_SPANS_PER_STEP = 1000
"""Spans that are looked at between two steps."""

_STEPS_TOGETHER = 16
"""Steps of a plan whose blocks are in one list: most live in one or two of these."""


class Lifespan(msgspec.Struct, frozen=True):
    """A block of memory needed from step ``first`` to step ``last``, both included."""

    key: int
    size_bytes: int
    first: int
    last: int


class ArenaLayout(msgspec.Struct, frozen=True):
    """Offset of every block, and the bytes of the arena that holds them."""

    offsets: dict[int, int]
    size_bytes: int


def align(size: int) -> int:
    """Round ``size`` up to a multiple of `ALIGNMENT_BYTES`."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def laying_out(lifespans: list[Lifespan]) -> Steps[ArenaLayout]:
    """Place blocks, largest first, each at the lowest offset that is free in its life.

    The greedy order is within a few per cent of the best for the chains that networks
    mostly are.
    """
    # Offset, end, first and last step of each.
    placed: defaultdict[int, list[tuple[int, int, int, int]]] = defaultdict(list)
    offsets: dict[int, int] = {}
    total = seen = 0
    for block in sorted(lifespans, key=lambda b: (-b.size_bytes, b.first, b.key)):
        size, first, last = align(block.size_bytes), block.first, block.last
        places = range(first // _STEPS_TOGETHER, last // _STEPS_TOGETHER + 1)
        taken: list[tuple[int, int, int, int]] = []
        for place in places:
            spans = placed[place]
            taken += [s for s in spans if s[2] <= last and s[3] >= first]
            seen += 1 + len(spans)
            if seen > _SPANS_PER_STEP:
                seen = 0
                yield
        taken.sort()  # lists that are sorted each, in little time
        offset = _lowest_gap(taken, size)
        for place in places:
            insort(placed[place], (offset, offset + size, first, last))
        offsets[block.key] = offset
        total = max(total, offset + size)
    return ArenaLayout(offsets, total)


def _lowest_gap(taken: list[tuple[int, int, int, int]], size: int) -> int:
    """Return the lowest offset at which ``size`` bytes miss all spans, sorted."""
    offset = 0
    for start, end, _, _ in taken:
        if start >= offset + size:
            break
        offset = max(offset, end)
    return offset
