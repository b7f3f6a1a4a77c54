"""Changes files of ONNX that were checked, as ONNX Runtime is to have them.

The numbers of fields are from ONNX's ``onnx.proto``.
"""

import math
import struct
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from asyncnn.devices.onnxruntime.region_checks import NAMED, NEED_ELEMENTS, POSITIVE
from asyncnn.extensions.protobuf import Field, decoded, encoded, fields, message

_GRAPH, _FUNCTION, _FUNCTION_NODE = 7, 25, 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_READ, _COMPUTED, _NODE_NAME, _OP_TYPE, _ATTRIBUTE = 1, 2, 3, 4, 5
_PORT_NAME = 1
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_LENGTHS, _ELEMENT_TYPE, _NAME, _RAW_DATA = 1, 2, 8, 9
_KEY, _VALUE = 1, 2
_INTEGER, _TENSOR, _INT64 = 3, 5, 7
_IS_INTEGER, _IS_TENSOR = b"\xa0\x01\x02", b"\xa0\x01\x04"  # the kind, field 20

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
    data = memoryview(content)
    whole = Field(0, 0, 0, len(data), True)
    return b"".join(_mended(data, whole, "file", doubtful))


def _mended(
    data: memoryview, part: Field, kind: str, doubtful: Set[bytes]
) -> list[bytes]:
    parts = list[bytes]()
    for field in fields(data, part.value, part.end):
        inner = _PARTS[kind].get(field.number)
        if inner is None or not field.is_bytes:
            parts.append(bytes(data[field.start : field.end]))
        elif inner == "node":
            for node in _mended_node(data, field, doubtful):
                parts += message(field.number, node)
        else:
            parts += message(field.number, _mended(data, field, inner, doubtful))
    return parts


def _mended_node(
    data: memoryview, node: Field, doubtful: Set[bytes]
) -> list[list[bytes]]:
    """Return a node after those that see to what it reads."""
    before, rest = list[list[bytes]](), list[bytes]()
    inputs, outputs = list[bytes](), list[bytes]()
    for field in fields(data, node.value, node.end):
        if field.number in (_READ, _COMPUTED):
            names = inputs if field.number == _READ else outputs
            names.append(bytes(data[field.value : field.end]))
        elif field.number == _ATTRIBUTE:
            rest += message(_ATTRIBUTE, _mended(data, field, "attribute", doubtful))
        else:
            rest.append(bytes(data[field.start : field.end]))
    while inputs and not inputs[-1]:
        inputs.pop()
    type_ = _last(data, node, _OP_TYPE)
    new = b"#%d of %%d" % node.start
    for place in POSITIVE.get(type_, ()):
        if place < len(inputs) and inputs[place]:
            nodes, inputs[place] = _positive(inputs[place], new % place)
            before += nodes
    place, axis = NEED_ELEMENTS.get(type_, (len(inputs), 0))
    if place < len(inputs) and inputs[place] in doubtful:
        nodes, inputs[place] = _filled(inputs[place], axis, new % place)
        before += nodes
    if type_ in NAMED:
        outputs = [name or new % n for n, name in enumerate(outputs)]
    ports = (_READ, inputs), (_COMPUTED, outputs)
    given = [
        part
        for number, names in ports
        for name in names
        for part in message(number, [name])
    ]
    return [*before, [*given, *rest]]


def _filled(
    name: bytes, axis: int, new: bytes, told: bytes = b""
) -> tuple[list[list[bytes]], bytes]:
    """Return nodes that fail if a tensor has no elements from an axis on, and another.

    A length that is left open cannot be told beside one of 0. Nothing is copied.
    """
    rows, both, flat, shape, whole = (b"%s.%d" % (new, n) for n in range(5))
    return [
        _constant(both, (-1, 0)),
        _node(b"Flatten", [name], rows, _number(b"axis", axis)),
        _node(
            b"Reshape",
            [rows, both],
            flat,
            message(_NODE_NAME, [told or b"%s is read, and has no elements" % name]),
        ),
        _node(b"Shape", [name], shape),
        _node(b"Reshape", [flat, shape], whole),
    ], whole


def _positive(name: bytes, new: bytes) -> tuple[list[list[bytes]], bytes]:
    """Return nodes that fail if a number is not positive, and its name as int64."""
    number, begin, step, counted, size = (b"%s:%d" % (new, n) for n in range(5))
    nodes, filled = _filled(counted, 0, new, b"%s is read, and not positive" % name)
    return [
        _node(b"Cast", [name], number, _number(b"to", _INT64)),
        _constant(begin, (0,)),
        _constant(step, (1,)),
        _node(b"Range", [begin, number, step], counted),
        *nodes,
        _node(b"Size", [filled], size),
    ], size


def _node(
    type_: bytes, inputs: Sequence[bytes], output: bytes, rest: Sequence[bytes] = ()
) -> list[bytes]:
    """Return a node of one output; ``rest`` are further fields."""
    read = [part for name in inputs for part in message(_READ, [name])]
    made = message(_COMPUTED, [output]), message(_OP_TYPE, [type_])
    return [*read, *made[0], *made[1], *rest]


def _constant(name: bytes, values: tuple[int, ...]) -> list[bytes]:
    """Return a node that has numbers of int64, one alone without an axis."""
    axes = [_LENGTHS << 3, len(values)] * (len(values) > 1)
    raw = message(_RAW_DATA, [struct.pack(f"<{len(values)}q", *values)])
    tensor = bytes([*axes, _ELEMENT_TYPE << 3, _INT64]), *raw
    value = *message(_PORT_NAME, [b"value"]), *message(_TENSOR, tensor), _IS_TENSOR
    return _node(b"Constant", [], name, message(_ATTRIBUTE, value))


def _number(name: bytes, value: int) -> list[bytes]:
    """Return an attribute."""
    number = bytes([_INTEGER << 3, value])
    return message(_ATTRIBUTE, [*message(_PORT_NAME, [name]), number, _IS_INTEGER])


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
