"""Blocks cover an output once."""

import numpy as np
import pytest

from asyncnn.kernels.linear.patches import split


@pytest.mark.parametrize("pixels_at_most", [1, 7, 20, 60, 100, 10_000])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 3), (2, 5, 7, 3), (7, 4, 3, 1), (1, 9, 2, 8)]
)
def test_blocks_cover_every_pixel_once_and_in_order(shape, pixels_at_most) -> None:
    index = np.arange(np.prod(shape[:3])).reshape(shape[:3])
    blocks = list(split(shape, pixels_at_most))
    seen = [index[block.images, block.rows].ravel() for block in blocks]
    assert np.concatenate(seen).tolist() == list(range(index.size))
    for block, pixels in zip(blocks, seen, strict=True):
        assert block.start == pixels[0]
        assert block.pixels == pixels.size <= max(pixels_at_most, shape[2])
        assert block.shape == index[block.images, block.rows].shape


def test_rows_are_shared_out_evenly() -> None:
    blocks = split((1, 9, 10, 1), 80)
    assert [block.shape[1] for block in blocks] == [5, 4]
