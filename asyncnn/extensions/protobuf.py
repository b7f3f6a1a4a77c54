"""Looks at the bytes of an ONNX file before anything else reads them.

An ONNX file is a protocol buffer, a ``ModelProto``. `split` takes the large weights
out, so that what is parsed is small and the weights stay where the file is mapped. Only
lengths are read, each of which is checked against the bytes that are left.
"""

from collections.abc import Iterator, Sequence

import msgspec

from asyncnn.hal.errors import InvalidArgumentError

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""A protocol buffer has no more."""

MIN_SPLIT_BYTES = 1 << 10
"""Smallest weight that is worth to be left in the file."""

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
_LAST_OF_ONE, _MORE = 0x7F, 0x80


class Field(msgspec.Struct, frozen=True, gc=False):
    """A field of a message: its number, all of it, and the part that is its value."""

    number: int
    start: int
    value: int
    end: int
    is_bytes: bool


class Split(msgspec.Struct, frozen=True):
    """A file without its large weights.

    ``raw`` says of each initializer of the graph where in the file its raw data lie, as
    first and last position; None for one that ``rest`` has whole.
    """

    rest: bytes
    raw: tuple[tuple[int, int] | None, ...]


def split(data: memoryview) -> Split:
    """Take the raw data of large initializers out of an ONNX file.

    :raises InvalidArgumentError: if a field is longer than what is left of its message.
    """
    raw: list[tuple[int, int] | None] = []
    parts: list[bytes] = []
    for field in fields(data, 0, len(data)):
        if field.number == _GRAPH and field.is_bytes:
            parts += message(_GRAPH, _graph(data, field, raw))
        else:
            parts.append(bytes(data[field.start : field.end]))
    return Split(b"".join(parts), tuple(raw))


def _graph(
    data: memoryview, graph: Field, raw: list[tuple[int, int] | None]
) -> list[bytes]:
    parts: list[bytes] = []
    for field in fields(data, graph.value, graph.end):
        if field.number == _INITIALIZER and field.is_bytes:
            tensor, position = _tensor(data, field)
            raw.append(position)
            parts += message(_INITIALIZER, tensor)
        else:
            parts.append(bytes(data[field.start : field.end]))
    return parts


def _tensor(
    data: memoryview, tensor: Field
) -> tuple[list[bytes], tuple[int, int] | None]:
    parts: list[bytes] = []
    position = None
    for field in fields(data, tensor.value, tensor.end):
        is_raw = field.number == _RAW_DATA and field.is_bytes
        if is_raw and field.end - field.value >= MIN_SPLIT_BYTES:
            position = field.value, field.end
        else:
            parts.append(bytes(data[field.start : field.end]))
    return parts, position


def message(number: int, parts: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a field whose value are these parts."""
    tag = encoded(number << 3 | _LENGTH)
    return [tag, encoded(sum(map(len, parts))), *parts]


def encoded(number: int) -> bytes:
    """Return a number as messages have it."""
    groups = bytearray()
    while number > _LAST_OF_ONE:
        groups.append(number & _LAST_OF_ONE | _MORE)
        number >>= 7
    return bytes([*groups, number])


def fields(data: memoryview | bytes, start: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message that lies between two positions.

    :raises InvalidArgumentError: if one is longer than what is left of its message.
    """
    while start < end:
        # Most numbers have one byte, and a call takes longer than all else here.
        tag, value = data[start], start + 1
        if tag > _LAST_OF_ONE:
            tag, value = _decoded(data, start, end)
        kind = tag & 7
        if kind == _LENGTH:
            length = data[value] if value < end else _MORE
            if length > _LAST_OF_ONE:
                length, value = _decoded(data, value, end)
            else:
                value += 1
            after = value + length
        elif kind == _VARINT:
            after = value + 1
            if after > end or data[value] > _LAST_OF_ONE:
                _, after = _decoded(data, value, end)
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            after = value + (8 if kind == _EIGHT_BYTES else 4)
        else:
            raise InvalidArgumentError(
                f"damaged ONNX file: a field of kind {kind} at byte {start}"
            )
        if after > end:
            raise InvalidArgumentError(
                f"damaged ONNX file: field {tag >> 3} at byte {start} ends beyond "
                "what it is part of",
                hint="the file may be cut short",
            )
        yield Field(tag >> 3, start, value, after, kind == _LENGTH)
        start = after


def decoded(data: memoryview, start: int, end: int) -> list[int]:
    """Return the numbers that lie between two positions, one after the other.

    :raises InvalidArgumentError: if these are no numbers.
    """
    numbers: list[int] = []
    while start < end:
        number, start = _decoded(data, start, end)
        numbers.append(number)
    return numbers


def _decoded(data: memoryview | bytes, start: int, end: int) -> tuple[int, int]:
    """Return the number at ``start`` and the position behind it."""
    number = 0
    for place, position in enumerate(range(start, min(start + 10, end))):
        number |= (data[position] & _LAST_OF_ONE) << 7 * place
        if data[position] < _MORE:
            return number, position + 1
    raise InvalidArgumentError(f"damaged ONNX file: no number at byte {start}")
