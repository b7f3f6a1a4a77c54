"""Ways to exchange bytes with another process, and to say that one is missing."""

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import numpy as np
import pytest

from asyncnn.tools.bench.bench_burst import (
    BATCH,
    pipe_stream,
    queue_echo,
    queue_stream,
)
from asyncnn.tools.bench.environment import PeerMissingError, installed_versions
from asyncnn.tools.bench.peers import (
    IMAGE_SHAPE,
    Exchange,
    cut,
    executor_image,
    grpc_echo,
    iceoryx_echo,
    pipe_echo,
    pipe_image,
    streams_echo,
    uvloop_echo,
    zmq_echo,
)
from asyncnn.tools.bench.rounds import Call, ManyCalls
from tests.tools.bench.calling import CPU, answer

EXCHANGE = Exchange(96, 72)
Peer = Callable[[int, Exchange], AbstractAsyncContextManager[Any]]


class TestEchoes:
    @pytest.mark.parametrize(
        ("peer", "package"),
        [
            (pipe_echo, ""),
            (streams_echo, ""),
            (queue_echo, ""),
            (grpc_echo, "grpc"),
            (zmq_echo, "zmq"),
        ],
    )
    async def test_an_answer_has_the_size_it_should(
        self, peer: Peer, package: str
    ) -> None:
        if package:
            pytest.importorskip(package)
        async with peer(CPU, EXCHANGE) as call:
            assert [len(await answer(call)) for _ in range(3)] == [72] * 3

    @pytest.mark.parametrize(
        ("peer", "package"),
        [(partial(uvloop_echo, CPU), "uvloop"), (iceoryx_echo, "iceoryx2")],
    )
    async def test_many_calls_are_timed_at_once(self, peer: Peer, package: str) -> None:
        pytest.importorskip(package)
        async with peer(CPU, EXCHANGE) as calls:
            assert isinstance(calls, ManyCalls)
            for runs in (3, 1):
                samples = calls.measure(runs)
                assert len(samples) == runs
                assert min(samples) > 0

    @pytest.mark.parametrize(
        "stream", [partial(queue_stream, batch=b) for b in (1, BATCH)] + [pipe_stream]
    )
    async def test_a_stream_is_acknowledged(
        self, stream: Callable[[int], AbstractAsyncContextManager[Call]]
    ) -> None:
        async with stream(CPU) as call:
            for _ in range(3):
                assert await answer(call)


@pytest.mark.parametrize("peer", [pipe_image, executor_image])
async def test_a_result_is_cut_from_the_image(
    peer: Callable[[int, Any], AbstractAsyncContextManager[Call]],
) -> None:
    image = np.random.default_rng(1).random(IMAGE_SHAPE, np.float32)
    async with peer(CPU, image) as call:
        np.testing.assert_array_equal(await answer(call), cut(image))


@pytest.mark.parametrize(
    ("peer", "module", "package"),
    [
        (partial(uvloop_echo, CPU), "uvloop", "uvloop"),
        (zmq_echo, "zmq.asyncio", "pyzmq"),
        (grpc_echo, "grpc.aio", r"asyncnn\[bench\]"),
        (iceoryx_echo, "iceoryx2", "iceoryx2"),
    ],
)
async def test_a_peer_that_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, peer: Peer, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(PeerMissingError, match=f"pip install {package}"):
        async with peer(CPU, EXCHANGE):
            pass


def test_versions_are_those_of_packages_that_are_there() -> None:
    assert installed_versions("numpy", "no-such-package") == {"numpy": np.__version__}
