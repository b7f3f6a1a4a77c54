"""CONV_2D against its formula, evaluated pixel by pixel."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn import kernels
from asyncnn.hal.operations.bound import ValueNeededError
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
    bind,
    compute,
    constant,
    random_values,
    result,
    tensor,
)

CONV = OperationType.CONV_2D

LAYERS = [
    pytest.param(Layer(CONV, (2, 5, 6, 3), (4, 1, 1, 3)), id="pointwise"),
    pytest.param(Layer(CONV, (2, 5, 6, 3), (4, 1, 1, 3), stride=(2, 3)), id="sampled"),
    pytest.param(Layer(CONV, (2, 5, 6, 3), (4, 3, 2, 3)), id="valid"),
    pytest.param(Layer(CONV, (2, 5, 6, 9), (4, 3, 2, 9)), id="long-runs"),
    pytest.param(Layer(CONV, (1, 7, 6, 2), (3, 3, 3, 2), (2, 2), SAME), id="same"),
    pytest.param(Layer(CONV, (1, 7, 7, 2), (3, 4, 2, 2), (2, 3), SAME), id="same-odd"),
    pytest.param(
        Layer(CONV, (1, 5, 4, 2), (3, 3, 3, 2), (2, 1), (2, 1, 0, 2)), id="explicit"
    ),
    pytest.param(
        Layer(CONV, (1, 8, 9, 2), (3, 3, 2, 2), (1, 2), SAME, (2, 3)), id="dilated"
    ),
    pytest.param(Layer(CONV, (3, 4, 3, 1), (2, 4, 3, 1)), id="one-window"),
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("types", QUANTISED)
def test_quantised_activations_clamp_exactly(types, activation, seed) -> None:
    layer = Layer(CONV, (1, 4, 4, 3), (5, 2, 2, 3), activation=int(activation))
    check_quantised(layer, types, seed=seed)


@pytest.mark.parametrize("activation", FusedActivationFunc)
def test_float_activations_clamp(activation) -> None:
    layer = Layer(CONV, (1, 4, 4, 3), (5, 2, 2, 3), activation=int(activation))
    check_float(layer, F32)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    sizes = st.integers(1, 3)
    filter_ = draw(sizes), draw(sizes)
    dilation = draw(sizes), draw(sizes)
    extent = [(size - 1) * by + 1 for size, by in zip(filter_, dilation, strict=True)]
    image = [size + draw(st.integers(0, 4)) for size in extent]
    ins, outs = draw(sizes), draw(sizes)
    limits = [extent[1], extent[1], extent[0], extent[0]]
    padding = st.tuples(*(st.integers(0, limit - 1) for limit in limits))
    return Layer(
        CONV,
        (draw(sizes), *image, ins),
        (outs, *filter_, ins),
        (draw(sizes), draw(sizes)),
        draw(padding | st.sampled_from([SAME, VALID])),
        dilation,
        activation=draw(st.integers(0, 3)),
        nchw=draw(st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(layers(), st.sampled_from(QUANTISED), st.integers(0, 2**16))
def test_any_geometry_is_exact(layer, types, seed) -> None:
    check_quantised(layer, types, seed=seed)


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("layer", LAYERS)
def test_small_blocks_give_the_same(layer, nchw, monkeypatch) -> None:
    monkeypatch.setattr(convolution, "_ELEMENTS_AT_MOST", 40)
    monkeypatch.setattr(convolution, "_PIXELS_WORTH_A_PRODUCT", 1)
    check_quantised(layer._replace(nchw=nchw), (Q8S, Q8PC))
    check_float(layer._replace(nchw=nchw), F32)


@pytest.mark.parametrize("taps", [1031, 1033, 2000])
def test_sums_beyond_float32_stay_exact(taps) -> None:
    image = np.full((1, 1, 2, taps), -128, np.int8)
    image[0, 0, 1, 0] = -127
    filter_ = np.full((1, 1, 1, taps), -127, np.int8)
    bias = np.array([-taps * 127 * 128 + 100])
    inputs = [
        tensor(Q8S, image, 1.0),
        constant(Q8S, filter_, 1.0),
        constant(I32, bias, 1.0),
        VALID,
        1,
        1,
        0,
    ]
    codes = compute(CONV, inputs, result(Q8S, (1, 1, 2, 1), 1.0))
    assert codes.ravel().tolist() == [100, -27]


@pytest.mark.parametrize("type_", [F32, Q8S])
@pytest.mark.parametrize("filter_", [1, 3])
@pytest.mark.parametrize("nchw", [False, True])
def test_an_empty_batch_gives_an_empty_output(type_, filter_, nchw) -> None:
    shape = (0, 2, 5, 5) if nchw else (0, 5, 5, 2)
    weights = random_values(type_, (2, filter_, filter_, 2))
    bias = np.zeros(2)
    inputs = [
        tensor(type_, np.empty(shape), 0.5),
        constant(type_, weights, 0.5),
        constant(I32 if type_ is Q8S else F32, bias),
        SAME,
        1,
        1,
        0,
        nchw,
    ]
    assert compute(CONV, inputs, result(type_, shape, 0.5)).shape == shape


@pytest.mark.parametrize("unknown", [1, 2])
def test_filter_and_bias_are_needed_at_preparation(unknown) -> None:
    inputs = [
        tensor(F32, np.ones((1, 2, 2, 1))),
        constant(F32, np.ones((1, 1, 1, 1))),
        constant(F32, np.ones(1)),
        VALID,
        1,
        1,
        0,
    ]
    inputs[unknown] = tensor(F32, inputs[unknown].array)
    with pytest.raises(ValueNeededError):
        kernels.prepare(bind(CONV, inputs, [result(F32, (1, 2, 2, 1))]))


def test_infinity_reaches_only_the_windows_that_see_it() -> None:
    image = np.ones((1, 6, 6, 1), np.float32)
    image[0, 2, 3] = np.inf
    inputs = [
        tensor(F32, image),
        constant(F32, np.ones((1, 3, 3, 1))),
        constant(F32, np.zeros(1)),
        VALID,
        1,
        1,
        0,
    ]
    output = compute(CONV, inputs, result(F32, (1, 4, 4, 1)))[0, :, :, 0]
    seen = np.zeros((4, 4), bool)
    seen[0:3, 1:4] = True
    np.testing.assert_array_equal(np.isinf(output), seen)
    assert (output[~seen] == 9).all()
