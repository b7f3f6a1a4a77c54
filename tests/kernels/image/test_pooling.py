"""Pooling against the formula of the HAL, evaluated window by window."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncnn.hal.types import FusedActivationFunc, OperationType
from tests.kernels.operations import (
    F16,
    F32,
    Q8,
    Q8S,
    TOLERANCE,
    compute,
    half_away,
    random_values,
    result,
    tensor,
)

AVERAGE = OperationType.AVERAGE_POOL_2D
MAXIMUM = OperationType.MAX_POOL_2D
L2 = OperationType.L2_POOL_2D
BOUNDS = {0: (-np.inf, np.inf), 1: (0, np.inf), 2: (-1, 1), 3: (0, 6)}


def windows(image, padding, stride, size):
    """Yield the output position and the covered part of an NHWC float64 image."""
    left, right, top, bottom = padding
    height, width = image.shape[1:3]
    rows = (height + top + bottom - size[0]) // stride[0] + 1
    columns = (width + left + right - size[1]) // stride[1] + 1
    for i, j in itertools.product(range(rows), range(columns)):
        y, x = i * stride[0] - top, j * stride[1] - left
        part = image[:, max(y, 0) : y + size[0], max(x, 0) : x + size[1]]
        yield (i, j), part


def expected(type_, image, padding, stride, size):
    pooled = {}
    for place, part in windows(image.astype(np.float64), padding, stride, size):
        if type_ is MAXIMUM:
            pooled[place] = part.max((1, 2))
        elif type_ is AVERAGE:
            pooled[place] = part.mean((1, 2))
        else:
            pooled[place] = np.sqrt((part**2).mean((1, 2)))
    rows, columns = map(max, zip(*pooled, strict=True))
    stacked = np.stack(list(pooled.values()), 1)
    batches, channels = image.shape[0], image.shape[3]
    return stacked.reshape(batches, rows + 1, columns + 1, channels)


def pool(
    operation,
    type_,
    image,
    *,
    padding=(0, 0, 0, 0),
    stride=(1, 1),
    size=(2, 2),
    activation=0,
    nchw=False,
    shape=None,
    scale=0.0,
    zero_point=0,
):
    """Pool an NHWC image in either layout; give the NHWC result."""
    if shape is None:
        shape = expected(operation, image, padding, stride, size).shape
    order = (0, 3, 1, 2) if nchw else (0, 1, 2, 3)
    shape = tuple(shape[axis] for axis in order)
    scalars = [*padding, *stride[::-1], *size[::-1], activation, nchw]
    given = tensor(type_, image.transpose(order), scale, zero_point)
    output = compute(
        operation, [given, *scalars], result(type_, shape, scale, zero_point)
    )
    return output.transpose(0, 2, 3, 1) if nchw else output


CASES = [
    pytest.param({"size": (2, 2)}, id="valid"),
    pytest.param({"size": (3, 2), "stride": (2, 1)}, id="stride"),
    pytest.param({"size": (3, 3), "padding": (1, 1, 1, 1)}, id="padded"),
    pytest.param({"size": (3, 4), "padding": (2, 1, 0, 2), "stride": (2, 3)}, id="odd"),
    pytest.param({"size": (6, 5)}, id="whole"),
    pytest.param({"size": (8, 8), "padding": (2, 1, 1, 1)}, id="whole-padded"),
    pytest.param({"size": (1, 1), "stride": (4, 4)}, id="skip"),
]


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operation", [AVERAGE, MAXIMUM, L2])
@pytest.mark.parametrize("type_", [F32, F16])
def test_float_pools_follow_the_formula(type_, operation, case, nchw) -> None:
    image = random_values(type_, (2, 6, 5, 3))
    wanted = {"padding": (0, 0, 0, 0), "stride": (1, 1)} | case
    np.testing.assert_allclose(
        pool(operation, type_, image, nchw=nchw, **case),
        expected(operation, image, **wanted),
        **TOLERANCE[type_],
    )


@pytest.mark.parametrize("nchw", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_signed_averages_round_half_away_from_zero(case, nchw) -> None:
    image = random_values(Q8S, (2, 6, 5, 3))
    wanted = {"padding": (0, 0, 0, 0), "stride": (1, 1)} | case
    average = pool(AVERAGE, Q8S, image, nchw=nchw, scale=0.5, **case)
    exact = expected(AVERAGE, image, **wanted)
    np.testing.assert_array_equal(average, half_away(exact))


@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("operation", [AVERAGE, MAXIMUM])
def test_unsigned_results_are_the_signed_ones_plus_128(
    operation, case, activation
) -> None:
    signed = random_values(Q8S, (1, 6, 5, 2))
    unsigned = (signed.astype(np.int16) + 128).astype(np.uint8)
    options = case | {"activation": int(activation), "scale": 0.1}
    one = pool(operation, Q8S, signed, zero_point=-10, **options)
    two = pool(operation, Q8, unsigned, zero_point=118, **options)
    np.testing.assert_array_equal(one.astype(int) + 128, two)


@pytest.mark.parametrize("activation", FusedActivationFunc)
@pytest.mark.parametrize("operation", [AVERAGE, MAXIMUM, L2])
def test_the_activation_clamps_float_results(operation, activation) -> None:
    image = random_values(F32, (1, 4, 4, 8), low=-20, high=20)
    wanted = expected(operation, image, (0, 0, 0, 0), (1, 1), (2, 2))
    np.testing.assert_allclose(
        pool(operation, F32, image, activation=int(activation)),
        np.clip(wanted, *BOUNDS[activation]),
        rtol=1e-6,
        atol=1e-5,
    )


@pytest.mark.parametrize("type_", [Q8, Q8S])
@pytest.mark.parametrize("operation", [AVERAGE, MAXIMUM])
def test_the_activation_clamps_codes(operation, type_) -> None:
    image = random_values(type_, (1, 4, 4, 8))
    middle = 100 if type_ is Q8 else -28
    pooled = pool(operation, type_, image, activation=3, scale=0.1, zero_point=middle)
    plain = pool(operation, type_, image, scale=0.1, zero_point=middle)
    np.testing.assert_array_equal(pooled, np.clip(plain, middle, middle + 60))


def test_the_same_scheme_puts_odd_padding_after_the_image() -> None:
    image = np.arange(4, dtype=np.float32).reshape(1, 1, 4, 1)
    inputs = [tensor(F32, image), 1, 1, 1, 2, 1, 0]
    pooled = compute(AVERAGE, inputs, result(F32, image.shape))
    np.testing.assert_array_equal(pooled.ravel(), [0.5, 1.5, 2.5, 3])


@pytest.mark.parametrize("type_", [F32, F16, Q8, Q8S])
@pytest.mark.parametrize("operation", [AVERAGE, MAXIMUM])
def test_an_empty_batch_gives_an_empty_result(operation, type_) -> None:
    image = random_values(type_, (0, 4, 4, 2))
    assert pool(operation, type_, image, scale=1.0, shape=(0, 3, 3, 2)).size == 0


def test_sums_of_large_windows_stay_exact() -> None:
    image = np.full((1, 500, 500, 1), 255, np.uint8)
    image[0, 0, 0, 0] = 254
    pooled = pool(AVERAGE, Q8, image, size=(500, 500), scale=1.0, shape=(1, 1, 1, 1))
    assert pooled.item() == 255


@pytest.mark.parametrize(
    ("operation", "first", "second"), [(AVERAGE, 7, 2), (MAXIMUM, 7, 3)]
)
def test_a_filter_of_a_billion_elements_is_not_counted_out(
    operation, first, second
) -> None:
    image = np.array([7, 1, 3], np.float32).reshape(1, 1, 3, 1)
    size = 2**30
    pooled = pool(
        operation,
        F32,
        image,
        padding=(size - 1, size - 1, 0, 0),
        stride=(1, size),
        size=(1, size),
        shape=(1, 1, 2, 1),
    )
    np.testing.assert_array_equal(pooled.ravel(), [first, second])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_window_that_fits_follows_the_formula(data) -> None:
    height, width, rows, columns = (
        data.draw(st.integers(1, 7), label=name) for name in ("h", "w", "fh", "fw")
    )
    before_after = [
        data.draw(st.integers(0, limit - 1)) for limit in (columns, columns, rows, rows)
    ]
    left, right, top, bottom = before_after
    assume(rows <= height + top + bottom and columns <= width + left + right)
    stride = data.draw(st.tuples(st.integers(1, 8), st.integers(1, 8)))
    image = random_values(F32, (1, height, width, 2), seed=data.draw(st.integers(0, 9)))
    options = {"padding": before_after, "stride": stride, "size": (rows, columns)}
    operation = data.draw(st.sampled_from([AVERAGE, MAXIMUM, L2]))
    np.testing.assert_allclose(
        pool(operation, F32, image, **options),
        expected(operation, image, **options),
        rtol=1e-6,
        atol=1e-5,
    )
