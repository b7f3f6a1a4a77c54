"""The float LSTM cell: one step for a batch, in memory that is allocated once.

With ``[o, i, f, g]`` the gates' sums of ``W x + R h``, plus peepholes ``p * c`` that
see the old cell state (``o`` sees the new one) and plus the bias, or normalised:

``c' = clip(logistic(f) * c + logistic(i) * activation(g))``
``h' = clip(P (logistic(o) * activation(c')) + bias)``, or without the projection ``P``.

An input gate that is coupled to the forget gate is ``1 - logistic(f)``.

Source: 1.3/types.hal (LSTM).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.recurrent.activations import TANH, halve_tanh
from asyncnn.kernels.recurrent.layer_norm import LayerNorm

if TYPE_CHECKING:
    from asyncnn.kernels.recurrent.lstm_weights import LstmWeights
