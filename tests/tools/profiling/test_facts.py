"""What is known of operations without measuring them."""

import numpy as np
import pytest

from asyncnn.engine import Program
from asyncnn.engine.plan import Plan
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.kernels import registry
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.tools.profiling.facts import (
    facts_of_part,
    facts_of_run,
    kernel_of,
    rounding_of,
    temporary_bytes,
)
from tests.networks import F32

F16 = OperandType.TENSOR_FLOAT16
I32 = OperandType.TENSOR_INT32
CODES = OperandType.TENSOR_QUANT8_ASYMM_SIGNED


def dense() -> Plan:
    """Two FULLY_CONNECTED, of 100 to 50 to 10."""
    builder = ModelBuilder()
    value, none = builder.input("x", F32, (1, 100)), builder.scalar(0)
    for size, before in ((50, 100), (10, 50)):
        weights = builder.constant(np.ones((size, before), np.float32))
        bias = builder.constant(np.zeros(size, np.float32))
        value = builder.operation(
            OperationType.FULLY_CONNECTED,
            [value, weights, bias, none],
            Operand(F32, (1, size)),
        )
    builder.output(value, "y")
    return Program(builder.build().model).plan(((1, 100),))


def test_bytes_are_those_of_inputs_outputs_and_weights() -> None:
    plan = dense()
    first, second = plan.steps
    told = facts_of_part(first)
    assert told.input_bytes == 400
    assert told.output_bytes == 200
    assert told.weight_bytes == 4 * (50 * 100 + 50 + 1)
    assert told.shapes == ((1, 50),)
    slots = dict(plan.constants)
    slots[first.inputs[0]] = np.zeros((1, 100), np.float32)
    inputs = [slots[index] for index in first.inputs]
    outputs = [np.zeros((1, 50), np.float32)]
    assert facts_of_run(plan, first, inputs, outputs) == told
    assert facts_of_run(plan, first, inputs, [None]).shapes == (None,)
    assert temporary_bytes(plan, first) >= 200
    assert temporary_bytes(plan, second) < temporary_bytes(plan, first)
    assert kernel_of(first) == "linear.matmul"


def operation(
    type_: OperationType, *operands: tuple[OperandType, float]
) -> BoundOperation:
    *inputs, output = [BoundOperand(each, (4,), scale) for each, scale in operands]
    return BoundOperation(type_, tuple(inputs), (output,), False, {})


@pytest.mark.parametrize(
    ("bound", "by_kernel", "by_engine"),
    [
        (operation(OperationType.ABS, (F32, 0), (F32, 0)), "float32", "float32"),
        (operation(OperationType.ABS, (I32, 0), (I32, 0)), "exact", "exact"),
        (
            operation(OperationType.ABS, (F16, 0), (F16, 0)),
            "once, to even",
            "at segment's end",
        ),
        (
            operation(OperationType.CONV_2D, (CODES, 0.5), (CODES, 0.5)),
            "twice",
            "once, to even",
        ),
        (
            operation(OperationType.SOFTMAX, (CODES, 0.5), (CODES, 0.1)),
            "once, away",
            "once, to even",
        ),
        (operation(OperationType.RESHAPE, (CODES, 0.5), (CODES, 0.5)), "none", "none"),
        (
            operation(OperationType.CONCATENATION, (CODES, 0.5), (CODES, 0.1)),
            "once, away",
            "once, to even",
        ),
        (
            operation(OperationType.QUANTIZED_LSTM, (CODES, 0.5), (CODES, 0.5)),
            "each step",
            "once, to even",
        ),
        (operation(OperationType.DEQUANTIZE, (CODES, 0.5), (F32, 0)), *["float32"] * 2),
    ],
    ids=lambda each: each.type.name if isinstance(each, BoundOperation) else "",
)
def test_rounding_is_that_of_whatever_computes(
    bound: BoundOperation, by_kernel: str, by_engine: str
) -> None:
    assert rounding_of(bound, by_engine=False) == by_kernel
    assert rounding_of(bound, by_engine=True) == by_engine


def test_every_operation_that_is_supported_is_of_a_family() -> None:
    for type_ in registry.supported_operations():
        assert registry.family_of(type_)
    assert registry.family_of(OperationType.IF) == ""
