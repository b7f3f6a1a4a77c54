"""Models and requests that break no rule, and how to change one thing in them."""

import math
from typing import Any

import msgspec
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    DataLocation,
    ExtensionNameAndPrefix,
    HalVersion,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Request,
    RequestArgument,
    Subgraph,
)
from asyncnn.hal.validate import validate_model
from asyncnn.tools.conformance.mutations.mutant import with_operand, with_operation

Q8 = OperandType.TENSOR_QUANT8_ASYMM
TEMPORARY = OperandLifeTime.TEMPORARY_VARIABLE
INPUT = OperandLifeTime.SUBGRAPH_INPUT
OUTPUT = OperandLifeTime.SUBGRAPH_OUTPUT
COPY = OperandLifeTime.CONSTANT_COPY
REFERENCE = OperandLifeTime.CONSTANT_REFERENCE


def pool(size: int) -> Memory:
    return Memory("ashmem", size, buffer=memoryview(bytearray(size)))


def quantised(lifetime: int, consumers: int, **changes: Any) -> Operand:
    operand = Operand(Q8, (2, 3), consumers, 0.5, 7, lifetime)
    return msgspec.structs.replace(operand, **changes)


def q8_model() -> Model:
    """RELU((input + copied) + referenced), all of them [2, 3] and quantised."""
    return Model(
        Subgraph(
            operands=(
                quantised(INPUT, 1),
                quantised(COPY, 1, location=DataLocation(0, 4, 6)),
                Operand(OperandType.INT32, (), 2, 0, 0, COPY, DataLocation(0, 0, 4)),
                quantised(TEMPORARY, 1),
                quantised(REFERENCE, 1, location=DataLocation(0, 2, 6)),
                quantised(TEMPORARY, 1),
                quantised(OUTPUT, 0),
            ),
            operations=(
                Operation(OperationType.ADD, (0, 1, 2), (3,)),
                Operation(OperationType.ADD, (3, 4, 2), (5,)),
                Operation(OperationType.RELU, (5,), (6,)),
            ),
            input_indexes=(0,),
            output_indexes=(6,),
        ),
        operand_values=bytes(10),
        pools=(pool(8),),
    )


def float_model(*dimensions: int) -> Model:
    """FLOOR of a float tensor, input and output of these dimensions."""
    f32 = OperandType.TENSOR_FLOAT32
    return Model(
        Subgraph(
            operands=(
                Operand(f32, dimensions, 1, lifetime=INPUT),
                Operand(f32, dimensions, lifetime=OUTPUT),
            ),
            operations=(Operation(OperationType.FLOOR, (0,), (1,)),),
            input_indexes=(0,),
            output_indexes=(1,),
        )
    )


def nested_model(branch_of: int = 0) -> Model:
    """Main is an IF of subgraph 0, which is an IF of subgraph 1, a FLOOR.

    With ``branch_of`` subgraph 1 is an IF of subgraph ``branch_of - 1`` instead.
    """
    leaf = float_model(2).main
    inner = _if_subgraph(1)
    if branch_of:
        leaf = _if_subgraph(branch_of - 1)
    return Model(_if_subgraph(0), (inner, leaf), bytes(1))


def _if_subgraph(branch: int) -> Subgraph:
    f32 = OperandType.TENSOR_FLOAT32
    reference = Operand(
        OperandType.SUBGRAPH,
        number_of_consumers=1,
        lifetime=OperandLifeTime.SUBGRAPH,
        location=DataLocation(0, branch, 0),
    )
    condition = Operand(
        OperandType.TENSOR_BOOL8, (1,), 1, lifetime=COPY, location=DataLocation(0, 0, 1)
    )
    return Subgraph(
        operands=(
            condition,
            reference,
            reference,
            Operand(f32, (2,), 1, lifetime=INPUT),
            Operand(f32, (2,), lifetime=OUTPUT),
        ),
        operations=(Operation(OperationType.IF, (0, 1, 2, 3), (4,)),),
        input_indexes=(3,),
        output_indexes=(4,),
    )


def open_loop_model() -> Model:
    """Main is a WHILE over a value of unknown size, which subgraph 1 rounds."""
    f32, bools = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_BOOL8
    references = tuple(
        Operand(
            OperandType.SUBGRAPH,
            number_of_consumers=1,
            lifetime=OperandLifeTime.SUBGRAPH,
            location=DataLocation(0, number, 0),
        )
        for number in (0, 1)
    )
    condition = Subgraph(
        operands=(
            Operand(f32, (2, 0), lifetime=INPUT),
            Operand(bools, (1,), 1, lifetime=COPY, location=DataLocation(0, 0, 1)),
            Operand(bools, (1,), lifetime=OUTPUT),
        ),
        operations=(Operation(OperationType.LOGICAL_NOT, (1,), (2,)),),
        input_indexes=(0,),
        output_indexes=(2,),
    )
    x, y = (
        Operand(f32, (2, 0), 1, lifetime=INPUT),
        Operand(f32, (2, 0), lifetime=OUTPUT),
    )
    body = Subgraph((x, y), (Operation(OperationType.FLOOR, (0,), (1,)),), (0,), (1,))
    loop = Operation(OperationType.WHILE, (0, 1, 2), (3,))
    main = Subgraph((*references, x, y), (loop,), (2,), (3,))
    return Model(main, (condition, body), b"\1")


def float_request(*shape: int) -> Request:
    """A request for `float_model`: input, then output, in one pool."""
    size = 4 * math.prod(shape)
    return Request(
        (RequestArgument(location=DataLocation(0, 0, size)),),
        (RequestArgument(location=DataLocation(0, size, size)),),
        (pool(2 * size),),
    )


def refusal(model: Model, version: HalVersion = HalVersion.V1_3) -> str:
    """Validate a model that breaks a rule; return the error's message."""
    with pytest.raises(InvalidArgumentError) as caught:
        validate_model(model, version)
    return str(caught.value)


EXTENSION = ExtensionNameAndPrefix("com.example.vision", 3)
EXTENSION_TYPE = 3 << 16 | 1


def extension_model(**changes: Any) -> Model:
    """An extension's operation on an operand of an extension's type."""
    model = with_operand(float_model(2), 0, type=EXTENSION_TYPE, **changes)
    model = with_operation(model, 0, type=EXTENSION_TYPE)
    return msgspec.structs.replace(model, extension_name_to_prefix=(EXTENSION,))
