"""How filters slide over images: padding, stride, dilation and output size.

`convolution_window`, `pool_window` and `transpose_window` read the scalars of an
operation in any of its layouts (padding by scheme or by four numbers; NHWC or NCHW), so
that shape rules and kernels agree; the first two do so once for an operation.

Source: 1.3/types.hal (CONV_2D, AVERAGE_POOL_2D, TRANSPOSE_CONV_2D).
"""

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.types import FusedActivationFunc, OperandType

SAME = 1
"""Padding scheme: the output has ``ceil(input / stride)`` elements."""

VALID = 2
"""Padding scheme: no padding, the filter stays inside the input."""

Padding: TypeAlias = tuple[int, int]
"""Elements added before and after an axis."""


class Window(msgspec.Struct, frozen=True, gc=False):
    """A filter sliding along one axis of ``input`` elements."""

    input: int
    filter: int
    stride: int
    dilation: int
    before: int
    after: int
    output: int

    @property
    def extent(self) -> int:
        """Elements between the first and the last one that the filter touches."""
        return (self.filter - 1) * self.dilation + 1


class Window2D(msgspec.Struct, frozen=True, gc=False):
    """The windows over height and width, and the scalars that come with them."""

    height: Window
    width: Window
    nchw: bool
    activation: FusedActivationFunc
    depth_multiplier: int = 1
    groups: int = 1


def padding_for_scheme(
    scheme: int, size: int, filter_: int, stride: int, dilation: int = 1
) -> Padding:
    """Return the padding of an axis; of an odd total, SAME puts more after it."""
    if scheme == VALID:
        return 0, 0
    extent = (filter_ - 1) * dilation + 1
    total = max((-(-size // stride) - 1) * stride + extent - size, 0)
    return total // 2, total - total // 2


def transpose_padding_for_scheme(
    scheme: int, output: int, filter_: int, stride: int
) -> Padding:
    """Return what a transpose convolution cuts off its output of ``output`` elements.

    The second number is negative where the output reaches beyond the last filter.
    """
    if scheme == VALID:
        return 0, 0
    total = (-(-output // stride) - 1) * stride + filter_ - output
    before = max(total, 0) // 2
    return before, total - before


class _Scalars(msgspec.Struct, frozen=True, gc=False):
    """The scalars of a sliding operation, each pair as (height, width)."""

    scheme: int | None
    padding: tuple[Padding, Padding]
    stride: tuple[int, int]
    extras: tuple[int, ...]
    activation: FusedActivationFunc
    nchw: bool
    dilation: tuple[int, int]


def _read_scalars(operation: BoundOperation, first: int, extra: int) -> _Scalars:
    """Read the scalars from input ``first`` on; ``extra`` of them follow the strides.

    With explicit padding, the place of the layout flag holds an integer.
    """
    flag = first + 4 + extra
    explicit = operation.has(flag) and operation.input(flag).type != OperandType.BOOL
    at = first + (4 if explicit else 1)
    if explicit:
        left, right, top, bottom = (operation.integer(first + i) for i in range(4))
        scheme = None
    else:
        left = right = top = bottom = 0
        scheme = operation.integer(first)
        _require_scheme(operation, scheme)
    after = at + 2 + extra
    return _Scalars(
        scheme=scheme,
        padding=((top, bottom), (left, right)),
        stride=(operation.integer(at + 1), operation.integer(at)),
        extras=tuple(operation.integer(at + 2 + i) for i in range(extra)),
        activation=operation.activation(after),
        nchw=operation.boolean(after + 1, False),
        dilation=(operation.integer(after + 3, 1), operation.integer(after + 2, 1)),
    )


def _require_scheme(operation: BoundOperation, scheme: int) -> None:
    operation.require(
        scheme in (SAME, VALID),
        f"padding scheme {scheme} is neither {SAME} (same) nor {VALID} (valid)",
    )


def _slide(
    operation: BoundOperation, scalars: _Scalars, axis: int, size: int, filter_: int
) -> Window:
    stride, dilation = scalars.stride[axis], scalars.dilation[axis]
    if min(size, filter_, stride, dilation) <= 0:
        _require_positive(
            operation, input=size, filter=filter_, stride=stride, dilation=dilation
        )
    if scalars.scheme is None:
        before, after = scalars.padding[axis]
    else:
        before, after = padding_for_scheme(
            scalars.scheme, size, filter_, stride, dilation
        )
    extent = (filter_ - 1) * dilation + 1
    if not (0 <= before < extent and 0 <= after < extent):
        operation.require(
            condition=False,
            message=f"padding ({before}, {after}) is not within a filter of {extent} "
            "elements",
        )
    output = (size - extent + stride + before + after) // stride
    if output <= 0:
        operation.require(
            condition=False,
            message=f"a filter of {extent} does not fit in {size} elements",
        )
    return Window(size, filter_, stride, dilation, before, after, output)


def _require_positive(operation: BoundOperation, **sizes: int) -> None:
    for name, size in sizes.items():
        if size <= 0:
            operation.require(
                condition=False, message=f"{name} size {size} is not positive"
            )


def _windows(
    operation: BoundOperation, scalars: _Scalars, filter_: tuple[int, ...]
) -> tuple[Window, Window]:
    _, height, width, _ = operation.image_shape(scalars.nchw)
    return (
        _slide(operation, scalars, 0, height, filter_[0]),
        _slide(operation, scalars, 1, width, filter_[1]),
    )


def _filter_size(operation: BoundOperation) -> Shape:
    return operation.shape_of_rank(1, 4)[1:3]


def convolution_window(operation: BoundOperation, extra: str = "") -> Window2D:
    """Read CONV_2D, or what has one scalar more, called ``extra`` in the windows.

    That is ``depth_multiplier`` of DEPTHWISE_CONV_2D, ``groups`` of GROUPED_CONV_2D.

    :raises OperationFailedError: if a scalar is illegal or the filter does not fit.
    """

    def read() -> Window2D:
        scalars = _read_scalars(operation, first=3, extra=1 if extra else 0)
        windows = _windows(operation, scalars, _filter_size(operation))
        window = Window2D(*windows, scalars.nchw, scalars.activation)
        return replace(window, **{extra: scalars.extras[0]}) if extra else window

    return operation.note("window", read)


def pool_window(operation: BoundOperation) -> Window2D:
    """Read AVERAGE_POOL_2D, L2_POOL_2D or MAX_POOL_2D.

    :raises OperationFailedError: if a scalar is illegal or the filter does not fit.
    """

    def read() -> Window2D:
        scalars = _read_scalars(operation, first=1, extra=2)
        windows = _windows(operation, scalars, scalars.extras[::-1])
        return Window2D(*windows, scalars.nchw, scalars.activation)

    return operation.note("window", read)


def transpose_window(operation: BoundOperation) -> Window2D:
    """Read TRANSPOSE_CONV_2D; ``after`` may be negative, which adds to the output.

    :raises OperationFailedError: if a scalar is illegal or nothing would be left.
    """
    explicit = len(operation.inputs) == 11
    at = 7 if explicit else 5
    stride_width, stride_height = operation.integer(at), operation.integer(at + 1)
    nchw = operation.boolean(at + 3)
    _require_positive(operation, height_stride=stride_height, width_stride=stride_width)
    filter_height, filter_width = _filter_size(operation)
    if explicit:
        left, right, top, bottom = (operation.integer(i) for i in range(3, 7))
        padding = ((top, bottom), (left, right))
    else:
        scheme = operation.integer(4)
        _require_scheme(operation, scheme)
        wanted = operation.integers_of_length(3, 4)
        rows, columns = wanted[2:] if nchw else wanted[1:3]
        padding = (
            transpose_padding_for_scheme(scheme, rows, filter_height, stride_height),
            transpose_padding_for_scheme(scheme, columns, filter_width, stride_width),
        )
    _, height, width, _ = operation.image_shape(nchw)
    return Window2D(
        _spread(operation, height, filter_height, stride_height, padding[0]),
        _spread(operation, width, filter_width, stride_width, padding[1]),
        nchw,
        operation.activation(at + 2),
    )


def _spread(
    operation: BoundOperation, size: int, filter_: int, stride: int, padding: Padding
) -> Window:
    before, after = padding
    _require_positive(operation, input=size, filter=filter_)
    operation.require(before >= 0, f"leading padding {before} is negative")
    output = (size - 1) * stride + filter_ - before - after
    _require_positive(operation, output=output)
    return Window(size, filter_, stride, 1, before, after, output)
