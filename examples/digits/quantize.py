"""Post-training quantisation: real values become 8-bit codes with a scale.

Weights get one symmetric scale for each output channel (one for all in the fully
connected layer), activations an asymmetric one from the range that they take on
calibration images. Real value = ``scale * (code - zero_point)``.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncnn import OperationType
from asyncnn.tools.demo import MAX_GREY
from network import Floats, Layer, activations

KEEPS_CODES = frozenset(
    {OperationType.MAX_POOL_2D, OperationType.AVERAGE_POOL_2D, OperationType.RESHAPE}
)
"""Operations whose output must have the quantisation of their input."""


class Quantization(NamedTuple):
    """Scale and zero point of a signed 8-bit tensor; scale 0 means not quantised."""

    scale: float = 0.0
    zero_point: int = 0


PIXELS = Quantization(1 / MAX_GREY, 0)
"""The code of a pixel is its grey level, 0 to 16, so nothing is lost."""

PROBABILITIES = Quantization(1 / 256, -128)
"""What the HAL prescribes for the output of SOFTMAX."""


def calibrate(layers: Sequence[Layer], images: Floats) -> list[Quantization]:
    """Return the quantisation of each layer's output, from its range over images."""
    found = [PIXELS]
    for layer, output in zip(layers, activations(layers, images), strict=True):
        keeps = layer.operation in KEEPS_CODES
        found.append(found[-1] if keeps else _covering(output))
    return found[1:]


def _covering(values: Floats) -> Quantization:
    """Spread 256 codes over the range of ``values``, 0 among them exactly."""
    low, high = min(float(values.min()), 0.0), max(float(values.max()), 0.0)
    scale = _float32((high - low) / 255)
    return Quantization(scale, round(-128 - low / scale))


def quantize_weights(
    weights: Floats, axis: int | None
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return codes in [-127, 127] and the scales along ``axis``, or the only one."""
    others = tuple(other for other in range(weights.ndim) if other != axis)
    largest = np.abs(weights).max(others, keepdims=True)
    scales = (np.maximum(largest, 1e-6) / 127).astype(np.float32)
    return np.rint(weights / scales).astype(np.int8), scales.ravel()


def quantize_bias(bias: Floats, scales: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return codes in the unit of the accumulator: input scale times weight scale."""
    return np.rint(bias / scales).astype(np.int32)


def _float32(value: float) -> float:
    return float(np.float32(value))
