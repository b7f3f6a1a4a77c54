"""A small convolutional classifier in NumPy, with handwritten gradients.

A layer is an operation of the HAL with its weights in the HAL's layouts, so that the
exporter stores them as they are. Running one returns the output and a function that
turns the gradient of the loss with respect to the output into those with respect to
the input and the parameters. Arrays are float32 [N, H, W, C].
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn import OperationType
from asyncnn.tools.demo import CLASSES

Floats: TypeAlias = NDArray[np.float32]
Backward: TypeAlias = Callable[[Floats], tuple[Floats, ...]]
"""Takes the output's gradient; returns the input's, then the parameters'."""

SIDE = 8
"""Width and height of an image in pixels."""

RELU6_MAX = 6.0


class Layer(NamedTuple):
    """An operation and its trainable arrays: weights and bias, or none."""

    operation: OperationType
    parameters: tuple[Floats, ...] = ()


def new_network(rng: np.random.Generator) -> list[Layer]:
    """Return the layers from the image to one logit per class, weights at random."""
    conv, depthwise = OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D
    return [
        _random_layer(rng, conv, (16, 3, 3, 1), inputs=9),
        _random_layer(rng, depthwise, (1, 3, 3, 16), inputs=9),
        _random_layer(rng, conv, (32, 1, 1, 16), inputs=16),
        Layer(OperationType.MAX_POOL_2D),
        _random_layer(rng, depthwise, (1, 3, 3, 32), inputs=9),
        _random_layer(rng, conv, (32, 1, 1, 32), inputs=32),
        Layer(OperationType.AVERAGE_POOL_2D),
        Layer(OperationType.RESHAPE),
        _random_layer(rng, OperationType.FULLY_CONNECTED, (CLASSES, 128), inputs=128),
    ]


def activations(layers: Sequence[Layer], images: Floats) -> Iterator[Floats]:
    """Yield the output of each layer; the last one are logits [N, 10]."""
    x = images
    for layer in layers:
        x, _ = _run(layer, x)
        yield x


def gradients(
    layers: Sequence[Layer], images: Floats, labels: NDArray[np.integer[Any]]
) -> list[Floats]:
    """Return the gradients of the mean cross entropy, one for each parameter."""
    x, tape = images, []
    for layer in layers:
        x, backward = _run(layer, x)
        tape.append(backward)
    dy = _softmax(x)
    dy[np.arange(len(labels)), labels] -= 1
    dy /= len(labels)
    found: list[Floats] = []
    for backward in reversed(tape):
        dy, *of_parameters = backward(dy)
        found = of_parameters + found
    return found


def _run(layer: Layer, x: Floats) -> tuple[Floats, Backward]:
    match layer.operation:
        case OperationType.CONV_2D:
            return _filter(_DENSE, x, *layer.parameters)
        case OperationType.DEPTHWISE_CONV_2D:
            return _filter(_DEPTHWISE, x, *layer.parameters)
        case OperationType.MAX_POOL_2D:
            return _max_pool(x)
        case OperationType.AVERAGE_POOL_2D:
            return _average_pool(x)
        case OperationType.RESHAPE:
            return x.reshape(len(x), -1), lambda dy: (dy.reshape(x.shape),)
        case OperationType.FULLY_CONNECTED:
            return _fully_connected(x, *layer.parameters)
    raise ValueError(f"no layer computes {layer.operation!r}")


class _Tap(NamedTuple):
    """What one offset of a filter does: the forward step and its two gradients."""

    output: Callable[[Floats, Floats], Floats]
    input_gradient: Callable[[Floats, Floats], Floats]
    weight_gradient: Callable[[Floats, Floats], Floats]


_DENSE = _Tap(
    output=lambda x, w: x @ w.T,
    input_gradient=lambda dy, w: dy @ w,
    weight_gradient=lambda dy, x: np.tensordot(dy, x, ([0, 1, 2], [0, 1, 2])),
)
_DEPTHWISE = _Tap(
    output=lambda x, w: x * w[0],
    input_gradient=lambda dy, w: dy * w[0],
    weight_gradient=lambda dy, x: np.einsum("nhwc,nhwc->c", dy, x)[None],
)


def _filter(
    tap: _Tap, x: Floats, weights: Floats, bias: Floats
) -> tuple[Floats, Backward]:
    """Filter with stride 1 and same padding, then relu6: a sum over shifted images."""
    _, rows, columns, _ = weights.shape
    edges = ((0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0))
    padded = np.pad(x, edges)
    height, width = x.shape[1:3]

    def windows(image: Floats) -> Iterator[tuple[tuple[int, int], Floats]]:
        for row, column in product(range(rows), range(columns)):
            at = image[:, row : row + height, column : column + width]
            yield (row, column), at

    linear = bias + sum(
        tap.output(view, weights[:, row, column])
        for (row, column), view in windows(padded)
    )

    def backward(dy: Floats) -> tuple[Floats, ...]:
        dy = dy * ((linear > 0) & (linear < RELU6_MAX))
        dpadded, dweights = np.zeros_like(padded), np.zeros_like(weights)
        pairs = zip(windows(padded), windows(dpadded), strict=True)
        for ((row, column), view), (_, dview) in pairs:
            dview += tap.input_gradient(dy, weights[:, row, column])
            dweights[:, row, column] = tap.weight_gradient(dy, view)
        inner = tuple(slice(low, -high or None) for low, high in edges)
        return dpadded[inner], dweights, dy.sum((0, 1, 2))

    return np.clip(linear, 0, RELU6_MAX), backward


def _max_pool(x: Floats) -> tuple[Floats, Backward]:
    """Take the maximum of each 2x2 block; ties share the gradient."""
    n, height, width, channels = x.shape
    blocks = x.reshape(n, height // 2, 2, width // 2, 2, channels)
    y = blocks.max((2, 4), keepdims=True)
    is_maximum = (blocks == y).astype(np.float32)
    share = is_maximum / is_maximum.sum((2, 4), keepdims=True)
    return y[:, :, 0, :, 0], lambda dy: (
        (dy[:, :, None, :, None] * share).reshape(x.shape),
    )


def _average_pool(x: Floats) -> tuple[Floats, Backward]:
    """Take the mean of each 2x2 block."""
    n, height, width, channels = x.shape
    blocks = x.reshape(n, height // 2, 2, width // 2, 2, channels)
    return blocks.mean((2, 4)), lambda dy: (
        (dy / 4).repeat(2, axis=1).repeat(2, axis=2),
    )


def _fully_connected(
    x: Floats, weights: Floats, bias: Floats
) -> tuple[Floats, Backward]:
    return x @ weights.T + bias, lambda dy: (dy @ weights, dy.T @ x, dy.sum(0))


def _softmax(logits: Floats) -> Floats:
    powers: Floats = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _random_layer(
    rng: np.random.Generator,
    operation: OperationType,
    shape: tuple[int, ...],
    *,
    inputs: int,
) -> Layer:
    """Draw weights that keep the variance through a rectified layer."""
    weights = rng.normal(0, np.sqrt(2 / inputs), shape).astype(np.float32)
    units = shape[-1] if operation is OperationType.DEPTHWISE_CONV_2D else shape[0]
    return Layer(operation, (weights, np.zeros(units, np.float32)))
