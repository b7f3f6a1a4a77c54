"""What kind of model file bytes are, by the bytes alone.

TFLite files and the project's own containers say it themselves. ONNX files do not: they
begin with the fields of a `ModelProto`, and one that has a graph is taken for ONNX.
Nothing here is validation: a damaged file of a kind is still of that kind.
"""

from collections.abc import Iterator
from enum import Enum

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.memory.shared import FileReader
from asyncnn.tflite.contents import IDENTIFIER

MAGIC = b"ASYNCNN\0"
"""First bytes of every container."""


class FileKind(Enum):
    """A kind of model file, with its name in messages."""

    CONTAINER = "asyncnn"
    TFLITE = "TFLite"
    ONNX = "ONNX"


_VARINT, _BYTES = 0, 2
"""Wire types of Protocol Buffers: an integer, and a length with so many bytes."""

_GRAPH = 7
_FIELDS = {
    **dict.fromkeys((1, 5), _VARINT),
    **dict.fromkeys((2, 3, 4, 6, _GRAPH, 8, 14, 20, 25, 26), _BYTES),
}
"""Wire types of the fields of a `ModelProto`, by their numbers in onnx.proto."""

_MOST_FIELDS = 1024
"""Fields that are looked at in search of the graph; metadata may precede it."""

_MOST_VARINT_BYTES = 10


def kind_of(data: memoryview | FileReader) -> FileKind:
    """Return the kind of model file that the bytes are; few of them are looked at.

    :raises InvalidArgumentError: if they are of no known kind.
    """
    start = data[: len(MAGIC)]
    if start == MAGIC:
        return FileKind.CONTAINER
    if start[4:] == IDENTIFIER:
        return FileKind.TFLITE
    if _has_graph(data):
        return FileKind.ONNX
    raise InvalidArgumentError(
        "neither a TFLite, an ONNX nor an asyncnn model file",
        hint="files of other kinds are converted to TFLite or ONNX first",
    )


def _has_graph(data: memoryview | FileReader) -> bool:
    for number, wire_type in _fields(data):
        if _FIELDS.get(number) != wire_type:
            return False
        if number == _GRAPH:
            return True
    return False


def _fields(data: memoryview | FileReader) -> Iterator[tuple[int, int]]:
    """Yield number and wire type of fields until one cannot be skipped."""
    position = 0
    for _ in range(_MOST_FIELDS):
        key, position = _varint(data, position)
        number, wire_type = key >> 3, key & 7
        yield number, wire_type
        value, position = _varint(data, position)
        if wire_type == _BYTES:
            position += value
        if wire_type not in (_BYTES, _VARINT) or position >= len(data):
            return


def _varint(data: memoryview | FileReader, position: int) -> tuple[int, int]:
    """Return the integer at a position, and where it ends; 0 beyond the end."""
    value = 0
    for index, byte in enumerate(data[position : position + _MOST_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, position + index + 1
    return 0, len(data)
