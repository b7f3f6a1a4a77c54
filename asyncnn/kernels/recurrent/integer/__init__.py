"""LSTM in integers, one step at a time, bit for bit as TensorFlow Lite computes it.

`fixed_point` says what raw values mean; `in_place`, `exact_sums` and `layer_norm` are
the steps of a cell, and `packing` prepares its weights.
"""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare
from asyncnn.kernels.recurrent.integer import quantized_16bit_lstm, quantized_lstm

KERNELS: dict[OperationType, Prepare] = {
    **quantized_16bit_lstm.KERNELS,
    **quantized_lstm.KERNELS,
}
