"""GROUPED_CONV_2D against its formula, evaluated pixel by pixel."""

import pytest

from asyncnn.hal.types import FusedActivationFunc, OperationType
from asyncnn.kernels.linear import convolution
from tests.kernels.linear.convolution_reference import (
    QUANTISED,
    SAME,
    Layer,
    check_float,
    check_quantised,
)
from tests.kernels.operations import F16, F32, Q8PC, Q8S

GROUPED = OperationType.GROUPED_CONV_2D

LAYERS = [
    pytest.param(Layer(GROUPED, (2, 4, 5, 6), (4, 3, 2, 3), factor=2), id="valid"),
    pytest.param(Layer(GROUPED, (2, 4, 5, 6), (6, 1, 1, 2), factor=3), id="pointwise"),
    pytest.param(Layer(GROUPED, (1, 4, 5, 3), (2, 2, 2, 3), factor=1), id="one-group"),
    pytest.param(Layer(GROUPED, (1, 4, 5, 3), (6, 2, 2, 1), factor=3), id="depthwise"),
    pytest.param(
        Layer(GROUPED, (1, 7, 6, 4), (4, 3, 3, 2), (2, 2), SAME, factor=2), id="same"
    ),
    pytest.param(
        Layer(GROUPED, (1, 5, 4, 4), (2, 3, 3, 2), (2, 1), (2, 1, 0, 2), factor=2),
        id="explicit",
    ),
    pytest.param(Layer(GROUPED, (0, 4, 5, 6), (4, 3, 2, 3), factor=2), id="empty"),
]


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("type_", [F32, F16])
def test_float_convolutions_follow_the_formula(type_, layer, nchw) -> None:
    check_float(layer._replace(nchw=nchw), type_)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("layer", LAYERS[:-1])
@pytest.mark.parametrize("types", QUANTISED)
def test_quantised_convolutions_are_exact(types, layer, nchw) -> None:
    check_quantised(layer._replace(nchw=nchw), types)


@pytest.mark.parametrize("activation", FusedActivationFunc)
def test_activations_clamp(activation) -> None:
    layer = Layer(GROUPED, (1, 4, 4, 6), (4, 2, 2, 3), factor=2, activation=activation)
    check_quantised(layer, (Q8S, Q8PC), seed=1)
    check_float(layer, F32)


@pytest.mark.parametrize("layer", LAYERS[:-1])
def test_small_blocks_give_the_same(layer, monkeypatch) -> None:
    monkeypatch.setattr(convolution, "_ELEMENTS_AT_MOST", 40)
    monkeypatch.setattr(convolution, "_PIXELS_WORTH_A_PRODUCT", 1)
    check_quantised(layer, (Q8S, Q8PC))
