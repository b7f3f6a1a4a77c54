"""Bursts over a socket: honest clients, and those that are not."""

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from asyncnn.burst import BurstController
from asyncnn.burst.packets import DATUM_BYTES, RequestShape, decode_result
from asyncnn.burst.slots import PoolSlots
from asyncnn.devices import ReferenceDevice
from asyncnn.devices.prepared import InProcessPreparedModel
from asyncnn.fmq import MessageQueue, queue
from asyncnn.fmq.layout import READER_SLEEPS, WRITTEN
from asyncnn.hal.errors import DriverDiedError
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    Handle,
    MeasureTiming,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.shared import allocate
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server, wire
from asyncnn.service.client.burst import RemoteBursts
from asyncnn.service.client.sent_pools import Numbers
from asyncnn.service.limits import ServiceLimits
from asyncnn.service.process import driver_process
from tests.fmq.test_hostile_doorbells import SOCKETS
from tests.fmq.words import add_to_word, words_of
from tests.networks import AT_ONCE, FOREVER, addition, counting_up
from tests.service.conftest import LIMITS, Connect, Service, is_served
from tests.service.raw import RawClient
from tests.waits import cancelled, until

SUM = addition(4)
ARGUMENTS = tuple(
    RequestArgument(location=DataLocation(0, offset, 16)) for offset in (0, 16, 32)
)
SHAPE = RequestShape.of(ARGUMENTS[:2], ARGUMENTS[2:], 1)


async def test_a_run_through_queues_is_a_run(service: Service) -> None:
    x = np.arange(4, dtype=np.float32)
    async with connect(service.path) as device:
        model = await device.prepare(SUM)
        async with model.burst() as burst:
            for k in range(100):
                outputs = await burst.run({"x": x, "y": x + k})
                assert np.array_equal(outputs["z"], 2 * x + k)
            assert burst.statistics().sent == 100


async def test_many_bursts_take_the_turns_of_their_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of the loop is the measure, whatever a packet costs."""
    began = [0]
    execute = InProcessPreparedModel.execute_1_3

    def counted(self: Any, *arguments: Any) -> Any:
        began[-1] += 1
        return execute(self, *arguments)

    monkeypatch.setattr(InProcessPreparedModel, "execute_1_3", counted)
    path, x = tmp_path / "driver.sock", np.ones(4, np.float32)
    async with (
        ReferenceDevice() as reference,
        Server(reference, path, limits=ServiceLimits(max_bursts=40)),
        connect(path) as device,
        AsyncExitStack() as stack,
    ):
        model = await device.prepare(SUM)
        bursts = [await stack.enter_async_context(model.burst()) for _ in range(40)]
        for _ in range(3):  # the first time, each is asked for its memory
            began[:] = [0]
            runs = [burst.run({"x": x, "y": x}) for burst in bursts]
            tasks = [asyncio.create_task(run) for run in runs]
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                began.append(0)
            assert sum(began) == len(bursts)
        assert max(began) <= 16, began  # 8, which may begin within a turn


async def test_a_cancelled_run_stops_in_the_driver(service: Service) -> None:
    async with connect(service.path) as device:
        model = await device.prepare(counting_up())
        quick = await device.prepare(SUM)
        async with model.burst() as burst:
            for _ in range(3):
                burst.input()[:] = FOREVER
                task = asyncio.ensure_future(burst.run_in_place())
                await asyncio.sleep(0.001)
                await cancelled(task)
                await quick.run([np.ones(4, np.float32)] * 2)
            assert (await burst.run(AT_ONCE - 5))["z"] == 0


async def test_memory_of_the_client_alone_is_refused(service: Service) -> None:
    pool = from_buffer(bytearray(64))
    async with connect(service.path) as device:
        model = await device.prepare(SUM)
        with await BurstController.open(model.hal) as burst:
            request = Request(ARGUMENTS[:2], ARGUMENTS[2:], (pool,))
            result = await burst.execute(request)
            assert result.status is ErrorStatus.INVALID_ARGUMENT
            shared = Request(ARGUMENTS[:2], ARGUMENTS[2:], (allocate(64),))
            assert (await burst.execute(shared)).status is ErrorStatus.NONE


async def test_more_bursts_than_allowed_are_refused(service: Service) -> None:
    async with connect(service.path) as device:
        model = await device.prepare(SUM)
        bursts = [
            await BurstController.open(model.hal) for _ in range(LIMITS.max_bursts)
        ]
        with pytest.raises(Exception, match="takes no burst"):
            await BurstController.open(model.hal)
        bursts.pop().close()
        with await BurstController.open(model.hal) as burst:
            request = Request(ARGUMENTS[:2], ARGUMENTS[2:], (allocate(64),))
            assert (await burst.execute(request)).status is ErrorStatus.NONE
        for burst in bursts:
            burst.close()


async def test_a_burst_outlives_its_prepared_model(service: Service) -> None:
    async with connect(service.path) as device:
        model = await device.prepare(SUM)
        with await BurstController.open(model.hal) as burst:
            burst._prepared = model = None  # type: ignore[assignment]
            await device.prepare(SUM)  # the release is on its way before this
            request = Request(ARGUMENTS[:2], ARGUMENTS[2:], (allocate(64),))
            assert (await burst.execute(request)).status is ErrorStatus.NONE
    assert model is None


async def test_cancelling_the_opening_releases_the_burst(service: Service) -> None:
    async with connect(service.path) as device:
        model = await device.prepare(SUM)
        for _ in range(4 * LIMITS.max_bursts):
            task = asyncio.ensure_future(BurstController.open(model.hal))
            await asyncio.sleep(0)
            await cancelled(task)
        with await BurstController.open(model.hal):
            pass


class TestOpening:
    """What happens between the driver's answer and the caller's next turn."""

    @pytest.fixture
    def sent(self) -> list[wire.ToDriver]:
        return []

    @pytest.fixture
    def bursts(self, sent: list[wire.ToDriver]) -> RemoteBursts:
        line = Mock(send=lambda message, _: sent.append(message))
        line.send_if_open = sent.append
        pools = Numbers(line, ServiceLimits())
        return RemoteBursts(line, pools)

    async def answered(self, bursts: RemoteBursts) -> "asyncio.Task[tuple]":
        slots, channel = PoolSlots(print), Handle()
        opening = asyncio.create_task(bursts.configure(1, slots, channel, channel))
        await asyncio.sleep(0)
        bursts.configured(wire.BurstConfigured(1, 0, carries_deadlines=True))
        return opening

    @pytest.mark.parametrize(
        "end",
        [
            pytest.param(lambda bursts: bursts.ended(1), id="by the driver"),
            pytest.param(RemoteBursts.close, id="with the driver"),
        ],
    )
    async def test_a_burst_that_has_ended_at_once_is_known_to_be_dead(
        self, bursts: RemoteBursts, end: Callable[[RemoteBursts], None]
    ) -> None:
        opening = await self.answered(bursts)
        end(bursts)
        status, context = await opening
        assert status is ErrorStatus.NONE
        assert context.is_dead
        assert context.carries_deadlines  # the driver's answer says so

    async def test_a_burst_that_nobody_waits_for_is_released(
        self, bursts: RemoteBursts, sent: list[wire.ToDriver]
    ) -> None:
        opening = await self.answered(bursts)
        await cancelled(opening)
        bursts.release(1)
        assert sent[1:] == [wire.ReleaseBurst(1)]


async def test_the_death_of_the_driver_ends_what_waits() -> None:
    with driver_process() as driver:
        async with connect(driver.path) as device:
            model = await device.prepare(SUM)
            controller = await BurstController.open(model.hal)
            request = Request(ARGUMENTS[:2], ARGUMENTS[2:], (allocate(64),))
            assert (await controller.execute(request)).status is ErrorStatus.NONE
            os.kill(driver.pid, signal.SIGSTOP)
            task = asyncio.ensure_future(controller.execute(request))
            await asyncio.sleep(0.05)
            os.kill(driver.pid, signal.SIGKILL)
            result = await asyncio.wait_for(task, 20)
            assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
            assert result.kind is DriverDiedError
            assert "DEAD_OBJECT" in result.reason
            again = await controller.execute(request)
            assert again.status is ErrorStatus.DEVICE_UNAVAILABLE


class Queues:
    """The queues of a raw client's burst."""

    def __init__(self) -> None:
        self.requests = MessageQueue.create(DATUM_BYTES, 1024)
        self.results = MessageQueue.create(DATUM_BYTES, 1024)
        ends = self.requests.descriptor, self.results.descriptor
        self.fds = [fd for end in ends for fd in end.fds]

    def configure(self, number: int, prepared: int = 1) -> wire.ConfigureBurst:
        sizes = (DATUM_BYTES, 1024)
        return wire.ConfigureBurst(number, prepared, sizes, sizes, 3)

    def close(self) -> None:
        self.requests.close()
        self.results.close()


@pytest.fixture
def queues() -> Queues:
    queues = Queues()
    yield queues
    queues.close()


async def ready(client: RawClient) -> RawClient:
    await client.greet()
    await client.prepare(1, SUM.model)
    return client


async def configured(
    client: RawClient, message: wire.ConfigureBurst, fds: Sequence[int]
) -> int:
    client.send(message, fds)
    answer = await client.receive()
    assert isinstance(answer, wire.BurstConfigured)
    assert answer.burst == message.burst
    assert answer.carries_deadlines is message.carries_deadlines
    return answer.status


class TestAHostileClient:
    async def test_may_hang_up_at_any_moment(
        self, attach: Connect, queues: Queues
    ) -> None:
        for moment in range(3):
            client = await ready(attach())
            client.send(queues.configure(5), queues.fds)
            if moment:
                assert isinstance(await client.receive(), wire.BurstConfigured)
            if moment == 2:
                queues.requests.write_nowait(SHAPE.encode((0,), MeasureTiming.NO))
                assert isinstance(await client.receive(), wire.GetMemories)
            client.close()

    async def test_gets_its_results_if_it_answers(
        self, attach: Connect, queues: Queues
    ) -> None:
        client = await ready(attach())
        client.announce(9, allocate(64))
        assert await configured(client, queues.configure(5), queues.fds) == 0
        queues.requests.write_nowait(SHAPE.encode((7,), MeasureTiming.NO))
        asked = await client.receive()
        assert isinstance(asked, wire.GetMemories)
        assert (asked.burst, asked.slots) == (5, (7,))
        client.send(wire.Memories(asked.call, 0, (9,)))
        shape, _ = decode_result(await queues.results.read(timeout=20))
        assert shape.status is ErrorStatus.NONE

    async def test_cannot_have_memory_used_that_can_shrink(
        self, attach: Connect, queues: Queues
    ) -> None:
        client = await ready(attach())
        with tempfile.TemporaryFile() as file:
            file.truncate(64)
            client.announce_fd(9, file.fileno(), 64)
        assert await configured(client, queues.configure(5), queues.fds) == 0
        queues.requests.write_nowait(SHAPE.encode((7,), MeasureTiming.NO))
        asked = await client.receive()
        assert isinstance(asked, wire.GetMemories)
        client.send(wire.Memories(asked.call, 0, (9,)))
        shape, _ = decode_result(await queues.results.read(timeout=20))
        assert shape.status is not ErrorStatus.NONE

    @pytest.mark.parametrize("split", [-1, 7, 2**62])
    async def test_must_say_whose_descriptors_are_whose(
        self, attach: Connect, queues: Queues, split: int
    ) -> None:
        client = await ready(attach())
        message = wire.ConfigureBurst(5, 1, (24, 1024), (24, 1024), split)
        client.send(message, queues.fds)
        assert await client.is_hung_up_on()

    async def test_cannot_have_one_number_for_two_bursts(
        self, attach: Connect, queues: Queues
    ) -> None:
        client = await ready(attach())
        assert await configured(client, queues.configure(5), queues.fds) == 0
        client.send(queues.configure(5), queues.fds)
        assert await client.is_hung_up_on()

    @pytest.mark.parametrize(
        ("message", "status"),
        [
            (wire.ConfigureBurst(5, 2, (24, 1024), (24, 1024), 3), 4),
            (wire.ConfigureBurst(5, 1, (24, 1024), (24, 1024), 2), 4),
            (wire.ConfigureBurst(5, 1, (24, 1024), (24, 1024), 0), 4),
            (wire.ConfigureBurst(5, 1, (24, 512), (24, 1024), 3), 4),
            (wire.ConfigureBurst(5, 1, (24, 2**62), (24, 1024), 3), 4),
            (wire.ConfigureBurst(5, 1, (-24, -1024), (24, 1024), 3), 4),
            (wire.ConfigureBurst(5, 1, (), (24, 1024), 3), 4),
            (wire.ConfigureBurst(5, 1, (12, 2048), (24, 1024), 3), 4),
            (wire.ConfigureBurst(5, 1, (24, 1024), (12, 2048), 3), 4),
        ],
    )
    async def test_is_refused_queues_that_are_none(
        self, attach: Connect, queues: Queues, message: wire.ConfigureBurst, status: int
    ) -> None:
        client = await ready(attach())
        assert await configured(client, message, queues.fds) == status
        assert await configured(client, queues.configure(5), queues.fds) == 0

    async def test_is_refused_descriptors_of_other_things(
        self, attach: Connect, queues: Queues
    ) -> None:
        client = await ready(attach())
        pipe = os.pipe()
        for fds in (pipe * 3, (0,) * 6, queues.fds[::-1]):
            status = await configured(client, queues.configure(5), fds)
            assert status in (2, 4)
        for fd in pipe:
            os.close(fd)

    async def test_speaks_of_bursts_that_are_not_in_vain(
        self, attach: Connect, queues: Queues
    ) -> None:
        client = await ready(attach())
        client.send(wire.FreeMemory(6, 1))
        client.send(wire.CancelBurstRequest(6, 1))
        client.send(wire.ReleaseBurst(6))
        assert await configured(client, queues.configure(5), queues.fds) == 0
        client.send(wire.FreeMemory(5, -(2**60)))
        client.send(wire.CancelBurstRequest(5, -1))
        client.send(wire.ReleaseBurst(5))
        assert await configured(client, queues.configure(5), queues.fds) == 0

    async def test_may_release_a_burst_before_it_is_open(
        self, attach: Connect, queues: Queues
    ) -> None:
        client = await ready(attach())
        for _ in range(3):
            client.send(queues.configure(5), queues.fds)
            client.send(wire.ReleaseBurst(5))
        client.send(queues.configure(6), queues.fds)
        while not isinstance(answer := await client.receive(), wire.BurstConfigured):
            pass
        assert answer.burst in (5, 6)

    @pytest.mark.parametrize("make", SOCKETS)
    async def test_gets_its_results_though_its_bells_are_none(
        self,
        attach: Connect,
        service: Service,
        queues: Queues,
        make: Callable[[ExitStack], socket.socket],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        # As in two processes, where ends ring for each other.
        monkeypatch.setattr(queue, "_introduce", lambda *_: None)
        client = await ready(attach())
        client.announce(9, allocate(64))
        with ExitStack() as stack, words_of(queues.results) as words:
            bell = make(stack).fileno()
            fds = [bell if k % 3 == 2 else fd for k, fd in enumerate(queues.fds)]
            assert await configured(client, queues.configure(5), fds) == 0
            for number in range(10):
                words[READER_SLEEPS] = 1
                queues.requests.write_nowait(SHAPE.encode((7,), MeasureTiming.NO))
                if not number:
                    asked = await client.receive()
                    assert isinstance(asked, wire.GetMemories)
                    client.send(wire.Memories(asked.call, 0, (9,)))
                await until(queues.results.is_readable)
                shape, _ = decode_result(queues.results.read_nowait())
                assert shape.status is ErrorStatus.NONE
            assert await is_served(service.path)
        assert not [each for each in caplog.records if each.levelname != "DEBUG"]

    async def test_does_not_fill_the_log_with_bursts_that_it_breaks(
        self, attach: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "asyncnn")
        client = await ready(attach())
        for number in range(30):
            with ExitStack() as stack:
                queues = Queues()
                stack.callback(queues.close)
                message = queues.configure(number)
                assert await configured(client, message, queues.fds) == 0
                queues.requests.write_nowait(bytes(DATUM_BYTES))
                add_to_word(queues.requests, WRITTEN, 2**50)
                assert await client.receive() == wire.BurstEnded(number)
        assert len(caplog.records) <= 3

    @pytest.mark.parametrize("word", [16, 0])
    async def test_is_told_that_its_counters_ended_the_burst(
        self, attach: Connect, queues: Queues, word: int
    ) -> None:
        client = await ready(attach())
        assert await configured(client, queues.configure(5), queues.fds) == 0
        queues.requests.write_nowait(bytes(DATUM_BYTES))
        add_to_word(queues.requests if word else queues.results, word, 2**50)
        assert await client.receive() == wire.BurstEnded(5)
