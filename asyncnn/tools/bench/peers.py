"""Other ways to exchange bytes with another process, as peers of benchmarks.

Each is a context: it starts a process on a CPU, yields the call to be measured, and
ends the process. A call returns what the other process answered, or an awaitable of it.
What has to be installed raises `PeerMissingError` where it is not.
"""

import asyncio
import contextlib
import ctypes
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncnn import hal
from asyncnn.hal.operations.bound import Array
from asyncnn.service import wire
from asyncnn.tools.bench.environment import peer_module
from asyncnn.tools.bench.made_models import LENGTH
from asyncnn.tools.bench.processes import READY, SPAWN, Pipe, process, temporary_folder
from asyncnn.tools.bench.rounds import OWN, Batches, Call, Samples, timed

_grpc_aio = partial(peer_module, "grpc.aio", "grpcio", "asyncnn[bench]")
_uvloop = partial(peer_module, "uvloop", "uvloop", "uvloop")
_iceoryx = partial(peer_module, "iceoryx2", "iceoryx2", "iceoryx2")

_SERVICE, _METHOD = "asyncnn.bench", "echo"
_LOOKS = 64
_LAST = 1


class Exchange(msgspec.Struct, frozen=True):
    """Bytes of a request and of the response to it."""

    request: int
    response: int


def exchanged_bytes() -> Exchange:
    """Return how many bytes an execution sends and receives over the socket."""
    # Numbers of an ordinary size; the first few take a byte less.
    execute = wire.ExecuteBound(
        execution=1000,
        bound=1,
        measure=hal.MeasureTiming.NO,
        deadline=None,
        loop_timeout=None,
    )
    shapes = (hal.OutputShape((LENGTH,), True),)
    executed = wire.Executed(1000, hal.ErrorStatus.NONE, shapes, hal.NO_TIMING, "")
    kind_bytes = 1
    return Exchange(
        *(kind_bytes + len(wire.encode(each)) for each in (execute, executed))
    )


@contextlib.asynccontextmanager
async def pipe_echo(
    cpu: int, exchange: Exchange, messages: int = 1
) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe`, blocking at both ends; so many messages, one answer."""
    request = bytes(exchange.request)
    with process(cpu, _serve_pipe, exchange.response, messages) as pipe:

        def call() -> bytes:
            for _ in range(messages):
                pipe.send_bytes(request)
            return pipe.recv_bytes()

        yield call


def _serve_pipe(pipe: Pipe, response: int, messages: int) -> None:
    answer = bytes(response)
    pipe.send_bytes(READY)
    while True:
        for _ in range(messages):
            pipe.recv_bytes()
        pipe.send_bytes(answer)


@contextlib.asynccontextmanager
async def streams_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """Streams of asyncio over a Unix-domain socket, at both ends."""
    request = bytes(exchange.request)
    with (
        temporary_folder() as folder,
        process(cpu, _serve_streams, folder / "s", exchange),
    ):
        reader, writer = await asyncio.open_unix_connection(folder / "s")

        async def call() -> bytes:
            writer.write(request)
            return await reader.readexactly(exchange.response)

        try:
            yield call
        finally:
            writer.close()
            await writer.wait_closed()


async def _serve_streams(pipe: Pipe, path: Path, exchange: Exchange) -> None:
    answer = bytes(exchange.response)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readexactly(exchange.request)
                writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, path) as server:
        pipe.send_bytes(READY)
        await server.serve_forever()


@contextlib.asynccontextmanager
async def uvloop_echo(
    client_cpu: int, cpu: int, exchange: Exchange
) -> AsyncIterator[Batches]:
    """Streams over a Unix-domain socket on uvloop at both ends, in two processes."""
    _uvloop()
    with (
        temporary_folder() as folder,
        process(cpu, _on_uvloop, _serve_streams, folder / "s", exchange),
        process(client_cpu, _on_uvloop, _call_streams, folder / "s", exchange) as pipe,
    ):

        async def measured(runs: int) -> Samples:
            pipe.send(runs)
            return {OWN: pipe.recv()}

        yield Batches(measured)


def _on_uvloop(
    pipe: Pipe,
    serve: Callable[[Pipe, Path, Exchange], Coroutine[Any, Any, None]],
    path: Path,
    exchange: Exchange,
) -> None:
    with asyncio.Runner(loop_factory=_uvloop().new_event_loop) as runner:
        runner.run(serve(pipe, path, exchange))


async def _call_streams(pipe: Pipe, path: Path, exchange: Exchange) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    request = bytes(exchange.request)

    async def call() -> bytes:
        writer.write(request)
        return await reader.readexactly(exchange.response)

    batch = await timed(call)
    pipe.send_bytes(READY)
    while True:
        pipe.send((await batch(pipe.recv()))[OWN])


@contextlib.asynccontextmanager
async def grpc_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """A unary call of `grpc.aio` over a Unix-domain socket, bytes as they are."""
    aio = _grpc_aio()
    with temporary_folder() as folder:
        address = f"unix:{folder / 's'}"
        with process(cpu, _serve_grpc, address, exchange.response):
            async with aio.insecure_channel(address) as channel:
                method = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
                yield partial(method, bytes(exchange.request))


async def _serve_grpc(pipe: Pipe, address: str, response: int) -> None:
    aio, grpc = _grpc_aio(), peer_module("grpc", "grpcio", "asyncnn[bench]")
    answer = bytes(response)

    async def echo(request: bytes, context: object) -> bytes:
        return answer

    handlers = {_METHOD: grpc.unary_unary_rpc_method_handler(echo)}
    server = aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(_SERVICE, handlers),)
    )
    server.add_insecure_port(address)
    await server.start()
    pipe.send_bytes(READY)
    await server.wait_for_termination()


def _zmq() -> Any:
    peer_module("zmq.asyncio", "pyzmq", "pyzmq")
    return peer_module("zmq", "pyzmq", "pyzmq")


@contextlib.asynccontextmanager
async def zmq_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """Request and reply of pyzmq over a Unix-domain socket, awaited at both ends."""
    zmq = _zmq()
    request = bytes(exchange.request)
    with temporary_folder() as folder:
        address = f"ipc://{folder / 's'}"
        with (
            process(cpu, _serve_zmq, address, exchange.response),
            zmq.asyncio.Context() as context,
            context.socket(zmq.REQ) as socket,
        ):
            socket.linger = 0
            socket.connect(address)

            async def call() -> bytes:
                await socket.send(request)
                answer: bytes = await socket.recv()
                return answer

            yield call


async def _serve_zmq(pipe: Pipe, address: str, response: int) -> None:
    zmq = _zmq()
    socket = zmq.asyncio.Context().socket(zmq.REP)
    socket.bind(address)
    answer = bytes(response)
    pipe.send_bytes(READY)
    while True:
        await socket.recv()
        await socket.send(answer)


@contextlib.asynccontextmanager
async def iceoryx_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Batches]:
    """Request and response of iceoryx2 in shared memory, by looking again and again.

    The other process only looks while calls are measured.
    """
    iceoryx = _iceoryx()
    name = f"asyncnn-bench-{os.getpid()}-{time.monotonic_ns()}"
    request = bytes(exchange.request)
    last = bytes([_LAST]) + request[1:]
    with process(cpu, _serve_iceoryx, name, exchange) as pipe:
        client = _iceoryx_service(iceoryx, name, exchange).client_builder().create()

        def call(data: bytes) -> bytes:
            loan = client.loan_uninit()
            ctypes.memmove(loan.payload_ptr, data, len(data))
            pending = loan.assume_init().send()
            response = _polled(pending.receive)
            return ctypes.string_at(response.payload_ptr, exchange.response)

        async def measured(runs: int) -> Samples:
            pipe.send_bytes(READY)
            samples = await (await timed(partial(call, request)))(runs)
            call(last)
            return samples

        yield Batches(measured)


def _serve_iceoryx(pipe: Pipe, name: str, exchange: Exchange) -> None:
    server = _iceoryx_service(_iceoryx(), name, exchange).server_builder().create()
    answer = bytes(exchange.response)
    pipe.send_bytes(READY)
    while True:
        pipe.recv_bytes()
        is_last = False
        while not is_last:
            request = _polled(server.receive)
            is_last = ctypes.string_at(request.payload_ptr, 1)[0] == _LAST
            loan = request.loan_uninit()
            ctypes.memmove(loan.payload_ptr, answer, len(answer))
            loan.assume_init().send()


def _iceoryx_service(iceoryx: Any, name: str, exchange: Exchange) -> Any:
    iceoryx.set_log_level(iceoryx.LogLevel.Error)
    node = iceoryx.NodeBuilder.new().create(iceoryx.ServiceType.Ipc)
    builder = node.service_builder(iceoryx.ServiceName.new(name))
    return builder.request_response(
        ctypes.c_uint8 * exchange.request, ctypes.c_uint8 * exchange.response
    ).open_or_create()


def _polled(receive: Callable[[], Any]) -> Any:
    """Look until something has come, and leave the core to others now and then."""
    while True:
        for _ in range(_LOOKS):
            received = receive()
            if received is not None:
                return received
        os.sched_yield()


IMAGE_SHAPE = (1, 224, 224, 3)
RESULT_SHAPE = (1, 7, 143, 1)
"""1001 numbers that stand for a result."""


def cut(image: Array) -> Array:
    """Return the 1001 numbers that stand for a result; costs as good as nothing."""
    _, rows, columns, channels = RESULT_SHAPE
    return np.ascontiguousarray(image[:, :rows, :columns, :channels])


@contextlib.asynccontextmanager
async def pipe_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe` with NumPy arrays, blocking at both ends."""
    with process(cpu, _serve_pipe_image) as pipe:

        def call() -> Array:
            pipe.send(image)
            result: Array = pipe.recv()
            return result

        yield call


def _serve_pipe_image(pipe: Pipe) -> None:
    pipe.send_bytes(READY)
    while True:
        pipe.send(cut(pipe.recv()))


@contextlib.asynccontextmanager
async def executor_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`ProcessPoolExecutor` of one process with NumPy arrays, awaited."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(
        1, SPAWN, initializer=os.sched_setaffinity, initargs=(0, {cpu})
    ) as executor:
        yield lambda: loop.run_in_executor(executor, cut, image)
