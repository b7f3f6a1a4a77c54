"""Builds a flatbuffer out of tables, vectors and strings, each constant copied once.

As in every flatbuffer, offsets lead forward, so that what is referred to is made first
and lies behind what refers to it. Places are therefore counted from the end of the
file. Large vectors are kept as they are until all parts are joined. Tables, and vectors
of integers, are added many at once: a graph has hundreds of them.

Source: the FlatBuffers binary format ("FlatBuffers Internals").
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

import msgspec

from asyncnn.hal.operations.bound import Array

Place: TypeAlias = int
"""Bytes from the beginning of a part to the end of the file."""

Field: TypeAlias = tuple[int, str, int]
"""Number of a field in its table, its format, and its value.

The format is `struct`'s, or `REFERENCE`, whose value is a `Place`.
"""

REFERENCE = "@"

_ALIGNMENT = 16
OFFSET_BYTES = 4
_pack_count = struct.Struct("<I").pack


class TableLayout(msgspec.Struct, frozen=True, eq=False):
    """How a table with some fields lies in memory.

    ``slots`` are their numbers as they are packed, and ``order`` which of those given
    they are; ``references`` are the positions there of places, with their offsets in
    the table.
    """

    packer: struct.Struct
    alignment: int
    vtable: bytes
    order: tuple[int, ...]
    slots: tuple[int, ...]
    references: tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def layout_of(fields: tuple[tuple[int, str], ...]) -> TableLayout:
    """Lay fields out from the largest to the smallest, which aligns all of them.

    They are given by their numbers and formats; see `Field`.
    """

    def size(position: int) -> int:
        form = fields[position][1]
        return OFFSET_BYTES if form == REFERENCE else struct.calcsize(f"<{form}")

    order = sorted(range(len(fields)), key=size, reverse=True)
    offsets = [0] * (max((slot for slot, _ in fields), default=-1) + 1)
    alignment = max([OFFSET_BYTES, *map(size, order[:1])])
    references, forms, at = [], f"{alignment - OFFSET_BYTES}x", alignment
    for packed, position in enumerate(order):
        slot, form = fields[position]
        offsets[slot] = at
        if form == REFERENCE:
            references.append((packed, at))
        forms += "I" if form == REFERENCE else form
        at += size(position)
    padding = -at % alignment
    vtable_bytes = 2 * (2 + len(offsets))
    return TableLayout(
        struct.Struct(f"<i{forms}{padding}x"),
        alignment,
        struct.pack(f"<{2 + len(offsets)}H", vtable_bytes, at, *offsets),
        tuple(order),
        tuple([fields[position][0] for position in order]),
        tuple(references),
    )


class FlatFile:
    """Parts of a flatbuffer from its end to its beginning.

    What is behind it, from its places on, is so far from its end.
    """

    def __init__(self, distance: int = 0) -> None:
        self._parts: list[bytes | memoryview] = []
        self._size = distance

    def table(self, fields: Sequence[Field]) -> Place:
        """Add a table; fields that are left out have their default."""
        layout = layout_of(tuple([(slot, form) for slot, form, _ in fields]))
        return self.row(layout, [value for _, _, value in fields])

    def row(self, layout: TableLayout, values: Sequence[int]) -> Place:
        """Add a table of the values of fields, in its layout."""
        size, vtable = layout.packer.size, layout.vtable
        padding = -(self._size + size) % layout.alignment
        place = self._size + padding + size
        packed = [*map(values.__getitem__, layout.order)]
        for position, offset in layout.references:
            packed[position] = place - offset - packed[position]
        table = vtable + layout.packer.pack(len(vtable), *packed)
        self._parts += (bytes(padding), table)
        self._size = place + len(vtable)
        return place

    def tables(
        self, layouts: Sequence[TableLayout], columns: Mapping[int, Sequence[int]]
    ) -> list[Place]:
        """Add tables, each in its layout; ``columns`` are values by field, then table.

        Tables of one layout lie together, behind a vtable that they share.
        """
        numbers_of: defaultdict[TableLayout, list[int]] = defaultdict(list)
        for number, layout in enumerate(layouts):
            numbers_of[layout].append(number)
        places = [0] * len(layouts)
        for layout, numbers in numbers_of.items():
            own = {s: [*map(columns[s].__getitem__, numbers)] for s in layout.slots}
            added = self._together(layout, own, len(numbers))
            for number, place in zip(numbers, added, strict=True):
                places[number] = place
        return places

    def _together(
        self, layout: TableLayout, columns: Mapping[int, Sequence[int]], count: int
    ) -> range:
        """Add tables of one layout."""
        size, vtable = layout.packer.size, layout.vtable
        self._align(count * size, layout.alignment)
        places = range(self._size + count * size, self._size, -size)
        packed = [columns[slot] for slot in layout.slots]
        for position, offset in layout.references:
            packed[position] = [
                place - offset - target
                for place, target in zip(places, packed[position], strict=True)
            ]
        vtables = range(len(vtable), len(vtable) + count * size, size)
        self._put(vtable + b"".join(map(layout.packer.pack, vtables, *packed)))
        return places

    def blob(self, data: bytes, place: int) -> Place:
        """Add a table without references, built elsewhere.

        ``place`` is the table's in ``data``.
        """
        self._align(0, OFFSET_BYTES)
        place += self._size
        self._put(data)
        return place

    def numbers(self, values: Sequence[float], form: str = "i") -> Place:
        """Add a vector of numbers, whose format is `struct`'s."""
        count = len(values)
        return self.vector(struct.pack(f"<{count}{form}", *values), count)

    def integers(self, vectors: Iterable[Sequence[int]]) -> list[Place]:
        """Add vectors of int32."""
        words: list[int] = []
        starts: list[int] = []
        for each in vectors:
            starts.append(len(words))
            words += (len(each), *each)
        padding = -self._size % OFFSET_BYTES
        self._parts += (bytes(padding), struct.pack(f"<{len(words)}i", *words))
        self._size += padding + OFFSET_BYTES * len(words)
        return [self._size - OFFSET_BYTES * start for start in starts]

    def vector(
        self, elements: bytes | memoryview, count: int, alignment: int = 0
    ) -> Place:
        """Add a vector of ``count`` elements, by their bytes.

        It begins at a multiple of ``alignment``, or of an element's size.
        """
        size = len(elements)
        alignment = alignment or size // (count or 1)
        padding = -(self._size + size) % max(alignment, OFFSET_BYTES)
        self._parts += (bytes(padding), elements, _pack_count(count))
        self._size += padding + size + OFFSET_BYTES
        return self._size

    def data(self, array: Array) -> Place:
        """Add a vector of bytes that begins at a multiple of 16.

        ``array`` has one axis of uint8, and is read when the file is joined.
        """
        return self.vector(array.data, array.size, _ALIGNMENT)

    def references(self, places: Sequence[Place]) -> Place:
        """Add a vector of references."""
        count = len(places)
        self._align(count * OFFSET_BYTES, OFFSET_BYTES)
        ends = range(self._size + OFFSET_BYTES * count, self._size, -OFFSET_BYTES)
        offsets = [end - place for end, place in zip(ends, places, strict=True)]
        return self.numbers(offsets, "I")

    def string(self, text: str) -> Place:
        """Add a string."""
        data = text.encode()
        return self.vector(data + b"\0", len(data), OFFSET_BYTES)

    def joined(self, root: Place, identifier: bytes) -> bytes:
        """Return the file, whose root is the table at ``root``.

        Its size is a multiple of 16. A place is as many bytes before its end.
        """
        header = OFFSET_BYTES + len(identifier)
        self._align(header, _ALIGNMENT)
        self._put(identifier)
        place = self._size + OFFSET_BYTES
        self._put(struct.pack("<I", place - root))
        return b"".join(reversed(self._parts))

    def _align(self, size: int, alignment: int) -> None:
        """Have the next ``size`` bytes begin at a multiple of ``alignment``."""
        padding = -(self._size + size) % alignment
        self._parts.append(bytes(padding))
        self._size += padding

    def _put(self, part: bytes | memoryview) -> None:
        self._parts.append(part)
        self._size += len(part)
