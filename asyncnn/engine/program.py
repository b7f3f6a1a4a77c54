"""A compiled model: its plans by input shapes, and workspaces that wait for work."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Self, TypeAlias

from msgspec.structs import replace

from asyncnn.engine.arena import ArenaLayout
from asyncnn.engine.delegation import Delegate, Step
from asyncnn.engine.plan import (
    CONSTANT_LIFETIMES,
    Plan,
    assembled,
    bound_operand,
    building_plan,
    constant_array,
    operation_type,
)
from asyncnn.engine.records import PlanRecord, record_of, restoring_plan
from asyncnn.engine.workspace import Workspace
from asyncnn.extensions import NO_EXTENSIONS, Extensions, check_extended
from asyncnn.hal.errors import AsyncnnError, check_memory
from asyncnn.hal.operands import ExtensionOperandType, has_unknown_dimensions, is_scalar
from asyncnn.hal.operations import infer_shapes
from asyncnn.hal.operations.bound import (
    Array,
    BoundOperand,
    BoundOperation,
    Shape,
    ValueNeededError,
)
from asyncnn.hal.types import Model, Subgraph
from asyncnn.interpreter_hooks import LARGE_OPERATIONS, building_large
from asyncnn.kernels.kernel import EngineKernel
from asyncnn.kernels.registry import may_learn_shapes, prepare_open
from asyncnn.logs import COMPILATION
from asyncnn.memory.pools import mapped
from asyncnn.pacing import Steps, completed, take_apart

InputShapes: TypeAlias = tuple[Shape | None, ...]
"""Shape of each input of a subgraph; None is an omitted input."""

Records: TypeAlias = Mapping[int, Callable[[], PlanRecord]]
"""Ways to the plans for declared shapes, by the number of their subgraph."""

MAIN = -1
"""Stands for the main subgraph where referenced ones are counted from 0."""

MAX_PLANS = 16
"""Plans kept of one model; the least recently used is dropped beyond.

Never the main subgraph's for declared shapes, which every execution begins with.
"""

MAX_SMALL_PLANS = 256
"""The same of plans whose steps an engine computes for any lengths.

A model of texts has as many as these have lengths.
"""

MAX_COUNTED = 4096
"""Input shapes that are kept of those whose runs are counted."""

RUNS_WORTH_A_PLAN = 4
"""Runs for the same lengths after which a plan for these takes less time in all."""


class Program:
    """A validated model with everything that is prepared once. Thread-safe.

    Plans for the declared input shapes are built at construction. Where ``records`` has
    a way to an equal program's plans, they are restored instead: at once if a delegate
    may have to compile them, else when they are needed first. Plans for other shapes
    are built when a request brings them. ``source`` is the model as it was given;
    `model` is the same with types of ``extensions`` where the source has but numbers.
    Both keep their pools, which the client may let go of, mapped. What ``delegate``
    claims it computes; ``identity`` is the model's in caches. The plan for
    declared shapes is its ``fixed_plan`` once it is there, if it is fixed. ``idle`` are
    the workspaces that nobody uses, by the identity of their plans, to be taken and
    given back by any thread: operations of one deque need no lock. The ``open_plan`` is
    for lengths that come but once, of a model that is one step for any. One that
    ``makes_way`` shares nothing of an engine with those that do not.

    :raises InvalidArgumentError: if it does not use an extension as that demands.
    :raises GeneralFailureError: if the model cannot be prepared, or one of its pools
        not be mapped.
    """

    def __init__(
        self,
        model: Model,
        records: Records | None = None,
        extensions: Extensions = NO_EXTENSIONS,
        delegate: Delegate | None = None,
        identity: bytes = b"",
        *,
        makes_way: bool = False,
        is_built: bool = True,
    ) -> None:
        self.source = model = _mapped(model)
        self.extensions = extensions
        self.delegate = delegate
        self.identity = identity
        self.model = extensions.resolved(model)
        check_extended(self.model)
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[int, InputShapes], Plan] = OrderedDict()
        self.idle: dict[int, deque[Workspace]] = {}
        self.declared_shapes = declared_shapes(model.main)
        self._main: Plan | None = None
        self.open_plan: Plan | None = None
        self._open_runs: dict[InputShapes, int] = {}
        self.fixed_plan: Plan | None = None
        self._records = dict(records or {})
        self.makes_way = makes_way
        self._regions: dict[int, dict[int, Array]] = {}
        self._threads = 1
        self.most_bytes: int | None = None
        if is_built:
            completed(self.building())

    def building(self, most_bytes: int | None = None) -> Steps[Self]:
        """Build or restore the plans for declared shapes, in steps; see the class.

        No run takes more memory than `check_memory` allows: temporaries and kernels'
        scratch; the latter shows at the first run.

        :raises ResourceExhaustedPersistentError: if a run of the declared shapes does.
        :raises AsyncnnError: as the constructor, which does this if it ``is_built``.
        """
        self.most_bytes = most_bytes
        for number in range(MAIN, len(self.model.referenced)):
            shapes = declared_shapes(self.subgraph(number))
            is_put_off = self.delegate is None and number in self._records
            if shapes is not None and not is_put_off:
                yield from self.planning(shapes, number)
            elif shapes is None and number == MAIN:
                yield from self._offering_open(self.subgraph(number))
        if self._main is not None:
            check_memory(self._main.arena.size_bytes, most_bytes)
        return self

    def _offering_open(self, subgraph: Subgraph) -> Steps[None]:
        """Have engines look at what they are to compute, whose shapes only runs show.

        So they refuse it now, and load it now.
        """
        constants = self._regions.setdefault(MAIN, {})
        is_alone = len(subgraph.operations) == 1

        def bound(index: int) -> BoundOperand:
            operand = subgraph.operands[index]
            is_region = isinstance(operand.type, ExtensionOperandType)
            if operand.lifetime in CONSTANT_LIFETIMES and (is_region or is_alone):
                constants[index] = constant_array(self.model, operand)
            shape = None if has_unknown_dimensions(operand) else operand.dimensions
            return bound_operand(operand, shape, constants.get(index))

        for operation in subgraph.operations:
            if may_learn_shapes(operation.type):
                operands = operation.inputs, operation.outputs
                inputs, outputs = (tuple(map(bound, indexes)) for indexes in operands)
                type_ = operation_type(operation.type)
                whole = BoundOperation(type_, inputs, outputs, makes_way=self.makes_way)
                only = (Step(0, whole, *operands, None),) if is_alone else ()
                if self._opened(only, constants) is None:
                    with suppress(ValueNeededError):
                        infer_shapes(whole)
            yield

    def _opened(
        self, steps: Sequence[Step], constants: dict[int, Array]
    ) -> Plan | None:
        """Return the open plan of a step without a kernel; None if there can be none.

        Another thread may make it, too: the first one counts.
        """
        if len(steps) != 1 or steps[0].kernel is not None:
            return None
        if self.open_plan is not None:
            return self.open_plan
        kernel = prepare_open(steps[0].operation)
        if kernel is None:
            return None
        step = replace(steps[0], kernel=kernel)
        main = self.model.main
        known = {index: constant.shape for index, constant in constants.items()}
        shapes = [known.get(index) for index in range(len(main.operands))]
        plan = assembled(main, shapes, constants, (step,), ArenaLayout({}, 0))
        with self._lock:
            if self.open_plan is None:
                self.idle[id(plan)] = deque()
                self.open_plan = plan
            return self.open_plan

    def plan_at_once(self, shapes: InputShapes) -> Plan | None:
        """Return the open plan; None if there is none, or these deserve their own."""
        if self._open_runs.get(shapes, 0) >= RUNS_WORTH_A_PLAN:
            return None
        return self.open_plan

    def count_open_run(
        self, shapes: InputShapes, are_known: Callable[[], bool]
    ) -> None:
        """Have the next one for these lengths prepared, if they come again and again.

        Unless other shapes of the model are not known even then.
        """
        with self._lock:
            count = self._open_runs.get(shapes, 0) + 1
            if count == RUNS_WORTH_A_PLAN and not are_known():
                count = 0
            if len(self._open_runs) >= MAX_COUNTED:
                self._open_runs.clear()
            self._open_runs[shapes] = count

    @property
    def is_straight(self) -> bool:
        """Whether the declared shapes have a plan by now, which runs without stopping.

        To ask restores none: that takes a while, and may fail.
        """
        return self._main is not None and self._main.is_straight

    @property
    def is_foreseeable(self) -> bool:
        """Whether it is straight, and one run of it takes as long as any other."""
        plan = self._main
        return (
            plan is not None
            and plan.is_straight
            and all(kernel.is_foreseeable for kernel in _engine_kernels(plan))
        )

    @property
    def has_engine(self) -> bool:
        """Whether an engine computes, or may compute, some of it."""
        plan = self._main
        if self.delegate is not None or (plan is not None and _engine_kernels(plan)):
            return True
        operations = self.model.main.operations if plan is None else ()
        return any(may_learn_shapes(operation.type) for operation in operations)

    def widening(self, threads: int) -> Steps[None]:
        """Get ready, in steps, for runs on ``threads`` threads of an engine.

        So are plans for other shapes that are made from now on, if that is soon done.

        :raises GeneralFailureError: if the engine fails.
        """
        with self._lock:
            self._threads = threads
            plans = [plan for key, plan in self._plans.items() if key[0] == MAIN]
        if self.open_plan is not None:
            plans.append(self.open_plan)
        for plan in plans:
            for kernel in _engine_kernels(plan):
                yield
                kernel.widen(threads)

    def subgraph(self, number: int) -> Subgraph:
        """Return referenced subgraph ``number``, or the main one for `MAIN`."""
        return subgraph_of(self.model, number)

    def plan(self, shapes: InputShapes, number: int = MAIN) -> Plan:
        """Return the plan of a subgraph for these input shapes, building it if new.

        :raises GeneralFailureError: if it cannot be prepared for these shapes.
        """
        if shapes is self.declared_shapes and self._main is not None:
            return self._main
        plan = self.known_plan(shapes, number)
        return completed(self.planning(shapes, number)) if plan is None else plan

    def known_plan(self, shapes: InputShapes, number: int = MAIN) -> Plan | None:
        """Return the plan of a subgraph if there is one by now."""
        if shapes is self.declared_shapes and self._main is not None:
            return self._main
        with self._lock:
            plan = self._plans.get((number, shapes))
            if plan is not None:
                self._plans.move_to_end((number, shapes))
            return plan

    def planning(self, shapes: InputShapes, number: int = MAIN) -> Steps[Plan]:
        """Restore or build a plan in steps; several that do so get the same one.

        :raises GeneralFailureError: if it cannot be prepared for these shapes.
        """
        at_once = self.plan_at_once(shapes) if number == MAIN else None
        if at_once is not None:
            return at_once
        subgraph = self.subgraph(number)
        record = self._records.get(number)
        # Subgraphs may differ in nothing but the values of their constants.
        identity = self.identity and b"%d %b" % (number, self.identity)
        with building_large() if self.is_large else nullcontext():
            if record is not None and shapes == declared_shapes(subgraph):
                plan = yield from restoring_plan(
                    *(self.model, subgraph, record(), self.delegate, identity),
                    makes_way=self.makes_way,
                )
                self._records.pop(number, None)
            else:
                plan = yield from building_plan(
                    *(self.model, subgraph, shapes, self.delegate, identity),
                    self._regions.setdefault(number, {}),
                    makes_way=self.makes_way,
                )
        if number == MAIN:
            plan = self._opened(plan.steps, plan.constants) or plan
        if number == MAIN and self._threads > 1:
            for kernel in _engine_kernels(plan):
                if kernel.serves_all_lengths:
                    with suppress(AsyncnnError, OSError, MemoryError):  # one will do
                        kernel.widen(self._threads)
        if plan is self.open_plan:
            return plan
        with self._lock:
            return self._add(plan, shapes, number)

    def records(self) -> dict[int, PlanRecord]:
        """Return the plans for declared shapes, by the number of their subgraph."""
        records = {}
        for number in range(MAIN, len(self.model.referenced)):
            shapes = declared_shapes(self.subgraph(number))
            if shapes is not None:
                records[number] = record_of(self.plan(shapes, number))
        return records

    def _add(self, plan: Plan, shapes: InputShapes, number: int) -> Plan:
        """Keep a plan, or return the one that is there already. The lock is held."""
        if COMPILATION.is_on:
            COMPILATION(
                "planned",
                subgraph=number,
                inputs=shapes,
                steps=len(plan.steps),
                arena_bytes=plan.arena.size_bytes,
                is_straight=plan.is_straight,
            )
        plan = self._plans.setdefault((number, shapes), plan)
        self.idle.setdefault(id(plan), deque())
        if number == MAIN and shapes == self.declared_shapes:
            self._main = plan
            if plan.is_fixed:
                self.fixed_plan = plan
        most = MAX_SMALL_PLANS if _is_small(plan) else MAX_PLANS
        while len(self._plans) > most:
            oldest = next(k for k, p in self._plans.items() if p is not self._main)
            self._drop(oldest)
        return plan

    def _drop(self, key: tuple[int, InputShapes]) -> None:
        """Keep a plan no longer, nor its workspaces. The lock is held."""
        plan = self._plans.pop(key)
        self.idle.pop(id(plan), None)
        if plan is self._main:
            self._main = self.fixed_plan = None

    def forget(self, plan: Plan) -> None:
        """Have the next execution for its shapes build ``plan`` anew."""
        with self._lock:
            for key in [key for key, kept in self._plans.items() if kept is plan]:
                self._drop(key)
                self._open_runs.pop(key[1], None)

    def acquire(self, plan: Plan) -> Workspace:
        """Take an idle workspace of ``plan``, or allocate one."""
        workspace = self.idle_workspace(plan)
        return completed(self.equipping(plan)) if workspace is None else workspace

    def equipping(self, plan: Plan) -> Steps[Workspace]:
        """Allocate a workspace of ``plan``, in steps."""
        with building_large() if self.is_large else nullcontext():
            return (yield from Workspace.making(plan, self.most_bytes))

    def idle_workspace(self, plan: Plan) -> Workspace | None:
        """Take an idle workspace of ``plan``, if there is one."""
        idle = self.idle.get(id(plan))
        try:
            return idle.pop() if idle else None
        except IndexError:  # another thread took the last one meanwhile
            return None

    def release(self, workspace: Workspace) -> None:
        """Keep ``workspace`` for the next execution, if its plan is still kept.

        Without the arrays of the last one.
        """
        if workspace.is_bound:
            workspace.unbind()
        idle = self.idle.get(id(workspace.plan))
        if idle is not None:
            idle.append(workspace)

    @property
    def is_large(self) -> bool:
        """Whether it has so many operations that it is built, and freed, with care."""
        return is_large(self.source)

    def pieces(self) -> list[list[object]]:
        """Return lists that hold all of its small parts, for the caller to drop.

        Once the program itself is gone, they go one by one as the lists are emptied,
        unless others refer to them.
        """
        with self._lock:
            pieces: list[list[object]] = []
            for idle in self.idle.values():
                for workspace in tuple(idle):  # executions may still give some back
                    pieces.extend(workspace.pieces())
            for plan in self._all_plans():
                parts = (plan.steps, plan.shapes, plan.constants.values())
                pieces.extend(list(part) for part in parts)
            for model in (self.model, self.source):
                for subgraph in (model.main, *model.referenced):
                    pieces += [list(subgraph.operands), list(subgraph.operations)]
            return pieces

    def _all_plans(self) -> list[Plan]:
        opened = [] if self.open_plan is None else [self.open_plan]
        return [*self._plans.values(), *opened]

    @property
    def idle_bytes(self) -> int:
        """Bytes of the workspaces that are kept and nobody uses."""
        with self._lock:
            kept = [tuple(idle) for idle in self.idle.values()]
        return sum(workspace.size_bytes for idle in kept for workspace in idle)

    def trim(self) -> int:
        """Free the workspaces that nobody uses; return their bytes."""
        with self._lock:
            kept = list(self.idle.values())
            plans = self._all_plans()
            self._threads = 1
        trimmed: list[Workspace] = []
        for idle in kept:
            with suppress(IndexError):  # others may have taken some
                while True:
                    trimmed.append(idle.pop())
        freed = sum(workspace.size_bytes for workspace in trimmed)
        while trimmed:
            pieces = trimmed[-1].pieces() if self.is_large else []
            trimmed.pop()
            take_apart(pieces)
        for plan in plans:
            for kernel in _engine_kernels(plan):
                kernel.trim()
        return freed


def _engine_kernels(plan: Plan) -> list[EngineKernel]:
    kernels = [step.kernel for step in plan.steps]
    return [each for each in kernels if isinstance(each, EngineKernel)]


def _is_small(plan: Plan) -> bool:
    """Return whether what computes all of a plan's steps is there without it."""
    return all(
        may_learn_shapes(step.operation.type)
        if step.kernel is None
        else isinstance(step.kernel, EngineKernel) and step.kernel.serves_all_lengths
        for step in plan.steps
    )


def _mapped(model: Model) -> Model:
    """Return ``model`` with all of its pools mapped."""
    if all(pool.buffer is not None for pool in model.pools):
        return model
    return replace(model, pools=tuple(map(mapped, model.pools)))


def is_large(model: Model) -> bool:
    """Return whether a model has many operations, in all subgraphs together."""
    return model.operation_count > LARGE_OPERATIONS


def subgraph_of(model: Model, number: int) -> Subgraph:
    """Return referenced subgraph ``number``, or the main one for `MAIN`."""
    return model.main if number == MAIN else model.referenced[number]


def declared_shapes(subgraph: Subgraph) -> InputShapes | None:
    """Return the input shapes if the model fixes them all."""
    operands = [subgraph.operands[index] for index in subgraph.input_indexes]
    if any(
        not is_scalar(operand.type) and has_unknown_dimensions(operand)
        for operand in operands
    ):
        return None
    return tuple(operand.dimensions for operand in operands)
