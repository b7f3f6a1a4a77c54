"""Flatbuffers that are built by hand, read by the package of their inventors."""

import struct

import flatbuffers
import pytest

from asyncnn.devices.litert.flat_file import REFERENCE, FlatFile, layout_of

NUMBERED = layout_of(((0, "b"), (2, "I")))
"""Of tables of two numbers."""

REFERRING = layout_of(((0, REFERENCE), (1, "Q")))


def slot(number: int) -> int:
    """Return where a field is in a vtable."""
    return 4 + 2 * number


def parsed(file: FlatFile, root: int) -> flatbuffers.table.Table:
    data = file.joined(root, b"TEST")
    assert len(data) % 16 == 0
    return flatbuffers.table.Table(data, struct.unpack_from("<I", data)[0])


def tables_in(root: flatbuffers.table.Table) -> list[flatbuffers.table.Table]:
    """Return the tables of the vector in field 0."""
    place = root.Offset(slot(0))
    start = root.Vector(place)
    return [
        flatbuffers.table.Table(root.Bytes, root.Indirect(start + 4 * number))
        for number in range(root.VectorLen(place))
    ]


def number_in(table: flatbuffers.table.Table, field: int, form: str) -> int:
    place = table.Pos + table.Offset(slot(field))
    (number,) = struct.unpack_from(f"<{form}", table.Bytes, place)
    return int(number)


def vtable_of(table: flatbuffers.table.Table) -> int:
    return table.Pos - int(struct.unpack_from("<i", table.Bytes, table.Pos)[0])


@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_tables_of_several_layouts_come_in_order_and_share_vtables(more: int) -> None:
    file = FlatFile()
    file.string("x" * more)  # so that what follows begins anywhere
    vectors = file.integers([(7,), (), (-8, 9)])
    rows = [
        (NUMBERED, (-1, 10)),
        (REFERRING, (vectors[2], 2**40)),
        (NUMBERED, (2, 20)),
        (REFERRING, (vectors[0], 3)),
        (REFERRING, (vectors[1], 4)),
    ]
    columns = {
        0: [values[0] for _, values in rows],
        1: [values[1] for _, values in rows],
        2: [values[1] for _, values in rows],
    }
    tables = file.tables([layout for layout, _ in rows], columns)
    root = file.table(((0, REFERENCE, file.references(tables)),))
    found = tables_in(parsed(file, root))
    for table, (layout, values) in zip(found, rows, strict=True):
        if layout is NUMBERED:
            assert (number_in(table, 0, "b"), number_in(table, 2, "I")) == values
            assert not table.Offset(slot(1))
        else:
            place = table.Pos + table.Offset(slot(1))
            assert number_in(table, 1, "Q") == values[1]
            assert not place % 8
    assert [vtable_of(each) for each in found[2:]] == [
        vtable_of(found[0]),
        *[vtable_of(found[1])] * 2,
    ]
    lengths = []
    for table in (found[1], found[3], found[4]):
        place = table.Offset(slot(0))
        start = table.Vector(place)
        lengths.append(
            struct.unpack_from(f"<{table.VectorLen(place)}i", table.Bytes, start)
        )
    assert lengths == [(-8, 9), (7,), ()]


def test_there_may_be_no_tables_and_no_vectors() -> None:
    file = FlatFile()
    assert file.tables([], {}) == []
    assert file.integers([]) == []
    root = file.table(((0, "I", 5),))
    assert number_in(parsed(file, root), 0, "I") == 5
