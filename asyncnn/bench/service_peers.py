"""The peers of ``asyncnn bench service``: other ways to have another process work.

Each is a context: it starts a process on a CPU, yields the call to be measured, and
ends the process. A call returns what the other process answered, or an awaitable of it.
"""

import asyncio
import contextlib
import importlib.metadata
import multiprocessing
import os
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from asyncnn.bench.litert import PeerMissingError
from asyncnn.hal.operations.bound import Array

IMAGE_SHAPE = (1, 224, 224, 3)
RESULT_SHAPE = (1, 7, 143, 1)
"""1001 numbers."""

_METHOD = "asyncnn.bench/echo"
_READY = b"ready"
_SPAWN = multiprocessing.get_context("spawn")

Call: TypeAlias = Callable[[], Any]
_Pipe: TypeAlias = "Connection[Any, Any]"


class Exchange(msgspec.Struct, frozen=True):
    """Bytes of a request and of the response to it."""

    request: int
    response: int


def cut(image: Array) -> Array:
    """Return the 1001 numbers that stand for a result; costs as good as nothing."""
    _, rows, columns, channels = RESULT_SHAPE
    return np.ascontiguousarray(image[:, :rows, :columns, :channels])


@contextlib.contextmanager
def pinned(cpu: int) -> Iterator[None]:
    """Keep this thread, and what it starts, on one CPU."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.asynccontextmanager
async def pipe_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe`, blocking at both ends."""
    request = bytes(exchange.request)
    with process(cpu, _serve_pipe, exchange.response) as pipe:

        def call() -> bytes:
            pipe.send_bytes(request)
            return pipe.recv_bytes()

        yield call


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


@contextlib.asynccontextmanager
async def grpc_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """A unary call of `grpc.aio` over a Unix-domain socket, bytes as they are.

    :raises PeerMissingError: if grpcio is not installed.
    """
    aio = _grpc().aio
    request = bytes(exchange.request)
    with temporary_folder() as folder:
        address = f"unix:{folder / 's'}"
        with process(cpu, _serve_grpc, address, exchange.response):
            async with aio.insecure_channel(address) as channel:
                method = channel.unary_unary(f"/{_METHOD}")

                async def call() -> bytes:
                    answer: bytes = await method(request)
                    return answer

                yield call


@contextlib.asynccontextmanager
async def pipe_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe` with NumPy arrays, blocking at both ends."""
    with process(cpu, _serve_pipe_image) as pipe:

        def call() -> Array:
            pipe.send(image)
            result: Array = pipe.recv()
            return result

        yield call


@contextlib.asynccontextmanager
async def executor_image(cpu: int, image: Array) -> AsyncIterator[Call]:
    """`ProcessPoolExecutor` of one process with NumPy arrays, awaited."""
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(
        1, _SPAWN, initializer=os.sched_setaffinity, initargs=(0, {cpu})
    ) as executor:

        def call() -> Awaitable[Array]:
            return loop.run_in_executor(executor, cut, image)

        yield call


def grpc_version() -> str:
    """Return the version of grpcio that is installed.

    :raises PeerMissingError: if there is none.
    """
    _grpc()
    return importlib.metadata.version("grpcio")


def _grpc() -> Any:
    try:
        import grpc.aio  # type: ignore[import-untyped]
    except ImportError as error:
        raise PeerMissingError(
            f"grpcio cannot be imported: {error}",
            hint="install it with: pip install asyncnn[bench]",
        ) from error
    return grpc


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """Have a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="asyncnn-") as name:
        yield Path(name)


@contextlib.contextmanager
def process(cpu: int, serve: Callable[..., None], *args: object) -> Iterator[_Pipe]:
    """Run ``serve`` with one end of a pipe in a process on a CPU; yield the other end.

    ``serve`` sends one message once it is ready.
    """
    ours, theirs = _SPAWN.Pipe()
    process = _SPAWN.Process(target=serve, args=(theirs, *args), daemon=True)
    with pinned(cpu):
        process.start()
    theirs.close()
    try:
        ours.recv_bytes()
        yield ours
    finally:
        ours.close()
        process.terminate()
        process.join()


def _serve_pipe(pipe: _Pipe, response: int) -> None:
    answer = bytes(response)
    pipe.send_bytes(_READY)
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv_bytes()
            pipe.send_bytes(answer)


def _serve_pipe_image(pipe: _Pipe) -> None:
    pipe.send_bytes(_READY)
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(cut(pipe.recv()))


def _serve_streams(pipe: _Pipe, path: Path, exchange: Exchange) -> None:
    asyncio.run(streams_server(pipe, path, exchange))


async def streams_server(pipe: _Pipe, path: Path, exchange: Exchange) -> None:
    """Answer over streams of the loop that runs; the other side of `streams_echo`."""
    answer = bytes(exchange.response)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readexactly(exchange.request)
                writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, path) as server:
        pipe.send_bytes(_READY)
        await server.serve_forever()


def _serve_grpc(pipe: _Pipe, address: str, response: int) -> None:
    asyncio.run(_grpc_server(pipe, address, response))


async def _grpc_server(pipe: _Pipe, address: str, response: int) -> None:
    grpc = _grpc()
    answer = bytes(response)

    async def echo(request: bytes, context: object) -> bytes:
        return answer

    service, method = _METHOD.split("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(echo)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, handlers),)
    )
    server.add_insecure_port(address)
    await server.start()
    pipe.send_bytes(_READY)
    await server.wait_for_termination()
