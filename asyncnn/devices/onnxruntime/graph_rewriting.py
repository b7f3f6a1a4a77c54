"""Changes files of ONNX that were checked, as ONNX Runtime is to have them.

The numbers of fields are from ONNX's ``onnx.proto``.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from asyncnn.devices.onnxruntime.region_checks import (
    NAMED,
    NEED_ELEMENTS,
    POSITIVE,
    operator_type,
)
from asyncnn.extensions.protobuf import Field, decoded, encoded, fields, message

_GRAPH, _FUNCTION, _FUNCTION_NODE = 7, 25, 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_READ, _COMPUTED, _NODE_NAME, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 1, 2, 3, 4, 5, 7
_PORT_NAME = 1
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_LENGTHS, _ELEMENT_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_KEY, _VALUE = 1, 2
_INTEGER, _TENSOR = 3, 5
_IS_INTEGER, _IS_TENSOR = b"\xa0\x01\x02", b"\xa0\x01\x04"  # the kind, field 20
_HEAD = bytes([_LENGTHS << 3, 2, _ELEMENT_TYPE << 3, 7])  # of two integers of 64 bits

_PARTS: dict[str, dict[int, str]] = {
    "file": {_GRAPH: "graph", _FUNCTION: "function"},
    "graph": {_NODE: "node"},
    "function": {_FUNCTION_NODE: "node"},
    "node": {_ATTRIBUTE: "attribute"},
    "attribute": dict.fromkeys((6, 11), "graph"),
}
"""What has nodes in it, by the numbers of fields."""


def mended(content: bytes, doubtful: Set[bytes]) -> bytes:
    """Return a checked file whose nodes end no process.

    Without the empty inputs that nodes name at their ends: they mean nothing, and some
    kernels read them. With names of all outputs where kernels write all. With nodes in
    front of those that need elements of ``doubtful`` tensors, or positive numbers:
    these fail, in a kernel that checks what it is given.
    """
    whole = Field(0, 0, 0, len(content), True)
    parts = _mended(content, whole, "file", doubtful)
    return content if parts is None else b"".join(parts)


def _mended(
    content: bytes, part: Field, kind: str, doubtful: Set[bytes]
) -> list[bytes] | None:
    """Return what is in a part, None where nothing is to be changed."""
    parts, kept = list[bytes](), part.value
    for field in fields(content, part.value, part.end):
        inner = _PARTS[kind].get(field.number) if field.is_bytes else None
        nodes = list[list[bytes]]()
        if inner == "node":
            nodes = _mended_node(content, field, doubtful)
        elif inner is not None:
            changed = _mended(content, field, inner, doubtful)
            nodes = [] if changed is None else [changed]
        if nodes:
            parts.append(content[kept : field.start])
            for node in nodes:
                parts += message(field.number, node)
            kept = field.end
    return [*parts, content[kept : part.end]] if parts else None


def _mended_node(
    content: bytes, node: Field, doubtful: Set[bytes]
) -> list[list[bytes]]:
    """Return a node after those that see to what it reads; none if it may stay."""
    rest, before, is_changed = list[bytes](), list[list[bytes]](), False
    texts = {n: list[bytes]() for n in (_READ, _COMPUTED, _DOMAIN, _OP_TYPE)}
    for field in fields(content, node.value, node.end):
        texts.get(field.number, []).append(content[field.value : field.end])
        if field.number not in (_READ, _COMPUTED):
            own = [content[field.start : field.end]]
            is_attribute = field.number == _ATTRIBUTE
            inner = is_attribute and _mended(content, field, "attribute", doubtful)
            rest += message(_ATTRIBUTE, inner) if inner else own
            is_changed |= bool(inner)
    inputs, outputs, *words = texts.values()
    while inputs and not inputs[-1]:
        inputs.pop()
        is_changed = True
    type_ = operator_type(*[b"".join(each[-1:]) for each in words])
    needed, axis = NEED_ELEMENTS.get(type_, (None, 0))
    for place, name in enumerate(inputs):
        new = b"%d of #%d" % (place, node.start)
        if name and place in POSITIVE.get(type_, ()):
            # What has so many elements, and is none below 0.
            before.append(_node(b"HannWindow", [name], new + b" window"))
            before += _filled(new + b" window", 0, new, b"%s is not positive" % name)
            inputs[place] = new + b" size"
            before.append(_node(b"Size", [new], inputs[place]))
        elif place == needed and name in doubtful:
            problem = b"%s is read, and has no elements" % name
            before += _filled(name, axis, new, problem)
            inputs[place] = new
    for place, name in enumerate(outputs):
        if type_ in NAMED and not name:
            outputs[place] = b"#%d to %d" % (node.start, place)
            is_changed = True
    for number in (_READ, _COMPUTED):
        rest += [part for name in texts[number] for part in message(number, [name])]
    return [*before, rest] if before or is_changed else []


def _filled(name: bytes, axis: int, new: bytes, problem: bytes) -> list[list[bytes]]:
    """Return nodes for the same tensor, which fail if it is empty from an axis on.

    A length that is to be found cannot be given beside one of 0. Nothing is copied.
    """
    rows, both, flat, shape = (b"%s.%d" % (new, n) for n in range(4))
    begin = *message(_PORT_NAME, [b"axis"]), bytes([_INTEGER << 3, axis]), _IS_INTEGER
    tensor = message(_TENSOR, [_HEAD, *message(_RAW_DATA, [struct.pack("<2q", -1, 0)])])
    lengths = *message(_PORT_NAME, [b"value"]), *tensor, _IS_TENSOR
    return [
        _node(b"Constant", [], both, message(_ATTRIBUTE, lengths)),
        _node(b"Flatten", [name], rows, message(_ATTRIBUTE, begin)),
        _node(b"Reshape", [rows, both], flat, message(_NODE_NAME, [problem])),
        _node(b"Shape", [name], shape),
        _node(b"Reshape", [flat, shape], new),
    ]


def _node(
    type_: bytes, inputs: Sequence[bytes], output: bytes, rest: Sequence[bytes] = ()
) -> list[bytes]:
    """Return a node of one output; ``rest`` are further fields."""
    read = [part for name in inputs for part in message(_READ, [name])]
    return [*read, *message(_COMPUTED, [output]), *message(_OP_TYPE, [type_]), *rest]


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
        node = message(_NODE, _node(b"Identity", [name], copy))
        return message(_OUTPUT, port) + node

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
    data: memoryview, element_bytes: Mapping[int, int], read: Set[bytes]
) -> tuple[bytes, list[Weight]]:
    """Return a checked file without its large weights that are ``read``, and these.

    They are said to be in another file, which nobody looks for if the weights are
    given besides; others, ONNX Runtime drops. ``element_bytes`` are of known types.
    """
    weights: dict[bytes, Weight] = {}

    def changed(part: Field) -> list[bytes] | None:
        weight = None
        if part.number == _INITIALIZER and part.end - part.value >= _LARGE_BYTES:
            weight = _weight(data, part, element_bytes)
        if weight is None or weight.name in weights or weight.name not in read:
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
