"""Spectra of real signals: Fourier transforms as matrix products.

The HAL has no complex numbers. Within an import a complex tensor is two operands, real
and imaginary part, which only the operators of this file know; one that is an input or
output of the graph, or that another operator reads, is refused.
"""

import math

import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.tflite.algebra import Algebra
from asyncnn.runtime.tflite.node import Converter, Node
from asyncnn.runtime.tflite.rearranging import transpose
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_F32 = OperandType.TENSOR_FLOAT32


def _rfft2d(node: Node) -> None:
    """Transform the last two axes, cut or filled with zeros to the lengths asked for.

    Of the last one, only the first half of the frequencies is computed.
    """
    source, lengths = node.read(0), node.values(1).ravel().tolist()
    dimensions = node.builder.operand(source).dimensions
    if len(lengths) != 2 or min(lengths) < 1 or len(dimensions) < 2:
        raise InvalidArgumentError(f"lengths {lengths} for {list(dimensions)}")
    if node.type != _F32:
        raise UnsupportedOperatorError(f"spectra of {node.type.name}")
    *outer, _, _ = dimensions
    height, width = lengths
    count, half = math.prod(outer), width // 2 + 1
    signal = _fitted(node, node.reshape(source, (count, *dimensions[-2:])), lengths)
    rows = node.reshape(signal, (count * height, width))
    node.allowance.take_elements((half, width, 2))
    cosines, sines = _waves(half, width)
    real, imaginary = _product(node, rows, cosines), _product(node, rows, -sines)
    if height > 1:
        node.allowance.take_elements((height, height, 2))
        columns = [
            _columns(node, part, (count, height, half)) for part in (real, imaginary)
        ]
        cosines, sines = _waves(height, height)
        algebra = Algebra(node, _F32)
        c_real, c_imaginary = (_product(node, part, cosines) for part in columns)
        s_real, s_imaginary = (_product(node, part, sines) for part in columns)
        real = algebra.add(c_real, s_imaginary)
        imaginary = algebra.subtract(c_imaginary, s_real)
        real, imaginary = (
            transpose(node, node.reshape(part, (count, half, height)), (0, 2, 1))
            for part in (real, imaginary)
        )
    shape = (*outer, height, half)
    node.store_complex(node.reshape(real, shape), node.reshape(imaginary, shape))


def _fitted(node: Node, operand: int, lengths: list[int]) -> int:
    """Return ``operand``, [count, height, width], with its ends cut or filled."""
    like = node.builder.operand(operand)
    count, *given = like.dimensions
    kept = [min(pair) for pair in zip(given, lengths, strict=True)]
    if kept != given:
        output = replace(like, dimensions=(count, *kept))
        begin, size = node.integers([0, 0, 0]), node.integers([count, *kept])
        operand = node.compute(OperationType.SLICE, [operand, begin, size], output)
    if kept != lengths:
        missing = [[0, 0], *([0, n - k] for k, n in zip(kept, lengths, strict=True))]
        paddings = node.builder.constant(np.array(missing, np.int32))
        output = replace(like, dimensions=(count, *lengths))
        node.allowance.take_elements(output.dimensions)
        operand = node.compute(OperationType.PAD, [operand, paddings], output)
    return operand


def _waves(count: int, length: int) -> tuple[Array, Array]:
    """Return cosines and sines of so many frequencies, [count, length]."""
    turns = np.outer(np.arange(count), np.arange(length)) % length / length
    return np.cos(2 * np.pi * turns), np.sin(2 * np.pi * turns)


def _product(node: Node, rows: int, waves: Array) -> int:
    units, _ = waves.shape
    bias = node.zeros(Operand(_F32, (units,)))
    weights = node.builder.constant(waves.astype(np.float32))
    count, _ = node.builder.operand(rows).dimensions
    return node.compute(
        OperationType.FULLY_CONNECTED,
        [rows, weights, bias, node.scalar(0)],
        Operand(_F32, (count, units)),
    )


def _columns(node: Node, part: int, shape: tuple[int, int, int]) -> int:
    count, height, half = shape
    turned = transpose(node, node.reshape(part, shape), (0, 2, 1))
    return node.reshape(turned, (count * half, height))


def _real(node: Node) -> None:
    node.store(node.read_complex(0)[0])


def _imaginary(node: Node) -> None:
    node.store(node.read_complex(0)[1])


def _absolute(node: Node) -> None:
    algebra = Algebra(node, _F32)
    squares = [algebra.multiply(part, part) for part in node.read_complex(0)]
    node.store(algebra.apply(OperationType.SQRT, algebra.add(*squares)))


CONVERTERS: dict[str, Converter] = {
    "RFFT2D": _rfft2d,
    "REAL": _real,
    "IMAG": _imaginary,
    "COMPLEX_ABS": _absolute,
}
"""Converters by the operator's name."""
