"""LSTM, GRU and RNN: the HAL's LSTM where it means the same, else step by step.

Products with the inputs are computed for all steps at once. Each step is then some
operations of its own, of which a file may have only so many.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.onnx.activation import clipped, leaky, softplus
from asyncnn.runtime.onnx.composing import Composer
from asyncnn.runtime.onnx.emitter import F32, Argument, Omitted, Value
from asyncnn.runtime.onnx.node import Converter, Node
from asyncnn.runtime.onnx.reshaping import (
    concatenate,
    reverse,
    slice_,
    split,
    transpose,
)

_TANH = 4
"""The HAL's number of the activation in its LSTM."""


class _Cell(msgspec.Struct, frozen=True):
    """Weights of one direction; ``bias`` is that of inputs and of states."""

    weights: Value
    recurrent: Value
    bias: tuple[Value, Value]
    peepholes: Value | None
    activations: tuple[Callable[[Value], Value], ...]
    names: tuple[str, ...]


def _activation(
    draft: Composer, name: str, alpha: float | None, beta: float | None
) -> Callable[[Value], Value]:
    def pick(value: float | None, default: float) -> float:
        return default if value is None else value

    table: dict[str, Callable[[Value], Value]] = {
        "Relu": lambda x: draft.unary(Op.RELU, x),
        "Tanh": lambda x: draft.unary(Op.TANH, x),
        "Sigmoid": lambda x: draft.unary(Op.LOGISTIC, x),
        "Elu": lambda x: draft.unary(Op.ELU, x, float(pick(alpha, 1.0))),
        "LeakyRelu": lambda x: leaky(draft, x, pick(alpha, 0.01)),
        "Affine": lambda x: draft.add(draft.mul(x, pick(alpha, 1.0)), pick(beta, 0.0)),
        "HardSigmoid": lambda x: clipped(
            draft, draft.add(draft.mul(x, pick(alpha, 0.2)), pick(beta, 0.5)), 0.0, 1.0
        ),
        "ScaledTanh": lambda x: draft.mul(
            draft.unary(Op.TANH, draft.mul(x, pick(beta, 1.0))), pick(alpha, 1.0)
        ),
        "Softsign": lambda x: draft.div(x, draft.add(draft.unary(Op.ABS, x), 1.0)),
        "Softplus": lambda x: softplus(draft, x),
    }
    known = {key.lower(): found for key, found in table.items()}
    if name.lower() not in known:
        raise InvalidArgumentError(f"activation {name[:40]!r}")
    return known[name.lower()]


class _Layer:
    """What LSTM, GRU and RNN have in common: directions, layouts, sequences."""

    def __init__(self, node: Node, gates: int, activations: Sequence[str]) -> None:
        self.node, self.draft, self.gates = node, node.draft, gates
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
        wanted = (self.count, gates * self.units)
        if node.input(1).shape != (*wanted, self.depth):
            raise InvalidArgumentError(f"weights of shape {list(node.input(1).shape)}")
        if node.input(2).shape != (*wanted, self.units):
            raise InvalidArgumentError(f"weights of shape {list(node.input(2).shape)}")
        if node.has(4):
            lengths = node.data(4)
            if (lengths != self.steps).any():
                raise node.refuse("sequences of different lengths")
        self.names = list(node.attribute("activations", list(activations) * self.count))
        if len(self.names) != len(activations) * self.count:
            raise InvalidArgumentError(f"activations {self.names}")

    def cell(self, direction: int) -> _Cell:
        """Return the weights of a direction."""
        draft, node, rows = self.draft, self.node, self.gates * self.units

        def part(index: int, shape: Shape) -> Value:
            value = node.input(index)
            pieces = split(draft, value, 0, [1] * self.count)
            return draft.reshape(pieces[direction], shape)

        if node.has(3):
            both = part(3, (2 * rows,))
            first, second = split(draft, both, 0, [rows, rows])
        else:
            first = second = draft.constant(np.zeros(rows, self.value.dtype))
        peepholes = None
        if node.name == "LSTM" and node.has(7):
            peepholes = part(7, (3 * self.units,))
        count = len(self.names) // self.count
        names = self.names[direction * count : (direction + 1) * count]
        alphas = list(node.attribute("activation_alpha", []))
        betas = list(node.attribute("activation_beta", []))
        functions = tuple(
            _activation(
                draft,
                name,
                alphas[place] if place < len(alphas) else None,
                betas[place] if place < len(betas) else None,
            )
            for place, name in enumerate(names, direction * count)
        )
        return _Cell(
            part(1, (rows, self.depth)),
            part(2, (rows, self.units)),
            (first, second),
            peepholes,
            functions,
            tuple(names),
        )

    def initial(self, index: int, direction: int) -> Value:
        """Return the state before the first step, [batch, units]."""
        shape = (self.batch, self.units)
        if not self.node.has(index):
            self.draft.allowance.take_elements(shape)
            return self.draft.constant(np.zeros(shape, self.value.dtype))
        value = self.node.input(index)
        axis = 1 if self.is_batch_first else 0
        pieces = split(self.draft, value, axis, [1] * self.count)
        return self.draft.reshape(pieces[direction], shape)

    def limited(self, value: Value) -> Value:
        """Return what goes into an activation, within the bounds of ``clip``."""
        limit = self.node.attribute("clip")
        return value if limit is None else clipped(self.draft, value, -limit, limit)

    def gates_of(self, cell: _Cell, sequence: Value) -> list[Value]:
        """Return the products of all steps' inputs with the weights, one per step."""
        rows = self.draft.reshape(sequence, (self.steps * self.batch, self.depth))
        whole = self.draft.emit(
            Op.FULLY_CONNECTED, [rows, cell.weights, cell.bias[0], 0]
        )
        if self.steps == 1:
            return [whole]
        self.draft.allowance.take_steps(self.steps)
        return [
            slice_(
                self.draft, whole, (step * self.batch, 0), (self.batch, whole.shape[1])
            )
            for step in range(self.steps)
        ]

    def connected(self, state: Value, weights: Value, bias: Value) -> Value:
        """Return a state by recurrent weights."""
        return self.draft.emit(Op.FULLY_CONNECTED, [state, weights, bias, 0])

    def run(
        self, step: Callable[[_Cell, Value, int], tuple[Sequence[Value], list[Value]]]
    ) -> list[Value]:
        """Return the node's outputs; ``step`` runs one direction over a sequence."""
        draft = self.draft
        outputs: list[Value] = []
        lasts: list[list[Value]] = []
        for direction in range(self.count):
            backwards = self.is_reverse or direction == 1
            sequence = reverse(draft, self.value, 0) if backwards else self.value
            states, last = step(self.cell(direction), sequence, direction)
            shape = (self.steps, 1, self.batch, self.units)
            joined = draft.reshape(concatenate(draft, list(states), 0), shape)
            outputs.append(reverse(draft, joined, 0) if backwards else joined)
            lasts.append(last)
        whole = concatenate(draft, outputs, 1)
        ends = [
            concatenate(
                draft,
                [draft.reshape(one[i], (1, self.batch, self.units)) for one in lasts],
                0,
            )
            for i in range(len(lasts[0]))
        ]
        if self.is_batch_first:
            whole = transpose(draft, whole, (2, 0, 1, 3))
            ends = [transpose(draft, end, (1, 0, 2)) for end in ends]
        return [whole, *ends]


def _lstm(node: Node) -> list[Value]:
    layer = _Layer(node, 4, ("Sigmoid", "Tanh", "Tanh"))
    draft = layer.draft

    def native(cell: _Cell, sequence: Value, direction: int) -> list[Value]:
        i, o, f, c = split(draft, cell.weights, 0, [layer.units] * 4)
        ri, ro, rf, rc = split(draft, cell.recurrent, 0, [layer.units] * 4)
        total = draft.constant(
            (_data(cell.bias[0]) + _data(cell.bias[1])).astype(np.float32)
        )
        bi, bo, bf, bc = split(draft, total, 0, [layer.units] * 4)
        none = Omitted(F32)
        peepholes: list[Argument] = [none, none, none]
        if cell.peepholes is not None:
            pi, po, pf = split(draft, cell.peepholes, 0, [layer.units] * 3)
            peepholes = [pi, pf, po]
        states = [layer.initial(5, direction), layer.initial(6, direction)]
        arguments: list[Argument] = [
            *(sequence, i, f, c, o, ri, rf, rc, ro),
            *(*peepholes, bi, bf, bc, bo, none, none, *states),
            *(_TANH, 0.0, 0.0, True, none, none, none, none),
        ]
        return list(
            draft.emit_all(Op.UNIDIRECTIONAL_SEQUENCE_LSTM, arguments, [None] * 3)
        )

    def step(
        cell: _Cell, sequence: Value, direction: int
    ) -> tuple[Sequence[Value], list[Value]]:
        if _is_plain(node, cell, layer):
            whole, hidden, state = native(cell, sequence, direction)
            rows = (layer.steps * layer.batch, layer.units)
            return [draft.reshape(whole, rows)], [hidden, state]
        return _lstm_steps(layer, cell, sequence, direction)

    return layer.run(step)


def _data(value: Value) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    assert value.data is not None
    return value.data


def _is_plain(node: Node, cell: _Cell, layer: _Layer) -> bool:
    names = tuple(name.lower() for name in cell.names)
    return (
        names == ("sigmoid", "tanh", "tanh")
        and node.attribute("clip") is None
        and not node.attribute("input_forget", 0)
        and layer.value.type == F32
        and all(bias.is_constant for bias in cell.bias)
    )


def _lstm_steps(
    layer: _Layer, cell: _Cell, sequence: Value, direction: int
) -> tuple[Sequence[Value], list[Value]]:
    draft, units = layer.draft, layer.units
    hidden, state = layer.initial(5, direction), layer.initial(6, direction)
    peepholes = None
    if cell.peepholes is not None:
        peepholes = split(draft, cell.peepholes, 0, [units] * 3)
    to_gate, to_cell, to_hidden = cell.activations
    found = []
    for inputs in layer.gates_of(cell, sequence):
        total = draft.add(inputs, layer.connected(hidden, cell.recurrent, cell.bias[1]))
        i, o, f, c = split(draft, total, 1, [units] * 4)
        if peepholes is not None:
            i = draft.add(i, draft.mul(state, peepholes[0]))
            f = draft.add(f, draft.mul(state, peepholes[2]))
        enters = to_gate(layer.limited(i))
        if layer.node.attribute("input_forget", 0):
            stays = draft.sub(draft.lift(1.0, enters), enters)
        else:
            stays = to_gate(layer.limited(f))
        new = draft.mul(enters, to_cell(layer.limited(c)))
        state = draft.add(draft.mul(stays, state), new)
        if peepholes is not None:
            o = draft.add(o, draft.mul(state, peepholes[1]))
        hidden = draft.mul(to_gate(layer.limited(o)), to_hidden(state))
        found.append(hidden)
    return found, [hidden, state]


def _gru(node: Node) -> list[Value]:
    layer = _Layer(node, 3, ("Sigmoid", "Tanh"))
    draft, units = layer.draft, layer.units
    is_after = bool(node.attribute("linear_before_reset", 0))

    def step(
        cell: _Cell, sequence: Value, direction: int
    ) -> tuple[Sequence[Value], list[Value]]:
        hidden = layer.initial(5, direction)
        to_gate, to_hidden = cell.activations
        z, r, h = split(draft, cell.recurrent, 0, [units] * 3)
        bz, br, bh = split(draft, cell.bias[1], 0, [units] * 3)
        found = []
        for inputs in layer.gates_of(cell, sequence):
            xz, xr, xh = split(draft, inputs, 1, [units] * 3)
            update = to_gate(
                layer.limited(draft.add(xz, layer.connected(hidden, z, bz)))
            )
            reset = to_gate(
                layer.limited(draft.add(xr, layer.connected(hidden, r, br)))
            )
            if is_after:
                rest = draft.mul(reset, layer.connected(hidden, h, bh))
            else:
                rest = layer.connected(draft.mul(reset, hidden), h, bh)
            new = to_hidden(layer.limited(draft.add(xh, rest)))
            # (1 - z) * new + z * hidden
            change = draft.mul(update, draft.sub(hidden, new))
            hidden = draft.add(new, change)
            found.append(hidden)
        return found, [hidden]

    return layer.run(step)


def _rnn(node: Node) -> list[Value]:
    layer = _Layer(node, 1, ("Tanh",))
    draft = layer.draft

    def step(
        cell: _Cell, sequence: Value, direction: int
    ) -> tuple[Sequence[Value], list[Value]]:
        hidden = layer.initial(5, direction)
        found = []
        for inputs in layer.gates_of(cell, sequence):
            total = layer.connected(hidden, cell.recurrent, cell.bias[1])
            hidden = cell.activations[0](layer.limited(draft.add(inputs, total)))
            found.append(hidden)
        return found, [hidden]

    return layer.run(step)


CONVERTERS: dict[str, Converter] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}
