"""TRANSPOSE_CONV_2D against its formula: every input pixel spreads its filter."""

import itertools

import numpy as np
import pytest

from asyncnn.hal.types import FusedActivationFunc, OperationType
from asyncnn.kernels.linear import convolution
from tests.kernels.linear.convolution_reference import (
    QUANTISED,
    Layer,
    check_float,
    check_quantised,
)
from tests.kernels.operations import F16, F32, Q8PC, Q8S

TRANSPOSE = OperationType.TRANSPOSE_CONV_2D


def spread_sums(layer, image, filter_):
    """Spread with explicit padding; what lands in it is dropped."""
    left, right, top, bottom = layer.padding
    outs, filter_height, filter_width, _ = filter_.shape
    down, across = layer.stride
    batches, height, width, _ = image.shape
    rows = (height - 1) * down + filter_height - top - bottom
    columns = (width - 1) * across + filter_width - left - right
    sums = np.zeros((batches, rows, columns, outs), image.dtype)
    for y, x, a, b in itertools.product(
        range(height), range(width), range(filter_height), range(filter_width)
    ):
        row, column = y * down + a - top, x * across + b - left
        if 0 <= row < rows and 0 <= column < columns:
            sums[:, row, column] += image[:, y, x] @ filter_[:, a, b].T
    return sums


def transposing(image, filter_, stride, padding=(0, 0, 0, 0), **given) -> Layer:
    return Layer(TRANSPOSE, image, filter_, stride, padding, **given)


LAYERS = [
    pytest.param(transposing((2, 3, 4, 3), (2, 3, 2, 3), (1, 1)), id="dense"),
    pytest.param(transposing((2, 3, 4, 3), (2, 3, 3, 3), (2, 2)), id="overlap"),
    pytest.param(transposing((1, 3, 4, 2), (3, 2, 2, 2), (3, 4)), id="gaps"),
    pytest.param(
        transposing((2, 3, 4, 2), (3, 3, 4, 2), (2, 3), (1, 2, 0, 1)), id="padded"
    ),
    pytest.param(
        transposing((1, 3, 2, 2), (2, 2, 2, 2), (2, 2), (0, -1, 0, -2)), id="beyond"
    ),
]


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("type_", [F32, F16])
def test_float_convolutions_follow_the_formula(type_, layer, nchw) -> None:
    check_float(layer._replace(nchw=nchw), type_, spread_sums)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("types", QUANTISED)
def test_quantised_convolutions_are_exact(types, layer, nchw) -> None:
    check_quantised(layer._replace(nchw=nchw), types, spread_sums)


@pytest.mark.parametrize("activation", FusedActivationFunc)
def test_activations_clamp(activation) -> None:
    layer = transposing((1, 4, 4, 3), (5, 2, 2, 3), (1, 1), activation=activation)
    check_quantised(layer, (Q8S, Q8PC), spread_sums, seed=1)
    check_float(layer, F32, spread_sums)


@pytest.mark.parametrize("layer", LAYERS)
def test_small_blocks_give_the_same(layer, monkeypatch) -> None:
    monkeypatch.setattr(convolution, "_ELEMENTS_AT_MOST", 12)
    monkeypatch.setattr(convolution, "_PIXELS_WORTH_A_PRODUCT", 1)
    check_quantised(layer, (Q8S, Q8PC), spread_sums)


def test_an_empty_batch_gives_an_empty_output() -> None:
    check_float(transposing((0, 3, 4, 2), (3, 2, 2, 2), (1, 1)), F32, spread_sums)
