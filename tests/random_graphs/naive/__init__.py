"""Every operation once more, in plain NumPy and float64.

The formulas follow the HAL's documentation, one element or window at a time, and share
nothing with the kernels.
"""

import itertools
from collections.abc import Callable, Iterable

import numpy as np

from asyncnn.hal.operations.bound import Array, BoundOperation, Shape
from asyncnn.hal.types import OperationType
from tests.random_graphs.naive import elementwise, moving, reducing, windows
from tests.random_graphs.naive.expected import Expected, exact, real, stored
from tests.random_graphs.naive.moving import Formula, integers

Place = tuple[int, int, int, int]


def _places(shape: Shape) -> Iterable[Place]:
    a, b, c, d = map(range, shape)
    return itertools.product(a, b, c, d)


def _gathered(
    image: Array, shape: tuple[int, int, int, int], source: Callable[..., Place]
) -> Array:
    """Fill ``shape`` from where ``source(n, y, x, c)`` says; zero outside."""
    result = np.zeros(shape)
    for place in _places(shape):
        origin = source(*place)
        if all(0 <= at < n for at, n in zip(origin, image.shape, strict=True)):
            result[place] = image[origin]
    return result


def _on_images(
    layout_flag: int, move: Callable[[BoundOperation, Array], Array]
) -> Formula:
    """Move pixels of an image in the layout that an input, if given, tells."""

    def formula(operation: BoundOperation) -> Expected:
        image = real(operation.input(0))
        if not operation.boolean(layout_flag, False):
            return exact(move(operation, image))
        return exact(np.moveaxis(move(operation, np.moveaxis(image, 1, 3)), 3, 1))

    return formula


def _depth_to_space(operation: BoundOperation, image: Array) -> Array:
    block = operation.integer(1)
    n, height, width, channels = image.shape
    depth = channels // block**2
    return _gathered(
        image,
        (n, height * block, width * block, depth),
        lambda n, y, x, c: (
            n,
            y // block,
            x // block,
            (y % block * block + x % block) * depth + c,
        ),
    )


def _space_to_depth(operation: BoundOperation, image: Array) -> Array:
    block = operation.integer(1)
    n, height, width, channels = image.shape
    return _gathered(
        image,
        (n, height // block, width // block, channels * block**2),
        lambda n, y, x, c: (
            n,
            y * block + c // channels // block,
            x * block + c // channels % block,
            c % channels,
        ),
    )


def _batch_to_space(operation: BoundOperation, image: Array) -> Array:
    rows, columns = integers(operation, 1)
    batches, height, width, channels = image.shape
    images = batches // (rows * columns)
    return _gathered(
        image,
        (images, height * rows, width * columns, channels),
        lambda n, y, x, c: (
            (y % rows * columns + x % columns) * images + n,
            y // rows,
            x // columns,
            c,
        ),
    )


def _space_to_batch(operation: BoundOperation, image: Array) -> Array:
    rows, columns = integers(operation, 1)
    top, bottom, left, right = integers(operation, 2)
    images, height, width, channels = image.shape
    return _gathered(
        image,
        (
            images * rows * columns,
            (top + height + bottom) // rows,
            (left + width + right) // columns,
            channels,
        ),
        lambda n, y, x, c: (
            n % images,
            y * rows + n // images // columns - top,
            x * columns + n // images % columns - left,
            c,
        ),
    )


_BLOCKS: dict[OperationType, Formula] = {
    OperationType.DEPTH_TO_SPACE: _on_images(2, _depth_to_space),
    OperationType.SPACE_TO_DEPTH: _on_images(2, _space_to_depth),
    OperationType.BATCH_TO_SPACE_ND: _on_images(2, _batch_to_space),
    OperationType.SPACE_TO_BATCH_ND: _on_images(3, _space_to_batch),
}

FORMULAS: dict[OperationType, Formula] = {
    **elementwise.FORMULAS,
    **moving.FORMULAS,
    **reducing.FORMULAS,
    **windows.FORMULAS,
    **_BLOCKS,
}


def evaluate(operation: BoundOperation) -> list[Expected]:
    """Return what each output of ``operation`` should be, all inputs known."""
    expected = FORMULAS[OperationType(operation.type)](operation)
    return expected if isinstance(expected, list) else [expected]


def evaluate_stored(operation: BoundOperation) -> list[Array]:
    """Return the expected outputs as they are stored."""
    pairs = zip(evaluate(operation), operation.outputs, strict=True)
    return [stored(expected, operand) for expected, operand in pairs]
