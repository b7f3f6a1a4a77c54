import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from asyncnn.hal.operations.bound import OperationFailedError, ValueNeededError
from asyncnn.hal.operations.signature import BOOL, INT32
from asyncnn.hal.operations.sliding_windows import (
    SAME,
    VALID,
    Window,
    convolution_window,
    padding_for_scheme,
    pool_window,
    transpose_padding_for_scheme,
    transpose_window,
)
from asyncnn.hal.types import FusedActivationFunc, OperationType
from tests.hal.operations.building import BoundOperand, bound

RELU = FusedActivationFunc.RELU
SIZES = st.integers(1, 40)
FACTORS = st.integers(1, 5)


@given(size=SIZES, filter_=FACTORS, stride=FACTORS, dilation=FACTORS)
def test_same_padding_gives_one_output_for_each_started_stride(
    size: int, filter_: int, stride: int, dilation: int
) -> None:
    before, after = padding_for_scheme(SAME, size, filter_, stride, dilation)
    extent = (filter_ - 1) * dilation + 1
    starts = range(-before, size + after - extent + 1, stride)
    assert len(starts) == -(-size // stride)
    assert before <= after <= before + 1


@given(output=SIZES, filter_=FACTORS, stride=FACTORS)
def test_same_padding_of_a_transpose_convolution_reaches_the_wanted_output(
    output: int, filter_: int, stride: int
) -> None:
    before, after = transpose_padding_for_scheme(SAME, output, filter_, stride)
    steps = -(-output // stride)
    assert (steps - 1) * stride + filter_ - before - after == output
    assert before >= 0


def test_valid_padding_is_none() -> None:
    assert padding_for_scheme(VALID, 7, 3, 2) == (0, 0)
    assert transpose_padding_for_scheme(VALID, 7, 3, 2) == (0, 0)


IMAGE, FILTER = (1, 8, 10, 3), (4, 3, 5, 3)
BIAS = (4,)


def test_windows_are_read_once_and_for_these_inputs_alone() -> None:
    inputs = [IMAGE, FILTER, BIAS, SAME, 1, 2, RELU]
    operation = bound(OperationType.CONV_2D, inputs)
    window = convolution_window(operation)
    assert convolution_window(replace(operation, outputs=())) is window
    other = bound(OperationType.CONV_2D, [*inputs[:5], 4, RELU])
    changed = replace(operation, inputs=other.inputs)
    assert convolution_window(changed).height.stride == 4


def test_a_convolution_with_a_scheme_reads_width_before_height() -> None:
    operation = bound(OperationType.CONV_2D, [IMAGE, FILTER, BIAS, SAME, 1, 2, RELU])
    window = convolution_window(operation)
    assert window.height == Window(8, 3, 2, 1, 0, 1, 4)
    assert window.width == Window(10, 5, 1, 1, 2, 2, 10)
    assert (window.nchw, window.activation) == (False, RELU)


@pytest.mark.parametrize(
    ("tail", "dilation", "nchw"),
    [([], (1, 1), False), ([True], (1, 1), True), ([False, 3, 2], (2, 3), False)],
)
def test_layout_and_dilation_may_follow_explicit_padding(
    tail: list, dilation: tuple[int, int], nchw: bool
) -> None:
    image = (1, 3, 16, 20) if nchw else (1, 16, 20, 3)
    operation = bound(
        OperationType.CONV_2D, [image, FILTER, BIAS, 1, 2, 0, 1, 1, 1, 0, *tail]
    )
    window = convolution_window(operation)
    assert (window.height.dilation, window.width.dilation) == dilation
    assert (window.height.before, window.height.after) == (0, 1)
    assert (window.width.before, window.width.after) == (1, 2)
    assert window.nchw is nchw
    assert window.height.output == 16 + 1 - window.height.extent + 1


def test_ten_inputs_with_a_flag_in_the_middle_are_a_scheme_with_dilation() -> None:
    operation = bound(
        OperationType.CONV_2D, [IMAGE, FILTER, BIAS, VALID, 1, 1, 0, False, 2, 3]
    )
    window = convolution_window(operation)
    assert window.height == Window(8, 3, 1, 3, 0, 0, 2)
    assert window.width == Window(10, 5, 1, 2, 0, 0, 2)


def test_depthwise_and_grouped_convolutions_have_one_scalar_more() -> None:
    filter_ = (1, 3, 5, 6)
    scheme = [IMAGE, filter_, (6,), VALID, 1, 1, 2, RELU]
    explicit = [IMAGE, filter_, (6,), 0, 0, 0, 0, 1, 1, 2, RELU, False]
    for inputs in (scheme, explicit):
        window = convolution_window(
            bound(OperationType.DEPTHWISE_CONV_2D, inputs), "depth_multiplier"
        )
        assert (window.depth_multiplier, window.activation) == (2, RELU)
        assert (window.height.output, window.width.output) == (6, 6)
    window = convolution_window(
        bound(OperationType.GROUPED_CONV_2D, explicit), "groups"
    )
    assert (window.groups, window.depth_multiplier) == (2, 1)


def test_a_pool_reads_the_size_of_its_filter_from_scalars() -> None:
    scheme = [IMAGE, VALID, 2, 3, 5, 4, 0, False]
    explicit = [IMAGE, 0, 0, 0, 0, 2, 3, 5, 4, 0]
    for inputs in (scheme, explicit):
        window = pool_window(bound(OperationType.MAX_POOL_2D, inputs))
        assert window.height == Window(8, 4, 3, 1, 0, 0, 2)
        assert window.width == Window(10, 5, 2, 1, 0, 0, 3)


def test_a_transpose_convolution_may_add_to_its_output() -> None:
    operation = bound(
        OperationType.TRANSPOSE_CONV_2D,
        [(1, 2, 2, 1), (1, 3, 3, 1), (1,), [1, 5, 6, 1], VALID, 3, 2, 0, False],
    )
    window = transpose_window(operation)
    assert (window.height.output, window.width.output) == (5, 6)
    operation = bound(
        OperationType.TRANSPOSE_CONV_2D,
        [(1, 2, 2, 1), (1, 3, 3, 1), (1,), 0, -1, 1, 0, 3, 2, 0, False],
    )
    window = transpose_window(operation)
    assert (window.height.output, window.width.output) == (4, 7)


@pytest.mark.parametrize(
    ("scalars", "message"),
    [
        ([0, 1, 1, 0], "padding scheme 0"),
        ([SAME, 0, 1, 0], "stride size 0"),
        ([SAME, 1, 1, 4], "4 is not a fused activation"),
        ([VALID, 1, 1, 0, False, 0, 1], "dilation size 0"),
        ([VALID, 1, 1, 0, False, 3, 1], "does not fit"),
        ([5, 0, 0, 0, 1, 1, 0], "padding \\(5, 0\\)"),
        ([0, 0, -1, 0, 1, 1, 0], "padding \\(-1, 0\\)"),
    ],
)
def test_a_window_that_cannot_slide_is_refused(scalars: list, message: str) -> None:
    operation = bound(OperationType.CONV_2D, [IMAGE, FILTER, BIAS, *scalars])
    with pytest.raises(OperationFailedError, match=message):
        convolution_window(operation)


def test_a_scalar_that_only_the_request_tells_is_waited_for() -> None:
    stride = BoundOperand(INT32, ())
    operation = bound(OperationType.MAX_POOL_2D, [IMAGE, SAME, stride, 1, 2, 2, 0])
    with pytest.raises(ValueNeededError):
        pool_window(operation)


def test_a_layout_flag_without_value_still_tells_the_kind_of_padding() -> None:
    flag = BoundOperand(BOOL, ())
    operation = bound(OperationType.MAX_POOL_2D, [IMAGE, SAME, 1, 1, 2, 2, 0, flag])
    with pytest.raises(ValueNeededError):
        pool_window(operation)
