"""Models with state, and what they compute by formulas."""

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.networks import F32, is_region, region_of_sums

I32 = OperandType.TENSOR_INT32
X = np.array([1, 2, 3, 4], np.float32)
FIRST = 7


def counting() -> NamedModel:
    """``total += x`` and ``steps += 1``, which is 7 at first; ``y = 2 total``."""
    first = np.array([FIRST], np.int32)
    if is_region():
        reals, number = Operand(F32, (4,)), Operand(I32, (1,))
        region = region_of_sums(
            {"x": reals, "total": reals, "steps": number},
            [("total", "x", "sum"), ("sum", "sum", "y"), ("steps", "one", "more")],
            ["y", "sum", "more"],
        )
        return NamedModel.of(region, ["x"], ["y"], [("total", None), ("steps", first)])
    builder = ModelBuilder()
    x = builder.input("x", F32, (4,))
    total = builder.state("total", F32, (4,))
    steps = builder.state("steps", I32, (1,), initial=first)
    one = builder.constant(np.ones(1, np.int32))
    none = builder.scalar(FusedActivationFunc.NONE)
    added = builder.operation(OperationType.ADD, [total, x, none], Operand(F32, (4,)))
    y = builder.operation(OperationType.ADD, [added, added, none], Operand(F32, (4,)))
    more = builder.operation(OperationType.ADD, [steps, one, none], Operand(I32, (1,)))
    builder.output(y, "y")
    builder.next_state(total, added)
    builder.next_state(steps, more)
    return builder.build()


def with_total_paired(named: NamedModel) -> NamedModel:
    """Return `counting` with ``total`` as an input and output that runs know."""
    total, steps = named.states
    return replace(
        named,
        inputs=(*named.inputs, total.info),
        outputs=(*named.outputs, total.info),
        states=(steps,),
        pairs=(("total", "total"),),
    )


def after(steps: int) -> tuple[NDArray[np.float32], int]:
    """Return the state of `counting` after as many steps with `X`."""
    return steps * X, FIRST + steps


def picking_sum() -> NamedModel:
    """``total += x[index]``; a step fails if an index is not below 4."""
    builder = ModelBuilder()
    x, index = builder.input("x", F32, (4,)), builder.input("index", I32, (4,))
    total = builder.state("total", F32, (4,))
    none = builder.scalar(FusedActivationFunc.NONE)
    # What is kept is computed first, so that it is there when the step fails.
    added = builder.operation(OperationType.ADD, [total, x, none], Operand(F32, (4,)))
    gather = [added, builder.scalar(0), index]
    z = builder.operation(OperationType.GATHER, gather, Operand(F32, (4,)))
    builder.output(z, "z")
    builder.next_state(total, added)
    return builder.build()
