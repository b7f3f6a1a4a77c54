"""Plans as records: the results of planning, from which a cache restores a plan."""

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.engine.arena import ArenaLayout
from asyncnn.engine.delegation import (
    Delegate,
    KernelRecord,
    Segment,
    Step,
    step_of,
)
from asyncnn.engine.plan import (
    CONSTANT_LIFETIMES,
    OPERANDS_PER_STEP,
    Plan,
    assembled,
    bound_operand,
    constant_array,
    operation_type,
    unprepared,
)
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, failure_of
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import Model, OperandLifeTime, Operation, Subgraph
from asyncnn.kernels.kernel import PreparedKernel
from asyncnn.kernels.registry import SharedKernels
from asyncnn.pacing import Steps

_NO_VALUE = int(OperandLifeTime.NO_VALUE)
_NUMBERS = "numbers"


class StepRecord(msgspec.Struct, frozen=True, eq=False):
    """What preparing one step has decided and made; see `BoundOperation.pack`.

    There is one position, or those of all parts of a delegate's step, which take
    ``costs_ns``; ``inputs`` and ``outputs`` are operands of such a step, and
    ``decided`` is of its `KernelRecord`, whose numbers are packed.
    """

    positions: tuple[int, ...]
    is_prepared: bool
    packed: dict[str, tuple[Array, ...]] = {}
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    decided: bytes = b""
    costs_ns: tuple[int, ...] = ()


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
    steps = tuple(map(_record_of_step, plan.steps))
    operands = plan.subgraph.operands
    folded = {
        index: value
        for index, value in plan.constants.items()
        if operands[index].lifetime not in CONSTANT_LIFETIMES
    }
    return PlanRecord(plan.shapes, folded, steps, plan.arena)


def _record_of_step(step: Step) -> StepRecord:
    if not step.parts:
        is_prepared = step.kernel is not None
        return StepRecord((step.position,), is_prepared, step.operation.packed)
    positions = tuple(part.position for part in step.parts)
    made = KernelRecord() if step.record is None else step.record()
    packed = {_NUMBERS: made.numbers} if made.numbers else {}
    costs_ns = tuple(part.cost_ns for part in step.parts)
    operands = step.inputs, step.outputs
    return StepRecord(positions, True, packed, *operands, made.decided, costs_ns)


def restoring_plan(
    model: Model,
    subgraph: Subgraph,
    record: PlanRecord,
    delegate: Delegate | None = None,
    identity: bytes = b"",
) -> Steps[Plan]:
    """Make a plan again for the model of which it was recorded, in steps.

    Its numbers may be wrong, as nobody has checked them.

    :raises GeneralFailureError: if an operand has an illegal value, or ``delegate``
        does not compute what it did.
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

    def restored(
        position: int, packed: dict[str, tuple[Array, ...]], cost_ns: int = 0
    ) -> Step:
        operation = subgraph.operations[position]
        bound = BoundOperation(
            operation_type(operation.type),
            tuple([inputs[index] for index in operation.inputs]),
            tuple([outputs[index] for index in operation.outputs]),
            relaxed,
            packed,
        )
        operands = operation.inputs, operation.outputs
        return Step(position, bound, *operands, None, cost_ns=cost_ns)

    steps: list[Step] = []
    kernels = SharedKernels()
    for each in record.steps:
        if not each.outputs:
            (position,) = each.positions
            step = restored(position, each.packed)
            if each.is_prepared:
                operation = subgraph.operations[position]
                kernel = _prepare(kernels, operation, step.operation)
                step = replace(step, kernel=kernel)
        else:
            costs = zip(each.positions, each.costs_ns, strict=True)
            parts = tuple([restored(at, {}, cost_ns) for at, cost_ns in costs])
            segment = Segment(parts, each.inputs, each.outputs)
            made = KernelRecord(each.decided, each.packed.get(_NUMBERS, ()))
            step = _delegated(segment, delegate, identity, made)
        steps.append(step)
        yield
    return assembled(subgraph, record.shapes, constants, steps, record.arena)


def _delegated(
    segment: Segment, delegate: Delegate | None, identity: bytes, made: KernelRecord
) -> Step:
    kernel = None if delegate is None else delegate.prepare(segment, identity, made)
    if kernel is None:
        raise GeneralFailureError("a plan was made with another engine")
    return step_of(segment, kernel)


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


def _prepare(
    kernels: SharedKernels, operation: Operation, bound: BoundOperation
) -> PreparedKernel:
    try:
        with np.errstate(all="ignore"):
            return kernels.prepare(bound)
    except AsyncnnError:
        raise
    except Exception as error:
        raise failure_of(error, unprepared(operation)) from error
