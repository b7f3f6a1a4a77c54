"""Other ways to exchange bytes with another process, as peers of benchmarks.

Each is a context: it starts a process on a CPU, yields the call to be measured, and
ends the process. A call returns what the other process answered, or an awaitable of it.
"""

import asyncio
import contextlib
import importlib.metadata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec

from asyncnn.tools.bench.errors import PeerMissingError
from asyncnn.tools.bench.processes import READY, Pipe, process, temporary_folder
from asyncnn.tools.bench.rounds import Call

_METHOD = "asyncnn.bench/echo"


class Exchange(msgspec.Struct, frozen=True):
    """Bytes of a request and of the response to it."""

    request: int
    response: int


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


def _serve_pipe(pipe: Pipe, response: int) -> None:
    answer = bytes(response)
    pipe.send_bytes(READY)
    with contextlib.suppress(EOFError):
        while True:
            pipe.recv_bytes()
            pipe.send_bytes(answer)


def _serve_streams(pipe: Pipe, path: Path, exchange: Exchange) -> None:
    asyncio.run(streams_server(pipe, path, exchange))


async def streams_server(pipe: Pipe, path: Path, exchange: Exchange) -> None:
    """Answer over streams of the loop that runs; the other side of `streams_echo`."""
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


def _serve_grpc(pipe: Pipe, address: str, response: int) -> None:
    asyncio.run(_grpc_server(pipe, address, response))


async def _grpc_server(pipe: Pipe, address: str, response: int) -> None:
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
    pipe.send_bytes(READY)
    await server.wait_for_termination()
