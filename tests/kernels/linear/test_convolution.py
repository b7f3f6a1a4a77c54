"""Convolutions of every kind against their formula, evaluated pixel by pixel."""

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
    run,
    window_starts,
)
from tests.kernels.operations import (
    F16,
    F32,
    I32,
    Q8PC,
    Q8S,
    bind,
    constant,
    random_values,
    result,
    tensor,
)

CONV = OperationType.CONV_2D
DEPTHWISE = OperationType.DEPTHWISE_CONV_2D
GROUPED = OperationType.GROUPED_CONV_2D


def depthwise(image, filter_, multiplier=1, **given) -> Layer:
    shape = (1, *filter_, image[3] * multiplier)
    return Layer(DEPTHWISE, image, shape, factor=multiplier, **given)


SAMPLED = {"stride": (2, 2), "padding": SAME}
LAYERS = {
    "pointwise": Layer(CONV, (2, 5, 6, 3), (4, 1, 1, 3)),
    "sampled": Layer(CONV, (2, 5, 6, 3), (4, 1, 1, 3), stride=(2, 3)),
    "valid": Layer(CONV, (2, 5, 6, 3), (4, 3, 2, 3)),
    "long-runs": Layer(CONV, (2, 5, 6, 9), (4, 3, 2, 9)),
    "same": Layer(CONV, (1, 7, 6, 2), (3, 3, 3, 2), (2, 2), SAME),
    "same-odd": Layer(CONV, (1, 7, 7, 2), (3, 4, 2, 2), (2, 3), SAME),
    "explicit": Layer(CONV, (1, 5, 4, 2), (3, 3, 3, 2), (2, 1), (2, 1, 0, 2)),
    "dilated": Layer(CONV, (1, 8, 9, 2), (3, 3, 2, 2), (1, 2), SAME, (2, 3)),
    "one-window": Layer(CONV, (3, 4, 3, 1), (2, 4, 3, 1)),
    "empty": Layer(CONV, (0, 5, 5, 2), (2, 3, 3, 2), padding=SAME),
    "empty-pointwise": Layer(CONV, (0, 5, 5, 2), (2, 1, 1, 2), padding=SAME),
    "depthwise": depthwise((2, 5, 6, 3), (3, 2)),
    "depthwise-pointwise": depthwise((2, 5, 6, 3), (1, 1)),
    "depthwise-stride": depthwise((1, 5, 7, 3), (3, 3), **SAMPLED),
    "phases": depthwise((2, 6, 9, 2), (2, 4), stride=(1, 3), padding=SAME),
    "unused-phases": depthwise((1, 5, 9, 2), (3, 2), stride=(2, 4)),
    "depthwise-explicit": depthwise(
        (1, 5, 4, 2), (3, 3), stride=(2, 1), padding=(2, 1, 0, 2)
    ),
    "depthwise-dilated": depthwise((1, 8, 9, 2), (3, 3), dilation=(2, 3), padding=SAME),
    "dilated-phases": depthwise(
        (1, 9, 12, 2), (2, 3), stride=(2, 4), dilation=(3, 2), padding=SAME
    ),
    "one-stride": depthwise((2, 4, 5, 3), (2, 3), stride=(2**30,) * 2, padding=SAME),
    "multiplier": depthwise((2, 4, 5, 3), (2, 2), 2),
    "multiplier-stride": depthwise((1, 6, 7, 2), (3, 3), 3, **SAMPLED),
    "one-channel": depthwise((2, 6, 7, 1), (3, 2), 4, **SAMPLED),
    "depthwise-empty": depthwise((0, 4, 4, 2), (3, 3), padding=SAME),
    "grouped": Layer(GROUPED, (2, 4, 5, 6), (4, 3, 2, 3), factor=2),
    "grouped-pointwise": Layer(GROUPED, (2, 4, 5, 6), (6, 1, 1, 2), factor=3),
    "one-group": Layer(GROUPED, (1, 4, 5, 3), (2, 2, 2, 3), factor=1),
    "groups-of-one": Layer(GROUPED, (1, 4, 5, 3), (6, 2, 2, 1), factor=3),
    "grouped-same": Layer(GROUPED, (1, 7, 6, 4), (4, 3, 3, 2), factor=2, **SAMPLED),
    "grouped-explicit": Layer(
        GROUPED, (1, 5, 4, 4), (2, 3, 3, 2), (2, 1), (2, 1, 0, 2), factor=2
    ),
    "grouped-empty": Layer(GROUPED, (0, 4, 5, 6), (4, 3, 2, 3), factor=2),
}
FULL = {name: layer for name, layer in LAYERS.items() if layer.image[0]}
SQUARE = {
    CONV: Layer(CONV, (1, 4, 4, 3), (5, 2, 2, 3)),
    DEPTHWISE: depthwise((1, 4, 4, 5), (3, 3)),
    GROUPED: Layer(GROUPED, (1, 4, 4, 6), (4, 2, 2, 3), factor=2),
}

of_each = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
of_full = pytest.mark.parametrize("layer", FULL.values(), ids=FULL)
in_both_layouts = pytest.mark.parametrize("nchw", [False, True])
of_each_kind = pytest.mark.parametrize(
    "layer", SQUARE.values(), ids=[kind.name for kind in SQUARE]
)
with_each_activation = pytest.mark.parametrize("activation", FusedActivationFunc)


@in_both_layouts
@of_each
@pytest.mark.parametrize("type_", [F32, F16])
def test_float_convolutions_follow_the_formula(type_, layer, nchw) -> None:
    check_float(layer._replace(nchw=nchw), type_)


@in_both_layouts
@of_full
@pytest.mark.parametrize("types", QUANTISED)
def test_quantised_convolutions_are_exact(types, layer, nchw) -> None:
    check_quantised(layer._replace(nchw=nchw), types)


@pytest.mark.parametrize("seed", range(4))
@with_each_activation
@of_each_kind
@pytest.mark.parametrize("types", QUANTISED)
def test_quantised_activations_clamp_exactly(types, layer, activation, seed) -> None:
    check_quantised(layer._replace(activation=int(activation)), types, seed=seed)


@with_each_activation
@of_each_kind
def test_float_activations_clamp(layer, activation) -> None:
    check_float(layer._replace(activation=int(activation)), F32)


@st.composite
def layers(draw: st.DrawFn, kind: OperationType) -> Layer:
    sizes = st.integers(1, 3)
    filter_ = draw(sizes), draw(sizes)
    dilation = draw(sizes), draw(sizes)
    extent = [(size - 1) * by + 1 for size, by in zip(filter_, dilation, strict=True)]
    height, width = [size + draw(st.integers(0, 5)) for size in extent]
    limits = [extent[1], extent[1], extent[0], extent[0]]
    padding = st.tuples(*(st.integers(0, limit - 1) for limit in limits))
    strides = sizes if kind is CONV else st.integers(1, 5)
    ins, outs = draw(st.sampled_from([1, 2, 3, 9])), draw(sizes)
    image = draw(sizes), height, width, ins
    plain = Layer(CONV, image, (outs, *filter_, image[3]))
    return (depthwise(image, filter_, outs) if kind is DEPTHWISE else plain)._replace(
        stride=(draw(sizes), draw(strides)),
        padding=draw(padding | st.sampled_from([SAME, VALID])),
        dilation=dilation,
        activation=draw(st.integers(0, 3)),
        nchw=draw(st.booleans()),
    )


@pytest.mark.parametrize("kind", [CONV, DEPTHWISE])
@settings(max_examples=60, deadline=None)
@given(data=st.data(), types=st.sampled_from(QUANTISED), seed=st.integers(0, 2**16))
def test_any_geometry_is_exact(kind, data, types, seed) -> None:
    check_quantised(data.draw(layers(kind)), types, seed=seed)


@in_both_layouts
@of_full
def test_small_blocks_give_the_same(layer, nchw, monkeypatch) -> None:
    most = 24 if layer.operation is DEPTHWISE else 40
    monkeypatch.setattr(convolution, "_ELEMENTS_AT_MOST", most)
    monkeypatch.setattr(convolution, "_PIXELS_WORTH_A_PRODUCT", 1)
    check_quantised(layer._replace(nchw=nchw), (Q8S, Q8PC))
    check_float(layer._replace(nchw=nchw), F32)


@pytest.mark.parametrize("taps", [1031, 1033, 2000])
def test_sums_beyond_float32_stay_exact(taps) -> None:
    image = np.full((1, 1, 2, taps), -128, np.int8)
    image[0, 0, 1, 0] = -127
    filter_ = tensor(Q8S, np.full((1, 1, 1, taps), -127, np.int8), 1.0)
    bias = tensor(I32, np.array([-taps * 127 * 128 + 100]), 1.0)
    layer = Layer(CONV, image.shape, (1, 1, 1, taps))
    output = result(Q8S, (1, 1, 2, 1), 1.0)
    codes = run(layer, tensor(Q8S, image, 1.0), filter_, bias, output)
    assert codes.ravel().tolist() == [100, -27]


@in_both_layouts
@pytest.mark.parametrize("layer", [LAYERS[n] for n in LAYERS if n not in FULL])
def test_an_empty_batch_gives_no_codes(layer, nchw) -> None:
    starts = [len(window_starts(layer, axis)) for axis in (0, 1)]
    shape = (0, *starts, layer.channels)
    codes = run(
        layer._replace(nchw=nchw),
        tensor(Q8S, np.empty(layer.image), 0.5),
        tensor(Q8S, random_values(Q8S, layer.filter), 0.5),
        tensor(I32, np.zeros(layer.channels), 0.25),
        result(Q8S, shape, 0.5),
    )
    assert codes.shape == shape


@pytest.mark.parametrize("unknown", [1, 2])
def test_filter_and_bias_are_needed_at_preparation(unknown) -> None:
    inputs = [
        tensor(F32, np.ones((1, 2, 2, 1))),
        constant(F32, np.ones((1, 1, 1, 1))),
        constant(F32, np.ones(1)),
        *(VALID, 1, 1, 0),
    ]
    inputs[unknown] = tensor(F32, inputs[unknown].array)
    with pytest.raises(ValueNeededError):
        kernels.prepare(bind(CONV, inputs, [result(F32, (1, 2, 2, 1))]))


@pytest.mark.parametrize(
    "layer",
    [
        Layer(CONV, (1, 6, 6, 1), (1, 3, 3, 1)),
        depthwise((1, 7, 7, 2), (3, 3)),
        depthwise((1, 7, 7, 2), (3, 3), stride=(2, 2)),
    ],
)
def test_infinity_reaches_only_the_windows_that_see_it(layer) -> None:
    image = np.ones(layer.image, np.float32)
    image[0, 2, 3, -1] = np.inf
    rows, columns = (np.array(window_starts(layer, axis)) for axis in (0, 1))
    seen = np.zeros((len(rows), len(columns), layer.channels), bool)
    by_row, by_column = (rows <= 2) & (rows + 3 > 2), (columns <= 3) & (columns + 3 > 3)
    seen[:, :, -1] = np.outer(by_row, by_column)
    (output,) = run(
        layer,
        tensor(F32, image),
        tensor(F32, np.ones(layer.filter)),
        tensor(F32, np.zeros(layer.channels)),
        result(F32, (1, *seen.shape)),
    )
    np.testing.assert_array_equal(np.isinf(output), seen)
    assert (output[~seen] == 9).all()
