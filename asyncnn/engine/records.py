"""Plans as records: the results of planning, from which a cache restores a plan."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast, overload

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.engine.arena import ArenaLayout
from asyncnn.engine.delegation import (
    Delegate,
    DelegatedKernel,
    KernelRecord,
    Segment,
    Step,
    dividing,
    step_of,
)
from asyncnn.engine.plan import (
    CONSTANT_LIFETIMES,
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


ArrayT = TypeVar("ArrayT")
OtherT = TypeVar("OtherT")


class StepRecord(
    msgspec.Struct, Generic[ArrayT], frozen=True, eq=False, array_like=True
):
    """What preparing one step has decided and made; see `BoundOperation.pack`.

    Caches have other things than arrays in it, which say where these lie.

    There is one position, or one for each part of a delegate's step, which take
    ``costs_ns``; ``inputs`` and ``outputs`` are operands of such a step, and
    ``decided`` is of its `KernelRecord`, whose numbers are packed.
    """

    positions: tuple[int, ...]
    is_prepared: bool
    packed: dict[str, tuple[ArrayT, ...]] = {}
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    decided: bytes = b""
    costs_ns: tuple[int, ...] = ()

    def repacked(self, change: Callable[[ArrayT], OtherT]) -> "StepRecord[OtherT]":
        """Return the same with each array changed."""
        packed = {name: tuple(map(change, each)) for name, each in self.packed.items()}
        return cast("StepRecord[OtherT]", replace(cast("Any", self), packed=packed))


class PlanRecord(msgspec.Struct, frozen=True, eq=False):
    """What building a plan has decided: enough to have it again without the work.

    ``folded`` are the values, by operand index, that were computed from constants.
    """

    shapes: tuple[Shape | None, ...]
    folded: dict[int, Array]
    steps: tuple[StepRecord[Array], ...]
    arena: ArenaLayout


def record_of(plan: Plan) -> PlanRecord:
    """Return what `restoring_plan` needs to make a plan again."""
    # What was divided is of one position, and divided again.
    steps = {step.position: _record_of_step(step) for step in plan.steps}
    operands = plan.subgraph.operands
    folded = {
        index: value
        for index, value in plan.constants.items()
        if operands[index].lifetime not in CONSTANT_LIFETIMES
    }
    return PlanRecord(plan.shapes, folded, tuple(steps.values()), plan.arena)


def _record_of_step(step: Step) -> StepRecord[Array]:
    if not step.parts:
        is_prepared = step.kernel is not None and not step.is_open
        return StepRecord((step.position,), is_prepared, step.operation.packed)
    positions = tuple(part.position for part in step.parts)
    made = KernelRecord() if step.record is None else step.record()
    packed = {_NUMBERS: made.numbers} if made.numbers else {}
    operands = step.inputs, step.outputs
    return StepRecord(positions, True, packed, *operands, made.decided, step.costs_ns)


def restoring_plan(
    model: Model,
    subgraph: Subgraph,
    record: PlanRecord,
    delegate: Delegate | None = None,
    identity: bytes = b"",
    *,
    makes_way: bool = False,
) -> Steps[Plan]:
    """Make a plan again for the model of which it was recorded, in steps.

    Its numbers may be wrong, as nobody has checked them.

    :raises GeneralFailureError: if an operand has an illegal value, or ``delegate``
        does not compute what it did.
    """
    restored = _Restored(model, subgraph, record, makes_way)
    steps: list[Step] = []
    kernels, count = SharedKernels(), len(subgraph.operands)
    for each in record.steps:
        if not each.outputs:
            (position,) = each.positions
            step = restored.step(position, each.packed)
            if each.is_prepared:
                operation = subgraph.operations[position]
                kernel = _prepare(kernels, operation, step.operation)
                step = replace(step, kernel=kernel)
        else:
            parts = _Parts(restored, each.positions)
            segment = Segment(parts, each.inputs, each.outputs)
            numbers = each.packed.get(_NUMBERS, ())
            made = KernelRecord(each.decided, numbers, restored.constant)
            kernel = _delegated(segment, delegate, identity, made)
            step = step_of(segment, kernel, each.costs_ns)
        divided, subgraph = yield from dividing(step, subgraph)
        steps += divided
        yield
    crossing = tuple(each.dimensions for each in subgraph.operands[count:])
    if crossing != tuple(record.shapes[count:]):
        raise GeneralFailureError("a plan was made with another engine")
    constants = restored.constants.copy()  # parts may be asked for at any time
    return assembled(subgraph, record.shapes, constants, steps, record.arena)


class _Restored:
    """The operations of a recorded plan, of which few are asked for.

    Its ``constants`` are those that any of them, or a delegate, has read.
    """

    def __init__(
        self, model: Model, subgraph: Subgraph, record: PlanRecord, makes_way: bool
    ) -> None:
        self._makes_way = makes_way
        self.constants = dict(record.folded)
        self._model = model
        self._subgraph = subgraph
        self._shapes = record.shapes
        self._relaxed = model.relax_computation_float32_to_float16
        self._bound: dict[int, BoundOperand] = {}
        self._omitted = {
            index for index in subgraph.input_indexes if record.shapes[index] is None
        }

    def constant(self, index: int) -> Array:
        """Return the value of a constant operand."""
        value = self.constants.get(index)
        if value is None:
            operand = self._subgraph.operands[index]
            if operand.lifetime not in CONSTANT_LIFETIMES:
                raise LookupError(f"operand {index} is no constant")
            value = self.constants[index] = constant_array(self._model, operand)
        return value

    def step(
        self, position: int, packed: dict[str, tuple[Array, ...]] | None = None
    ) -> Step:
        operation = self._subgraph.operations[position]
        bound = BoundOperation(
            operation_type(operation.type),
            tuple(map(self._input, operation.inputs)),
            tuple(map(self._operand, operation.outputs)),
            self._relaxed,
            {} if packed is None else packed,
            makes_way=self._makes_way,
        )
        return Step(position, bound, operation.inputs, operation.outputs, None)

    def _input(self, index: int) -> BoundOperand | None:
        """Return an operand; None where the model or the request has none."""
        has_none = self._subgraph.operands[index].lifetime == _NO_VALUE
        return None if has_none or index in self._omitted else self._operand(index)

    def _operand(self, index: int) -> BoundOperand:
        bound = self._bound.get(index)
        if bound is None:
            operand = self._subgraph.operands[index]
            is_constant = operand.lifetime in CONSTANT_LIFETIMES
            value = self.constant(index) if is_constant else self.constants.get(index)
            bound = bound_operand(operand, self._shapes[index], value)
            self._bound[index] = bound
        return bound


class _Parts(Sequence[Step]):
    """The parts of a delegate's step, each made when somebody asks for it."""

    def __init__(self, restored: _Restored, positions: tuple[int, ...]) -> None:
        self._restored = restored
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, number: int) -> Step: ...
    @overload
    def __getitem__(self, number: slice) -> list[Step]: ...
    def __getitem__(self, number: int | slice) -> Step | list[Step]:
        if isinstance(number, slice):
            return [*map(self._restored.step, self._positions[number])]
        return self._restored.step(self._positions[number])


def _delegated(
    segment: Segment, delegate: Delegate | None, identity: bytes, made: KernelRecord
) -> DelegatedKernel:
    kernel = None if delegate is None else delegate.prepare(segment, identity, made)
    if kernel is None:
        raise GeneralFailureError("a plan was made with another engine")
    return kernel


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
