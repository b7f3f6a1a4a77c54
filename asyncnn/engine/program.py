"""A compiled model: its plans by input shapes, and workspaces that wait for work."""

import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import TypeAlias

from asyncnn.engine.plan import Plan, PlanRecord, build_plan, restore_plan
from asyncnn.engine.workspace import Workspace
from asyncnn.extensions import NO_EXTENSIONS, Extensions, check_extended
from asyncnn.hal.operands import has_unknown_dimensions, is_scalar
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import Model, Subgraph
from asyncnn.vlog import COMPILATION

InputShapes: TypeAlias = tuple[Shape | None, ...]
"""Shape of each input of a subgraph; None is an omitted input."""

MAIN = -1
"""Stands for the main subgraph where referenced ones are counted from 0."""

MAX_PLANS = 16
"""Plans kept of one model; the least recently used is dropped beyond."""


class Program:
    """A validated model with everything that is prepared once. Thread-safe.

    Plans for the declared input shapes are built at construction, or restored from the
    ``records`` of an equal program; those for other shapes are built when a request
    brings them. ``source`` is the model as it was given; `model` is the same with
    types of ``extensions`` where the source has but numbers.

    :raises InvalidArgumentError: if it does not use an extension as that demands.
    :raises GeneralFailureError: if the model cannot be prepared.
    """

    def __init__(
        self,
        model: Model,
        records: Mapping[int, PlanRecord] | None = None,
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
        for number in range(MAIN, len(model.referenced)):
            shapes = _declared_shapes(self.subgraph(number))
            if shapes is not None:
                record = records[number] if records else None
                plan = self._add_plan(shapes, number, record)
                self._main = plan if number == MAIN else self._main

    @property
    def is_straight(self) -> bool:
        """Whether the declared shapes have a plan that runs without stopping."""
        return self._main is not None and self._main.is_straight

    def subgraph(self, number: int) -> Subgraph:
        """Return referenced subgraph ``number``, or the main one for `MAIN`."""
        return self.model.main if number == MAIN else self.model.referenced[number]

    def plan(self, shapes: InputShapes, number: int = MAIN) -> Plan:
        """Return the plan of a subgraph for these input shapes, building it if new.

        :raises GeneralFailureError: if it cannot be prepared for these shapes.
        """
        if shapes is self.declared_shapes and self._main is not None:
            return self._main
        key = (number, shapes)
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                return plan
        return self._add_plan(shapes, number)

    def records(self) -> dict[int, PlanRecord]:
        """Return the plans for declared shapes, by the number of their subgraph."""
        with self._lock:
            plans = tuple(self._plans.items())
        return {
            number: plan.record()
            for (number, shapes), plan in plans
            if shapes == _declared_shapes(self.subgraph(number))
        }

    def _add_plan(
        self, shapes: InputShapes, number: int, record: PlanRecord | None = None
    ) -> Plan:
        subgraph = self.subgraph(number)
        if record is None:
            plan = build_plan(self.model, subgraph, shapes)
        else:
            plan = restore_plan(self.model, subgraph, shapes, record)
        if COMPILATION:
            COMPILATION(
                "planned",
                subgraph=number,
                inputs=shapes,
                steps=len(plan.steps),
                arena_bytes=plan.arena.size_bytes,
                is_straight=plan.is_straight,
            )
        with self._lock:
            plan = self._plans.setdefault((number, shapes), plan)
            self._idle.setdefault(id(plan), deque())
            while len(self._plans) > MAX_PLANS:
                _, dropped = self._plans.popitem(last=False)
                self._idle.pop(id(dropped), None)
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


def _declared_shapes(subgraph: Subgraph) -> InputShapes | None:
    """Return the input shapes if the model fixes them all."""
    operands = [subgraph.operands[index] for index in subgraph.input_indexes]
    if any(
        not is_scalar(operand.type) and has_unknown_dimensions(operand)
        for operand in operands
    ):
        return None
    return tuple(operand.dimensions for operand in operands)
