"""Recurrent kernels: LSTM and RNN in all their forms, SVDF, and LSTM in integers.

`unroll` walks float cells along sequences; `lstm_cell` and `rnn` are such cells. The
quantised operations are in `integer`.
"""

from asyncnn.hal.types import OperationType
from asyncnn.kernels.kernel import Prepare
from asyncnn.kernels.recurrent import lstm, quantized_16bit_lstm, quantized_lstm, rnn

KERNELS: dict[OperationType, Prepare] = {
    **lstm.KERNELS,
    **quantized_16bit_lstm.KERNELS,
    **quantized_lstm.KERNELS,
    **rnn.KERNELS,
}
