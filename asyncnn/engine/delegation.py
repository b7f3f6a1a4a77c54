"""The steps of a plan, and the parts of it that another engine computes at once.

A `Delegate` claims operations. The steps that it claims are moved together as far as
their data allow, and each run of them becomes one step, which a kernel of the delegate
computes. What it gives no kernel for is computed by the engine's own.
"""

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import pairwise
from typing import Protocol

import msgspec
from msgspec.structs import replace

from asyncnn.engine.job import Job
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import Model, Operand, Subgraph
from asyncnn.kernels.kernel import (
    DividedKernel,
    EngineKernel,
    NativeKernel,
    PreparedKernel,
)
from asyncnn.pacing import Steps

STEPS_AT_ONCE = 64
"""Steps that are looked at between two steps of cooperative work."""


class KernelRecord(msgspec.Struct, frozen=True, eq=False):
    """What a delegate has made of a segment, so that it has it again without the work.

    A cache gives back ``decided`` as it was. ``numbers`` have their dtypes and shapes
    then, but nobody has checked what they are; ``constant`` returns the value of a
    constant operand, by its index.
    """

    decided: bytes = b""
    numbers: tuple[Array, ...] = ()
    constant: Callable[[int], Array] | None = None


class Step(msgspec.Struct, frozen=True, eq=False):
    """One operation of a plan. ``kernel`` is None if it is prepared when executed.

    ``position`` is the operation's in the subgraph, of which ``inputs`` and
    ``outputs`` are operand indices. A delegate's step stands for its ``parts``, and has
    position and operation of the first, and a ``record`` for caches. ``costs_ns`` is
    about what each of them takes the delegate, or this step if that claims it.
    """

    position: int
    operation: BoundOperation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    kernel: PreparedKernel | None
    parts: "Sequence[Step]" = ()
    record: Callable[[], KernelRecord] | None = None
    costs_ns: tuple[int, ...] = ()

    @property
    def cost_ns(self) -> int:
        """About what it takes a delegate."""
        return sum(self.costs_ns)

    @property
    def is_open(self) -> bool:
        """Whether it takes inputs of any lengths; see `EngineKernel`."""
        return isinstance(self.kernel, EngineKernel) and self.kernel.is_open

    @property
    def name(self) -> str:
        """What it computes, for people."""
        name = self.operation.type.name
        if len(self.parts) < 2:
            return name
        return f"{name} to {self.parts[-1].operation.type.name} ({len(self.parts)})"

    @property
    def longest_name(self) -> str:
        """The operation of it that takes longest, about, for people."""
        costs_ns = self.costs_ns
        step = self.parts[costs_ns.index(max(costs_ns))] if self.parts else self
        return f"{step.operation.type.name} (operation {step.position})"


class Segment(msgspec.Struct, frozen=True, eq=False):
    """Consecutive steps of a plan, whose operands have known shapes.

    ``inputs`` are the operands (by index) that it reads and that no step of it writes,
    without constants; ``outputs`` are those that later steps or the plan's outputs
    need. Constants are the ``value`` of the operands that the steps' operations have.
    One that ``completes_job`` stands in a plan of native kernels and segments alone,
    all of which run without the interpreter lock if this one does.
    """

    steps: Sequence[Step]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    completes_job: bool = False


class DelegatedKernel(EngineKernel):
    """The kernel of a segment."""

    def record(self) -> KernelRecord:
        """Return what `Delegate.prepare` needs to make it again."""
        raise NotImplementedError


class Delegate(Protocol):
    """An engine that computes segments of plans in place of the kernels."""

    def version_for(self, *, relaxed: bool) -> str:
        """Return what a model's plans depend on; caches of another are not used."""
        ...

    def claims(self, operation: BoundOperation) -> int | None:
        """Return about how many nanoseconds it takes, None if it does not compute it.

        All shapes of ``operation`` are known.
        """
        ...

    def cuts(self, steps: Sequence[Step]) -> Iterable[int]:
        """Return where to divide ``steps`` into several segments, in ascending order.

        Each number is the first step behind a cut.
        """
        ...

    def prepare(
        self, segment: Segment, identity: bytes, record: KernelRecord | None = None
    ) -> DelegatedKernel | None:
        """Return what computes ``segment``; None leaves it to the kernels.

        The kernel gets the segment's inputs and outputs in their order. ``identity`` is
        its graph's in caches, which no other has; empty if it is in none. A ``record``
        is of a kernel which a delegate of this version has prepared for the same
        segment.

        :raises GeneralFailureError: if the engine fails.
        """
        ...


def version_of(delegate: Delegate | None, model: Model) -> str:
    """Return the version of ``delegate`` for ``model``; empty without one."""
    if delegate is None:
        return ""
    relaxed = model.relax_computation_float32_to_float16
    return delegate.version_for(relaxed=relaxed)


Replace = Callable[[Step], Step]
"""Returns a step that the engine's own kernel computes."""


def delegating(
    steps: Sequence[Step],
    claimed: Collection[int],
    constants: Collection[int],
    needed: Iterable[int],
    delegate: Delegate,
    identity: bytes,
    own: Replace,
) -> Steps[list[Step]]:
    """Return the steps of a plan in which ``delegate`` computes those ``claimed``.

    :param claimed: positions of the steps that the delegate claims, without kernels.
    :param constants: operands whose value is known.
    :param needed: operands that are outputs of the plan.
    :param identity: of the model; see `Delegate.prepare`.
    :param own: gives a step that the delegate leaves its kernel.
    :raises GeneralFailureError: if the delegate's engine fails.
    """
    ordered = steps
    if len(claimed) < len(steps):
        ordered = yield from _moved_together(steps, claimed)
    readers = _last_reads(ordered, needed)
    others = [step for step in ordered if step.position not in claimed]
    may_be_job = Job is not None and _are_native(others)
    result: list[Step] = []
    start = 0
    while start < len(ordered):
        end = start + 1
        if ordered[start].position not in claimed:
            result.append(ordered[start])
            start = end
            continue
        while end < len(ordered) and ordered[end].position in claimed:
            end += 1
        edges = [start, *(start + at for at in delegate.cuts(ordered[start:end])), end]
        for first, last in pairwise(edges):
            segment = _segment(ordered, first, last, constants, readers)
            kernel = delegate.prepare(segment, identity)
            owned: list[Step] = []
            if kernel is None:
                for step in segment.steps:
                    owned.append(own(step))
                    yield
                if may_be_job and others and not _are_native(owned):
                    segment = replace(segment, completes_job=True)
                    kernel = delegate.prepare(segment, identity)
            costs_ns = tuple(step.cost_ns for step in segment.steps)
            result += [step_of(segment, kernel, costs_ns)] if kernel else owned
            yield
        start = end
    return result


def _are_native(steps: Iterable[Step]) -> bool:
    return all(isinstance(step.kernel, NativeKernel) for step in steps)


def step_of(
    segment: Segment, kernel: DelegatedKernel, costs_ns: tuple[int, ...]
) -> Step:
    """Return the one step that computes all of ``segment``."""
    first = segment.steps[0]
    return Step(
        first.position,
        first.operation,
        segment.inputs,
        segment.outputs,
        kernel,
        segment.steps,
        kernel.record,
        costs_ns,
    )


def dividing(step: Step, subgraph: Subgraph) -> Steps[tuple[Sequence[Step], Subgraph]]:
    """Return the steps that ``step`` is, and ``subgraph``.

    That has what crosses from one to another, as operands behind its own.
    """
    if not isinstance(step.kernel, DividedKernel):
        return (step,), subgraph
    parts, crossing = yield from step.kernel.parting()
    first = len(subgraph.operands)
    operands = (*subgraph.operands, *[Operand(*each) for each in crossing])
    indexes = (*step.inputs, *step.outputs, *range(first, len(operands)))
    whole = step.operation
    crossed = [BoundOperand(*each) for each in crossing]
    bound = *whole.inputs, *whole.outputs, *crossed
    steps = [
        replace(
            step,
            inputs=tuple(indexes[number] for number in inputs),
            outputs=tuple(indexes[number] for number in outputs),
            operation=replace(
                whole,
                inputs=tuple(bound[number] for number in inputs),
                outputs=tuple(each for n in outputs if (each := bound[n]) is not None),
            ),
            kernel=part,
        )
        for part, inputs, outputs in parts
    ]
    return steps, replace(subgraph, operands=operands)


def _moved_together(
    steps: Sequence[Step], claimed: Collection[int]
) -> Steps[list[Step]]:
    """Order steps so that those claimed, and the others, come in long runs.

    A step may come once all that it reads is computed; steps of one kind go on for as
    long as there is one, in the order of the model.
    """
    makers = {index: number for number, s in enumerate(steps) for index in s.outputs}
    followers: defaultdict[int, list[int]] = defaultdict(list)
    waits_for: list[int] = []
    ready: tuple[list[int], list[int]] = [], []  # not claimed, claimed
    kinds = [step.position in claimed for step in steps]
    for number, step in enumerate(steps):
        before = {makers[index] for index in step.inputs if index in makers}
        waits_for.append(len(before))
        for maker in before:
            followers[maker].append(number)
        if not before:
            heapq.heappush(ready[kinds[number]], number)
        if not (number + 1) % STEPS_AT_ONCE:
            yield
    ordered: list[Step] = []
    kind = False  # so that what needs no delegate, such as a copy, comes before it
    while ready[0] or ready[1]:
        if not ready[kind]:
            kind = not kind
        number = heapq.heappop(ready[kind])
        ordered.append(steps[number])
        for follower in followers[number]:
            waits_for[follower] -= 1
            if not waits_for[follower]:
                heapq.heappush(ready[kinds[follower]], follower)
        if not len(ordered) % STEPS_AT_ONCE:
            yield
    return ordered


def _last_reads(ordered: Sequence[Step], needed: Iterable[int]) -> dict[int, int]:
    last = {
        index: number for number, step in enumerate(ordered) for index in step.inputs
    }
    last.update((index, len(ordered)) for index in needed)
    return last


def _segment(
    ordered: Sequence[Step],
    first: int,
    last: int,
    constants: Collection[int],
    reads: dict[int, int],
) -> Segment:
    steps = tuple(ordered[first:last])
    made = {index for step in steps for index in step.outputs}
    inputs = {
        index: None
        for step in steps
        for operand, index in zip(step.operation.inputs, step.inputs, strict=True)
        if operand is not None and index not in made and index not in constants
    }
    outputs = tuple(index for index in made if reads.get(index, -1) >= last)
    return Segment(steps, tuple(inputs), tuple(sorted(outputs)))
