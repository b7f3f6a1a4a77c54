"""A compiled model: its plans by input shapes, and workspaces that wait for work."""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from typing import TypeAlias

from asyncnn.engine.plan import Plan, build_plan
from asyncnn.engine.records import PlanRecord, record_of, restore_plan
from asyncnn.engine.workspace import Workspace
from asyncnn.extensions import NO_EXTENSIONS, Extensions, check_extended
from asyncnn.hal.operands import has_unknown_dimensions, is_scalar
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import Model, Subgraph
from asyncnn.vlog import COMPILATION

InputShapes: TypeAlias = tuple[Shape | None, ...]
"""Shape of each input of a subgraph; None is an omitted input."""

Records: TypeAlias = Mapping[int, Callable[[], PlanRecord]]
"""Ways to the plans for declared shapes, by the number of their subgraph."""

MAIN = -1
"""Stands for the main subgraph where referenced ones are counted from 0."""

MAX_PLANS = 16
"""Plans kept of one model; the least recently used is dropped beyond.

Never that of the main subgraph for declared shapes, which every execution begins with.
"""


class Program:
    """A validated model with everything that is prepared once. Thread-safe.

    Plans for the declared input shapes are built at construction. Where ``records`` has
    a way to those of an equal program, they are restored when they are needed first.
    Plans for other shapes are built when a request brings them. ``source`` is the model
    as it was given; `model` is the same with types of ``extensions`` where the source
    has but numbers.

    :raises InvalidArgumentError: if it does not use an extension as that demands.
    :raises GeneralFailureError: if the model cannot be prepared.
    """

    def __init__(
        self,
        model: Model,
        records: Records | None = None,
        extensions: Extensions = NO_EXTENSIONS,
    ) -> None:
        self.source = model
        self.extensions = extensions
        self.model = extensions.resolved(model)
        check_extended(self.model)
        self._lock = threading.Lock()
        self._plans: OrderedDict[tuple[int, InputShapes], Plan] = OrderedDict()
        # By the identity of the plan; operations of one deque need no lock.
        self._idle: dict[int, deque[Workspace]] = {}
        self.declared_shapes = _declared_shapes(model.main)
        self._main: Plan | None = None
        self._records = dict(records or {})
        for number in range(MAIN, len(model.referenced)):
            shapes = _declared_shapes(self.subgraph(number))
            if shapes is not None and number not in self._records:
                self._build(shapes, number)

    @property
    def is_straight(self) -> bool:
        """Whether the declared shapes have a plan by now, which runs without stopping.

        To ask restores none: that takes a while, and may fail.
        """
        return self._main is not None and self._main.is_straight

    def subgraph(self, number: int) -> Subgraph:
        """Return referenced subgraph ``number``, or the main one for `MAIN`."""
        return subgraph_of(self.model, number)

    def plan(self, shapes: InputShapes, number: int = MAIN) -> Plan:
        """Return the plan of a subgraph for these input shapes, building it if new.

        :raises GeneralFailureError: if it cannot be prepared for these shapes.
        """
        if shapes is self.declared_shapes and self._main is not None:
            return self._main
        with self._lock:
            plan = self._plans.get((number, shapes))
            if plan is None and number in self._records:
                plan = self._restore(shapes, number)
            if plan is not None:
                self._plans.move_to_end((number, shapes))
                return plan
        return self._build(shapes, number)

    def records(self) -> dict[int, PlanRecord]:
        """Return the plans for declared shapes, by the number of their subgraph."""
        records = {}
        for number in range(MAIN, len(self.model.referenced)):
            shapes = _declared_shapes(self.subgraph(number))
            if shapes is not None:
                records[number] = record_of(self.plan(shapes, number))
        return records

    def _build(self, shapes: InputShapes, number: int) -> Plan:
        plan = build_plan(self.model, self.subgraph(number), shapes)
        with self._lock:
            return self._add(plan, shapes, number)

    def _restore(self, shapes: InputShapes, number: int) -> Plan | None:
        """Restore a plan if it is recorded for these shapes. The lock is held."""
        subgraph = self.subgraph(number)
        if shapes != _declared_shapes(subgraph):
            return None
        plan = restore_plan(self.model, subgraph, self._records[number]())
        del self._records[number]
        return self._add(plan, shapes, number)

    def _add(self, plan: Plan, shapes: InputShapes, number: int) -> Plan:
        """Keep a plan, or return the one that is there already. The lock is held."""
        if COMPILATION:
            COMPILATION(
                "planned",
                subgraph=number,
                inputs=shapes,
                steps=len(plan.steps),
                arena_bytes=plan.arena.size_bytes,
                is_straight=plan.is_straight,
            )
        plan = self._plans.setdefault((number, shapes), plan)
        self._idle.setdefault(id(plan), deque())
        if number == MAIN and shapes == self.declared_shapes:
            self._main = plan
        while len(self._plans) > MAX_PLANS:
            oldest = next(k for k, p in self._plans.items() if p is not self._main)
            self._idle.pop(id(self._plans.pop(oldest)), None)
        return plan

    def acquire(self, plan: Plan) -> Workspace:
        """Take an idle workspace of ``plan``, or allocate one."""
        idle = self._idle.get(id(plan))
        if idle:
            try:
                return idle.pop()
            except IndexError:  # another thread took the last one meanwhile
                pass
        return Workspace(plan)

    def release(self, workspace: Workspace) -> None:
        """Keep ``workspace`` for the next execution, if its plan is still kept."""
        idle = self._idle.get(id(workspace.plan))
        if idle is not None:
            idle.append(workspace)

    @property
    def idle_bytes(self) -> int:
        """Bytes of the workspaces that are kept and nobody uses."""
        with self._lock:
            kept = [tuple(idle) for idle in self._idle.values()]
        return sum(workspace.size_bytes for idle in kept for workspace in idle)

    def trim(self) -> int:
        """Free the workspaces that nobody uses; return their bytes."""
        freed = 0
        with self._lock:
            for idle in self._idle.values():
                while idle:
                    freed += idle.pop().size_bytes
        return freed


def subgraph_of(model: Model, number: int) -> Subgraph:
    """Return referenced subgraph ``number``, or the main one for `MAIN`."""
    return model.main if number == MAIN else model.referenced[number]


def _declared_shapes(subgraph: Subgraph) -> InputShapes | None:
    """Return the input shapes if the model fixes them all."""
    operands = [subgraph.operands[index] for index in subgraph.input_indexes]
    if any(
        not is_scalar(operand.type) and has_unknown_dimensions(operand)
        for operand in operands
    ):
        return None
    return tuple(operand.dimensions for operand in operands)
