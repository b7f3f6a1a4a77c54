"""LSTM where the HAL's means the same, one direction after the other."""

from collections.abc import Sequence

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.drafting import F32, Argument, Omitted, Value
from asyncnn.runtime.moves import concatenate, reverse, split, transpose
from asyncnn.runtime.onnx.node import Converter, OnnxNode

_TANH = 4
"""The HAL's number of the activation in its LSTM."""

_PLAIN = ("sigmoid", "tanh", "tanh")


class _Layer:
    """What is read of a node, and its weights by direction."""

    def __init__(self, node: OnnxNode) -> None:
        self.node, self.draft = node, node.draft
        value = node.input(0)
        if value.rank != 3:
            raise InvalidArgumentError(f"sequences of rank {value.rank}")
        self.is_batch_first = bool(node.attribute("layout", 0))
        if self.is_batch_first:
            value = transpose(self.draft, value, (1, 0, 2))
        self.value = value
        self.steps, self.batch, self.depth = value.shape
        direction = node.attribute("direction", "forward")
        self.count = 2 if direction == "bidirectional" else 1
        self.is_reverse = direction == "reverse"
        self.units = node.input(2).shape[-1]
        wanted = (self.count, 4 * self.units)
        for index, depth in ((1, self.depth), (2, self.units)):
            shape = node.input(index).shape
            if shape != (*wanted, depth):
                raise InvalidArgumentError(f"weights of shape {list(shape)}")
        names = node.attribute("activations", [*_PLAIN] * self.count)
        is_whole = not node.has(4) or (node.data(4) == self.steps).all()
        if (
            [name.lower() for name in names] != [*_PLAIN] * self.count
            or node.attribute("clip") is not None
            or node.attribute("input_forget", 0)
            or value.type != F32
            or not is_whole
        ):
            raise node.refuse("an LSTM that is not the HAL's")

    def part(self, index: int, direction: int, shape: Shape, axis: int = 0) -> Value:
        """Return what an input has for a direction; zeros if it is left out."""
        if not self.node.has(index):
            self.draft.allowance.take_elements(shape)
            return self.draft.constant(np.zeros(shape, np.float32))
        pieces = split(self.draft, self.node.input(index), axis, [1] * self.count)
        return self.draft.reshape(pieces[direction], shape)

    def run(self, direction: int) -> list[Value]:
        """Return the sequence of one direction, and both of its last states."""
        draft, units, rows = self.draft, self.units, 4 * self.units
        is_backwards = self.is_reverse or direction == 1
        sequence = reverse(draft, self.value, 0) if is_backwards else self.value
        i, o, f, c = self._gates(self.part(1, direction, (rows, self.depth)))
        ri, ro, rf, rc = self._gates(self.part(2, direction, (rows, units)))
        halves = split(draft, self.part(3, direction, (2 * rows,)), 0, [rows, rows])
        first, second = (half.data for half in halves)
        if first is None or second is None:
            raise self.node.refuse("a bias that is computed")
        bi, bo, bf, bc = self._gates(draft.constant(first + second))
        none = Omitted(F32)
        peepholes: list[Argument] = [none, none, none]
        if self.node.has(7):
            whole = self.part(7, direction, (3 * units,))
            pi, po, pf = split(draft, whole, 0, [units] * 3)
            peepholes = [pi, pf, po]
        axis, shape = int(self.is_batch_first), (self.batch, units)
        states = [self.part(index, direction, shape, axis) for index in (5, 6)]
        arguments: list[Argument] = [
            *(sequence, i, f, c, o, ri, rf, rc, ro),
            *(*peepholes, bi, bf, bc, bo, none, none, *states),
            *(_TANH, 0.0, 0.0, True, none, none, none, none),
        ]
        found, *ends = draft.emit_all(
            Op.UNIDIRECTIONAL_SEQUENCE_LSTM, arguments, [None] * 3
        )
        found = draft.reshape(found, (self.steps, 1, self.batch, units))
        return [reverse(draft, found, 0) if is_backwards else found, *ends]

    def _gates(self, value: Value) -> list[Value]:
        return split(self.draft, value, 0, [self.units] * 4)


def _lstm(node: OnnxNode) -> Sequence[Value]:
    layer = _Layer(node)
    draft, shape = layer.draft, (1, layer.batch, layer.units)
    wholes, *lasts = zip(*map(layer.run, range(layer.count)), strict=True)
    whole = concatenate(draft, wholes, 1)
    ends = [
        concatenate(draft, [draft.reshape(one, shape) for one in last], 0)
        for last in lasts
    ]
    if layer.is_batch_first:
        whole = transpose(draft, whole, (2, 0, 1, 3))
        ends = [transpose(draft, end, (1, 0, 2)) for end in ends]
    return [whole, *ends]


CONVERTERS: dict[str, Converter] = {"LSTM": _lstm}
