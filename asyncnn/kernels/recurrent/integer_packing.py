"""Reads QUANTIZED_LSTM and packs its weights, multipliers and bounds, or compiles it.

Effective scales are computed in float32, as the reference kernels do, before they
become fixed-point multipliers. The gates lie side by side as in a float cell.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.operations.lstm import CellInputs
from asyncnn.kernels.compiled import built, native
from asyncnn.kernels.kernel import NativeKernel
from asyncnn.kernels.recurrent.integer_steps import (
    IntegerLayerNorm,
    Integers,
    Product,
    Rescaling,
    gate_table,
    tanh_table,
)
from asyncnn.kernels.recurrent.lstm import CELL, packed_gates, peephole_inputs

_CELL = CellInputs(weights=1, states=18, layer_norm=20)
_RECURRENT = _CELL.weights + 4
_BIAS = _CELL.weights + 11
_PROJECTION = _CELL.weights + 15
_CELL_CLIP, _PROJECTION_CLIP = 24, 25
_INTERMEDIATE_SCALES = 26
_HIDDEN_ZERO_POINT, _HIDDEN_SCALE = 30, 31

_FINEST_STATE, _COARSEST_STATE = -15, -9

Gates: TypeAlias = tuple[int, ...]
Bounds: TypeAlias = tuple[int, int]
"""Lowest and highest stored value."""


class GateSums(msgspec.Struct, frozen=True, eq=False):
    """Products of the data and of the latest output.

    ``rescaling`` [2, 1, gates * units] turns both into raw gates.
    """

    data: Product
    recurrent: Product
    rescaling: Rescaling


class QuantizedProjection(msgspec.Struct, frozen=True, eq=False):
    """From hidden codes to output codes, the latter with zero point and bounds."""

    product: Product
    rescaling: Rescaling
    zero_point: int
    bounds: Bounds


class QuantizedWeights(msgspec.Struct, frozen=True, eq=False):
    """Everything constant of a cell.

    ``peepholes`` [gates - 1, units] belong to the gates that end in the logistic
    function, with a multiplier for each. ``state_shift`` is the binary exponent of the
    cell state's scale.
    """

    gates: int
    units: int
    sums: GateSums
    peepholes: tuple[Integers, Rescaling] | None
    norm: IntegerLayerNorm | None
    state_shift: int
    state_bounds: Bounds
    hidden_rescaling: Rescaling
    hidden_zero_point: int
    projection: QuantizedProjection | None


def pack(
    operation: BoundOperation, product: Callable[..., Product] = Product.of
) -> QuantizedWeights:
    """Read and pack a QUANTIZED_LSTM; ``product`` is `Product.of`.

    :raises ValueNeededError: if a weight is not constant.
    :raises OperationFailedError: if a scale is not positive, or the cell state's
        no power of two from ``2**-15`` to ``2**-9``.
    """
    gates = packed_gates(operation, _CELL)
    bias = _integers(operation, [_BIAS + gate for gate in gates])
    norm = _layer_norm(operation, gates, bias)
    state = operation.input(_CELL.states + 1)
    shift = _state_shift(operation, state)
    hidden_real = 2.0**-15 / float(_hidden_scale(operation)) * 2.0**-15
    return QuantizedWeights(
        gates=len(gates),
        units=len(bias) // len(gates),
        sums=_gate_sums(operation, gates, None if norm else bias, product),
        peepholes=_peepholes(operation, gates, shift),
        norm=norm,
        state_shift=shift,
        state_bounds=_bounds(operation, _CELL_CLIP, state),
        hidden_rescaling=Rescaling(np.float32(hidden_real)),
        hidden_zero_point=_hidden_zero_point(operation),
        projection=_projection(operation, product),
    )


def _gate_sums(
    operation: BoundOperation,
    gates: Gates,
    bias: Integers | None,
    product: Callable[..., Product],
) -> GateSums:
    data, output = operation.input(0), operation.input(_CELL.states)
    of_data = product(
        operation,
        "data",
        lambda: _join(operation, [_CELL.weights + gate for gate in gates]),
        data.zero_point,
        bias,
    )
    of_output = product(
        operation,
        "recurrent",
        lambda: _join(operation, [_RECURRENT + gate for gate in gates]),
        output.zero_point,
        None,
    )
    reals = [
        [_gate_reals(operation, _CELL.weights, gates, data)],
        [_gate_reals(operation, _RECURRENT, gates, output)],
    ]
    units = len(of_data.fold) // len(gates)
    return GateSums(of_data, of_output, Rescaling(reals, units))


def _gate_reals(
    operation: BoundOperation, first: int, gates: Gates, source: BoundOperand
) -> NDArray[np.float32]:
    scales = [operation.input(first + gate).scale for gate in gates]
    intermediate = [_intermediate_scale(operation, gate) for gate in gates]
    return np.array(scales, np.float32) * np.float32(source.scale) / intermediate


def _projection(
    operation: BoundOperation, product: Callable[..., Product]
) -> QuantizedProjection | None:
    if not operation.has(_PROJECTION):
        return None
    operand, result = operation.input(_PROJECTION), operation.input(_CELL.states)
    bias = None
    if operation.has(_PROJECTION + 1):
        bias = _integers(operation, [_PROJECTION + 1])
    scale = _positive(operation, result.scale, "output scale")
    real = np.float32(operand.scale) * _hidden_scale(operation) / scale
    return QuantizedProjection(
        product(
            operation,
            "projection",
            lambda: _join(operation, [_PROJECTION]),
            _hidden_zero_point(operation),
            bias,
        ),
        Rescaling(real),
        result.zero_point,
        _bounds(operation, _PROJECTION_CLIP, result),
    )


def _hidden_zero_point(operation: BoundOperation) -> int:
    """Return the zero point of the hidden codes; before a projection it is negated."""
    zero_point = operation.integer(_HIDDEN_ZERO_POINT)
    return -zero_point if operation.has(_PROJECTION) else zero_point


def _peepholes(
    operation: BoundOperation, gates: Gates, shift: int
) -> tuple[Integers, Rescaling] | None:
    if not _CELL.has_peepholes(operation):
        return None
    seeing = [gate for gate in gates if gate != CELL]
    indices = peephole_inputs(_CELL, seeing)
    scales = np.array([[operation.input(index).scale] for index in indices])
    intermediate = [[float(_intermediate_scale(operation, gate))] for gate in seeing]
    reals = (2.0**shift * scales / intermediate).astype(np.float32)
    weights = _integers(operation, indices).reshape(len(indices), -1)
    return weights, Rescaling(reals)


def _layer_norm(
    operation: BoundOperation, gates: Gates, bias: Integers
) -> IntegerLayerNorm | None:
    if not _CELL.has_layer_norm(operation):
        return None
    indices = [_CELL.layer_norm + gate for gate in gates]
    return IntegerLayerNorm(
        _integers(operation, indices).reshape(len(gates), -1),
        bias.reshape(len(gates), -1),
        tuple(operation.input(index).scale for index in indices),
    )


def _bounds(
    operation: BoundOperation, clip_index: int, clipped: BoundOperand
) -> Bounds:
    """Return the range of stored values after a clip, which is truncated to steps."""
    limits = np.iinfo(clipped.dtype)
    low, high = int(limits.min), int(limits.max)
    clip = operation.real(clip_index, 0.0)
    if clip <= 0:
        return low, high
    scale = _positive(operation, clipped.scale, "scale of what is clipped")
    steps = int(min(np.float32(clip) / scale, np.float32(high)))
    return (-steps, steps) if steps else (low, high)


def _state_shift(operation: BoundOperation, state: BoundOperand) -> int:
    exponent = math.log2(_positive(operation, state.scale, "cell state's scale"))
    shift = round(exponent)
    operation.require(
        abs(exponent - shift) < 1e-3 and _FINEST_STATE <= shift <= _COARSEST_STATE,
        f"the cell state's scale {state.scale} is no power of two "
        f"from 2**{_FINEST_STATE} to 2**{_COARSEST_STATE}",
    )
    return shift


def _intermediate_scale(operation: BoundOperation, gate: int) -> np.float32:
    scale = operation.real(_INTERMEDIATE_SCALES + gate)
    return _positive(operation, scale, "intermediate scale")


def _hidden_scale(operation: BoundOperation) -> np.float32:
    return _positive(operation, operation.real(_HIDDEN_SCALE), "hidden state's scale")


def _positive(operation: BoundOperation, scale: float, name: str) -> np.float32:
    operation.require(scale > 0, f"the {name} is {scale}, not positive")
    return np.float32(scale)


def _integers(operation: BoundOperation, indices: Iterable[int]) -> Integers:
    return _join(operation, indices).astype(np.int64)


def _join(operation: BoundOperation, indices: Iterable[int]) -> Array:
    return np.concatenate([operation.value(index) for index in indices])


_STEP_READS = 0, _CELL.states, _CELL.states + 1
_NO_PAIR = None, None


def compiled_step(operation: BoundOperation) -> NativeKernel | None:
    """Return the kernel of a QUANTIZED_LSTM; None if it is left to NumPy.

    :raises ValueNeededError: if a weight is not constant.
    :raises OperationFailedError: if a scale is not what a cell can have.
    """
    if built is None:
        return None
    weights = pack(operation, partial(Product.of, as_codes=True))
    try:
        step = built.Step(
            operation.shape(0)[0],
            weights.gates,
            (30 + weights.state_shift, *weights.state_bounds),
            (weights.hidden_rescaling.terms(), weights.hidden_zero_point),
            *_compiled_sums(weights),
            *_compiled_projection(weights),
            *_compiled_gates(weights),
            (gate_table(), tanh_table(weights.state_shift + 15)),
        )
    except ValueError:
        return None
    return native(step, operation, _STEP_READS)


def _compiled_sums(weights: QuantizedWeights) -> list[tuple[Array, Array]]:
    """Return the products of the data and of the latest output, with their terms."""
    products = weights.sums.data, weights.sums.recurrent
    fold = np.stack([product.fold for product in products])[:, np.newaxis]
    terms = weights.sums.rescaling.terms(fold)
    return [
        (product.weights, np.ascontiguousarray(terms[:, number]))
        for number, product in enumerate(products)
    ]


def _compiled_projection(weights: QuantizedWeights) -> tuple[Any, Any]:
    projection = weights.projection
    if projection is None:
        return _NO_PAIR, (0, 0, 0)
    product, rescaling = projection.product, projection.rescaling
    bounds = projection.zero_point, *projection.bounds
    return (product.weights, rescaling.terms(product.fold)), bounds


def _compiled_gates(weights: QuantizedWeights) -> tuple[Any, Any]:
    """Return peepholes and layer normalisation, each with its terms."""
    peepholes: Any = _NO_PAIR
    if weights.peepholes is not None:
        values, rescaling = weights.peepholes
        peepholes = values[np.newaxis], rescaling.terms()
    norm = weights.norm
    return peepholes, _NO_PAIR if norm is None else (norm.parameters(), norm.terms())
