"""What contenders of benches do is what is measured: they answer, end and deliver."""

import asyncio
import inspect
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.burst.packets import DATUM_BYTES
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from asyncnn.service.channel import Channel
from asyncnn.tools.bench.bench_burst import (
    BATCH,
    PARTS,
    burst_execution,
    burst_parts,
    burst_run,
    queue_echo,
    queue_stream,
)
from asyncnn.tools.bench.bench_waits import execute_call, fence, image_call
from asyncnn.tools.bench.benches import Place
from asyncnn.tools.bench.environment import (
    CpuPair,
    PeerMissingError,
    installed_versions,
)
from asyncnn.tools.bench.peers import (
    IMAGE_SHAPE,
    Exchange,
    cut,
    exchanged_bytes,
    executor_image,
    grpc_echo,
    iceoryx_echo,
    pipe_echo,
    pipe_image,
    streams_echo,
    uvloop_echo,
    zmq_echo,
)
from asyncnn.tools.bench.rounds import OWN, Batches, Call

CPU = min(os.sched_getaffinity(0))


async def answer(call: Call) -> Any:
    """Call it, and await the result of one that has to be awaited."""
    result = call()
    return await result if inspect.isawaitable(result) else result


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
            assert isinstance(calls, Batches)
            for runs in (3, 1):
                samples = (await calls.run(runs))[OWN]
                assert len(samples) == runs
                assert min(samples) > 0

    @pytest.mark.parametrize(
        "stream",
        [
            *(partial(queue_stream, batch=batch) for batch in (1, BATCH)),
            partial(pipe_echo, exchange=EXCHANGE, messages=9),
        ],
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


async def test_a_burst_of_the_no_op_device_executes_and_runs() -> None:
    async with burst_execution(CPU) as execute:
        for _ in range(3):
            assert (await execute()).status is ErrorStatus.NONE
    async with burst_run(CPU) as run:
        assert len(await run()) == 1


async def test_every_part_does_its_part() -> None:
    async with burst_parts() as parts:
        assert parts.keys() == PARTS.keys()
        request, bind, execute, result = (parts[name] for name in PARTS)
        assert bind() is bind()
        assert request()
        assert len(request()) % DATUM_BYTES == 0
        assert execute() is ErrorStatus.NONE
        assert result() is NO_TIMING


WAITS = fence.groups
STREAMS = ("pipeline", "one_by_one", "queues")


class TestContenders:
    @pytest.mark.parametrize("name", WAITS)
    async def test_each_wait_ends_and_delivers(self, name: str) -> None:
        async with AsyncExitStack() as stack, asyncio.timeout(60):
            place = Place(stack, CpuPair(CPU, CPU))
            wait = await place.opened(WAITS[name](place))
            for _ in range(3):
                frame = await wait()
                if name in STREAMS:
                    assert isinstance(frame, np.ndarray)
                    assert frame.shape == (4,)

    async def test_a_device_is_opened_once_for_all(self) -> None:
        opened: list[int] = []

        @asynccontextmanager
        async def open_(cpu: int) -> AsyncIterator[list[int]]:
            opened.append(cpu)
            yield opened

        async with AsyncExitStack() as stack:
            place = Place(stack, CpuPair(CPU, CPU))
            for cpu in (CPU, CPU, CPU + 1):
                assert await place.shared(open_, cpu) is opened
        assert opened == [CPU, CPU + 1]


@pytest.fixture(scope="module")
def image() -> np.ndarray:
    return np.random.default_rng(1).random(IMAGE_SHAPE, np.float32)


@pytest.mark.parametrize("in_place", [True, False])
async def test_the_driver_cuts_the_same(image: np.ndarray, in_place: bool) -> None:
    async with open_device() as device:
        call = await image_call(device, image, in_place)
        result = await call()
    assert result.size == 1001
    np.testing.assert_array_equal(result, cut(image))


async def test_echoes_are_as_long_as_messages_of_an_execution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[int] = []
    send = Channel.send

    def watched(self: Channel, data: bytes, fds: Any = ()) -> None:
        sent.append(len(data))
        send(self, data, fds)

    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as hal, Server(hal, path), connect(path) as device:
        call = await execute_call(device)
        for _ in range(2):  # the second one binds the request
            await call()
        monkeypatch.setattr(Channel, "send", watched)
        assert (await call()).status is ErrorStatus.NONE
    exchange = exchanged_bytes()
    # Small numbers take up to two bytes less, timings are what they are.
    assert sent == [
        pytest.approx(exchange.request, abs=12),
        pytest.approx(exchange.response, abs=20),
    ]
