"""Reads tables and vectors of a flatbuffer, several fields in one call.

The generated accessors look a field up in the vtable each time, which takes most of the
time to load a model. Here one look gives the places of all fields of a table. Nothing
is trusted: what lies beyond the buffer raises `struct.error` or `ValueError`, and the
caller bounds how much is read of vectors, which may overlap.

Source: the FlatBuffers internals document (tables, vtables, vectors and offsets).
"""

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

Places = tuple[int, ...]
"""Where the fields of a table lie, 0 for one that is left out."""

REFERENCE = "@"

_I32, _U32, _U16 = struct.Struct("<i"), struct.Struct("<I"), struct.Struct("<H")
_VTABLE_HEADER = 4
_MOST_FIELDS = 64
"""Of a table of options; the longest has half as many."""

_SHORT = 16
"""Elements of vectors whose formats are compiled beforehand."""

_OFFSETS = [struct.Struct(f"<{n}H").unpack_from for n in range(_MOST_FIELDS + 1)]
INT32, _FLOAT32 = np.dtype("<i4"), np.dtype("<f4")
_CODES = {INT32: "i", np.dtype("<i8"): "q", _FLOAT32: "f"}
_VECTORS = {
    dtype: [struct.Struct(f"<{count}{code}").unpack_from for count in range(_SHORT + 1)]
    for dtype, code in _CODES.items()
}

int8, uint8, uint32, uint64 = (struct.Struct(f"<{code}").unpack_from for code in "bBIQ")
int32 = _I32.unpack_from
sizes = struct.Struct("<2H").unpack_from
"""Bytes of a vtable, and of its tables."""


def places(data: memoryview, table: int, count: int) -> Places:
    """Return where the first ``count`` fields of a table lie.

    :raises ValueError: if its vtable lies before the buffer, or is of no such size.
    :raises struct.error: if the table or its vtable lies beyond the buffer.
    """
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise ValueError("a vtable lies before the file")
    size = _U16.unpack_from(data, vtable)[0]
    # Of an odd one, readers in C++ see a field more than is looked at here.
    if size % 2 or size < _VTABLE_HEADER:
        raise ValueError(f"a vtable of {size} bytes")
    known = min((size - _VTABLE_HEADER) // 2, count)
    if known <= 0:
        return (0,) * count
    offsets = _OFFSETS[known](data, vtable + _VTABLE_HEADER)
    found = tuple([offset and table + offset for offset in offsets])
    return found if known == count else found + (0,) * (count - known)


def field_count(data: memoryview, table: int) -> int:
    """Return how many fields the vtable of a table that was read has room for."""
    vtable = table - _I32.unpack_from(data, table)[0]
    return (int(_U16.unpack_from(data, vtable)[0]) - _VTABLE_HEADER) // 2


def extents(data: memoryview, table: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return where the vtable and a table that was read begin, and where they end."""
    vtable = table - _I32.unpack_from(data, table)[0]
    size, own = sizes(data, vtable)
    return (vtable, vtable + size), (table, table + own)


class Rows:
    """Reads tables of one kind, all fields in one call: one vtable has them lie alike.

    ``forms`` are the formats of fields in order, as in `struct`, or `REFERENCE`. What
    a table leaves out is 0.
    """

    def __init__(self, data: memoryview, forms: str) -> None:
        self._data = data
        self._forms = forms
        self._known: dict[int, _Layout] = {}

    def row(self, table: int) -> list[int]:
        """Return the values of fields, and how many more the vtable has room for.

        The value of a reference is where the other table, vector or string lies.

        :raises ValueError: if its vtable lies before the buffer, or fields overlap.
        :raises struct.error: if the table or its vtable lies beyond the buffer.
        """
        vtable = table - _I32.unpack_from(self._data, table)[0]
        layout = self._known.get(vtable)
        if layout is None:
            layout = self._known[vtable] = self._layout(table, vtable)
        unpack, pick, references, more = layout
        found = [*pick((0, *unpack(self._data, table))), more]
        for slot, offset in references:
            found[slot] += table + offset
        return found

    def _layout(self, table: int, vtable: int) -> "_Layout":
        found = places(self._data, table, len(self._forms))
        more = max(0, field_count(self._data, table) - len(found))
        offsets = tuple([place and place - table for place in found])
        return (*_unpacked(self._forms, offsets), more)


@lru_cache(maxsize=256)
def _unpacked(
    forms: str, offsets: tuple[int, ...]
) -> tuple["_Unpack", "_Pick", list[tuple[int, int]]]:
    """Return what reads fields at ``offsets``, and puts them in order; see `Rows`.

    The last are the numbers of references, with their offsets.
    """
    form, at = "<", 0
    order, references = [0] * len(forms), []
    present = sorted((offset, k) for k, offset in enumerate(offsets) if offset)
    for position, (offset, slot) in enumerate(present, 1):
        if offset < at:
            raise ValueError("fields of a table overlap")
        own = forms[slot]
        if own == REFERENCE:
            references.append((slot, offset))
            own = "I"
        form += f"{offset - at}x{own}"
        at = offset + struct.calcsize(f"<{own}")
        order[slot] = position
    return struct.Struct(form).unpack_from, itemgetter(*order), references


_Unpack: TypeAlias = Callable[[memoryview, int], tuple[int, ...]]
_Pick: TypeAlias = Callable[[tuple[int, ...]], tuple[int, ...]]
_Layout: TypeAlias = tuple[_Unpack, _Pick, list[tuple[int, int]], int]


class AccessedTable(flatbuffers.table.Table):  # type: ignore[misc]
    """What a generated accessor reads a table by, with its vtable looked at once."""

    def __init__(self, data: memoryview, position: int) -> None:
        super().__init__(data, position)
        self._places = places(data, position, _MOST_FIELDS)

    def Offset(self, entry: int) -> int:  # noqa: N802 - called so by the accessors
        """Return where the field of a vtable's entry lies in the table, 0 if not."""
        place = self._places[(entry - _VTABLE_HEADER) >> 1]
        return place and place - self.Pos

    def Get(self, flags: Any, place: int) -> Any:  # noqa: N802
        """Return the number at a place, of the type that ``flags`` stand for."""
        return flags.py_type(flags.packer_type.unpack_from(self.Bytes, place)[0])


def target(data: memoryview, place: int) -> int:
    """Return where the table, vector or string of a field lies."""
    return place + int(_U32.unpack_from(data, place)[0])


def vector(data: memoryview, place: int) -> tuple[int, int]:
    """Return where the elements of a field's vector begin, and how many there are.

    There are none if ``place`` is 0, for a field that is left out.
    """
    if not place:
        return 0, 0
    start = target(data, place)
    return start + 4, int(_U32.unpack_from(data, start)[0])


def length(data: memoryview, vector: int) -> int:
    """Return how many elements the vector at a place has; none at 0."""
    return int(_U32.unpack_from(data, vector)[0]) if vector else 0


def numbers(
    data: memoryview, start: int, count: int, dtype: "np.dtype[Any]"
) -> tuple[Any, ...]:
    """Return ``count`` numbers that begin at ``start``.

    :raises struct.error: if they do not lie within the buffer.
    """
    if count <= _SHORT:
        return _VECTORS[dtype][count](data, start)
    return struct.unpack_from(f"<{count}{_CODES[dtype]}", data, start)


def reals(data: memoryview, start: int, count: int) -> Sequence[float]:
    """Return ``count`` float32 numbers; many of them as a view that makes them.

    Numbers of a bias, one for each channel, are never looked at.

    :raises struct.error: if they do not lie within the buffer.
    """
    if count <= _SHORT:
        return numbers(data, start, count, _FLOAT32)
    found = data[start : start + count * _FLOAT32.itemsize]
    if len(found) < count * _FLOAT32.itemsize:
        raise struct.error
    return found.cast("f")


def tables(data: memoryview, start: int, count: int) -> list[int]:
    """Return where the tables lie of a vector that begins at ``start``.

    :raises ValueError: if the vector does not lie within the buffer.
    """
    offsets: NDArray[Any] = np.frombuffer(data, "<u4", count, start)
    found: list[int] = (offsets + np.arange(start, start + 4 * count, 4)).tolist()
    return found
