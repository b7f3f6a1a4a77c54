"""QUANTIZED_16BIT_LSTM: one step with 16-bit states and fixed scales.

``[i, g, f, o] = [h, x] @ weights.T + bias`` in 16 bits with three integer bits;
``c' = logistic(i) * tanh(g) + logistic(f) * c``, ``h' = logistic(o) * tanh(c')``.
All products are rounded as the reference device rounds them: results are equal.

Source: 1.3/types.hal (QUANTIZED_16BIT_LSTM); NN common/cpu_operations/
QuantizedLSTM.cpp.
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
from asyncnn.kernels.recurrent.exact_sums import ExactSums, Product, exact_product
from asyncnn.kernels.recurrent.fixed_point import (
    GATE_INTEGER_BITS,
    INT16_MAX,
    INT16_MIN,
    TABLE_OFFSET,
    Table,
    gate_places,
    gate_table,
    tanh_table,
)
from asyncnn.kernels.recurrent.lstm_packing import CELL, FORGET, INPUT, OUTPUT
from asyncnn.kernels.recurrent.rescaling import Rescaling

_STATE_INTEGER_BITS = 4
_GATES = OUTPUT, INPUT, FORGET, CELL
_CODE_ZERO = 128
