"""Small models that tests of several parts build, of operations or as regions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np

from asyncnn.extensions.regions import ONNX, region_model
from asyncnn.hal.operands import dtype_of
from asyncnn.hal.types import (
    DataLocation,
    FusedActivationFunc,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel

F32 = OperandType.TENSOR_FLOAT32
IN, OUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT

FOREVER = np.full(1, -np.inf, np.float32)
"""With it, a run of `counting_up` lasts until it is ended, however quick the machine.

The loop's own timeout would end it, too: after 2 s, or as ``loop_timeout`` says.
"""

AT_ONCE = np.zeros(1, np.float32)
"""With it, a run of `counting_up` has nothing to do."""

for _each in (FOREVER, AT_ONCE):  # all tests share them
    _each.flags.writeable = False

_forms = [""]


@contextmanager
def as_regions(engine: str) -> Iterator[None]:
    """Let the models be regions of an engine, LITERT or ONNX; without one, operations.

    LiteRT looks only between operators if it is to stop: what loops in one of its
    graphs would never end, and is no region.
    """
    _forms.append(engine)
    try:
        yield
    finally:
        _forms.pop()


def addition(*dimensions: int) -> NamedModel:
    """``z = x + y`` of float32; an axis of 0 is left to the request."""
    if _forms[-1] and dimensions:
        return _sums(["x", "y"], [("x", "y", "z")], *dimensions)
    builder = ModelBuilder()
    x = builder.input("x", F32, dimensions)
    y = builder.input("y", F32, dimensions)
    none = builder.scalar(FusedActivationFunc.NONE)
    z = builder.operation(OperationType.ADD, [x, y, none], Operand(F32, dimensions))
    builder.output(z, "z")
    return builder.build()


def chain(length: int, *dimensions: int, alike: bool = True) -> NamedModel:
    """``z = x + length``, one ADD of a constant 1 after the other.

    Unless they are ``alike``, each has a constant, and so a kernel, of its own.
    """
    if _forms[-1]:
        names = ["x", *(f"v{number}" for number in range(1, length)), "z"]
        terms = [(a, "one", b) for a, b in pairwise(names)]
        return _sums(["x"], terms, *dimensions)
    builder = ModelBuilder()
    value = builder.input("x", F32, dimensions)
    one = builder.constant(np.ones((1,), np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    for _ in range(length):
        if not alike:
            one = builder.constant(np.ones((1,), np.float32))
        value = builder.operation(
            OperationType.ADD, [value, one, none], Operand(F32, dimensions)
        )
    builder.output(value, "z")
    return builder.build()


def picking(length: int) -> NamedModel:
    """``z = x[index]``; an execution fails if an index is not below ``length``."""
    builder = ModelBuilder()
    x = builder.input("x", F32, (length,))
    index = builder.input("index", OperandType.TENSOR_INT32, (length,))
    z = builder.operation(
        OperationType.GATHER, [x, builder.scalar(0), index], Operand(F32, (length,))
    )
    builder.output(z, "z")
    return builder.build()


def counting_up() -> NamedModel:
    """``z = x``, after ``while x < 0: x = x + 1``; both are one number."""
    if _forms[-1] == ONNX:
        return _counting_up_in_onnx()
    constant, number = OperandLifeTime.CONSTANT_COPY, (1,)
    values = np.array([0, 1], np.float32).tobytes()  # 0 is NONE, too
    subgraphs = [
        Operand(
            OperandType.SUBGRAPH,
            number_of_consumers=1,
            lifetime=OperandLifeTime.SUBGRAPH,
            location=DataLocation(0, index, 0),
        )
        for index in range(2)
    ]
    x, zero, one = (
        Operand(F32, number, 1, lifetime=lifetime, location=DataLocation(0, offset, 4))
        for lifetime, offset in ((IN, 0), (constant, 0), (constant, 4))
    )
    x = msgspec.structs.replace(x, location=DataLocation(0, 0, 0))
    none = msgspec.structs.replace(zero, type=OperandType.INT32, dimensions=())
    result = Operand(F32, number, lifetime=OUT)
    is_below = Operand(OperandType.TENSOR_BOOL8, number, lifetime=OUT)
    condition = Subgraph(
        (x, zero, is_below), (Operation(OperationType.LESS, (0, 1), (2,)),), (0,), (2,)
    )
    body = Subgraph(
        (x, one, none, result),
        (Operation(OperationType.ADD, (0, 1, 2), (3,)),),
        (0,),
        (3,),
    )
    main = Subgraph(
        (*subgraphs, x, result),
        (Operation(OperationType.WHILE, (0, 1, 2), (3,)),),
        (2,),
        (3,),
    )
    return NamedModel.of(Model(main, (condition, body), values), ("x",), ("z",))


Term: TypeAlias = tuple[str, str, str]
"""The third is the sum of both others; ``one`` is a constant."""


def is_region() -> bool:
    """Return whether models are regions now."""
    return bool(_forms[-1])


def region_of_sums(
    inputs: Mapping[str, Operand], terms: Sequence[Term], outputs: Sequence[str]
) -> Model:
    """Return a region of sums; each is of the type of its first term."""
    known = dict(inputs)
    for first, _, made in terms:
        known[made] = known[first]
    write = _sums_in_onnx if _forms[-1] == ONNX else _sums_in_tflite
    ends = list(inputs), outputs
    return _region(write(known, terms, *ends), *([known[n] for n in e] for e in ends))


def _sums(inputs: Sequence[str], terms: Sequence[Term], *lengths: int) -> NamedModel:
    given = dict.fromkeys(inputs, Operand(F32, lengths))
    return NamedModel.of(region_of_sums(given, terms, ["z"]), inputs, ["z"])


def _region(
    content: bytes, inputs: Sequence[Operand], outputs: Sequence[Operand]
) -> Model:
    ports = (
        [(operand.type, operand.dimensions, 0.0, 0) for operand in operands]
        for operands in (inputs, outputs)
    )
    return region_model(_forms[-1], from_buffer(content), *ports)


def _sums_in_tflite(
    known: Mapping[str, Operand],
    terms: Sequence[Term],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> bytes:
    from tests.runtime.tflite.files import Op, T, write

    tensors = {
        name: T(dtype_of(operand.type), [n or 1 for n in operand.dimensions], name=name)
        for name, operand in known.items()
    }

    def term(name: str, like: str) -> T:
        one = T.constant([1], tensors[like].dtype)
        return one if name == "one" else tensors[name]

    operators = [
        Op("ADD", [tensors[a], term(b, a)], [tensors[c]], "AddOptions")
        for a, b, c in terms
    ]
    return write(
        operators, *([tensors[n] for n in names] for names in (inputs, outputs))
    )


def _sums_in_onnx(
    known: Mapping[str, Operand],
    terms: Sequence[Term],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> bytes:
    from onnx import helper, numpy_helper

    def info(name: str) -> Any:
        operand = known[name]
        kind = helper.np_dtype_to_tensor_dtype(dtype_of(operand.type))
        axes = [n or f"n{axis}" for axis, n in enumerate(operand.dimensions)]
        return helper.make_tensor_value_info(name, kind, axes)

    ones = {
        (dtype := dtype_of(known[a].type)).name: np.ones(1, dtype)
        for a, b, _ in terms
        if b == "one"
    }
    nodes = [
        helper.make_node(
            "Add", [a, dtype_of(known[a].type).name if b == "one" else b], [c]
        )
        for a, b, c in terms
    ]
    ends = (list(map(info, names)) for names in (inputs, outputs))
    constants = [numpy_helper.from_array(one, name) for name, one in ones.items()]
    return _in_onnx(nodes, *ends, constants)


def _counting_up_in_onnx() -> NamedModel:
    from onnx import helper, numpy_helper

    def info(name: str, kind: int = 1, lengths: Sequence[int] = (1,)) -> Any:
        return helper.make_tensor_value_info(name, kind, lengths)

    node, boolean, integer = helper.make_node, 9, 7
    body = helper.make_graph(
        [
            node("Add", ["before", "one"], ["after"]),
            node("Less", ["after", "zero"], ["below"]),
            node("Squeeze", ["below"], ["goes_on"]),
        ],
        "body",
        [info("number", integer, ()), info("go_on", boolean, ()), info("before")],
        [info("goes_on", boolean, ()), info("after")],
    )
    nodes = [
        node("Less", ["x", "zero"], ["first"]),
        node("Squeeze", ["first"], ["begins"]),
        node("Loop", ["", "begins", "x"], ["z"], body=body),
    ]
    numbers = [
        numpy_helper.from_array(np.array([value], np.float32), name)
        for value, name in ((0, "zero"), (1, "one"))
    ]
    content = _in_onnx(nodes, [info("x")], [info("z")], numbers)
    number = [Operand(F32, (1,))]
    return NamedModel.of(_region(content, number, number), ["x"], ["z"])


def _in_onnx(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Sequence[Any],
) -> bytes:
    from onnx import helper

    graph = helper.make_graph(nodes, "region", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 18)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    content: bytes = model.SerializeToString()
    return content
