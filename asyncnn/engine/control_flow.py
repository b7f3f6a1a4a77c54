"""Steps that are more than a call: shapes that depend on data, and IF and WHILE.

A step of open shapes is prepared at each execution. IF and WHILE run other subgraphs;
each is a small state machine. Given the bound plan that has just finished, or None
at the start, `resume` returns the next one to run; None means that the operation is
done and its outputs are in the slots of the plan that it belongs to.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace

from asyncnn.engine.delegation import Step
from asyncnn.engine.program import Program
from asyncnn.engine.workspace import BoundPlan, Slots, shapes_of
from asyncnn.hal.errors import GeneralFailureError, MissedDeadlineTransientError
from asyncnn.hal.operands import AnyOperationType, check_declared
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.types import Operand, OperationType
from asyncnn.kernels import registry as kernels
from asyncnn.kernels.kernel import HeapScratch, Inputs, InterruptibleRun, Outputs

Elsewhere: TypeAlias = Callable[[InterruptibleRun, Inputs, Outputs], bool]
"""Has another engine run; False if it was interrupted for a pause."""


def _to_the_end(run: InterruptibleRun, inputs: Inputs, outputs: Outputs) -> bool:
    run(inputs, outputs)
    return True


def run_dynamic_step(
    step: Step,
    slots: Slots,
    operands: tuple[Operand, ...],
    elsewhere: Elsewhere = _to_the_end,
    grow: Callable[[int], None] = lambda _: None,
) -> bool:
    """Infer shapes, prepare and run ``step``; set its outputs in ``slots``.

    False if it was interrupted for a pause, and is to be run anew. ``grow`` is called
    with the bytes that it takes, before that where they are known.

    :raises GeneralFailureError: if the values do not fit the operation.
    """
    operation, results = _with_values(step, slots), list[Array]()
    open_kernel = kernels.prepare_open(operation)
    if open_kernel is not None:
        run: Any = open_kernel(HeapScratch())
        results += [None] * len(step.outputs)  # type: ignore[list-item]
        if not elsewhere(run, [slots[index] for index in step.inputs], results):
            return False
    elif kernels.is_data_dependent(operation.type):
        if not _compute(operation, elsewhere, results, grow):
            return False
    elif not _prepare_and_run(operation, step, slots, elsewhere, grow, results):
        return False
    for index, result in zip(step.outputs, results, strict=True):
        store(slots, index, result, operands[index], operation.type)
    return True


def has_learnt_shapes(step: Step, slots: Slots) -> bool:
    """Return whether a step that has run without a plan for its shapes can have one."""
    may_learn = kernels.may_learn_shapes(step.operation.type)
    return may_learn and None not in infer_shapes(_with_values(step, slots))


def store(
    slots: Slots, index: int, result: Array, operand: Operand, type_: AnyOperationType
) -> None:
    """Put a result into the array that waits for it; else let it take the place.

    :raises GeneralFailureError: if its shape is not the one that the model declares.
    """
    given = slots[index]
    if given is result:
        return
    check_declared(operand, result.shape, type_)
    if given is not None and given.shape == result.shape:
        given[...] = result
    else:
        slots[index] = result


def _compute(
    operation: BoundOperation,
    elsewhere: Elsewhere,
    results: list[Array],
    grow: Callable[[int], None] = lambda _: None,
) -> bool:
    """Append what needs no kernel to ``results``; False if it was interrupted."""
    computed = kernels.compute(operation)
    if isinstance(computed, InterruptibleRun):
        return elsewhere(computed, [], results)
    results += computed
    grow(sum([each.nbytes for each in results]))
    return True


def _prepare_and_run(
    operation: BoundOperation,
    step: Step,
    slots: Slots,
    elsewhere: Elsewhere,
    grow: Callable[[int], None],
    results: list[Array],
) -> bool:
    """Append what ``step`` computes to ``results``; False if it was interrupted."""
    try:
        shapes = infer_shapes(operation)
        if None in shapes and kernels.may_learn_shapes(operation.type):
            return _compute(operation, elsewhere, results)
        outputs = [
            _array_for(slots[index], shape, operand, grow)
            for index, shape, operand in zip(
                step.outputs, shapes, operation.outputs, strict=True
            )
        ]
        bound = replace(
            operation,
            outputs=tuple(
                replace(operand, shape=output.shape)
                for operand, output in zip(operation.outputs, outputs, strict=True)
            ),
        )
        run = kernels.prepare(bound)(HeapScratch())
    except ValueNeededError:
        name = operation.type.name
        raise GeneralFailureError(f"{name} cannot infer its output shapes") from None
    results += outputs
    inputs = [slots[index] for index in step.inputs]
    if isinstance(run, InterruptibleRun):
        return elsewhere(run, inputs, outputs)
    run(inputs, outputs)
    return True


def _with_values(step: Step, slots: Slots) -> BoundOperation:
    """Return the operation of ``step`` with the shape and value of every input."""
    inputs = tuple(
        _with_value(operand, slots[index])
        for operand, index in zip(step.operation.inputs, step.inputs, strict=True)
    )
    return replace(step.operation, inputs=inputs, packed={}, noted={})


def _with_value(
    operand: BoundOperand | None, value: Array | None
) -> BoundOperand | None:
    if operand is None or value is None:
        return None
    return replace(operand, shape=value.shape, value=value)


def _array_for(
    given: Array | None,
    shape: Shape | None,
    operand: BoundOperand,
    grow: Callable[[int], None],
) -> Array:
    """Return the array that waits for the output if it fits, else a new one."""
    if shape is None:
        raise ValueNeededError
    if given is not None and given.shape == shape:
        return given
    grow(math.prod(shape) * operand.dtype.itemsize)
    return np.empty(shape, operand.dtype)


class ControlFlow(ABC):
    """One IF or WHILE of ``bound`` under way."""

    def __init__(self, program: Program, bound: BoundPlan, step: Step) -> None:
        self._program = program
        self._outer = bound
        self._step = step

    @abstractmethod
    def resume(self, finished: BoundPlan | None) -> BoundPlan | None:
        """Return the next bound plan to run, None at the end."""

    def _subgraph(self, position: int) -> int:
        """Return the number of the subgraph that input ``position`` refers to."""
        index = self._step.inputs[position]
        return self._outer.plan.subgraph.operands[index].location.offset

    def _arguments(self, first: int) -> list[Array | None]:
        return [self._outer.slots[index] for index in self._step.inputs[first:]]

    def _enter(
        self,
        number: int,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
    ) -> BoundPlan:
        plan = self._program.plan(shapes_of(inputs), number)
        return BoundPlan(self._program.acquire(plan), inputs, outputs)

    def _store(self, outputs: Sequence[Array | None]) -> None:
        """Put the results in their places, without a copy where they are there."""
        operands = self._outer.plan.subgraph.operands
        type_ = self._step.operation.type
        for index, output in zip(self._step.outputs, outputs, strict=True):
            if output is None:
                raise GeneralFailureError(f"{type_.name} gives an omitted value")
            store(self._outer.slots, index, output, operands[index], type_)


class If(ControlFlow):
    """Runs subgraph 1 or 2 on the inputs from 3 on, as the condition says."""

    def resume(self, finished: BoundPlan | None) -> BoundPlan | None:
        """Run the branch, then take its outputs."""
        if finished is not None:
            self._store(finished.outputs())
            return None
        condition = self._outer.slots[self._step.inputs[0]]
        if condition is None:
            raise GeneralFailureError("the condition of IF is omitted")
        branch = self._subgraph(1 if condition.reshape(-1)[0] else 2)
        places = [self._outer.slots[index] for index in self._step.outputs]
        return self._enter(branch, self._arguments(3), places)


class While(ControlFlow):
    """Runs a body while a condition holds: subgraphs 0 and 1 on the inputs from 2 on.

    The body's outputs are its first inputs in the next round, without a copy. What it
    read in a round is where it writes in the next but one, so two sets of arrays
    serve any number of rounds.
    """

    def __init__(
        self, program: Program, bound: BoundPlan, step: Step, timeout_ns: int
    ) -> None:
        super().__init__(program, bound, step)
        self._timeout_ns = timeout_ns
        self._started_ns = time.monotonic_ns()
        self._condition = self._subgraph(0)
        self._body = self._subgraph(1)
        self._state = self._arguments(2)
        body = program.subgraph(self._body)
        self._carried = len(body.output_indexes)
        self._spare: list[Array | None] = [None] * self._carried
        self._owned = False
        self._in_body = False

    def resume(self, finished: BoundPlan | None) -> BoundPlan | None:
        """Alternate between condition and body."""
        if finished is None:
            return self._test()
        outputs = finished.outputs()
        if self._in_body:
            self._carry(outputs)
            return self._test()
        if not outputs[0].reshape(-1)[0]:
            self._store(self._state[: len(self._step.outputs)])
            return None
        if time.monotonic_ns() - self._started_ns > self._timeout_ns:
            raise MissedDeadlineTransientError(
                f"WHILE ran longer than its {self._timeout_ns / 1e9:g} s"
            )
        self._in_body = True
        return self._enter(self._body, self._state, self._spare)

    def _test(self) -> BoundPlan:
        self._in_body = False
        return self._enter(self._condition, self._state, [None])

    def _carry(self, outputs: list[Array]) -> None:
        """Make the body's outputs the state; reuse the state's arrays if they are
        this loop's own.
        """
        previous = self._state[: self._carried]
        self._spare = [
            None if not self._owned or any(array is new for new in outputs) else array
            for array in previous
        ]
        self._state[: self._carried] = outputs
        self._owned = True


def begin(
    program: Program, bound: BoundPlan, step: Step, loop_timeout_ns: int
) -> ControlFlow:
    """Return the state machine of ``step``, which is an IF or a WHILE."""
    if step.operation.type is OperationType.IF:
        return If(program, bound, step)
    return While(program, bound, step, loop_timeout_ns)
