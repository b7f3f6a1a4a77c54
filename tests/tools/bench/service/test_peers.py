"""Other processes that work on an image."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import numpy as np
import pytest

from asyncnn.tools.bench.rounds import Call
from asyncnn.tools.bench.service.peers import (
    IMAGE_SHAPE,
    cut,
    executor_image,
    pipe_image,
)
from tests.tools.bench.calling import CPU, answer

Peer = Callable[[int, Any], AbstractAsyncContextManager[Call]]


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(1).random(IMAGE_SHAPE, np.float32)


@pytest.mark.parametrize("peer", [pipe_image, executor_image])
async def test_a_result_is_cut_from_the_image(peer: Peer, image: np.ndarray) -> None:
    async with peer(CPU, image) as call:
        np.testing.assert_array_equal(await answer(call), cut(image))
