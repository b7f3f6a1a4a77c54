"""A step of QUANTIZED_LSTM in C, where that was built.

``_quantized_lstm.c`` computes what `quantized_lstm` does in NumPy, bit for bit, without
the interpreter lock. ``ASYNCNN_PURE_KERNELS=1`` asks for NumPy, which also computes
cells that the compiled step refuses, such as those with rows of more than 65,536.
"""

import importlib
import os
from typing import Any

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.kernels.kernel import NativeKernel
from asyncnn.kernels.recurrent.integer_packing import QuantizedWeights, pack
from asyncnn.kernels.recurrent.integer_steps import Product, gate_table, tanh_table

_READ = 0, 18, 19
"""The input, and both states."""

_NONE = None, None


def _compiled() -> Any:
    if os.environ.get("ASYNCNN_PURE_KERNELS") == "1":
        return None
    try:
        return importlib.import_module("asyncnn.kernels.recurrent._quantized_lstm")
    except ImportError:  # there was no compiler
        return None


_built = _compiled()


def compiled_step(operation: BoundOperation) -> NativeKernel | None:
    """Return the kernel of a QUANTIZED_LSTM; None if it is left to NumPy.

    :raises ValueNeededError: if a weight is not constant.
    :raises OperationFailedError: if a scale is not what a cell can have.
    """
    if _built is None:
        return None
    weights = pack(operation, Product.of_codes)
    try:
        step = _built.Step(
            operation.shape(0)[0],
            weights.gates,
            (30 + weights.state_shift, *weights.state_bounds),
            (weights.hidden_rescaling.terms(), weights.hidden_zero_point),
            *_sums(weights),
            *_projection(weights),
            *_blocks(weights),
            (gate_table(), tanh_table(weights.state_shift + 15)),
        )
    except ValueError:
        return None
    return NativeKernel(_built.FUNCTION, step.address, _READ, step.run)


def _sums(weights: QuantizedWeights) -> list[tuple[Array, Array]]:
    """Return the products of the data and of the latest output, with their terms."""
    products = weights.sums.data, weights.sums.recurrent
    fold = np.stack([product.fold for product in products])[:, np.newaxis]
    terms = weights.sums.rescaling.terms(fold)
    return [
        (product.weights, np.ascontiguousarray(terms[:, number]))
        for number, product in enumerate(products)
    ]


def _projection(weights: QuantizedWeights) -> tuple[Any, Any]:
    projection = weights.projection
    if projection is None:
        return _NONE, (0, 0, 0)
    product, rescaling = projection.product, projection.rescaling
    bounds = projection.zero_point, *projection.bounds
    return (product.weights, rescaling.terms(product.fold)), bounds


def _blocks(weights: QuantizedWeights) -> tuple[Any, Any]:
    """Return peepholes and layer normalisation of all gates, in their order."""
    peepholes: Any = []
    norms: Any = []
    for block in sorted(weights.blocks, key=lambda block: block.start):
        if block.peepholes is not None and block.rescaling is not None:
            peepholes.append((block.peepholes[np.newaxis], block.rescaling.terms()))
        if block.norm is not None:
            norms.append((block.norm.parameters(), block.norm.terms()))
    return _joined(peepholes), _joined(norms)


def _joined(parts: list[tuple[Array, Array]]) -> tuple[Any, ...]:
    """Join numbers [..., gates, units] and terms [..., gates] of blocks."""
    if not parts:
        return _NONE
    return tuple(np.concatenate(each, axis=1) for each in zip(*parts, strict=True))
