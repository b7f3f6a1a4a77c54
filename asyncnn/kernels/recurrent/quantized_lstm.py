"""QUANTIZED_LSTM and QUANTIZED_16BIT_LSTM: 8-bit data, 16-bit gates and states.

QUANTIZED_LSTM computes what `lstm_cell` says, activation always tanh, in the very
roundings of TensorFlow Lite's integer LSTM, for which such models are trained. Where
that and the HAL's reference device differ from the HAL's description, or from each
other:

- Without layer normalisation, biases count too (the reference device ignores them).
- Without a projection, the hidden state is the output, stored plus its zero point (the
  reference device subtracts it). A state that is projected is stored *minus* its zero
  point, as both do; that shows where the state saturates.
- The projection clip is measured in steps of the output and bounds stored values,
  whatever their zero point.
- Peepholes serve all units. Both mistake the number of outputs for the
  number of units, which shows with a projection only.

Source: 1.3/types.hal (QUANTIZED_LSTM, QUANTIZED_16BIT_LSTM); NN common/cpu_operations/
QLSTM.cpp and QuantizedLSTM.cpp.
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
from asyncnn.kernels.recurrent.integer_packing import (
    GateBlock,
    QuantizedProjection,
    QuantizedWeights,
    compiled_step,
    pack,
)
from asyncnn.kernels.recurrent.integer_steps import (
    GATE_INTEGER_BITS,
    INT16_MAX,
    INT16_MIN,
    TABLE_OFFSET,
    ExactSums,
    Integers,
    Product,
    Rescaling,
    RoundedShift,
    Table,
    clamping,
    gate_places,
    gate_table,
    look_up,
    saturated_shift,
    tanh_table,
)
from asyncnn.kernels.recurrent.lstm import CELL, FORGET, INPUT, OUTPUT

_ONE = np.array(INT16_MAX, np.int32)
_OFFSET = np.array(TABLE_OFFSET)


class _RawGates:
    """Raw ``gates`` [batches, gates, units], of the data and of the latest output."""

    def __init__(
        self, weights: QuantizedWeights, scratch: Scratch, batches: int
    ) -> None:
        products = weights.sums.data, weights.sums.recurrent
        shape = 2, batches, weights.gates * weights.units
        terms = scratch.transient(shape, np.int64)
        self._exact = [ExactSums(product, scratch, batches) for product in products]
        self._sums = list(terms)
        fold = np.stack([product.fold for product in products])[:, np.newaxis]
        self._rescale = weights.sums.rescaling.bind(scratch, terms, fold)
        gates = batches, weights.gates, weights.units
        self.gates, self._recurrent = terms.reshape(2, *gates)
        self._saturate = clamping(self.gates)

    def compute(self, data: Array, output: Array) -> None:
        """Fill the gates; each term saturates to 16 bits as it is added."""
        for exact, source, sums in zip(
            self._exact, (data, output), self._sums, strict=True
        ):
            np.copyto(exact.data, source)
            exact.compute(sums)
        self._rescale()
        self._saturate()
        np.add(self.gates, self._recurrent, out=self.gates)
        self._saturate()


class _Gates:
    """Some neighbouring gates, from their sums to their values."""

    def __init__(
        self, block: GateBlock, scratch: Scratch, raw: Array, values: Array
    ) -> None:
        """Take the gates of ``block`` among all [batches, gates, units]."""
        _, count, units = raw.shape
        chosen = slice(block.start, block.stop)
        places = gate_places(count, units).reshape(count, units)
        self._block, self._places = block, places[chosen]
        self._raw, self._values = raw[:, chosen], values[:, chosen]
        if block.peepholes is not None and block.rescaling is not None:
            self._seeing = raw[:, block.start : block.start + len(block.peepholes)]
            self._seen = scratch.transient(self._seeing.shape, np.int64)
            self._rescale = block.rescaling.bind(scratch, self._seen)
            self._saturate = clamping(self._seeing)

    def finish(self, memory: Array) -> None:
        """Apply what follows the sums; peepholes see ``memory`` [batches, 1, units]."""
        raw, block = self._raw, self._block
        if block.peepholes is not None:
            np.multiply(memory, block.peepholes, out=self._seen)
            self._rescale()
            np.add(self._seeing, self._seen, out=self._seeing)
            self._saturate()
        if block.norm is not None:
            block.norm.apply(raw)
        np.add(raw, self._places, out=raw)
        look_up(gate_table(), raw, self._values)


class _Memory:
    """The cell state [batches, units]: ``clip(forget * c + input * candidate)``."""

    def __init__(
        self, weights: QuantizedWeights, scratch: Scratch, gates: Array
    ) -> None:
        """Take the values of the gates, int32 [batches, gates, units]."""
        shape = gates.shape[0], weights.units
        self.values = scratch.transient(shape, np.int32)
        self._input_gate = gates[:, 1] if weights.gates == 4 else None
        self._forget_gate, self._candidate = gates[:, -2], gates[:, -1]
        self._clip = clamping(self.values, *weights.state_bounds)
        terms = scratch.transient((2, *shape), np.int32)
        shifts = np.array([15, 30 + weights.state_shift]).reshape(2, 1, 1)
        self._shift = RoundedShift(scratch, terms, shifts)
        self._kept, self._added = terms
        self._coupled = scratch.transient(shape, np.int32)

    def update(self) -> None:
        """Advance by one step; products are rounded, halves away from zero."""
        np.multiply(self.values, self._forget_gate, out=self._kept)
        input_gate = self._input_gate
        if input_gate is None:
            input_gate = np.subtract(_ONE, self._forget_gate, out=self._coupled)
        np.multiply(self._candidate, input_gate, out=self._added)
        self._shift()
        np.add(self._kept, self._added, out=self.values)
        self._clip()


class _Hidden:
    """The codes ``output * tanh(c)`` [batches, units], as int64."""

    def __init__(
        self, weights: QuantizedWeights, scratch: Scratch, gate: Array, memory: Array
    ) -> None:
        """Take the output gate and the cell state, int32 [batches, units]."""
        self._gate, self._memory = gate, memory
        self._tanh = tanh_table(weights.state_shift + 15)
        self._places = scratch.transient(memory.shape, np.int64)
        self._activated = scratch.transient(memory.shape, np.int32)
        self.codes = scratch.transient(memory.shape, np.int64)
        self._rescale = weights.hidden_rescaling.bind(
            scratch, self.codes, offset=weights.hidden_zero_point
        )
        self._clamp = clamping(self.codes, -128, 127)

    def update(self) -> None:
        """Compute the codes of the present cell state."""
        np.add(self._memory, _OFFSET, out=self._places)
        look_up(self._tanh, self._places, self._activated)
        np.multiply(self._activated, self._gate, out=self.codes)
        self._rescale()
        self._clamp()


class _Projected:
    """The codes of a projected hidden state [batches, outputs], as int64."""

    def __init__(
        self, projection: QuantizedProjection, scratch: Scratch, hidden: Array
    ) -> None:
        """Take the codes of the hidden state, int64 [batches, units]."""
        shape = len(hidden), len(projection.product.fold)
        self._hidden = hidden
        self._sums = ExactSums(projection.product, scratch, len(hidden))
        self.codes = scratch.transient(shape, np.int64)
        self._rescale = projection.rescaling.bind(
            scratch, self.codes, projection.product.fold, projection.zero_point
        )
        self._clip = clamping(self.codes, *projection.bounds)

    def update(self) -> None:
        """Compute the codes of the present hidden state."""
        np.copyto(self._sums.data, self._hidden)
        self._sums.compute(self.codes)
        self._rescale()
        self._clip()


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Compute one step, by what was compiled if that was; see `in_python`."""
    return compiled_step(operation) or in_python(operation)


def in_python(operation: BoundOperation) -> PreparedKernel:
    """Compute one step of ``input: q8s [batches, inputs]``.

    Gives ``output_state_out`` and ``output: q8s [batches, outputs]``, which are the
    same, and ``cell_state_out: q16s [batches, units]``.
    """
    weights = pack(operation)
    batches = operation.shape(0)[0]

    def instantiate(scratch: Scratch) -> Run:
        sums = _RawGates(weights, scratch, batches)
        values = scratch.transient(sums.gates.shape, np.int32)
        early, *late = (
            _Gates(block, scratch, sums.gates, values) for block in weights.blocks
        )
        memory = _Memory(weights, scratch, values)
        seen = memory.values[:, np.newaxis]
        hidden = _Hidden(weights, scratch, values[:, 0], memory.values)
        projected = weights.projection and _Projected(
            weights.projection, scratch, hidden.codes
        )
        codes = projected.codes if projected else hidden.codes

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.copyto(memory.values, inputs[19])
            sums.compute(inputs[0], inputs[18])
            early.finish(seen)
            memory.update()
            for gates in late:
                gates.finish(seen)
            hidden.update()
            if projected:
                projected.update()
            for place in (0, 2):
                np.copyto(outputs[place], codes, casting="unsafe")
            np.copyto(outputs[1], memory.values, casting="unsafe")

        return run

    return instantiate


_GATES = OUTPUT, INPUT, FORGET, CELL
_STATE_INTEGER_BITS = 4
_ZERO_POINT = 128
_EXTRA_CODE_BITS = 8

_HALF_UNIT = np.array(1 << 14, np.int32)
_UNIT_BITS = np.array(15, np.int32)


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


def _pack_16bit(operation: BoundOperation) -> tuple[Product, Rescaling]:
    """Join the weights, which share one scale and zero point."""

    def weights() -> Integers:
        rows = [
            np.hstack([operation.value(5 + gate), operation.value(1 + gate)])
            for gate in _GATES
        ]
        return np.vstack(rows).astype(np.int64) - operation.input(1).zero_point

    bias = np.concatenate([operation.value(9 + gate) for gate in _GATES])
    real = operation.input(9).scale * 2.0 ** (15 - GATE_INTEGER_BITS)
    product = Product.of(operation, "data", weights, _ZERO_POINT, bias)
    return product, Rescaling(real)


class _SixteenBitCell:
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


def _prepare_16bit(operation: BoundOperation) -> PreparedKernel:
    """Compute one step of ``input: q8 [batches, inputs]``, with fixed scales.

    With ``o, i, f, g`` the gates' sums ``[R W] @ [x h] + b`` in 16 bits:
    ``c' = logistic(f) * c + logistic(i) * tanh(g)``, ``h' = logistic(o) * tanh(c')``.
    Products are rounded as on the reference device: results are the same, bit for bit.

    The sums are no mistake here: the reference device joins the recurrent weights ``R``
    and the input weights ``W`` in this order, but the input ``x`` and the output ``h``
    in that one. The public test suite expects it, so every conforming driver does
    likewise.

    Gives ``cell_state_out: q16s [batches, units]`` and ``output: q8 [batches, units]``.
    """
    product, rescaling = _pack_16bit(operation)
    batches, size = operation.shape(0)

    def instantiate(scratch: Scratch) -> Run:
        cell = _SixteenBitCell(product, rescaling, scratch, batches)
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


KERNELS: dict[OperationType, Prepare] = {
    OperationType.QUANTIZED_LSTM: _prepare,
    OperationType.QUANTIZED_16BIT_LSTM: _prepare_16bit,
}
