"""Changes graphs that were checked, as ONNX Runtime is to have them."""

import math
import struct
from collections.abc import Iterator, Mapping, Set
from itertools import count
from typing import Any, NamedTuple

from asyncnn.devices.onnxruntime.region_checks import (
    NAMED,
    NEED_ELEMENTS,
    NODE,
    POSITIVE,
    TENSOR,
    CheckedGraph,
    operator_type,
)
from asyncnn.hal.operations.bound import Shape

_INT64 = 7  # of elements
_IS_INTEGER, _IS_TENSOR = 2, 4  # of attributes
_NEGATIVE_AND_ZERO = TENSOR(
    dims=[2], data_type=_INT64, raw_data=struct.pack("<2q", -1, 0)
)


class Weight(NamedTuple):
    """An initializer of a graph, and where in the file its elements lie."""

    name: bytes
    element_type: int
    lengths: tuple[int, ...]
    start: int
    end: int


_LARGE_BYTES = 1 << 12
"""A smaller weight is copied sooner than it is taken out."""


def take_weights(
    graph: CheckedGraph, data: memoryview, element_bytes: Mapping[int, int]
) -> list[Weight]:
    """Take out the large weights that are read; return where they are.

    That is in the file ``data``. They are said to be in another file, which nobody
    looks for if the weights are given besides; others, ONNX Runtime drops.
    ``element_bytes`` are of known types.
    """
    weights: dict[bytes, Weight] = {}
    for tensor, place in zip(graph.model.graph.initializer, graph.raw, strict=True):
        if place is None:
            continue
        name, type_, lengths = tensor.name, tensor.data_type, tuple(tensor.dims)
        start, end = place
        size = math.prod(lengths) * element_bytes.get(type_, 0)
        is_fit = size == end - start >= _LARGE_BYTES and min(lengths, default=0) >= 0
        if not is_fit or name in weights or name not in graph.read:
            tensor.raw_data = bytes(data[start:end])
            continue
        weights[name] = Weight(name, type_, lengths, start, end)
        tensor.DiscardUnknownFields()  # elements in another form, say
        tensor.external_data.add(key=b"location", value=b"weights")
        tensor.data_location = 1
    return [*weights.values()]


def make_inputs(graph: CheckedGraph, weights: Mapping[bytes, Weight]) -> None:
    """Make further inputs of some weights, in this order."""
    main = graph.model.graph
    for place in reversed(range(len(main.initializer))):
        if main.initializer[place].name in weights:
            del main.initializer[place]
    for name, weight in weights.items():
        tensor = main.input.add(name=name).type.tensor_type
        tensor.elem_type = weight.element_type
        for length in weight.lengths:
            tensor.shape.dim.add(dim_value=length)


def rewritten(graph: CheckedGraph) -> bytes:
    """Return the file of a graph, whose nodes end no process now.

    It is without the empty inputs that nodes name at their ends: they mean nothing, and
    some kernels read them. With names of all outputs where kernels write all. With
    nodes in front of those that need elements of doubtful tensors, or positive numbers:
    these fail, in a kernel that checks what it is given.

    What the file says of shapes inside may be wrong, and ONNX Runtime believes it: it
    is left out where shapes of outputs depend on it.

    ONNX Runtime would hand inputs over that are outputs, and leave the memory of the
    output alone: such outputs are copies.
    """
    numbers = count()
    for nodes, places in graph.unsafe:
        before = {
            place: [*_mending(nodes[place], graph.doubtful, next(numbers))]
            for place in places
        }
        if any(before.values()):
            every = [
                each
                for place, node in enumerate(nodes)
                for each in (*before.get(place, ()), node)
            ]
            del nodes[:]
            nodes.extend(every)
    main = graph.model.graph
    if all(map(shape_in_file, main.output)):
        for info in main.value_info:
            if info.type.tensor_type.HasField("shape"):
                info.type.tensor_type.ClearField("shape")
    for place, port in enumerate(main.output):
        name = port.name
        if name in graph.handed_on:
            port.name = name + b" copy %d" % place
            main.node.append(_node(b"Identity", [name], port.name))
    content: bytes = graph.model.SerializeToString()
    return content


def shape_in_file(info: Any) -> Shape | None:
    """Return the shape that a file has for an output, if any."""
    tensor = info.type.tensor_type
    lengths = tuple(each.dim_value for each in tensor.shape.dim)
    is_known = tensor.HasField("shape") and min(lengths, default=1) > 0
    return lengths or (1,) if is_known else None


def _mending(node: Any, doubtful: Set[bytes], number: int) -> Iterator[Any]:
    """Change a node; yield those that are to be in front of it."""
    inputs, outputs = node.input, node.output
    while inputs and not inputs[-1]:
        del inputs[-1]
    type_ = operator_type(node.domain, node.op_type)
    needed, axis = NEED_ELEMENTS.get(type_, (None, 0))
    for place, name in enumerate([*inputs]):
        new = b"%d of #%d" % (place, number)
        if name and place in POSITIVE.get(type_, ()):
            # What has so many elements, and is none below 0.
            yield _node(b"HannWindow", [name], new + b" window")
            yield from _filled(new + b" window", 0, new, b"%s is not positive" % name)
            inputs[place] = new + b" size"
            yield _node(b"Size", [new], inputs[place])
        elif place == needed and name in doubtful:
            problem = b"%s is read, and has no elements" % name
            yield from _filled(name, axis, new, problem)
            inputs[place] = new
    for place, name in enumerate([*outputs]):
        if type_ in NAMED and not name:
            outputs[place] = b"#%d to %d" % (number, place)


def _filled(name: bytes, axis: int, new: bytes, problem: bytes) -> Iterator[Any]:
    """Yield nodes for the same tensor, which fail if it is empty from an axis on.

    A length that is to be found cannot be given beside one of 0. Nothing is copied.
    """
    rows, both, flat, shape = (b"%s.%d" % (new, n) for n in range(4))
    constant = _node(b"Constant", [], both)
    constant.attribute.add(name=b"value", t=_NEGATIVE_AND_ZERO, type=_IS_TENSOR)
    flatten = _node(b"Flatten", [name], rows)
    flatten.attribute.add(name=b"axis", i=axis, type=_IS_INTEGER)
    reshape = _node(b"Reshape", [rows, both], flat)
    reshape.name = problem
    yield from (constant, flatten, reshape, _node(b"Shape", [name], shape))
    yield _node(b"Reshape", [flat, shape], new)


def _node(type_: bytes, inputs: list[bytes], output: bytes) -> Any:
    return NODE(op_type=type_, input=inputs, output=[output])
