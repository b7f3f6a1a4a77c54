"""A client that sends each message there is, and hangs up at any moment.

Every step gives the driver a turn, or waits for an answer: there the client goes away.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeAlias

from asyncnn.burst.packets import DATUM_BYTES, RequestShape
from asyncnn.fences import SyncFence
from asyncnn.fmq import MessageQueue
from asyncnn.hal.types import (
    BufferRole,
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    RequestArgument,
)
from asyncnn.memory.shared import allocate
from asyncnn.service import wire
from asyncnn.service.wire import CacheInfo
from tests.networks import addition, chain
from tests.service.raw import RawClient, execute, ping, prepare
from tests.sweep.scenario import add_scenario
from tests.sweep.stages import Stage

SUM = addition(4).model
SPANS = ((0, 0, 16), (0, 16, 16), (0, 32, 16))
PLACES = tuple(RequestArgument(location=DataLocation(*span)) for span in SPANS)
MODEL, POOL, BUFFER, BURST, NUMBER = 1, 2, 3, 4, 5
ROLE = BufferRole(0, 0, 1.0)
CACHE = CacheInfo(1, 1, bytes(32))


class Client:
    """A raw client that can be cancelled after each message."""

    def __init__(self, stage: Stage, raw: RawClient, stack: ExitStack) -> None:
        self.raw = raw
        self.folder = stage.folder
        self.stack = stack
        self._files: list[int] = []

    async def tell(self, message: wire.ToDriver, *fds: int) -> None:
        """Send a message, and let the driver take it."""
        self.raw.send(message, fds)
        await asyncio.sleep(0)

    async def ask(self, message: wire.ToDriver, *fds: int) -> Any:
        """Send a message and return the next one that comes."""
        await self.tell(message, *fds)
        return await self.raw.receive()

    async def has(self, *what: int) -> None:
        """Have a model, a pool, and a buffer, as far as they are named."""
        await self.ask(wire.Hello(wire.PROTOCOL_VERSION))
        if MODEL in what:
            model = SUM if BUFFER not in what else chain(1, 4).model
            prepared = await self.ask(prepare(MODEL, model))
            assert prepared.status == ErrorStatus.NONE
        if POOL in what:
            self.raw.announce(POOL, allocate(64))
            await asyncio.sleep(0)
        if BUFFER in what:
            order = wire.Allocate(BUFFER, (), (MODEL,), (ROLE,), (ROLE,))
            assert (await self.ask(order)).status == ErrorStatus.NONE

    def files(self) -> list[int]:
        """Return the descriptors of a model's cache files, its own."""
        while len(self._files) < 2:
            fd, name = tempfile.mkstemp(dir=self.folder)
            self.stack.callback(os.close, fd)
            os.unlink(name)
            self._files.append(fd)
        return self._files

    def queues(self) -> tuple[MessageQueue, MessageQueue]:
        """Return the two queues of a burst."""
        requests, results = (MessageQueue.create(DATUM_BYTES, 1024) for _ in range(2))
        self.stack.enter_context(requests)
        self.stack.enter_context(results)
        return requests, results


Exchange: TypeAlias = Callable[[Client], Coroutine[Any, Any, None]]


@asynccontextmanager
async def attached(stage: Stage) -> AsyncIterator[Client]:
    with ExitStack() as stack:
        raw = RawClient.connect(stage.path)
        stack.callback(raw.close)
        yield Client(stage, raw, stack)


async def hello(client: Client) -> None:
    assert isinstance(await client.ask(wire.Hello(wire.PROTOCOL_VERSION)), wire.Welcome)


async def announce_pools(client: Client) -> None:
    await client.has(POOL)
    assert await client.ask(ping(NUMBER))


async def forget_pools(client: Client) -> None:
    await client.has(POOL)
    await client.tell(wire.ForgetPools((POOL,)))
    assert await client.ask(ping(NUMBER))


async def get_supported_operations(client: Client) -> None:
    await client.has()
    assert (await client.ask(ping(NUMBER))).supported == (True,)


async def get_statistics(client: Client) -> None:
    await client.has()
    assert (await client.ask(wire.GetStatistics(NUMBER))).statistics


async def prepare_model(client: Client) -> None:
    await client.has()
    model = wire.PrepareModel(MODEL, SUM, (), 1, 1, None, CACHE)
    assert (await client.ask(model, *client.files())).status == ErrorStatus.NONE


async def prepare_model_from_cache(client: Client) -> None:
    await prepare_model(client)
    loaded = wire.PrepareModelFromCache(NUMBER, CACHE, None)
    assert (await client.ask(loaded, *client.files())).status == ErrorStatus.NONE


async def save_model(client: Client) -> None:
    await client.has(MODEL)
    saved = await client.ask(wire.SaveModel(NUMBER, MODEL, CACHE), *client.files())
    assert saved == wire.ModelSaved(NUMBER, ErrorStatus.NONE)


async def release_prepared_model(client: Client) -> None:
    await client.has()
    await client.tell(prepare(MODEL, chain(300, 4).model))
    await client.tell(wire.ReleasePreparedModel(MODEL))
    assert await client.ask(ping(NUMBER))


def order(number: int = NUMBER) -> wire.Execute:
    return execute(number, MODEL, *SPANS, pools=(POOL,))


async def execute_(client: Client) -> None:
    await client.has(MODEL, POOL)
    assert (await client.ask(order())).status == ErrorStatus.NONE


async def bind_request(client: Client) -> None:
    await client.has(MODEL, POOL)
    await client.tell(wire.BindRequest(NUMBER, MODEL, PLACES[:2], PLACES[2:], (POOL,)))


async def execute_bound(client: Client) -> None:
    await bind_request(client)
    done = await client.ask(wire.ExecuteBound(NUMBER, NUMBER, 0, None, None))
    assert done.status == ErrorStatus.NONE


async def execute_fenced(client: Client) -> None:
    await client.has(MODEL, POOL)
    gate, source = SyncFence.pair()
    await client.tell(wire.ExecuteFenced(order(), (0,), None, 0), gate.fileno())
    source.signal()
    done = await client.raw.receive()
    assert isinstance(done, wire.FencedDone)


async def several(client: Client) -> None:
    await client.has(MODEL, POOL)
    first = wire.ExecuteFenced(order(), (), None, 0)
    second = wire.ExecuteFenced(order(NUMBER + 1), (NUMBER,), None, 0)
    assert isinstance(await client.ask(wire.Several((first, second))), wire.FencedDone)


async def export_fence(client: Client) -> None:
    await client.has(MODEL, POOL)
    gate, source = SyncFence.pair()
    await client.tell(wire.ExecuteFenced(order(), (0,), None, 0), gate.fileno())
    reader, writer = os.pipe()
    client.stack.callback(os.close, reader)
    client.stack.callback(os.close, writer)
    await client.tell(wire.ExportFence(NUMBER), writer)
    source.signal()
    await client.raw.receive()


async def cancel_execution(client: Client) -> None:
    await client.has(MODEL, POOL)
    await client.tell(order())
    await client.tell(wire.CancelExecution(NUMBER))
    assert isinstance(await client.raw.receive(), wire.Executed)


async def allocate_(client: Client) -> None:
    await client.has(MODEL, BUFFER)
    await client.tell(wire.ForgetPools((BUFFER,)))


async def copy_buffer_from(client: Client) -> None:
    await client.has(MODEL, POOL, BUFFER)
    client.raw.announce(NUMBER, allocate(16))
    copied = await client.ask(wire.CopyBufferFrom(NUMBER, BUFFER, NUMBER, ()))
    assert copied.status == ErrorStatus.NONE


async def copy_buffer_to(client: Client) -> None:
    await copy_buffer_from(client)
    copied = await client.ask(wire.CopyBufferTo(NUMBER, BUFFER, NUMBER))
    assert copied.status == ErrorStatus.NONE


async def configure_burst(client: Client) -> tuple[MessageQueue, MessageQueue]:
    await client.has(MODEL, POOL)
    requests, results = client.queues()
    sizes = (DATUM_BYTES, 1024)
    fds = [*requests.descriptor.fds, *results.descriptor.fds]
    split = len(requests.descriptor.fds)
    message = wire.ConfigureBurst(BURST, MODEL, sizes, sizes, split)
    assert (await client.ask(message, *fds)).status == ErrorStatus.NONE
    return requests, results


async def memories(client: Client) -> None:
    requests, results = await configure_burst(client)
    shape = RequestShape.of(PLACES[:2], PLACES[2:], 1)
    assert requests.write_nowait(shape.encode((7,), MeasureTiming.NO))
    asked = await client.raw.receive()
    assert isinstance(asked, wire.GetMemories)
    await client.tell(wire.Memories(asked.call, ErrorStatus.NONE, (POOL,)))
    assert await results.read(timeout=20)


async def cancel_burst_request(client: Client) -> None:
    requests, _ = await configure_burst(client)
    shape = RequestShape.of(PLACES[:2], PLACES[2:], 1)
    assert requests.write_nowait(shape.encode((7,), MeasureTiming.NO))
    asked = await client.raw.receive()
    assert isinstance(asked, wire.GetMemories)
    await client.tell(wire.CancelBurstRequest(BURST, 1))


async def free_memory(client: Client) -> None:
    await memories(client)
    await client.tell(wire.FreeMemory(BURST, 7))


async def release_burst(client: Client) -> None:
    await memories(client)
    await client.tell(wire.ReleaseBurst(BURST))
    assert await client.ask(ping(NUMBER))


EXCHANGES: dict[type[wire.ToDriver], Exchange] = {
    wire.Hello: hello,
    wire.AnnouncePools: announce_pools,
    wire.ForgetPools: forget_pools,
    wire.Memories: memories,
    wire.GetSupportedOperations: get_supported_operations,
    wire.GetStatistics: get_statistics,
    wire.PrepareModel: prepare_model,
    wire.PrepareModelFromCache: prepare_model_from_cache,
    wire.SaveModel: save_model,
    wire.ReleasePreparedModel: release_prepared_model,
    wire.Execute: execute_,
    wire.BindRequest: bind_request,
    wire.ExecuteBound: execute_bound,
    wire.ExecuteFenced: execute_fenced,
    wire.ExportFence: export_fence,
    wire.Several: several,
    wire.CancelExecution: cancel_execution,
    wire.ConfigureBurst: configure_burst,
    wire.FreeMemory: free_memory,
    wire.CancelBurstRequest: cancel_burst_request,
    wire.ReleaseBurst: release_burst,
    wire.Allocate: allocate_,
    wire.CopyBufferTo: copy_buffer_to,
    wire.CopyBufferFrom: copy_buffer_from,
}


def played(exchange: Exchange) -> Callable[[Stage], Coroutine[Any, Any, None]]:
    async def play(stage: Stage) -> None:
        async with attached(stage) as client:
            await exchange(client)

    return play


for exchange in EXCHANGES.values():
    words = exchange.__name__.strip("_").replace("_", "-")
    add_scenario(f"message-{words}", played(exchange), "served")
