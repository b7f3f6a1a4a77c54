"""Reads QUANTIZED_LSTM and packs its weights, multipliers and bounds.

Effective scales are computed in float32, as the reference kernels do, before they
become fixed-point multipliers.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import (
    Array,
    BoundOperation,
    OperationFailedError,
)
from asyncnn.hal.operations.lstm_cell import CellInputs
from asyncnn.kernels.recurrent.fixed_point import INT16_MAX, INT16_MIN, Integers
from asyncnn.kernels.recurrent.integer_layer_norm import IntegerLayerNorm
from asyncnn.kernels.recurrent.lstm_packing import packed_gates, peephole_inputs
from asyncnn.kernels.recurrent.rescaling import Rescaling

_CELL = CellInputs(weights=1, states=18, layer_norm=20)
_RECURRENT = _CELL.weights + 4
_BIAS = _CELL.weights + 11
_PROJECTION = _CELL.weights + 15
_CELL_CLIP, _PROJECTION_CLIP = 24, 25
_INTERMEDIATE_SCALES = 26
_HIDDEN_ZERO_POINT, _HIDDEN_SCALE = 30, 31

_EXACT_FLOAT32 = 2**24
_LARGEST_CODE = 2**7
_FINEST_STATE, _COARSEST_STATE = -15, -9

Gates = tuple[int, ...]


class Product(msgspec.Struct, frozen=True, eq=False):
    """Float ``weights`` [inputs, columns], and what to add to the exact sums."""

    weights: Array
    fold: Integers


class QuantizedWeights(msgspec.Struct, frozen=True, eq=False):
    """Everything constant of a cell, packed gate by gate like a float cell's.

    ``sums_rescaling`` [2, 1, columns] serves the products of data and output.
    ``state_shift`` is the binary exponent of the cell state's scale. Bounds are those
    of stored values; a zero point is that of the result of its step.
    """

    gates: int
    units: int
    data: Product
    recurrent: Product
    sums_rescaling: Rescaling
    peepholes: Integers | None
    peephole_rescaling: Rescaling | None
    norm: IntegerLayerNorm | None
    state_shift: int
    state_bounds: tuple[int, int]
    hidden_rescaling: Rescaling
    hidden_zero_point: int
    projection: Product | None
    projection_rescaling: Rescaling | None
    output_zero_point: int
    output_bounds: tuple[int, int]


def pack(operation: BoundOperation) -> QuantizedWeights:
    """Read and pack a QUANTIZED_LSTM.

    :raises ValueNeededError: if a weight is not constant.
    :raises OperationFailedError: if a scale is not positive, or that of the cell state
        no power of two from 2**-15 to 2**-9.
    """
    gates = packed_gates(operation, _CELL)
    normalises = _CELL.has_layer_norm(operation)
    bias = _stack(operation, _BIAS, gates)
    data = _product(operation, _CELL.weights, gates, 0, 0 if normalises else bias)
    recurrent = _product(operation, _RECURRENT, gates, _CELL.states, 0)
    shift = _state_shift(operation.input(_CELL.states + 1).scale)
    peepholes = _peepholes(operation, gates)
    
    return QuantizedWeights()
