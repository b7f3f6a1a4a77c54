"""One estimate for LiteRT, for kernels and for devices that declare figures."""

import numpy as np
import pytest

from asyncnn.devices.measured_capabilities import reference_capabilities
from asyncnn.engine.costs import (
    USUAL,
    ModelCosts,
    Speeds,
    TypeSpeeds,
    chosen_figure,
    estimated_ns,
)
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation
from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder

F32 = OperandType.TENSOR_FLOAT32


def linear(units: int) -> BoundOperation:
    x, y = BoundOperand(F32, (1, 64)), BoundOperand(F32, (1, units))
    given = x, BoundOperand(F32, (units, 64)), BoundOperand(F32, (units,)), None
    return BoundOperation(OperationType.FULLY_CONNECTED, given, (y,))


def test_twice_the_work_takes_twice_as_long_but_for_beginning_it() -> None:
    once, twice = (estimated_ns(linear(units)) for units in (512, 1024))
    begun = USUAL.call_ns
    assert (twice - begun) / (once - begun) == pytest.approx(2, rel=0.01)


def test_half_the_speeds_take_twice_as_long() -> None:
    halves = TypeSpeeds(25.0, 6.25, 2.0)
    slow = Speeds(halves, USUAL.integers, 2 * USUAL.call_ns)
    operation = linear(512)
    assert estimated_ns(operation, slow) == pytest.approx(
        2 * estimated_ns(operation), rel=0.001
    )


def test_recurrent_weights_count() -> None:
    state, weights = BoundOperand(F32, (1, 256)), BoundOperand(F32, (256, 256))
    rnn = BoundOperation(OperationType.RNN, (state, weights, weights), (state, state))
    add = BoundOperation(OperationType.ADD, (state, state), (state,))
    assert estimated_ns(rnn) > 20 * estimated_ns(add)


def test_a_device_gets_what_it_declares_of_the_kernels_time() -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (1, 64))
    weights = builder.constant(np.ones((32, 64), np.float32))
    bias = builder.constant(np.ones(32, np.float32))
    given = [x, weights, bias, builder.scalar(FusedActivationFunc.NONE)]
    y = builder.operation(OperationType.FULLY_CONNECTED, given, Operand(F32, (1, 32)))
    builder.output(y, "y")
    costs = ModelCosts(builder.build().model)
    (taken_us,) = costs.of_main(reference_capabilities(), chosen_figure(-1))
    kernels = Speeds(TypeSpeeds(5.0, 5.0, 4.0), USUAL.integers, 2000.0)
    assert taken_us * 1000 == pytest.approx(estimated_ns(linear(32), kernels), rel=0.01)
