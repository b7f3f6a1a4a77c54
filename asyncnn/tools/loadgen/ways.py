"""Systems under test: this project's devices, transports and paths, and users' own.

Users would write an executor around LiteRT's interpreter, ONNX Runtime in
`asyncio.to_thread`, and threads without an event loop. Systems that compute nothing are
bounds of what any can reach.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
)
from functools import partial
from pathlib import Path
from statistics import median
from threading import local
from typing import Any, TypeAlias, cast, get_args

import msgspec
import numpy as np

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.axes import as_options, example_shapes
from asyncnn.runtime.burst import Burst
from asyncnn.runtime.execution_options import Path as HalPath
from asyncnn.runtime.model import NamedModel, has_fixed_shape
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.rounds import OWN, timed
from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
from asyncnn.tools.loadgen import Scenario
from asyncnn.tools.loadgen.library import Library
from asyncnn.tools.loadgen.systems import (
    AwaitExecute,
    BlockingSystem,
    Execute,
    LoopSystem,
    SampleSlot,
    System,
    ThreadsafeSystem,
    ThreadsSystem,
    await_and_answer,
    slots_of,
)
from asyncnn.tools.onnx_writer import OnnxRuntime
from asyncnn.tools.other_runtimes import LiteRt

TRANSPORTS = IN_PROCESS, REMOTE
THREADSAFE, BURST = "threadsafe", "burst"
PATHS = (THREADSAFE, *get_args(HalPath), BURST)
"""How queries reach the device: launched by LoadGen's thread, or by a HAL call."""

SERVED = "grpc://"
"""Begins the transport to a model of a server: ``grpc://HOST:PORT/NAME``."""

_TRIED = 8

Serving: TypeAlias = AbstractAsyncContextManager[System]


class QueryWay(msgspec.Struct, frozen=True):
    """A transport and a path, by which as many executions go as there are ``lanes``.

    ``by_loop``, bursts are awaited in every scenario.
    """

    transport: str = IN_PROCESS
    path: str = THREADSAFE
    lanes: int = 2
    by_loop: bool = False

    def __str__(self) -> str:
        return f"{self.transport}, {self.path}"


def check_model(model: NamedModel) -> None:
    """Check that LoadGen's queries can be executed on arrays that are made once.

    :raises InvalidArgumentError: if the model leaves shapes open.
    """
    for info in (*model.inputs, *model.outputs):
        if not has_fixed_shape(info):
            shapes = {
                each.name: [
                    n or name
                    for n, name in zip(each.dimensions, each.lengths, strict=True)
                ]
                for each in model.inputs
            }
            options = as_options(example_shapes(shapes))
            raise InvalidArgumentError(
                f"{info.name} has no fixed shape",
                hint=f"give shapes of inputs, such as {options}",
            )


@asynccontextmanager
async def system_of(
    prepared: PreparedModel, library: Library, way: QueryWay, scenario: Scenario
) -> AsyncIterator[System]:
    """Make the system that goes one way; it ends with the block.

    A burst has one execution at a time, so that there are several of them. Where each
    query waits for the one before, LoadGen's own thread executes by burst.
    """
    lanes = way.lanes
    if way.path == THREADSAFE:
        # Twice as many as lanes: each has its next execution before it asks for it.
        yield ThreadsafeSystem(slots_of(prepared.reusable, library, 2 * lanes))
        return
    async with AsyncExitStack() as stack:
        if way.path != BURST:
            make = partial(prepared.reusable, path=cast("HalPath", way.path))
            executes = [_awaited(slot) for slot in slots_of(make, library, 2 * lanes)]
        elif scenario is Scenario.SINGLE_STREAM and not way.by_loop:
            burst = await stack.enter_async_context(prepared.burst())
            # On a thread: then the loop never listens for results.
            await asyncio.to_thread(burst.run_in_place_blocking)
            yield BlockingSystem(_blocking(burst, library))
            return
        else:
            spins = scenario is Scenario.SINGLE_STREAM
            bursts = [
                await stack.enter_async_context(prepared.burst(spins=spins))
                for _ in range(1 if spins else lanes)
            ]
            executes = [_by_burst(burst, library) for burst in bursts]
        system = LoopSystem(executes)
        yield await stack.enter_async_context(system.serving())


def _awaited(slot: SampleSlot) -> AwaitExecute:
    async def execute(number: int) -> Sequence[Array]:
        await slot.executions[number].run()
        return slot.outputs

    return execute


def _placing(
    burst: Burst, library: Library
) -> tuple[Callable[[int], None], list[Array]]:
    """Return what copies a sample into the inputs of a burst, and its outputs."""
    places = [burst.input(k) for k in range(len(library.inputs[0]))]

    def put(number: int) -> None:
        for place, array in zip(places, library.inputs[number], strict=True):
            np.copyto(place, array)

    return put, [burst.output(k) for k in range(library.output_count)]


def _by_burst(burst: Burst, library: Library) -> AwaitExecute:
    put, outputs = _placing(burst, library)

    async def execute(number: int) -> Sequence[Array]:
        put(number)
        await burst.run_in_place()
        return outputs

    return execute


def _blocking(burst: Burst, library: Library) -> Execute:
    put, outputs = _placing(burst, library)

    def execute(number: int) -> Sequence[Array]:
        put(number)
        burst.run_in_place_blocking()
        return outputs

    return execute


async def latency_s(run: Callable[[], Awaitable[object]]) -> float:
    """Return about how many seconds an execution takes, one after the other."""
    batch = await timed(run)
    return median((await batch(_TRIED))[OWN][_TRIED // 2 :]) / 1e6


def litert_execute(path: Path, library: Library) -> Execute:
    """Return what executes samples on a LiteRT interpreter of one thread.

    :raises PeerMissingError: if LiteRT is not installed.
    :raises PeerRefusedError: if it cannot load the model.
    """
    peer = LiteRt(path)
    inputs = library.inputs
    peer.run(inputs[0])
    return lambda number: peer.run(inputs[number])


class TaskSystem(System):
    """A task for each query, as an application has one for each request.

    LoadGen's thread hands queries to the loop as they come. ``execute`` awaits one.
    """

    def __init__(self, execute: AwaitExecute) -> None:
        self._loop = asyncio.get_running_loop()
        self._execute = execute
        self._tasks: set[asyncio.Task[None]] = set()

    def issue(self, queries: Sequence[Any]) -> None:
        """See `System`."""
        self._answers.expect(len(queries))
        self._loop.call_soon_threadsafe(self._start, queries)

    def _start(self, queries: Sequence[Any]) -> None:
        for query in queries:
            answering = await_and_answer(self._execute, query, self._answers)
            task = self._loop.create_task(answering)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[System]:
        """Serve for the length of an ``async with`` block; wait for what was begun."""
        yield self
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def executor_system(
    path: Path, library: Library, threads: int
) -> AsyncIterator[System]:
    """LiteRT in an executor, with an interpreter for each of its ``threads``."""
    executes = [litert_execute(path, library) for _ in range(threads)]
    own = local()

    def take() -> None:
        own.execute = executes.pop()

    def execute(number: int) -> Sequence[Array]:
        result: Sequence[Array] = own.execute(number)
        return result

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(threads, initializer=take) as pool:
        system = TaskSystem(lambda number: loop.run_in_executor(pool, execute, number))
        async with system.serving():
            yield system


def to_thread_system(named: NamedModel, library: Library) -> Serving:
    """ONNX Runtime in `asyncio.to_thread`, on an ONNX file of the same model.

    :raises PeerMissingError: if ONNX Runtime or the package onnx is not installed.
    :raises PeerRefusedError: if the model cannot be rewritten as ONNX.
    """
    session = OnnxRuntime(named)
    feeds = [session.converted(inputs) for inputs in library.inputs]
    session.run(feeds[0])

    async def execute(number: int) -> Sequence[Array]:
        return await asyncio.to_thread(session.run, feeds[number])

    return TaskSystem(execute).serving()


@asynccontextmanager
async def threads_system(
    path: Path, library: Library, threads: int
) -> AsyncIterator[System]:
    """Plain threads with an interpreter each and one queue, without an event loop."""
    executes = [litert_execute(path, library) for _ in range(threads)]
    with ThreadsSystem(executes).serving() as system:
        yield system


@asynccontextmanager
async def served_model(
    transport: str, named: NamedModel, library: Library
) -> AsyncIterator[tuple[str, str, AwaitExecute]]:
    """Reach a model by gRPC, each sample a call as clients of its server make them.

    Yields the server, its version, and what has it execute a sample.

    :raises InvalidArgumentError: if no model is named, or a package is missing.
    :raises GeneralFailureError: if it does not answer, or refuses a call.
    """
    address, _, name = transport.removeprefix(SERVED).partition("/")
    if not (address and name):
        raise InvalidArgumentError(
            f"{transport} names no model", hint="grpc://HOST:PORT/NAME"
        )
    try:
        import grpc.aio  # type: ignore[import-untyped]

        from asyncnn.oip.datatypes import datatype_of
        from asyncnn.oip.messages import SERVICE, message_class
    except ImportError as error:
        raise InvalidArgumentError(
            f"calls by gRPC need packages: {error}", hint="pip install asyncnn[oip]"
        ) from error

    def sent(inputs: Sequence[Array]) -> bytes:
        message = message_class("ModelInferRequest")(model_name=name)
        for info, array in zip(named.inputs, inputs, strict=True):
            kind, shape = datatype_of(array), array.shape
            message.inputs.add(name=info.name, datatype=kind, shape=shape)
            message.raw_input_contents.append(array.tobytes())
        data: bytes = message.SerializeToString()
        return data

    samples = list(map(sent, library.inputs))
    async with grpc.aio.insecure_channel(
        address, options=(("grpc.max_receive_message_length", -1),)
    ) as channel:

        async def called(method: str, data: bytes = b"") -> Any:
            call = channel.unary_unary(f"/{SERVICE}/{method}")
            try:
                return message_class(f"{method}Response").FromString(await call(data))
            except grpc.aio.AioRpcError as error:
                words = f"{transport}: {error.details()}"
                raise GeneralFailureError(words) from None

        async def execute(number: int) -> Sequence[Array]:
            answer = await called("ModelInfer", samples[number])
            names = [each.name for each in answer.outputs]
            found = dict(zip(names, answer.raw_output_contents, strict=True))
            return [np.frombuffer(found[i.name], np.uint8) for i in named.outputs]

        server = await called("ServerMetadata")
        yield server.name, server.version, execute


def _nothing(number: int) -> Sequence[Array]:
    return ()


async def _awaited_nothing(number: int) -> Sequence[Array]:
    return ()


def at_once_system(*, by_loop: bool) -> Serving:
    """A system that computes nothing: on LoadGen's thread, or through the loop."""
    if by_loop:
        return TaskSystem(_awaited_nothing).serving()
    return nullcontext(BlockingSystem(_nothing))
