"""A camera that sees a handwritten digit drift by, 30 frames a second, and two models.

The finder says in every frame where the digit is; it is cheap and must never be late.
The reader says which digit it is, from the piece that was found; it may skip frames.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import asyncnn
from asyncnn import ModelBuilder, NamedModel, OperandType, OperationType
from asyncnn.hal.types import FusedActivationFunc, Operand
from asyncnn.tools.demo import MAX_GREY, load_digits_test, model_path
from framing import Floats

FRAME_RATE = 30
FRAMES_PER_DIGIT = 20

SIDE = 48
"""Width and height of an image in pixels."""

ENLARGED = 3
PIECE = 8 * ENLARGED
"""Width and height of a digit."""

PLACES = SIDE - PIECE + 1
_VALID = 2


class Sight(NamedTuple):
    """An image and what it shows."""

    image: Floats
    """[1, 48, 48, 1], 0 to 1"""
    digit: int
    row: int
    column: int


def sights(seed: int = 0) -> Iterator[Sight]:
    """Yield frames without end."""
    rng = np.random.default_rng(seed)
    digits, names = load_digits_test()
    place, speed = rng.uniform(0, PLACES - 1, 2), rng.uniform(-2, 2, 2)
    while True:
        which = rng.integers(len(digits))
        shape = np.kron(digits[which] / MAX_GREY, np.ones((ENLARGED, ENLARGED)))
        for _ in range(FRAMES_PER_DIGIT):
            place, speed = _bounced(place + speed, speed)
            row, column = (int(position) for position in np.rint(place))
            image = rng.uniform(0, 0.1, (SIDE, SIDE))
            image[row : row + PIECE, column : column + PIECE] += 0.9 * shape
            pixels = image.astype(np.float32)[None, :, :, None]
            yield Sight(pixels, int(names[which]), row, column)


def finder() -> NamedModel:
    """Return ``image`` -> ``place`` int32 [1]: where the ink is densest.

    Places are counted row by row, 25 in a row, by the upper left corner of the piece.
    """
    builder = ModelBuilder()
    float32, int32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32
    image = builder.input("image", float32, (1, SIDE, SIDE, 1))
    bell = np.exp(-(((np.arange(PIECE) - (PIECE - 1) / 2) / (PIECE / 4)) ** 2) / 2)
    density = builder.operation(
        OperationType.CONV_2D,
        [
            image,
            builder.constant(np.outer(bell, bell).astype(np.float32)[None, ..., None]),
            builder.constant(np.zeros(1, np.float32)),
            *map(builder.scalar, (_VALID, 1, 1, int(FusedActivationFunc.NONE))),
        ],
        Operand(float32, (1, PLACES, PLACES, 1)),
    )
    flat = builder.operation(
        OperationType.RESHAPE,
        [density, builder.constant(np.array([1, PLACES**2], np.int32))],
        Operand(float32, (1, PLACES**2)),
    )
    place = builder.operation(
        OperationType.ARGMAX, [flat, builder.scalar(1)], Operand(int32, (1,))
    )
    builder.output(place, "place")
    return builder.build()


async def reader() -> NamedModel:
    """Return ``image`` [1, 8, 8, 1] -> ``probabilities`` [1, 10], from the demo."""
    return await asyncnn.load_model(model_path("float"))


def piece(image: Floats, place: int) -> Floats:
    """Return what the reader takes of an image, at one of the finder's places."""
    row, column = divmod(place, PLACES)
    cut = image[0, row : row + PIECE, column : column + PIECE, 0]
    small = cut.reshape(8, ENLARGED, 8, ENLARGED).mean((1, 3))
    return np.asarray(small[None, :, :, None])


def _bounced(
    place: NDArray[Any], speed: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    outside = (place < 0) | (place > PLACES - 1)
    return np.clip(place, 0, PLACES - 1), np.where(outside, -speed, speed)
