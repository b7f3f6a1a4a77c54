"""Images in padded buffers, and the strided views through which filters see them."""

import math

import msgspec
import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import DTypeLike

from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.operations.shapes import NCHW_TO_NHWC
from asyncnn.hal.operations.windows import Window, Window2D
from asyncnn.kernels.blocks import Load
from asyncnn.kernels.kernel import Scratch


class Taps(msgspec.Struct, frozen=True):
    """Columns of a filter that meet the same phase of a padded row.

    ``columns`` are evenly spaced, and so are the elements they meet: the first is
    element ``start`` of phase ``phase``, the next are ``step`` apart.
    """

    phase: int
    columns: slice
    start: int
    step: int


def taps_by_phase(window: Window) -> list[Taps]:
    """Group the taps of a filter by the phase of the stride that they fall into."""
    period = window.stride // math.gcd(window.stride, window.dilation)
    step = window.dilation * period // window.stride
    return [
        Taps(
            phase=(first * window.dilation) % window.stride,
            columns=slice(first, None, period),
            start=(first * window.dilation) // window.stride,
            step=step,
        )
        for first in range(min(period, window.filter))
    ]


def _padded_length(window: Window) -> int:
    return (window.output - 1) * window.stride + window.extent


class PaddedImage:
    """A buffer [N, rows, phases, columns, channels] with the image in its middle.

    Each row is split into ``phases``: column ``x`` is element ``x // phases`` of phase
    ``x % phases``. Its channels are those of the image, each ``repeats`` times.
    """

    def __init__(
        self,
        scratch: Scratch,
        shape: Shape,
        windows: Window2D,
        dtype: DTypeLike,
        padding: int,
        phases: int = 1,
        repeats: int = 1,
    ) -> None:
        images, _, _, channels = shape
        self._windows = windows
        self._phases = phases
        rows = _padded_length(windows.height)
        columns = -(-_padded_length(windows.width) // phases)
        self.buffer = scratch.persistent(
            (images, rows, phases, columns, channels * repeats), dtype, padding
        )
        self._cells = self.buffer.reshape(
            images, rows, phases, columns, channels, repeats
        )

    def loader(self) -> Load:
        """Return what copies an image [N, H, W, C] or [N, C, H, W] into the buffer."""
        height, width = self._windows.height, self._windows.width
        nchw = self._windows.nchw
        last_row = min(height.before + height.input, self._cells.shape[1])
        rows = slice(height.before, last_row)
        source_rows = slice(0, last_row - height.before)
        moves = []
        for phase in range(self._phases):
            first = -((phase - width.before) // self._phases)
            skipped = phase + first * self._phases - width.before
            source = slice(skipped, None, self._phases)
            count = min(len(range(width.input)[source]), self._cells.shape[3] - first)
            if count > 0:
                source = slice(skipped, skipped + count * self._phases, self._phases)
                target = self._cells[:, rows, phase, first : first + count]
                moves.append((target, (slice(None), source_rows, source)))
        buffer = self.buffer

        def load(image: Array) -> Array:
            if nchw:
                image = image.transpose(NCHW_TO_NHWC)
            for target, place in moves:
                np.copyto(target, image[place][..., np.newaxis])
            return buffer

        return load

    def patches(self) -> Array:
        """Return the view [N, output H, output W, filter H, filter W, channels].

        The image has one phase.
        """
        height, width = self._windows.height, self._windows.width
        image, row, _, column, channel = self.buffer.strides
        return as_strided(
            self.buffer,
            (
                len(self.buffer),
                height.output,
                width.output,
                height.filter,
                width.filter,
                self.buffer.shape[4],
            ),
            (
                image,
                row * height.stride,
                column * width.stride,
                row * height.dilation,
                column * width.dilation,
                channel,
            ),
        )

    def rows(self, taps: Taps, taps_count: int) -> Array:
        """Return the view [filter H, taps, N, output H, output W * channels].

        The image has as many phases as the stride of its columns.
        """
        height, width = self._windows.height, self._windows.width
        image, row, _, column, channel = self.buffer.strides
        return as_strided(
            self.buffer[:, :, taps.phase, taps.start :],
            (
                height.filter,
                taps_count,
                len(self.buffer),
                height.output,
                width.output * self.buffer.shape[4],
            ),
            (
                row * height.dilation,
                column * taps.step,
                image,
                row * height.stride,
                channel,
            ),
        )
