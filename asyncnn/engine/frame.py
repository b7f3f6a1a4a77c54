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
        self.slots: Slots = workspace.slots.copy()
        for port, array in zip(self.plan.inputs, inputs, strict=True):
            self.slots[port.index] = array
        for port, array in zip(self.plan.outputs, outputs, strict=True):
            if port.shape is None or (array is not None and array.shape == port.shape):
                self.slots[port.index] = array
            else:
                self.slots[port.index] = np.empty(port.shape, port.dtype)
        self.calls: list[Call | None] = workspace.calls(self.slots)
        self.position = 0

    def outputs(self) -> list[Array]:
        """Return the arrays of the subgraph's outputs, all computed."""
        arrays = [self.slots[port.index] for port in self.plan.outputs]
        return [array for array in arrays if array is not None]


def shapes_of(arrays: Sequence[Array | None]) -> tuple[Shape | None, ...]:
    """Return the shape of each array, None for None."""
    return tuple(None if array is None else array.shape for array in arrays)
