"""Images in either layout."""

import numpy as np

from asyncnn.hal.operations.bound import Array
from tests.random_graphs.naive.expected import Expected


def nhwc(image: Array, nchw: bool) -> Array:
    """Return an image of either layout as [N, H, W, C]."""
    return np.moveaxis(image, 1, 3) if nchw else image


def in_layout(expected: Expected, nchw: bool) -> Expected:
    """Return what is expected of [N, H, W, C] in the layout of an operation."""
    if not nchw:
        return expected
    slack = np.broadcast_to(expected.slack, expected.value.shape)
    return expected._replace(
        value=np.moveaxis(expected.value, 3, 1), slack=np.moveaxis(slack, 3, 1)
    )
