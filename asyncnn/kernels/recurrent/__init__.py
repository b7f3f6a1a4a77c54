"""Recurrent kernels: LSTM and RNN in all their forms, SVDF, and LSTM in integers.

`unroll` walks float cells along sequences; `lstm_cell` and `rnn` are such cells. The
quantised operations compute one step in fixed point.
"""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare
from asyncnn.kernels.recurrent import (
    lstm,
    quantized_16bit_lstm,
    quantized_lstm,
    rnn,
    svdf,
)

KERNELS: dict[OperationType, Prepare] = {
    **lstm.KERNELS,
    **quantized_lstm.KERNELS,
    **quantized_16bit_lstm.KERNELS,
    **rnn.KERNELS,
    **svdf.KERNELS,
}
