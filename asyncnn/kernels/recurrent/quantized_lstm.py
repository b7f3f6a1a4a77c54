"""QUANTIZED_LSTM: one step in 8-bit data, 16-bit gates and states.

It computes what `lstm_cell` says, in the roundings of TensorFlow Lite's integer LSTM,
so that models that were quantised for that give the same results. Two rules of it are
worth knowing: the activation is always tanh, and a projection clip bounds stored
values, whatever their zero point.

Unlike the HAL's reference device, but like TensorFlow Lite and the HAL's description,
biases count without layer normalisation too, and the hidden state is stored *plus* its
zero point.

Source: 1.3/types.hal (QUANTIZED_LSTM); NN common/cpu_operations/QLSTM.cpp.
"""

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
    INT16_MAX,
    INT16_MIN,
    TABLE_OFFSET,
    gate_places,
    gate_table,
    tanh_table,
)
from asyncnn.kernels.recurrent.quantized_packing import (
    GateBlock,
    Product,
    QuantizedWeights,
    pack,
)
from asyncnn.kernels.recurrent.rescaling import Rescaling

_LOW, _HIGH = np.array(INT16_MIN), np.array(INT16_MAX)
_ONE = np.array(INT16_MAX, np.int32)
_SIGN_BITS = np.array(31, np.int32)


class _GateSums:
    """Raw gates [batches, gates, units] of data and output, both rescaled."""

    def __init__(
        self, weights: QuantizedWeights, scratch: Scratch, batches: int
    ) -> None:
        products = weights.data, weights.recurrent
        reals = np.stack([product.reals for product in products])[:, np.newaxis]
        shape = 2, batches, weights.gates * weights.units
        self._exact = [_Sums(product, scratch, batches) for product in products]
        self._terms = scratch.transient(shape, np.int64)
        self._rescale = Rescaling(reals).bind(scratch, self._terms)
        gates = batches, weights.gates, weights.units
        self.gates, self._recurrent = self._terms.reshape(2, *gates)

    def compute(self, data: Array, output: Array) -> None:
        """Fill the gates; each term saturates to 16 bits as it is added."""
        for exact, source, term in zip(
            self._exact, (data, output), self._terms, strict=True
        ):
            exact.compute(source, term)
        self._rescale()
        self.gates.clip(_LOW, _HIGH, self.gates)
        np.add(self.gates, self._recurrent, out=self.gates)
        self.gates.clip(_LOW, _HIGH, self.gates)


class _Sums:
    """Exact sums of 8-bit data and weights, by way of floats."""

    def __init__(self, product: Product, scratch: Scratch, batches: int) -> None:
        dtype = product.weights.dtype
        size, columns = product.weights.shape
        self._weights, self._fold = product.weights, product.fold
        self._data = scratch.transient((batches, size), dtype)
        self._sums = scratch.transient((batches, columns), dtype)

    def compute(self, data: Array, out: Array) -> None:
        """Write the folded sums to ``out``, int64 [batches, columns]."""
        np.copyto(self._data, data)
        np.matmul(self._data, self._weights, out=self._sums)
        np.copyto(out, self._sums, casting="unsafe")
        np.add(out, self._fold, out=out)


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

    def finish(self, memory: Array) -> None:
        """Apply what follows the sums; peepholes see ``memory`` [batches, 1, units]."""
        raw, block = self._raw, self._block
        if block.peepholes is not None:
            np.multiply(memory, block.peepholes, out=self._seen)
            self._rescale()
            np.add(self._seeing, self._seen, out=self._seeing)
            self._seeing.clip(_LOW, _HIGH, self._seeing)
        if block.norm is not None:
            block.norm.apply(raw)
        np.add(raw, self._places, out=raw)
        # With mode "clip" NumPy need not check the indices, which are all in range.
        gate_table().take(raw, None, self._values, "clip")


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
        self._bounds = [np.array(b, np.int32) for b in weights.state_bounds]
        shifts = np.array([15, 30 + weights.state_shift], np.int32)
        self._shifts = shifts.reshape(2, 1, 1)
        self._halves = np.left_shift(1, self._shifts - 1, dtype=np.int32)
        self._terms = scratch.transient((2, *shape), np.int32)
        self._signs = scratch.transient((2, *shape), np.int32)
        self._coupled = scratch.transient(shape, np.int32)

    def update(self) -> None:
        """Advance by one step; products are rounded, halves away from zero."""
        kept, added = self._terms
        np.multiply(self.values, self._forget_gate, out=kept)
        input_gate = self._input_gate
        if input_gate is None:
            input_gate = np.subtract(_ONE, self._forget_gate, out=self._coupled)
        np.multiply(self._candidate, input_gate, out=added)
        np.right_shift(self._terms, _SIGN_BITS, out=self._signs)
        np.add(self._terms, self._halves, out=self._terms)
        np.add(self._terms, self._signs, out=self._terms)
        np.right_shift(self._terms, self._shifts, out=self._terms)
        np.add(kept, added, out=self.values)
        self.values.clip(*self._bounds, self.values)


class _Output:
    """The codes ``output * tanh(c)``, perhaps projected, as int64."""

    def __init__(
        self, weights: QuantizedWeights, scratch: Scratch, gate: Array, memory: Array
    ) -> None:
        """Take the output gate and the cell state, int32 [batches, units]."""
        self._gate, self._memory = gate, memory
        self._tanh = tanh_table(weights.state_shift + 15)
        self._places = scratch.transient(memory.shape, np.int64)
        self._hidden = scratch.transient(memory.shape, np.int64)
        self._activated = scratch.transient(memory.shape, np.int32)
        self._offset = np.array(TABLE_OFFSET)
        self._hidden_zero = np.array(weights.hidden_zero_point)
        self._rescale = Rescaling(weights.hidden_real).bind(scratch, self._hidden)
        self.codes, self._projection = self._hidden, weights.projection
        if self._projection is not None:
            columns = len(self._projection.fold)
            self.codes = scratch.transient((len(memory), columns), np.int64)
            self._sums = _Sums(self._projection, scratch, len(memory))
            rescaling = Rescaling(self._projection.reals)
            self._rescale_codes = rescaling.bind(scratch, self.codes)
            self._zero = np.array(weights.output_zero_point)
            self._bounds = [np.array(bound) for bound in weights.output_bounds]

    def update(self) -> None:
        """Compute the codes of the cell state."""
        np.add(self._memory, self._offset, out=self._places)
        self._tanh.take(self._places, None, self._activated, "clip")
        np.multiply(self._activated, self._gate, out=self._hidden)
        self._rescale()
        np.add(self._hidden, self._hidden_zero, out=self._hidden)
        self._hidden.clip(-128, 127, self._hidden)
        if self._projection is None:
            return
        self._sums.compute(self._hidden, self.codes)
        self._rescale_codes()
        np.add(self.codes, self._zero, out=self.codes)
        self.codes.clip(*self._bounds, self.codes)


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Compute one step of ``input: q8s [batches, inputs]``.

    Gives ``output_state_out`` and ``output: q8s [batches, outputs]``, which are the
    same, and ``cell_state_out: q16s [batches, units]``.
    """
    weights = pack(operation)
    batches = operation.shape(0)[0]

    def instantiate(scratch: Scratch) -> Run:
        sums = _GateSums(weights, scratch, batches)
        values = scratch.transient(sums.gates.shape, np.int32)
        early, *late = (
            _Gates(block, scratch, sums.gates, values) for block in weights.blocks
        )
        memory = _Memory(weights, scratch, values)
        seen = memory.values[:, np.newaxis]
        output = _Output(weights, scratch, values[:, 0], memory.values)

        def run(inputs: Inputs, outputs: Outputs) -> None:
            np.copyto(memory.values, inputs[19])
            sums.compute(inputs[0], inputs[18])
            early.finish(seen)
            memory.update()
            for gates in late:
                gates.finish(seen)
            output.update()
            for place in (0, 2):
                np.copyto(outputs[place], output.codes, casting="unsafe")
            np.copyto(outputs[1], memory.values, casting="unsafe")

        return run

    return instantiate


KERNELS: dict[OperationType, Prepare] = {OperationType.QUANTIZED_LSTM: _prepare}
