"""A small convolutional classifier in NumPy, with handwritten gradients.

Every layer has ``forward`` and ``backward``; the latter takes the gradient of the loss
with respect to its output, fills ``gradients`` in the order of ``parameters`` and
returns the gradient with respect to its input. Arrays are float32 [N, H, W, C];
weights have the layouts of the HAL, so that the exporter stores them as they are.
"""

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

CLASSES = 10
SIDE = 8
"""Width and height of an image in pixels."""

RELU6_MAX = 6.0


class Layer:
    """A layer without parameters; those with parameters list them."""

    parameters: tuple[Floats, ...] = ()
    gradients: tuple[Floats, ...] = ()

    def forward(self, x: Floats) -> Floats:
        """Compute the output and remember what `backward` needs."""
        raise NotImplementedError

    def backward(self, dy: Floats) -> Floats:
        """Turn the gradient of the output into that of the input."""
        raise NotImplementedError


class _Filter(Layer):
    """Slides over the image with stride 1 and same padding; bias and relu6 follow.

    A filter is a sum over its taps: the image shifted by one offset, combined with
    the weights at that offset. Subclasses say how one tap combines.
    """

    def __init__(self, weights: Floats) -> None:
        self.weights = weights
        self.bias = np.zeros(self.channels, np.float32)
        self.parameters = (self.weights, self.bias)

    @property
    def channels(self) -> int:
        """Number of output channels."""
        raise NotImplementedError

    def _tap(self, x: Floats, at: tuple[int, int]) -> Floats:
        raise NotImplementedError

    def _tap_gradients(
        self, x: Floats, dy: Floats, at: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        """Return the gradients of the shifted image and of the weights at ``at``."""
        raise NotImplementedError

    def _windows(self, image: Floats) -> Iterator[tuple[tuple[int, int], Floats]]:
        """Yield the offset of each tap and the view of ``image`` it looks at."""
        rows, columns = self.weights.shape[1:3]
        height, width = image.shape[1] - rows + 1, image.shape[2] - columns + 1
        for row, column in product(range(rows), range(columns)):
            view = image[:, row : row + height, column : column + width]
            yield (row, column), view

    def _pad(self) -> tuple[tuple[int, int], ...]:
        rows, columns = self.weights.shape[1:3]
        return (0, 0), (rows // 2, rows // 2), (columns // 2, columns // 2), (0, 0)

    def forward(self, x: Floats) -> Floats:
        self._padded = np.pad(x, self._pad())
        y = self.bias.copy()
        for at, view in self._windows(self._padded):
            y = y + self._tap(view, at)
        self._passes = (y > 0) & (y < RELU6_MAX)
        return np.clip(y, 0, RELU6_MAX)

    def backward(self, dy: Floats) -> Floats:
        dy = dy * self._passes
        dx = np.zeros_like(self._padded)
        dweights = np.zeros_like(self.weights)
        windows = zip(self._windows(self._padded), self._windows(dx), strict=True)
        for (at, view), (_, dview) in windows:
            gradient, dweights[:, *at] = self._tap_gradients(view, dy, at)
            dview += gradient
        self.gradients = (dweights, dy.sum((0, 1, 2)))
        return dx[tuple(slice(low, -high or None) for low, high in self._pad())]


class Convolution(_Filter):
    """Convolution; weights [out, height, width, in]."""

    def __init__(self, rng: np.random.Generator, side: int, inputs: int, out: int):
        super().__init__(_random(rng, (out, side, side, inputs), side**2 * inputs))

    @property
    def channels(self) -> int:
        return self.weights.shape[0]

    def _tap(self, x: Floats, at: tuple[int, int]) -> Floats:
        return x @ self.weights[:, *at].T

    def _tap_gradients(
        self, x: Floats, dy: Floats, at: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        return dy @ self.weights[:, *at], np.tensordot(dy, x, ([0, 1, 2], [0, 1, 2]))


class DepthwiseConvolution(_Filter):
    """One filter for each channel; weights [1, height, width, channels]."""

    def __init__(self, rng: np.random.Generator, side: int, channels: int):
        super().__init__(_random(rng, (1, side, side, channels), side**2))

    @property
    def channels(self) -> int:
        return self.weights.shape[3]

    def _tap(self, x: Floats, at: tuple[int, int]) -> Floats:
        return x * self.weights[0, *at]

    def _tap_gradients(
        self, x: Floats, dy: Floats, at: tuple[int, int]
    ) -> tuple[Floats, Floats]:
        return dy * self.weights[0, *at], np.einsum("nhwc,nhwc->c", x, dy)


class MaxPool(Layer):
    """Maximum of each 2x2 block; ties share the gradient."""

    def forward(self, x: Floats) -> Floats:
        blocks = _blocks(x)
        y = blocks.max((2, 4), keepdims=True)
        self._is_maximum = blocks == y
        return y[:, :, 0, :, 0]

    def backward(self, dy: Floats) -> Floats:
        share = dy[:, :, None, :, None] / self._is_maximum.sum((2, 4), keepdims=True)
        return _joined((self._is_maximum * share).astype(np.float32))


class AveragePool(Layer):
    """Mean of each 2x2 block."""

    def forward(self, x: Floats) -> Floats:
        return _blocks(x).mean((2, 4))

    def backward(self, dy: Floats) -> Floats:
        return (dy / 4).repeat(2, axis=1).repeat(2, axis=2)


class Dense(Layer):
    """Fully connected layer over the flattened image; weights [units, inputs]."""

    def __init__(self, rng: np.random.Generator, inputs: int, units: int):
        self.weights = _random(rng, (units, inputs), inputs)
        self.bias = np.zeros(units, np.float32)
        self.parameters = (self.weights, self.bias)

    def forward(self, x: Floats) -> Floats:
        self._shape = x.shape
        self._flat = x.reshape(len(x), -1)
        return self._flat @ self.weights.T + self.bias

    def backward(self, dy: Floats) -> Floats:
        self.gradients = (dy.T @ self._flat, dy.sum(0))
        return (dy @ self.weights).reshape(self._shape)


class Network:
    """Layers from the image to one logit for each digit."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.layers: tuple[Layer, ...] = (
            Convolution(rng, 3, 1, 16),
            DepthwiseConvolution(rng, 3, 16),
            Convolution(rng, 1, 16, 32),
            MaxPool(),
            DepthwiseConvolution(rng, 3, 32),
            Convolution(rng, 1, 32, 32),
            AveragePool(),
            Dense(rng, 2 * 2 * 32, CLASSES),
        )

    @property
    def parameters(self) -> list[Floats]:
        """All trainable arrays, updated in place."""
        return [array for layer in self.layers for array in layer.parameters]

    def forward(self, images: Floats) -> Floats:
        """Return logits [N, 10] of images [N, 8, 8, 1] in [0, 1]."""
        x = images
        for layer in self.layers:
            x = layer.forward(x)
        return x

    def gradients(self, images: Floats, labels: NDArray[np.integer]) -> list[Floats]:
        """Return the gradients of the mean cross entropy, as `parameters` lists them."""
        dy = softmax(self.forward(images))
        dy[np.arange(len(labels)), labels] -= 1
        dy /= len(labels)
        for layer in reversed(self.layers):
            dy = layer.backward(dy)
        return [array for layer in self.layers for array in layer.gradients]


def softmax(logits: Floats) -> Floats:
    """Return probabilities along the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _random(rng: np.random.Generator, shape: tuple[int, ...], inputs: int) -> Floats:
    """Return weights that keep the variance through a rectified layer."""
    return rng.normal(0, np.sqrt(2 / inputs), shape).astype(np.float32)


def _blocks(x: Floats) -> Floats:
    """View [N, H, W, C] as [N, H/2, 2, W/2, 2, C]."""
    n, height, width, channels = x.shape
    return x.reshape(n, height // 2, 2, width // 2, 2, channels)


def _joined(blocks: Floats) -> Floats:
    n, rows, _, columns, _, channels = blocks.shape
    return blocks.reshape(n, rows * 2, columns * 2, channels)
