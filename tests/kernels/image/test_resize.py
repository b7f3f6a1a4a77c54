"""RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR against exact fractions."""

import math
from fractions import Fraction

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from tests.kernels.operations import (
    F16,
    F32,
    Q8,
    Q8S,
    TOLERANCE,
    compute,
    random_values,
    result,
    tensor,
)

BILINEAR = OperationType.RESIZE_BILINEAR
NEAREST = OperationType.RESIZE_NEAREST_NEIGHBOR
SIZES = [
    ((4, 6), (8, 12)),
    ((5, 7), (3, 2)),
    ((3, 8), (6, 4)),
    ((7, 3), (2, 9)),
    ((1, 1), (3, 2)),
    ((6, 5), (1, 1)),
    ((4, 5), (4, 5)),
]
FLAGS = [(False, False), (True, False), (False, True)]
QUANTIZATION = (0.1, 7)

types = pytest.mark.parametrize("type_", [F32, F16, Q8, Q8S])
layouts = pytest.mark.parametrize("nchw", [False, True])
sizes = pytest.mark.parametrize(("size", "new_size"), SIZES)
flags = pytest.mark.parametrize(("align_corners", "half_pixel"), FLAGS)


def quantization(type_):
    return QUANTIZATION if type_ in (Q8, Q8S) else (0.0, 0)


def resize(operation, type_, x, new_size, *flags_, nchw=False, by=None):
    """Resize NHWC images in either layout; ``by`` are factors instead of the size."""
    order = (0, 3, 1, 2) if nchw else (0, 1, 2, 3)
    shape = (len(x), *new_size, x.shape[3])
    width_and_height = (by or new_size)[::-1]
    resized = compute(
        operation,
        [
            tensor(type_, x.transpose(order), *quantization(type_)),
            *width_and_height,
            nchw,
            *flags_,
        ],
        result(type_, tuple(shape[axis] for axis in order), *quantization(type_)),
    )
    return resized.transpose(0, 2, 3, 1) if nchw else resized


def position(index, length, new_length, align_corners, half_pixel):
    if align_corners and new_length > 1:
        return Fraction(index * (length - 1), new_length - 1)
    centre = Fraction(half_pixel, 2)
    return (index + centre) * length / new_length


def interpolated(rows, new_length, align_corners, half_pixel):
    """Resample the first axis linearly, in float64."""
    last = len(rows) - 1
    resampled = []
    for index in range(new_length):
        at = position(index, len(rows), new_length, align_corners, half_pixel)
        at = min(max(at - Fraction(half_pixel, 2), 0), last)
        below = math.floor(at)
        fraction = float(at - below)
        above = rows[min(below + 1, last)]
        resampled.append(rows[below] * (1 - fraction) + above * fraction)
    return np.array(resampled)


def nearest(rows, new_length, align_corners, half_pixel):
    """Resample the first axis by picking elements."""
    resampled = []
    for index in range(new_length):
        at = position(index, len(rows), new_length, align_corners, half_pixel)
        pick = math.floor(at + Fraction(align_corners, 2))
        resampled.append(rows[min(pick, len(rows) - 1)])
    return np.array(resampled)


def expected(resample, x, new_size, *flags_):
    rows = resample(x.swapaxes(0, 1), new_size[0], *flags_).swapaxes(0, 1)
    return resample(rows.swapaxes(0, 2), new_size[1], *flags_).swapaxes(0, 2)


@flags
@sizes
@layouts
@types
def test_bilinear_interpolates_between_four_pixels(
    type_, nchw, size, new_size, align_corners, half_pixel
) -> None:
    x = random_values(type_, (2, *size, 3))
    resized = resize(BILINEAR, type_, x, new_size, align_corners, half_pixel, nchw=nchw)
    exact = expected(
        interpolated, x.astype(np.float64), new_size, align_corners, half_pixel
    )
    if type_ in TOLERANCE:
        np.testing.assert_allclose(resized, exact, **TOLERANCE[type_])
    else:
        assert np.abs(resized - exact).max() < 0.5001


@flags
@sizes
@layouts
@types
def test_nearest_neighbor_picks_a_pixel(
    type_, nchw, size, new_size, align_corners, half_pixel
) -> None:
    x = random_values(type_, (2, *size, 3))
    resized = resize(NEAREST, type_, x, new_size, align_corners, half_pixel, nchw=nchw)
    exact = expected(nearest, x, new_size, align_corners, half_pixel)
    np.testing.assert_array_equal(resized, exact)


@layouts
@pytest.mark.parametrize("operation", [BILINEAR, NEAREST])
@types
def test_factors_give_the_floor_of_the_size(type_, operation, nchw) -> None:
    x = random_values(type_, (1, 3, 5, 2))
    factor = np.float16 if type_ is F16 else float
    by_size = resize(operation, type_, x, (4, 7), nchw=nchw)
    by_factor = resize(
        operation, type_, x, (4, 7), nchw=nchw, by=(factor(1.5), factor(1.5))
    )
    np.testing.assert_array_equal(by_factor, by_size)


@pytest.mark.parametrize(
    ("type_", "codes", "stretched"),
    [
        (Q8, [0, 1, 255], [0, 1, 1, 128, 255, 255]),
        (Q8S, [-128, -127, 127], [-128, -127, -127, 0, 127, 127]),
    ],
)
def test_codes_halfway_are_rounded_up(type_, codes, stretched) -> None:
    x = np.array(codes).reshape(1, 1, 3, 1)
    resized = resize(BILINEAR, type_, x, (1, 6))
    assert resized.ravel().tolist() == stretched


@flags
@sizes
def test_signed_codes_are_unsigned_ones_less_128(
    size, new_size, align_corners, half_pixel
) -> None:
    x = random_values(Q8, (2, *size, 5)).astype(np.int64)
    unsigned, signed = (
        resize(BILINEAR, type_, x - zero, new_size, align_corners, half_pixel)
        for type_, zero in ((Q8, 0), (Q8S, 128))
    )
    np.testing.assert_array_equal(signed, unsigned.astype(np.int64) - 128)


@flags
@types
def test_an_even_image_stays_exactly_even(type_, align_corners, half_pixel) -> None:
    x = np.full((1, 5, 7, 2), random_values(type_, (1,))[0])
    resized = resize(BILINEAR, type_, x, (11, 4), align_corners, half_pixel)
    np.testing.assert_array_equal(resized, np.broadcast_to(x[0, 0, 0], resized.shape))


def test_positions_on_a_pixel_are_free_of_its_neighbours() -> None:
    x = np.array([1, np.inf, 3, np.nan]).reshape(1, 1, 4, 1)
    resized = resize(BILINEAR, F32, x, (1, 8))
    assert resized.ravel()[[0, 4]].tolist() == [1, 3]


@pytest.mark.parametrize("operation", [BILINEAR, NEAREST])
@types
def test_no_images_give_no_images_however_large(type_, operation) -> None:
    x = np.empty((0, 2, 2, 3))
    assert resize(operation, type_, x, (2**31 - 1, 1)).size == 0
