"""A plan under way: its operands' arrays, its bound calls and the next step."""

from collections.abc import Sequence

import numpy as np

from asyncnn.engine.late import Slots
from asyncnn.engine.plan import Plan
from asyncnn.engine.workspace import Call, Workspace
from asyncnn.hal.operands import DTYPES
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
        subgraph = self.plan.subgraph
        for index, array in zip(subgraph.input_indexes, inputs, strict=True):
            self.slots[index] = array
        for index, array in zip(subgraph.output_indexes, outputs, strict=True):
            self.slots[index] = self._output(index, array)
        self.calls: list[Call | None] = workspace.calls(self.slots)
        self.position = 0

    def _output(self, index: int, given: Array | None) -> Array | None:
        shape = self.plan.shapes[index]
        if shape is None or (given is not None and given.shape == shape):
            return given
        return np.empty(shape, DTYPES[self.plan.subgraph.operands[index].type])

    def outputs(self) -> list[Array]:
        """Return the arrays of the subgraph's outputs, all computed."""
        arrays = [self.slots[index] for index in self.plan.subgraph.output_indexes]
        return [array for array in arrays if array is not None]


def shapes_of(arrays: Sequence[Array | None]) -> tuple[Shape | None, ...]:
    """Return the shape of each array, None for None."""
    return tuple(None if array is None else array.shape for array in arrays)
