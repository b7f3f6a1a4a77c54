"""Kernels and shape rules of the extension ``asyncnn.mediapipe``, on float32.

Source: MediaPipe 0.8, operators of its TFLite models, versions 1 and 2.
"""

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.kernels.kernel import Inputs, Outputs, PreparedKernel, TiledRun, stateless

Reals: TypeAlias = NDArray[np.float32]

_SAME = 1


class _Windows:
    """Windows along both axes of images, from the five scalars after the tensors."""

    def __init__(self, operation: BoundOperation, first: int) -> None:
        scheme, *sizes = (operation.integer(first + index) for index in range(5))
        self.is_same = scheme == _SAME
        self.strides = sizes[1], sizes[0]
        self.sizes = sizes[3], sizes[2]
        operation.require(scheme in (1, 2), f"padding scheme {scheme}")
        operation.require(min(sizes) > 0, f"window {sizes}")

    def count(self, axis: int, length: int) -> int:
        """Return how many windows there are along an axis of images."""
        uncovered = 0 if self.is_same else self.sizes[axis] - 1
        return -(-(length - uncovered) // self.strides[axis])

    def padding(self, axis: int, length: int, count: int) -> int:
        """Return how far before the beginning of an axis the first window begins."""
        covered = (count - 1) * self.strides[axis] + self.sizes[axis]
        return max(0, covered - length) // 2

    def taps(
        self, axis: int, length: int, count: int
    ) -> tuple[list[tuple[int, slice]], int, int]:
        """Return the places in a window under which elements of an axis come.

        Each is with the elements under it along the axis once that is padded, before
        and behind, as much as is returned too. Windows may be far larger than images.
        """
        before, stride = self.padding(axis, length, count), self.strides[axis]
        last = (count - 1) * stride
        first, end = max(0, before - last), min(self.sizes[axis], before + length)
        under = [
            (tap, slice(tap - first, tap - first + last + 1, stride))
            for tap in range(first, end)
        ]
        return under, before - first, max(0, end + last - before - length)


def pool_shape(operation: BoundOperation) -> tuple[Shape, Shape]:
    """Return the shapes of maxima and places."""
    batch, height, width, depth = operation.shape_of_rank(0, 4)
    windows = _Windows(operation, 1)
    shape = (batch, windows.count(0, height), windows.count(1, width), depth)
    operation.require(min(shape) > 0, f"has shape {list(shape)}")
    return shape, shape


def prepare_pool(operation: BoundOperation) -> PreparedKernel:
    """Compute the maximum of each window, and where in the window it is.

    Inputs: ``input: float32 [N, H, W, C]``; scalars as of MAX_POOL_2D with a padding
    scheme, and the activation. Outputs: ``maximum`` and ``place``, both ``float32 [N,
    h, w, C]``; the place is ``y * width + x`` and a tenth, of the first maximum.
    """
    windows = _Windows(operation, 1)
    _, height, width, _ = operation.shape(0)
    ((_, lines, columns, _), _) = pool_shape(operation)
    down, above, below = windows.taps(0, height, lines)
    right, before, behind = windows.taps(1, width, columns)
    low, high = _CLAMPS[operation.activation(6)]
    widths = ((0, 0), (above, below), (before, behind), (0, 0))

    def tiles(inputs: Inputs, outputs: Outputs) -> Iterator[None]:
        padded = np.pad(inputs[0], widths, constant_values=-np.inf)
        maximum, place = outputs
        maximum.fill(np.finfo(np.float32).min)
        place.fill(0.1)
        for y, under_y in down:
            for x, under_x in right:
                part = padded[:, under_y, under_x]
                larger = part > maximum
                np.copyto(maximum, part, where=larger)
                at = y * windows.sizes[1] + x
                place[larger] = np.float32(at) + np.float32(0.1)
                yield
        np.clip(maximum, low, high, out=maximum)

    return stateless(TiledRun(tiles))


_CLAMPS = {0: (-np.inf, np.inf), 1: (0.0, np.inf), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
"""Lowest and highest value after a fused activation."""


def unpool_shape(operation: BoundOperation) -> tuple[Shape]:
    """Return the shape of images before a pool."""
    batch, height, width, depth = operation.shape_of_rank(0, 4)
    operation.check_shape(1, operation.shape(0), "place")
    rows, across = _Windows(operation, 2).sizes
    return ((batch, height * rows, width * across, depth),)


def prepare_unpool(operation: BoundOperation) -> PreparedKernel:
    """Put each element where in its window the maximum was; all else is zero.

    Inputs: ``input`` and ``place``, both ``float32 [N, h, w, C]`` as of
    MAX_POOL_WITH_ARGMAX, and its scalars but the activation. Output: ``float32 [N, h *
    height, w * width, C]``. What would be outside is left out.
    """
    windows = _Windows(operation, 2)
    batch, lines, columns, depth = operation.shape(0)
    rows, across = windows.sizes
    height, width = lines * rows, columns * across
    first_y = np.arange(lines) * windows.strides[0] - windows.padding(0, height, lines)
    first_x = np.arange(columns) * windows.strides[1] - windows.padding(
        1, width, columns
    )
    images, channels = np.arange(batch), np.arange(depth)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        (output,) = outputs
        output.fill(0)
        # What is no place at all, or far away, is outside.
        places = np.nan_to_num(inputs[1], nan=-1.0).clip(-1, rows * across * 2)
        places = places.astype(np.int64)
        y = first_y[:, None, None] + places // across
        x = first_x[:, None] + places % across
        inside = (places >= 0) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        image, channel = np.broadcast_arrays(images[:, None, None, None], channels, y)[
            :2
        ]
        place = tuple(each[inside] for each in (image, y, x, channel))
        output[place] = inputs[0][inside]

    return stateless(run)


def _rows_of(matrix: Array) -> tuple[Reals, Reals]:
    """Return the rows for x and y, of which the third element meets a zero."""
    flat = matrix.reshape(-1)
    return flat[[0, 1, 3]], flat[[4, 5, 7]]


def _require_matrix(operation: BoundOperation) -> None:
    shape = operation.shape(1)
    operation.require(math.prod(shape) == 16, f"a matrix of shape {list(shape)}")


def transformed_shape(operation: BoundOperation) -> tuple[Shape]:
    """Return the shape of a transformed image."""
    batch, _, _, depth = operation.shape_of_rank(0, 4)
    _require_matrix(operation)
    height, width = operation.integer(2), operation.integer(3)
    operation.require(batch == 1, f"{batch} images")
    operation.require(min(height, width) > 0, f"an image of {height} x {width}")
    return ((1, height, width, depth),)


def prepare_transform(operation: BoundOperation) -> PreparedKernel:
    """Read each pixel of the output where the matrix leads, between four of the input.

    Inputs: ``input: float32 [1, H, W, C]``, ``matrix: float32`` of 16 elements, of
    which the first two rows count, height and width of the output, and whether
    coordinates are of the centres of pixels. Output: ``float32 [1, height, width,
    C]``, zero where the place is not in the input.
    """
    _, height, width, _ = operation.shape(0)
    lines, columns = operation.integer(2), operation.integer(3)
    is_centred = operation.boolean(4)
    x, y = np.float32(np.arange(columns)), np.float32(np.arange(lines)[:, None])
    half = np.float32(0.5)

    def along(row: Reals) -> Reals:
        shift = row[2]
        if is_centred:
            shift = shift + (row[0] * half + row[1] * half - half)
        return np.asarray(row[0] * x + row[1] * y + shift)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        image, output = inputs[0][0], outputs[0][0]
        across, down = map(along, _rows_of(inputs[1]))
        inside = (across >= 0) & (across <= width - 1)
        inside &= (down >= 0) & (down <= height - 1)
        across, down = across[inside], down[inside]
        left, top = np.floor(across).astype(int), np.floor(down).astype(int)
        # At the far edge the neighbour has no weight.
        right = np.minimum(left + 1, width - 1)
        bottom = np.minimum(top + 1, height - 1)
        u, v = (across - left)[:, None], (down - top)[:, None]
        u, v = u.astype(np.float32), v.astype(np.float32)
        upper = (1 - u) * image[top, left] + u * image[top, right]
        lower = (1 - u) * image[bottom, left] + u * image[bottom, right]
        output.fill(0)
        output[inside] = v * lower + (1 - v) * upper

    return stateless(run)


def landmarks_shape(operation: BoundOperation) -> tuple[Shape]:
    """Return the shape of landmarks, which stays."""
    shape = operation.shape_of_rank(0, 3, 4)
    dimensions = operation.integer(2) or shape[-1]
    _require_matrix(operation)
    operation.require(dimensions in (2, 3), f"landmarks of {dimensions} dimensions")
    operation.whole_quotient(shape[-1], dimensions, "depth")
    return (shape,)


def prepare_landmarks(operation: BoundOperation) -> PreparedKernel:
    """Transform x and y of each landmark; z stays.

    Inputs: ``landmarks: float32``, vectors of 2 or 3 dimensions in row-major order,
    ``matrix: float32`` of 16 elements, of which the first two rows count, the number of
    dimensions, 0 for the length of the last axis, and what its shifts are multiplied
    by. Output: as ``landmarks``.
    """
    dimensions = operation.integer(2) or operation.shape(0)[-1]
    scale = np.float32(operation.real(3))

    def run(inputs: Inputs, outputs: Outputs) -> None:
        source = inputs[0].reshape(-1, dimensions)
        target = outputs[0].reshape(-1, dimensions)
        target[:, 2:] = source[:, 2:]
        for axis, row in enumerate(_rows_of(inputs[1])):
            target[:, axis] = source[:, :2] @ row[:2] + row[2] * scale

    return stateless(run)


def matrix_shape(operation: BoundOperation) -> tuple[Shape]:
    """Return the shape of a matrix, after checking the landmarks that it is made of."""
    shape, indices = operation.shape_of_rank(0, 3, 4), operation.integers(1)
    count = math.prod(shape) // 3
    operation.require(math.prod(shape) % 3 == 0, f"landmarks of shape {list(shape)}")
    rotation = [operation.integer(2), operation.integer(3)]
    for index in (*indices, *rotation):
        operation.require(0 <= index < count, f"landmark {index} of {count}")
    operation.require(bool(indices), "no landmarks to enclose")
    height, width = operation.integer(4), operation.integer(5)
    operation.require(min(height, width) > 0, f"an output of {height} x {width}")
    return ((1, 4, 4),)


def prepare_crop_matrix(operation: BoundOperation) -> PreparedKernel:
    """Compute what leads from a picture to the rotated box around some landmarks.

    The box is that around the landmarks after a rotation by which the line between two
    of them, left and right, gets the target angle; it is enlarged, and stretched to the
    size of the picture.

    Inputs: ``landmarks: float32``, of 3 dimensions each, ``enclosed: int32`` indices of
    landmarks; indices of left and right, height and width of the output, target angle
    in radians, factors along x and y. Output: ``float32 [1, 4, 4]``.
    """
    enclosed = operation.integers(1)
    left, right = operation.integer(2), operation.integer(3)
    height, width = operation.integer(4), operation.integer(5)
    target, *factors = (np.float32(operation.real(6 + index)) for index in range(3))
    sizes = np.array([width, height], np.float32)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        points = inputs[0].reshape(-1, 3)[:, :2]
        across, down = points[right] - points[left]
        turn = _rotation(target - np.arctan2(down, across))
        turned = points[enclosed] @ turn.T
        low, high = turned.min(axis=0), turned.max(axis=0)
        # The inverse of a rotation is its transpose.
        linear = turn.T * (np.array(factors) * (high - low) / sizes)
        shift = turn.T @ ((low + high) / 2) - linear @ (sizes / 2)
        _write(outputs[0], linear, shift)

    return stateless(run)


def prepare_box_matrix(operation: BoundOperation) -> PreparedKernel:
    """Compute the same in coordinates from -1 to 1, for a line that becomes level.

    Inputs: ``landmarks`` and ``enclosed`` as of CROP_MATRIX; indices of left and right,
    height and width of the output, the same of the input, the range of the landmarks,
    a factor. Output: ``float32 [1, 4, 4]``.
    """
    enclosed = operation.integers(1)
    left, right = operation.integer(2), operation.integer(3)
    height, width = operation.integer(4), operation.integer(5)
    lines, columns = operation.integer(6), operation.integer(7)
    reach, factor = operation.integer(8), np.float32(operation.real(9))
    operation.require(min(lines, columns, reach) > 0, "sizes that are not positive")
    operation.require(min(height, width) > 1, f"an output of {height} x {width}")
    halves = np.array([columns - 1, lines - 1], np.float32) / 2
    steps = 2 / np.array([width - 1, height - 1], np.float32)

    def run(inputs: Inputs, outputs: Outputs) -> None:
        points = inputs[0].reshape(-1, 3)[:, :2]
        across, down = points[right] - points[left]
        with np.errstate(divide="ignore", invalid="ignore"):
            turn = _rotation(-np.arctan(down / across))
        turned = points[enclosed] @ turn.T
        low, high = turned.min(axis=0), turned.max(axis=0)
        middle = turn.T @ ((low + high) / 2) / reach * 2 - 1
        linear = halves[:, None] * turn.T * ((high - low) * factor / reach)
        shift = halves * (middle + 1) - linear.sum(axis=1)
        _write(outputs[0], linear * steps, shift)

    return stateless(run)


def _rotation(angle: np.floating) -> Reals:
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]], np.float32)


def _write(output: Array, linear: Reals, shift: Reals) -> None:
    output[...] = np.eye(4, dtype=np.float32)
    output[0, :2, :2] = linear
    output[0, :2, 3] = shift
