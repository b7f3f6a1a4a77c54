"""Regions: parts of a model file as its own engine has them, as operations of the HAL.

What the operations of the HAL cannot say, or an engine is faster at as a whole, is one
operation REGION of a vendor extension: ``org.asyncnn.litert`` for graphs of TFLite,
``org.asyncnn.onnx`` for ONNX. Its first input is a constant, the graph as a
whole file of that format; then come the inputs and outputs of the graph, in its order.

A model with one is built by `region_model` and needs no engine. A device that has the
engine has the extension with kernels: `region_extension`.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import DTypeLike

from asyncnn.extensions.extension import Extension
from asyncnn.extensions.resolution import Extensions, check_extended
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operands import (
    AnyOperandType,
    ExtensionOperandType,
    dtype_of,
    is_extension_type,
)
from asyncnn.hal.operations.bound import Array, ShapeRule
from asyncnn.hal.operations.shapes import declared
from asyncnn.hal.operations.signature import Argument
from asyncnn.hal.types import (
    BASE_MAX,
    EXTENSION_TYPE_BITS,
    DataLocation,
    Dimensions,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    Subgraph,
)
from asyncnn.hal.validate import validate_model
from asyncnn.hal.validate.request import LITERT_REGIONS, ONNX_REGIONS
from asyncnn.kernels.kernel import Compute, Prepare, PrepareOpen
from asyncnn.memory.pools import part_of

LITERT, ONNX = LITERT_REGIONS, ONNX_REGIONS

ENGINES = {LITERT: ("LiteRT", "accelerated"), ONNX: ("ONNX Runtime", "onnxruntime")}
"""What runs regions, and the name of a device that has it."""

DATA_DEPENDENT = frozenset(
    {"Compress", "Loop", "NonMaxSuppression", "NonZero", "SequenceAt", "Unique"}
)
"""Operators of ONNX with results whose shape their values decide.

What a file with one says of lengths of outputs may hold for one run only.
"""

RegionPort: TypeAlias = tuple[AnyOperandType, Dimensions, float, int]
"""Type, dimensions, scale and zero point of an input or output of a region.

A length of 0 is open, as are all axes if there are no dimensions. A tensor of the
engine without axes has one of length 1 here.
"""

BFLOAT16 = np.dtype("V2")
"""Two bytes: NumPy itself has no such numbers."""

_DTYPE_NAMES = """
float32 uint8 int8 uint16 int16 int32 int64 - bool float16 float64 uint32 uint64
"""
ONNX_DTYPES: dict[int, np.dtype[np.generic]] = {
    number: np.dtype(name)
    for number, name in enumerate(_DTYPE_NAMES.split(), 1)
    if name != "-"
}
"""Dtypes by ONNX's numbers of element types, of which NumPy has the elements."""

_TYPES: tuple[tuple[str, DTypeLike], ...] = (
    ("GRAPH", np.uint8),
    ("TENSOR_INT64", np.int64),
    ("TENSOR_FLOAT64", np.float64),
    ("TENSOR_UINT32", np.uint32),
    ("TENSOR_UINT64", np.uint64),
    ("TENSOR_INT16", np.int16),
    ("TENSOR_UINT16", np.uint16),
    ("TENSOR_INT8", np.int8),
    ("TENSOR_UINT8", np.uint8),
    ("TENSOR_BFLOAT16", BFLOAT16),
)
"""Types of tensors, by their numbers; the rest are the HAL's own."""

_HAL_TYPES = {
    np.dtype(np.float32): OperandType.TENSOR_FLOAT32,
    np.dtype(np.float16): OperandType.TENSOR_FLOAT16,
    np.dtype(np.int32): OperandType.TENSOR_INT32,
    np.dtype(np.bool_): OperandType.TENSOR_BOOL8,
}


def region_extension(
    name: str,
    *,
    version: str = "1",
    shape: ShapeRule = declared,
    prepare: Prepare | None = None,
    compute: Compute | None = None,
    prepare_open: PrepareOpen | None = None,
) -> Extension:
    """Return `LITERT` or `ONNX`, with the kernels of an engine if there are any.

    ``prepare`` is for regions whose output shapes are known: those that the model
    declares, or what the engine's ``shape`` returns. ``compute`` is for the others; see
    `ExtensionOperation` for ``prepare_open``.
    ``version`` is the engine's; see `Extension`.
    """
    extension = Extension(name, version=version)
    graph = None
    for number, (type_name, dtype) in enumerate(_TYPES):
        type_ = extension.tensor_type(type_name, number, dtype)
        graph = graph or type_
    assert graph is not None
    region = extension.operation(
        "REGION",
        0,
        inputs=[Argument("graph", graph), Argument("inputs", None, at_least=0)],
        outputs=[Argument("outputs", None, at_least=1)],
        shape=shape,
        prepare=prepare,
        compute=compute,
    )
    region.prepare_open = prepare_open
    return extension


DECLARED = {name: region_extension(name) for name in (LITERT, ONNX)}
"""Both extensions without an engine, to build models with."""


def type_of(extension: str, dtype: np.dtype[np.generic]) -> AnyOperandType:
    """Return the type of tensors of elements that are no quantised numbers.

    :raises InvalidArgumentError: if the extension has none of the dtype.
    """
    hal = _HAL_TYPES.get(dtype)
    if hal is not None:
        return hal
    for type_ in DECLARED[extension].operand_types.values():
        if type_.number and type_.dtype == dtype:
            return type_
    raise InvalidArgumentError(f"regions have no tensors of {dtype}")


def region_model(
    extension: str,
    graph: Memory,
    inputs: Sequence[RegionPort | Array],
    outputs: Sequence[RegionPort],
) -> Model:
    """Return the model of one region, whose graph is all bytes of ``graph``.

    An array among ``inputs`` is a constant; the others are inputs of the model. It has
    no numbers for types of the extension; `numbered` gives them to it.
    """
    declared = DECLARED[extension]
    blob: ExtensionOperandType = declared.operand_types[0]
    operands = [
        Operand(
            blob,
            (graph.size,),
            lifetime=OperandLifeTime.CONSTANT_REFERENCE,
            location=DataLocation(pool_index=0, offset=0, length=graph.size),
            number_of_consumers=1,
        )
    ]
    values = bytearray()
    given: list[int] = []
    for port in inputs:
        if isinstance(port, np.ndarray):
            data = port.tobytes()
            values += bytes(-len(values) % 8)
            operands.append(
                Operand(
                    type_of(extension, port.dtype),
                    port.shape or (1,),
                    lifetime=OperandLifeTime.CONSTANT_COPY,
                    location=DataLocation(
                        pool_index=0, offset=len(values), length=len(data)
                    ),
                    number_of_consumers=1,
                )
            )
            values += data
            continue
        given.append(len(operands))
        operands.append(_operand(port, OperandLifeTime.SUBGRAPH_INPUT, 1))
    first = len(operands)
    operands += [_operand(port, OperandLifeTime.SUBGRAPH_OUTPUT, 0) for port in outputs]
    made = tuple(range(first, len(operands)))
    region = Operation(declared.operation_types[0], tuple(range(first)), made)
    main = Subgraph(tuple(operands), (region,), tuple(given), made)
    return Model(main, operand_values=bytes(values), pools=(graph,))


class Region(msgspec.Struct, frozen=True, eq=False):
    """A graph that is a whole model: its bytes, and what it is given.

    ``inputs`` are dimensions of inputs of the model, and values that are constant.
    """

    extension: str
    graph: Memory
    inputs: tuple[Dimensions | Array, ...]


def region_extension_of(model: Model) -> str:
    """Return the extension of the region that a model is; empty for others."""
    operations = model.main.operations
    names = {each.prefix: each.name for each in model.extension_name_to_prefix}
    if len(operations) != 1 or not names or operations[0].type & BASE_MAX:
        return ""
    extension = names.get(operations[0].type >> EXTENSION_TYPE_BITS, "")
    return extension if extension in DECLARED else ""


def region_of(model: Model) -> Region | None:
    """Return the region that ``model`` consists of; None if it has other operations.

    :raises InvalidArgumentError: if it is one, and breaks a rule.
    """
    extension = region_extension_of(model)
    if not extension:
        return None
    main = model.main
    (operation,) = main.operations
    validate_model(model)
    check_extended(Extensions([DECLARED[extension]]).resolved(model))
    blob, *inputs = [main.operands[index] for index in operation.inputs]
    if blob.lifetime != OperandLifeTime.CONSTANT_REFERENCE:
        return None
    place = blob.location
    return Region(
        extension,
        part_of(model.pools[place.pool_index], place.offset, place.length),
        tuple(_given(model, DECLARED[extension], operand) for operand in inputs),
    )


def _given(model: Model, extension: Extension, operand: Operand) -> Dimensions | Array:
    if operand.lifetime != OperandLifeTime.CONSTANT_COPY:
        return operand.dimensions
    type_: int = operand.type
    if is_extension_type(type_):
        type_ = extension.operand_types[type_ & BASE_MAX]
    return np.ndarray(
        operand.dimensions,
        dtype_of(type_),
        model.operand_values,
        operand.location.offset,
    )


def _operand(port: RegionPort, lifetime: OperandLifeTime, consumers: int) -> Operand:
    type_, dimensions, scale, zero_point = port
    return Operand(
        type_,
        dimensions,
        scale=scale,
        zero_point=zero_point,
        lifetime=lifetime,
        number_of_consumers=consumers,
    )
