"""Looks at the bytes of an ONNX file before anything else reads them.

An ONNX file is a protocol buffer, a ``ModelProto``. `split` takes the large weights
out, so that what is parsed is small and the weights stay where the file is mapped. Only
lengths are read, each of which is checked against the bytes that are left.
"""

from collections.abc import Callable, Sequence, Sized
from typing import TypeAlias, TypeVar

import msgspec

from asyncnn.hal.errors import InvalidArgumentError

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""A protocol buffer has no more."""

MIN_SPLIT_BYTES = 1 << 10
"""Smallest weight that is worth to be left in the file."""

_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""Fields of a ``ModelProto``, its ``GraphProto``, and a ``TensorProto`` of that."""

_LAST_OF_ONE, _MORE = 0x7F, 0x80

_Parts: TypeAlias = list[bytes | memoryview]

S = TypeVar("S", bound=Sized)


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

    def graph(start: int, end: int) -> _Parts:
        return message(GRAPH, _replaced(data, start, end, INITIALIZER, initializer))

    def initializer(start: int, end: int) -> _Parts | None:
        raw.append(None)
        if end - start < MIN_SPLIT_BYTES:
            return None
        parts = message(INITIALIZER, _replaced(data, start, end, RAW_DATA, raw_data))
        return parts if raw[-1] else None

    def raw_data(start: int, end: int) -> _Parts | None:
        # Of a field that is there twice, the last counts.
        raw[-1] = (start, end) if end - start >= MIN_SPLIT_BYTES else None
        return None if raw[-1] is None else []

    return Split(b"".join(_replaced(data, 0, len(data), GRAPH, graph)), tuple(raw))


def message(number: int, parts: Sequence[S]) -> list[bytes | S]:
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


def _replaced(
    data: memoryview,
    start: int,
    end: int,
    number: int,
    replacement: Callable[[int, int], _Parts | None],
) -> _Parts:
    """Return a message with other parts for one of its fields.

    ``replacement`` is given where its value lies; None leaves it as it is.

    :raises InvalidArgumentError: if one is longer than what is left of its message.
    """
    parts, kept = _Parts(), start
    wanted = number << 3 | _LENGTH
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
        if tag == wanted:
            given = replacement(value, after)
            if given is not None:
                parts += [data[kept:start], *given]
                kept = after
        start = after
    return [*parts, data[kept:end]]


def _decoded(data: memoryview, start: int, end: int) -> tuple[int, int]:
    """Return the number at ``start`` and the position behind it."""
    number = 0
    for place, position in enumerate(range(start, min(start + 10, end))):
        number |= (data[position] & _LAST_OF_ONE) << 7 * place
        if data[position] < _MORE:
            return number, position + 1
    raise InvalidArgumentError(f"damaged ONNX file: no number at byte {start}")
