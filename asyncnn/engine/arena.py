"""Packs temporaries that never live at the same time into the same memory."""

import msgspec

ALIGNMENT_BYTES = 64
"""A cache line, and the widest vector load."""


class Lifespan(msgspec.Struct, frozen=True):
    """A block of memory needed from step ``first`` to step ``last``, both included."""

    key: int
    size_bytes: int
    first: int
    last: int

    def overlaps(self, other: "Lifespan") -> bool:
        """Tell whether both are needed at some step."""
        return self.first <= other.last and other.first <= self.last


class ArenaLayout(msgspec.Struct, frozen=True):
    """Offset of every block, and the bytes of the arena that holds them."""

    offsets: dict[int, int]
    size_bytes: int


def align(size: int) -> int:
    """Round ``size`` up to a multiple of `ALIGNMENT_BYTES`."""
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def lay_out(lifespans: list[Lifespan]) -> ArenaLayout:
    """Place blocks, largest first, each at the lowest offset that is free in its life.

    The greedy order is within a few per cent of the best for the chains that networks
    mostly are.
    """
    placed: list[tuple[int, int, Lifespan]] = []
    offsets: dict[int, int] = {}
    total = 0
    for block in sorted(lifespans, key=lambda b: (-b.size_bytes, b.first, b.key)):
        size = align(block.size_bytes)
        offset = 0
        for start, end, other in placed:
            if other.overlaps(block) and start < offset + size and offset < end:
                offset = end
        placed.append((offset, offset + size, block))
        placed.sort(key=lambda item: item[0])
        offsets[block.key] = offset
        total = max(total, offset + size)
    return ArenaLayout(offsets, total)
