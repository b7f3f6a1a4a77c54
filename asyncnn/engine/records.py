"""Plans as records: the results of planning, from which a cache restores a plan."""

import msgspec
import numpy as np

from asyncnn.engine.arena import ArenaLayout
from asyncnn.engine.plan import (
    CONSTANT_LIFETIMES,
    OPERANDS_PER_STEP,
    Plan,
    Step,
    assembled,
    bound_operand,
    constant_array,
    failure_of,
    operation_type,
)
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import Model, OperandLifeTime, Operation, Subgraph
from asyncnn.kernels import registry as kernels
from asyncnn.kernels.kernel import PreparedKernel
from asyncnn.pacing import Steps

_NO_VALUE = int(OperandLifeTime.NO_VALUE)


class StepRecord(msgspec.Struct, frozen=True, eq=False):
    """What preparing one step has decided and made; see `BoundOperation.pack`."""

    position: int
    is_prepared: bool
    packed: dict[str, tuple[Array, ...]]


class PlanRecord(msgspec.Struct, frozen=True, eq=False):
    """What building a plan has decided: enough to have it again without the work.

    ``folded`` are the values, by operand index, that were computed from constants.
    """

    shapes: tuple[Shape | None, ...]
    folded: dict[int, Array]
    steps: tuple[StepRecord, ...]
    arena: ArenaLayout


def record_of(plan: Plan) -> PlanRecord:
    """Return what `restoring_plan` needs to make a plan again."""
    steps = tuple(
        StepRecord(step.position, step.kernel is not None, step.operation.packed)
        for step in plan.steps
    )
    operands = plan.subgraph.operands
    folded = {
        index: value
        for index, value in plan.constants.items()
        if operands[index].lifetime not in CONSTANT_LIFETIMES
    }
    return PlanRecord(plan.shapes, folded, steps, plan.arena)


def restoring_plan(model: Model, subgraph: Subgraph, record: PlanRecord) -> Steps[Plan]:
    """Make a plan again for the model of which it was recorded, in steps.

    Its numbers may be wrong, as nobody has checked them.

    :raises GeneralFailureError: if an operand has an illegal value.
    """
    constants = dict(record.folded)
    outputs: list[BoundOperand] = []
    for index, operand in enumerate(subgraph.operands):
        if operand.lifetime in CONSTANT_LIFETIMES:
            constants[index] = constant_array(model, operand)
        shape = record.shapes[index]
        outputs.append(bound_operand(operand, shape, constants.get(index)))
        if not (index + 1) % OPERANDS_PER_STEP:
            yield
    inputs = _without_omitted(subgraph, outputs)
    relaxed = model.relax_computation_float32_to_float16
    steps = []
    for step in record.steps:
        operation = subgraph.operations[step.position]
        bound = BoundOperation(
            operation_type(operation.type),
            tuple([inputs[index] for index in operation.inputs]),
            tuple([outputs[index] for index in operation.outputs]),
            relaxed,
            step.packed,
        )
        kernel = _prepare(operation, bound) if step.is_prepared else None
        steps.append(
            Step(step.position, bound, operation.inputs, operation.outputs, kernel)
        )
        yield
    return assembled(subgraph, record.shapes, constants, steps, record.arena)


def _without_omitted(
    subgraph: Subgraph, operands: list[BoundOperand]
) -> list[BoundOperand | None]:
    """Return the operands as inputs: None where the model or the request has none."""
    inputs: list[BoundOperand | None] = [
        None if operand.lifetime == _NO_VALUE else bound
        for operand, bound in zip(subgraph.operands, operands, strict=True)
    ]
    for index in subgraph.input_indexes:
        if operands[index].shape is None:
            inputs[index] = None
    return inputs


def _prepare(operation: Operation, bound: BoundOperation) -> PreparedKernel:
    try:
        with np.errstate(all="ignore"):
            return kernels.prepare(bound)
    except AsyncnnError:
        raise
    except Exception as error:
        raise failure_of(operation, error) from error
