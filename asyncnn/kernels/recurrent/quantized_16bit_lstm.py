"""QUANTIZED_16BIT_LSTM: one step with 16-bit states and fixed scales.

With ``o, i, f, g`` the gates' sums ``[R W] @ [x h] + b`` in 16 bits:
``c' = logistic(f) * c + logistic(i) * tanh(g)``, ``h' = logistic(o) * tanh(c')``.
Products are rounded as on the reference device: results are the same, bit for bit.

The sums are no mistake here: the reference device joins the recurrent weights ``R``
and the input weights ``W`` in this order, but the input ``x`` and the output ``h`` in
that one. The public test suite expects it, so every conforming driver does likewise.

Source: 1.3/types.hal (QUANTIZED_16BIT_LSTM); NN common/cpu_operations/
QuantizedLSTM.cpp.
"""

from functools import cache

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import (
    Inputs,
    Outputs,
    Prepare,
    PreparedKernel,
    Run,
    Scratch,
)
from asyncnn.kernels.recurrent.fixed_point import (
    GATE_INTEGER_BITS,
    INT16_MAX,
    INT16_MIN,
    TABLE_OFFSET,
    Table,
    gate_places,
    gate_table,
    saturated_shift,
    tanh_table,
)
from asyncnn.kernels.recurrent.integer_steps import (
    ExactSums,
    Product,
    Rescaling,
    RoundedShift,
    clamping,
    look_up,
)
from asyncnn.kernels.recurrent.lstm import CELL, FORGET, INPUT, OUTPUT

_GATES = OUTPUT, INPUT, FORGET, CELL
_STATE_INTEGER_BITS = 4
_ZERO_POINT = 128
_EXTRA_CODE_BITS = 8

_HALF_UNIT = np.array(1 << 14, np.int32)
_UNIT_BITS = np.array(15, np.int32)
_OFFSET = np.array(TABLE_OFFSET)


@cache
def _state_tanh() -> Table:
    """Return tanh by raw state; states beyond the range of gates saturate there."""
    states = np.arange(INT16_MIN, INT16_MAX + 1)
    as_gates = saturated_shift(states, _STATE_INTEGER_BITS - GATE_INTEGER_BITS)
    return tanh_table(GATE_INTEGER_BITS)[as_gates + TABLE_OFFSET]


def _divide_by_unit(products: Array) -> None:
    """Divide int32 products by ``2**15`` and round halves up, in place."""
    np.add(products, _HALF_UNIT, out=products)
    np.right_shift(products, _UNIT_BITS, out=products)


def _pack(operation: BoundOperation) -> tuple[Product, Rescaling]:
    """Join the weights, which share one scale and zero point."""
    rows = [
        np.hstack([operation.value(5 + gate), operation.value(1 + gate)])
        for gate in _GATES
    ]
    weights = np.vstack(rows).astype(np.int64) - operation.input(1).zero_point
    bias = np.concatenate([operation.value(9 + gate) for gate in _GATES])
    real = operation.input(9).scale * 2.0 ** (15 - GATE_INTEGER_BITS)
    return Product.of(weights, _ZERO_POINT, bias), Rescaling(real)


class _Cell:
    """The cell at work: ``state`` and ``codes`` are int32 [batches, units]."""

    def __init__(
        self, product: Product, rescaling: Rescaling, scratch: Scratch, batches: int
    ) -> None:
        columns = len(product.fold)
        units = columns // len(_GATES)
        shape = batches, units
        self.sums = ExactSums(product, scratch, batches)
        self._raw = scratch.transient((batches, columns), np.int64)
        self._rescale = rescaling.bind(scratch, self._raw, product.fold)
        self._saturate_gates = clamping(self._raw)
        self._gate_places = gate_places(len(_GATES), units)
        self._values = scratch.transient((batches, columns), np.int32)
        gates = self._values.reshape(batches, len(_GATES), units)
        self._output, self._input, self._forget, self._candidate = gates.swapaxes(0, 1)
        self.state = scratch.transient(shape, np.int32)
        self._state_places = scratch.transient(shape, np.int64)
        self._saturate_state = clamping(self.state)
        self._terms = scratch.transient((2, *shape), np.int32)
        self._kept, self._added = self._terms
        self._to_state = RoundedShift(scratch, self._added, _STATE_INTEGER_BITS)
        self.codes = scratch.transient(shape, np.int32)
        self._to_codes = RoundedShift(
            scratch, self.codes, _EXTRA_CODE_BITS, _ZERO_POINT
        )
        self._clamp = clamping(self.codes, 0, 255)

    def step(self) -> None:
        """Advance by one step, when ``state`` and the data of ``sums`` are filled."""
        self.sums.compute(self._raw)
        self._rescale()
        self._saturate_gates()
        np.add(self._raw, self._gate_places, out=self._raw)
        look_up(gate_table(), self._raw, self._values)
        self._update_state()
        self._update_codes()

    def _update_state(self) -> None:
        np.multiply(self.state, self._forget, out=self._kept)
        np.multiply(self._candidate, self._input, out=self._added)
        _divide_by_unit(self._terms)
        self._to_state()
        np.add(self._kept, self._added, out=self.state)
        self._saturate_state()

    def _update_codes(self) -> None:
        np.add(self.state, _OFFSET, out=self._state_places)
        look_up(_state_tanh(), self._state_places, self.codes)
        np.multiply(self.codes, self._output, out=self.codes)
        _divide_by_unit(self.codes)
        self._to_codes()
        self._clamp()


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Compute one step of ``input: q8 [batches, inputs]``.

    Gives ``cell_state_out: q16s [batches, units]`` and ``output: q8 [batches, units]``.
    """
    product, rescaling = _pack(operation)
    batches, size = operation.shape(0)

    def instantiate(scratch: Scratch) -> Run:
        cell = _Cell(product, rescaling, scratch, batches)
        data, output = cell.sums.data[:, :size], cell.sums.data[:, size:]

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.copyto(data, inputs[0])
            np.copyto(output, inputs[14])
            np.copyto(cell.state, inputs[13])
            cell.step()
            np.copyto(outputs[0], cell.state, casting="unsafe")
            np.copyto(outputs[1], cell.codes, casting="unsafe")

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {OperationType.QUANTIZED_16BIT_LSTM: _prepare}
