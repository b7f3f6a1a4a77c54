"""Changes files of ONNX that were checked, as ONNX Runtime is to have them.

The numbers of fields are from ONNX's ``onnx.proto``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from asyncnn.extensions.protobuf import Field, decoded, encoded, fields, message

_GRAPH, _FUNCTION, _FUNCTION_NODE = 7, 25, 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_READ, _COMPUTED, _OP_TYPE, _ATTRIBUTE = 1, 2, 4, 5
_PORT_NAME = 1
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_LENGTHS, _ELEMENT_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_KEY, _VALUE = 1, 2

_PARTS: dict[str, dict[int, str]] = {
    "file": {_GRAPH: "graph", _FUNCTION: "function"},
    "graph": {_NODE: "node"},
    "function": {_FUNCTION_NODE: "node"},
    "node": {_ATTRIBUTE: "attribute"},
    "attribute": dict.fromkeys((6, 11), "graph"),
}
"""What has nodes in it, by the numbers of fields."""


def trimmed(content: bytes) -> bytes:
    """Return a checked file without the empty inputs that nodes name at their ends.

    They mean nothing, and some of ONNX Runtime's kernels read them.
    """
    data = memoryview(content)
    return b"".join(_trimmed(data, Field(0, 0, 0, len(data), True), "file"))


def _trimmed(data: memoryview, part: Field, kind: str) -> list[bytes]:
    found = [*fields(data, part.value, part.end)]
    dropped = set[int]()
    for field in reversed(found if kind == "node" else ()):
        if field.number == _READ:
            if field.end > field.value:
                break
            dropped.add(field.start)
    parts = list[bytes]()
    for field in found:
        inner = _PARTS[kind].get(field.number)
        if inner is not None and field.is_bytes:
            parts += message(field.number, _trimmed(data, field, inner))
        elif field.start not in dropped:
            parts.append(bytes(data[field.start : field.end]))
    return parts


def with_copies(content: bytes, handed_on: frozenset[bytes]) -> bytes:
    """Return a checked file in which some outputs are copies: inputs, or repeated ones.

    ONNX Runtime would hand the tensor over, and leave the memory of the output alone.
    """
    data = memoryview(content)

    def changed(part: Field) -> list[bytes] | None:
        name = _last(data, part, _PORT_NAME) if part.number == _OUTPUT else b""
        if part.number != _OUTPUT or name not in handed_on:
            return None
        copy = name + b" copy %d" % part.start
        # Of a field that is there twice, the last counts.
        port = content[part.value : part.end], *message(_PORT_NAME, [copy])
        node = (
            *message(_READ, [name]),
            *message(_COMPUTED, [copy]),
            *message(_OP_TYPE, [b"Identity"]),
        )
        return message(_OUTPUT, port) + message(_NODE, node)

    return _with_graph(data, changed)


def with_inputs(content: bytes, tables: Mapping[bytes, "Weight"]) -> bytes:
    """Return a checked file in which some weights are further inputs, in this order."""
    data, ports = memoryview(content), list[bytes]()
    for name, table in tables.items():
        axes = [message(1, [b"\x08", encoded(each)]) for each in table.lengths]
        shape = message(2, [each for axis in axes for each in axis])
        tensor = message(1, [b"\x08", encoded(table.element_type), *shape])
        port = *message(_PORT_NAME, [name]), *message(2, tensor)
        ports += message(_INPUT, port)

    def changed(part: Field) -> list[bytes] | None:
        is_weight = part.number == _INITIALIZER
        return [] if is_weight and _last(data, part, _NAME) in tables else None

    return _with_graph(data, changed, ports)


def _with_graph(
    data: memoryview,
    changed: Callable[[Field], list[bytes] | None],
    added: Sequence[bytes] = (),
) -> bytes:
    """Return a file whose graph has parts changed, None for those left, and others."""
    parts = list[bytes]()
    for field in fields(data, 0, len(data)):
        if field.number != _GRAPH:
            parts.append(bytes(data[field.start : field.end]))
            continue
        graph = list[bytes]()
        for part in fields(data, field.value, field.end):
            given = changed(part)
            graph += [bytes(data[part.start : part.end])] if given is None else given
        parts += message(_GRAPH, [*graph, *added])
    return b"".join(parts)


def _last(data: memoryview, part: Field, number: int) -> bytes:
    """Return the bytes of a field of a message, of several the last, of none none."""
    found = b""
    for each in fields(data, part.value, part.end):
        if each.number == number:
            found = bytes(data[each.value : each.end])
    return found


class Weight(NamedTuple):
    """An initializer of a graph, and where in the file its elements lie."""

    name: bytes
    element_type: int
    lengths: tuple[int, ...]
    start: int
    end: int


def separated(
    data: memoryview, element_bytes: Mapping[int, int]
) -> tuple[bytes, list[Weight]]:
    """Return a checked file without its large weights, and these.

    They are said to be in another file, which nobody looks for if the weights are
    given besides. ``element_bytes`` are of known types.
    """
    weights: dict[bytes, Weight] = {}

    def changed(part: Field) -> list[bytes] | None:
        weight = None
        if part.number == _INITIALIZER and part.end - part.value >= _LARGE_BYTES:
            weight = _weight(data, part, element_bytes)
        if weight is None or weight.name in weights:
            return None
        weights[weight.name] = weight
        rest = [
            bytes(data[each.start : each.end])
            for each in fields(data, part.value, part.end)
            if each.number not in (_RAW_DATA, _DATA_LOCATION)
        ]
        place = *message(_KEY, [b"location"]), *message(_VALUE, [b"weights"])
        rest += message(_EXTERNAL_DATA, place)
        return message(_INITIALIZER, [*rest, _IS_EXTERNAL])

    return _with_graph(data, changed), [*weights.values()]


_LARGE_BYTES = 1 << 12
"""A smaller weight is copied sooner than it is taken out."""

_IS_EXTERNAL = encoded(_DATA_LOCATION << 3) + encoded(1)


def _weight(
    data: memoryview, tensor: Field, element_bytes: Mapping[int, int]
) -> Weight | None:
    """Return what an initializer is; None if its elements are not all of its bytes."""
    lengths, found = list[int](), dict[int, Field]()
    for field in fields(data, tensor.value, tensor.end):
        if field.number == _LENGTHS:  # packed, or one by one
            lengths += decoded(data, field.value, field.end)
        elif field.number in found or field.number not in _OF_WEIGHTS:
            return None
        else:
            found[field.number] = field
    if not {_ELEMENT_TYPE, _NAME, _RAW_DATA} <= found.keys():
        return None
    raw, name = found[_RAW_DATA], found[_NAME]
    types = decoded(data, found[_ELEMENT_TYPE].value, found[_ELEMENT_TYPE].end)
    size = math.prod(lengths) * element_bytes.get(types[0], 0)
    if not raw.is_bytes or not name.is_bytes or size != raw.end - raw.value:
        return None
    text = bytes(data[name.value : name.end])
    return Weight(text, types[0], tuple(lengths), raw.value, raw.end)


_DOCUMENTATION = 12
_OF_WEIGHTS = frozenset(
    {_ELEMENT_TYPE, _NAME, _RAW_DATA, _DATA_LOCATION, _DOCUMENTATION}
)
