"""Spectra of real signals: Fourier transforms as matrix products.

The HAL has no complex numbers. Within an import a complex tensor is two operands, real
and imaginary part, which only the operators of this file know; one that is an input or
output of the graph, or that another operator reads, is refused.
"""

import math

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.moves import pad, transpose
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_F32 = OperandType.TENSOR_FLOAT32


def _rfft2d(node: Node) -> None:
    """Transform the last two axes, cut or filled with zeros to the lengths asked for.

    Of the last one, only the first half of the frequencies is computed.
    """
    draft, source = node.draft, node.input(0)
    lengths = node.values(1).ravel().tolist()
    if len(lengths) != 2 or min(lengths) < 1 or source.rank < 2:
        raise InvalidArgumentError(f"lengths {lengths} for {list(source.shape)}")
    if node.type != _F32:
        raise UnsupportedOperatorError(f"spectra of {node.type.name}")
    *outer, _, _ = source.shape
    height, width = lengths
    count, half = math.prod(outer), width // 2 + 1
    whole = draft.reshape(source, (count, *source.shape[-2:]))
    signal = _fitted(draft, whole, (count, height, width))
    rows = draft.reshape(signal, (count * height, width))
    draft.allowance.take_elements((half, width, 2))
    cosines, sines = _waves(half, width)
    real, imaginary = _product(draft, rows, cosines), _product(draft, rows, -sines)
    if height > 1:
        draft.allowance.take_elements((height, height, 2))
        columns = [
            _columns(draft, part, (count, height, half)) for part in (real, imaginary)
        ]
        cosines, sines = _waves(height, height)
        c_real, c_imaginary = (_product(draft, part, cosines) for part in columns)
        s_real, s_imaginary = (_product(draft, part, sines) for part in columns)
        real, imaginary = (
            transpose(draft, draft.reshape(part, (count, half, height)), (0, 2, 1))
            for part in (draft.add(c_real, s_imaginary), draft.sub(c_imaginary, s_real))
        )
    shape = (*outer, height, half)
    node.store_complex(draft.reshape(real, shape), draft.reshape(imaginary, shape))


def _fitted(draft: Composer, value: Value, shape: Shape) -> Value:
    """Return ``value`` with its ends cut or filled."""
    pairs = zip(value.shape, shape, strict=True)
    missing = [(0, wanted - length) for length, wanted in pairs]
    if max(missing) > (0, 0):
        draft.allowance.take_elements(shape)
    return pad(draft, value, missing)


def _waves(count: int, length: int) -> tuple[Array, Array]:
    """Return cosines and sines of so many frequencies, [count, length]."""
    turns = np.outer(np.arange(count), np.arange(length)) % length / length
    return np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)


def _product(draft: Composer, rows: Value, waves: Array) -> Value:
    weights = draft.constant(waves.astype(np.float32))
    return draft.connected(rows, weights)


def _columns(draft: Composer, part: Value, shape: tuple[int, int, int]) -> Value:
    count, height, half = shape
    turned = transpose(draft, draft.reshape(part, shape), (0, 2, 1))
    return draft.reshape(turned, (count * half, height))


def _real(node: Node) -> None:
    node.put(node.read_complex(0)[0])


def _imaginary(node: Node) -> None:
    node.put(node.read_complex(0)[1])


def _absolute(node: Node) -> None:
    draft = node.draft
    real, imaginary = (draft.mul(part, part) for part in node.read_complex(0))
    node.put(draft.unary(OperationType.SQRT, draft.add(real, imaginary)))


CONVERTERS: dict[str, Converter] = {
    "RFFT2D": _rfft2d,
    "REAL": _real,
    "IMAG": _imaginary,
    "COMPLEX_ABS": _absolute,
}
"""Converters by the operator's name."""
