"""QUANTIZED_LSTM and QUANTIZED_16BIT_LSTM: 8-bit data, 16-bit gates and states.

QUANTIZED_LSTM computes what `lstm` says, activation always tanh, in the very
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

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Inputs, Outputs, Prepare, PreparedKernel, stateless
from asyncnn.kernels.recurrent.integer_packing import (
    QuantizedWeights,
    compiled_step,
    pack,
)
from asyncnn.kernels.recurrent.integer_steps import (
    GATE_INTEGER_BITS,
    INT16_MAX,
    INT16_MIN,
    TABLE_OFFSET,
    Integers,
    Product,
    Rescaling,
    Table,
    gate_places,
    gate_table,
    high_product,
    rounded_shift,
    saturated,
    saturated_shift,
    tanh_table,
)
from asyncnn.kernels.recurrent.lstm import CELL, FORGET, INPUT, OUTPUT


def _prepare(operation: BoundOperation) -> PreparedKernel:
    """Compute one step, by what was compiled if that was; see `in_python`."""
    return compiled_step(operation) or in_python(operation)


def in_python(operation: BoundOperation) -> PreparedKernel:
    """Compute one step of ``input: q8s [batches, inputs]``.

    Gives ``output_state_out`` and ``output: q8s [batches, outputs]``, which are the
    same, and ``cell_state_out: q16s [batches, units]``.
    """
    weights = pack(operation)
    tanh = tanh_table(weights.state_shift + 15)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        memory = inputs[19].astype(np.int64)
        raw = _raw_gates(weights, inputs[0], inputs[18])
        values = _gate_values(weights, raw, memory)
        forget, candidate = values[:, -2], values[:, -1]
        enters = values[:, 1] if weights.gates == 4 else INT16_MAX - forget
        kept = rounded_shift(memory * forget, 15)
        added = rounded_shift(candidate * enters, 30 + weights.state_shift)
        memory = (kept + added).clip(*weights.state_bounds)
        leaves = values[:, 0]
        if weights.peepholes is not None:  # the output gate sees the new state
            leaves = _gate_values(weights, raw, memory)[:, 0]
        hidden = weights.hidden_rescaling(tanh[memory + TABLE_OFFSET] * leaves)
        codes = (hidden + weights.hidden_zero_point).clip(-128, 127)
        if projection := weights.projection:
            codes = projection.rescaling(projection.product.sums(codes))
            codes = (codes + projection.zero_point).clip(*projection.bounds)
        for output, result in zip(outputs, (codes, memory, codes), strict=True):
            np.copyto(output, result, casting="unsafe")

    return stateless(run)


def _raw_gates(weights: QuantizedWeights, data: Integers, output: Integers) -> Integers:
    """Return raw gates [batches, gates, units], of the data and of the latest output.

    They saturate to 16 bits as each of both is added.
    """
    sums = [weights.sums.data.sums(data), weights.sums.recurrent.sums(output)]
    of_data, of_output = weights.sums.rescaling(np.stack(sums))
    raw = saturated(saturated(of_data) + of_output)
    return raw.reshape(-1, weights.gates, weights.units)


def _gate_values(
    weights: QuantizedWeights, raw: Integers, memory: Integers
) -> Integers:
    """Return the values of raw gates; peepholes see ``memory`` [batches, units]."""
    if weights.peepholes is not None:
        peepholes, rescaling = weights.peepholes
        seen = rescaling(memory[:, np.newaxis] * peepholes)
        raw = raw.copy()
        raw[:, :-1] = saturated(raw[:, :-1] + seen)
    if weights.norm is not None:
        raw = weights.norm(raw)
    places = gate_places(*raw.shape[1:]).reshape(raw.shape[1:])
    return np.asarray(gate_table()[raw + places], np.int64)


_GATES = OUTPUT, INPUT, FORGET, CELL
_STATE_INTEGER_BITS = 4
_ZERO_POINT = 128
_EXTRA_CODE_BITS = 8


@cache
def _state_tanh() -> Table:
    """Return tanh by raw state; states beyond the range of gates saturate there."""
    states = np.arange(INT16_MIN, INT16_MAX + 1)
    as_gates = saturated_shift(states, _STATE_INTEGER_BITS - GATE_INTEGER_BITS)
    return tanh_table(GATE_INTEGER_BITS)[as_gates + TABLE_OFFSET]


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
    places = gate_places(len(_GATES), len(product.fold) // len(_GATES))

    def run(inputs: Inputs, outputs: Outputs) -> None:
        data = np.hstack([inputs[0], inputs[14]])
        raw = saturated(rescaling(product.sums(data)))
        values = gate_table()[raw + places].astype(np.int64)
        gates = values.reshape(len(values), len(_GATES), -1)
        leaves, enters, stays, candidate = gates.swapaxes(0, 1)
        added = rounded_shift(high_product(candidate, enters), _STATE_INTEGER_BITS)
        state = saturated(high_product(inputs[13].astype(np.int64), stays) + added)
        hidden = high_product(
            leaves, _state_tanh()[state + TABLE_OFFSET].astype(np.int64)
        )
        codes = rounded_shift(hidden, _EXTRA_CODE_BITS) + _ZERO_POINT
        np.copyto(outputs[0], state, casting="unsafe")
        np.copyto(outputs[1], codes.clip(0, 255), casting="unsafe")

    return stateless(run)


KERNELS: dict[OperationType, Prepare] = {
    OperationType.QUANTIZED_LSTM: _prepare,
    OperationType.QUANTIZED_16BIT_LSTM: _prepare_16bit,
}
