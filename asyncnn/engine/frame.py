"""A plan under way: its operands' arrays, its bound calls and the next step."""

from collections.abc import Sequence

import numpy as np

from asyncnn.engine.late import Slots
from asyncnn.engine.plan import Plan
from asyncnn.engine.workspace import Call, Workspace
from asyncnn.hal.operations.bound import Array, Shape


class Frame:
    """Binds a workspace to arrays for the inputs and outputs of its plan.

    An input of None is omitted. An output array is used if it has the shape that the
    plan computes, else a new one is made.
    """

    __slots__ = ("calls", "plan", "position", "slots", "workspace")

    def __init__(
        self,
        workspace: Workspace,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
    ) -> None:
        self.workspace = workspace
        self.plan: Plan = workspace.plan
        self.slots: Slots = bound_slots(workspace, inputs, outputs)
        self.calls: list[Call | None] = workspace.calls(self.slots)
        self.position = 0

    def outputs(self) -> list[Array]:
        """Return the arrays of the subgraph's outputs, all computed."""
        return computed(self.plan, self.slots)


def bound_slots(
    workspace: Workspace,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
) -> Slots:
    """Return the array of every operand that has one; see `Frame`."""
    plan, slots = workspace.plan, workspace.slots.copy()
    for position, port in enumerate(plan.inputs):
        slots[port.index] = inputs[position]
    for position, port in enumerate(plan.outputs):
        array, shape = outputs[position], port.shape
        if shape is not None and (array is None or array.shape != shape):
            array = np.empty(shape, port.dtype)
        slots[port.index] = array
    return slots


def computed(plan: Plan, slots: Slots) -> list[Array]:
    """Return the arrays of a plan's outputs among ``slots``, all computed."""
    return [array for port in plan.outputs if (array := slots[port.index]) is not None]


def shapes_of(arrays: Sequence[Array | None]) -> tuple[Shape | None, ...]:
    """Return the shape of each array, None for None."""
    return tuple(None if array is None else array.shape for array in arrays)
