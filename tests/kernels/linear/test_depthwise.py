"""DEPTHWISE_CONV_2D against its formula, evaluated pixel by pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn.hal.types import FusedActivationFunc, OperationType
from asyncnn.kernels.linear import convolution
from tests.kernels.linear.convolution_reference import (
    QUANTISED,
    SAME,
    VALID,
    Layer,
    check_float,
    check_quantised,
)
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8PC,
    Q8S,
    compute,
    constant,
    result,
    tensor,
)

DEPTHWISE = OperationType.DEPTHWISE_CONV_2D


def depthwise_layer(image, filter_, multiplier=1, **given) -> Layer:
    channels = image[3] * multiplier
    shape = (1, *filter_, channels)
    return Layer(DEPTHWISE, image, shape, factor=multiplier, **given)


LAYERS = [
    pytest.param(depthwise_layer((2, 5, 6, 3), (3, 2)), id="valid"),
    pytest.param(depthwise_layer((2, 5, 6, 3), (1, 1)), id="pointwise"),
    pytest.param(
        depthwise_layer((1, 5, 7, 3), (3, 3), stride=(2, 2), padding=SAME), id="stride"
    ),
    pytest.param(
        depthwise_layer((2, 6, 9, 2), (2, 4), stride=(1, 3), padding=SAME), id="phases"
    ),
    pytest.param(
        depthwise_layer((1, 5, 9, 2), (3, 2), stride=(2, 4)), id="unused-phases"
    ),
    pytest.param(
        depthwise_layer((1, 5, 4, 2), (3, 3), stride=(2, 1), padding=(2, 1, 0, 2)),
        id="explicit",
    ),
    pytest.param(
        depthwise_layer((1, 8, 9, 2), (3, 3), dilation=(2, 3), padding=SAME),
        id="dilated",
    ),
    pytest.param(
        depthwise_layer(
            (1, 9, 12, 2), (2, 3), stride=(2, 4), dilation=(3, 2), padding=SAME
        ),
        id="dilated-phases",
    ),
    pytest.param(depthwise_layer((2, 4, 5, 3), (2, 2), 2), id="multiplier"),
    pytest.param(
        depthwise_layer((1, 6, 7, 2), (3, 3), 3, stride=(2, 2), padding=SAME),
        id="multiplier-stride",
    ),
    pytest.param(
        depthwise_layer((2, 6, 7, 1), (3, 2), 4, stride=(2, 2), padding=SAME),
        id="one-channel",
    ),
]


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("type_", [F32, F16])
def test_float_convolutions_follow_the_formula(type_, layer, nchw) -> None:
    check_float(layer._replace(nchw=nchw), type_)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("types", QUANTISED)
def test_quantised_convolutions_are_exact(types, layer, nchw) -> None:
    check_quantised(layer._replace(nchw=nchw), types)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("types", QUANTISED)
def test_quantised_activations_clamp_exactly(types, activation, seed) -> None:
    layer = depthwise_layer((1, 4, 4, 5), (3, 3), activation=int(activation))
    check_quantised(layer, types, seed=seed)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    sizes = st.integers(1, 3)
    filter_ = draw(sizes), draw(sizes)
    dilation = draw(sizes), draw(sizes)
    extent = [(size - 1) * by + 1 for size, by in zip(filter_, dilation, strict=True)]
    image = [size + draw(st.integers(0, 5)) for size in extent]
    limits = [extent[1], extent[1], extent[0], extent[0]]
    padding = st.tuples(*(st.integers(0, limit - 1) for limit in limits))
    return depthwise_layer(
        (draw(sizes), *image, draw(sizes)),
        filter_,
        draw(sizes),
        stride=(draw(sizes), draw(st.integers(1, 5))),
        padding=draw(padding | st.sampled_from([SAME, VALID])),
        dilation=dilation,
        activation=draw(st.integers(0, 3)),
        nchw=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(layers(), st.sampled_from(QUANTISED), st.integers(0, 2**16))
def test_any_geometry_is_exact(layer, types, seed) -> None:
    check_quantised(layer, types, seed=seed)


@pytest.mark.parametrize("layer", LAYERS)
def test_small_blocks_give_the_same(layer, monkeypatch) -> None:
    monkeypatch.setattr(convolution, "_ELEMENTS_AT_MOST", 24)
    check_quantised(layer, (Q8S, Q8PC))
    check_float(layer, F32)


@pytest.mark.parametrize("stride", [1, 2])
def test_infinity_reaches_only_the_windows_that_see_it(stride) -> None:
    image = np.ones((1, 7, 7, 2), np.float32)
    image[0, 2, 4, 1] = np.inf
    inputs = [
        tensor(F32, image),
        constant(F32, np.ones((1, 3, 3, 2))),
        constant(F32, np.zeros(2)),
        *(VALID, stride, stride, 1, 0),
    ]
    size = 5 // stride + (stride == 2)
    output = compute(DEPTHWISE, inputs, result(F32, (1, size, size, 2)))[0]
    starts = np.arange(size) * stride
    rows, columns = ((starts <= at) & (at < starts + 3) for at in (2, 4))
    seen = np.zeros((size, size, 2), bool)
    seen[:, :, 1] = np.outer(rows, columns)
    np.testing.assert_array_equal(np.isinf(output), seen)
    assert (output[~seen] == 9).all()


def test_an_empty_batch_gives_an_empty_output() -> None:
    inputs = [
        tensor(Q8S, np.empty((0, 4, 4, 2)), 0.5),
        constant(Q8S, np.ones((1, 3, 3, 2)), 0.5),
        constant(I32, np.zeros(2), 0.25),
        *(SAME, 1, 1, 1, 0),
    ]
    described = result(Q8S, (0, 4, 4, 2), 0.5)
    assert compute(DEPTHWISE, inputs, described).shape == (0, 4, 4, 2)
