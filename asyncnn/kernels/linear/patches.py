"""Images in padded buffers, and the strided views through which filters see them."""

import math

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.operations.shapes import NCHW_TO_NHWC
from asyncnn.hal.operations.windows import Window, Window2D
from asyncnn.kernels.kernel import Scratch
from asyncnn.kernels.linear.blocks import Load


class TapGroup(msgspec.Struct, frozen=True):
    """The columns of a filter that meet one phase of a padded row.

    They are evenly spaced, and so are the elements they meet: the first is element
    ``start`` of phase ``phase``, the next ones are ``step`` apart.
    """

    columns: slice
    count: int
    phase: int
    start: int
    step: int


def tap_groups(window: Window) -> list[TapGroup]:
    """Group the taps of a filter along a row by the phase of the stride they meet."""
    period = window.stride // math.gcd(window.stride, window.dilation)
    groups = []
    for first in range(min(period, window.filter)):
        start, phase = divmod(first * window.dilation, window.stride)
        count = len(range(first, window.filter, period))
        step = period * window.dilation // window.stride
        groups.append(TapGroup(slice(first, None, period), count, phase, start, step))
    return groups


class PaddedImage:
    """A buffer [N, rows, phases, columns, channels] with an image in its middle.

    Column ``x`` of a padded row is element ``x // phases`` of phase ``x % phases``.
    The channels are those of the image ``shape`` [N, H, W, C], each ``repeats`` times.
    """

    def __init__(
        self,
        scratch: Scratch,
        shape: Shape,
        windows: Window2D,
        dtype: DTypeLike,
        zero: int,
        phases: int = 1,
        repeats: int = 1,
    ) -> None:
        rows = _padded_length(windows.height)
        columns = -(-_padded_length(windows.width) // phases)
        images, *_, channels = shape
        cells = (images, rows, phases, columns, channels, repeats)
        self._cells = scratch.persistent(cells, dtype, zero)
        self._buffer = self._cells.reshape(images, rows, phases, columns, -1)
        self._windows = windows

    def loader(self) -> Load:
        """Return what copies an image [N, H, W, C] or [N, C, H, W] into the buffer."""
        nchw, buffer = self._windows.nchw, self._buffer
        moves = self._moves()

        def load(image: Array) -> Array:
            if nchw:
                image = image.transpose(NCHW_TO_NHWC)
            for target, rows, columns in moves:
                np.copyto(target, image[:, rows, columns, :, np.newaxis])
            return buffer

        return load

    def _moves(self) -> list[tuple[Array, slice, slice]]:
        """Return for each phase its cells and the rows and columns of the image."""
        height, width = self._windows.height, self._windows.width
        _, rows, phases, columns, _, _ = self._cells.shape
        last_row = min(height.before + height.input, rows)
        source_rows = slice(0, last_row - height.before)
        moves = []
        for phase in range(phases):
            first = -((phase - width.before) // phases)
            start = phase + first * phases - width.before
            count = min(len(range(start, width.input, phases)), columns - first)
            if count > 0:
                source_columns = slice(start, start + count * phases, phases)
                target = self._cells[
                    :, height.before : last_row, phase, first : first + count
                ]
                moves.append((target, source_rows, source_columns))
        return moves

    def patches(self) -> Array:
        """Return the view [N, out H, out W, filter H, filter W, C] of one phase."""
        height, width = self._windows.height, self._windows.width
        image, row, _, column, channel = self._buffer.strides
        sizes = (height.output, width.output, height.filter, width.filter)
        strides = (
            row * height.stride,
            column * width.stride,
            row * height.dilation,
            column * width.dilation,
        )
        images, *_, channels = self._buffer.shape
        return as_strided(
            self._buffer, (images, *sizes, channels), (image, *strides, channel)
        )

    def tap_rows(self, taps: TapGroup) -> Array:
        """Return the view [filter H, taps, N, out H, out W * C] of a group's phase.

        The phases are those of the width's stride.
        """
        height, width = self._windows.height, self._windows.width
        image, row, _, column, channel = self._buffer.strides
        images, *_, channels = self._buffer.shape
        return as_strided(
            self._buffer[:, :, taps.phase, taps.start :],
            (height.filter, taps.count, images, height.output, width.output * channels),
            (
                row * height.dilation,
                column * taps.step,
                image,
                row * height.stride,
                channel,
            ),
        )


def _padded_length(window: Window) -> int:
    return (window.output - 1) * window.stride + window.extent
