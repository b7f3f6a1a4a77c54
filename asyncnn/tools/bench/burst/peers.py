"""The peers of ``asyncnn bench burst`` that ``echoes`` does not have."""

import asyncio
import contextlib
import ctypes
import importlib
import importlib.metadata
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

from asyncnn.tools.bench.burst.transport import MESSAGE_BYTES, MESSAGES
from asyncnn.tools.bench.echoes import Exchange, streams_server
from asyncnn.tools.bench.errors import PeerMissingError
from asyncnn.tools.bench.processes import READY, Pipe, process, temporary_folder
from asyncnn.tools.bench.rounds import Call

_LOOKS = 64
_LAST = 1

_PACKAGES = ("grpcio", "iceoryx2", "pyzmq", "uvloop")


class ManyCalls(NamedTuple):
    """Calls that are made many at a time.

    ``measure`` takes how many to make and returns the microseconds of each.
    """

    measure: Callable[[int], list[float]]


def installed_versions() -> dict[str, str]:
    """Return the versions of the peers that are installed."""
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


@contextlib.asynccontextmanager
async def pipe_stream(cpu: int) -> AsyncIterator[Call]:
    """`multiprocessing.Pipe` one way, blocking at both ends."""
    message = bytes(MESSAGE_BYTES)
    with process(cpu, _serve_pipe_stream) as pipe:

        def call() -> bytes:
            for _ in range(MESSAGES):
                pipe.send_bytes(message)
            return pipe.recv_bytes()

        yield call


@contextlib.asynccontextmanager
async def uvloop_echo(
    client_cpu: int, cpu: int, exchange: Exchange
) -> AsyncIterator[ManyCalls]:
    """Streams over a Unix-domain socket on uvloop at both ends, in two processes.

    :raises PeerMissingError: if uvloop is not installed.
    """
    _imported("uvloop")
    with (
        temporary_folder() as folder,
        process(cpu, _serve_uvloop, folder / "s", exchange),
        process(client_cpu, _call_uvloop, folder / "s", exchange) as pipe,
    ):

        def measured(runs: int) -> list[float]:
            pipe.send(runs)
            samples: list[float] = pipe.recv()
            return samples

        yield ManyCalls(measured)


@contextlib.asynccontextmanager
async def zmq_echo(cpu: int, exchange: Exchange) -> AsyncIterator[Call]:
    """Request and reply of pyzmq over a Unix-domain socket, awaited at both ends.

    :raises PeerMissingError: if pyzmq is not installed.
    """
    zmq = _imported("zmq.asyncio", "pyzmq")
    request = bytes(exchange.request)
    with temporary_folder() as folder:
        address = f"ipc://{folder / 's'}"
        with (
            process(cpu, _serve_zmq, address, exchange.response),
            zmq.Context() as context,
            context.socket(importlib.import_module("zmq").REQ) as socket,
        ):
            socket.linger = 0
            socket.connect(address)

            async def call() -> bytes:
                await socket.send(request)
                answer: bytes = await socket.recv()
                return answer

            yield call


@contextlib.asynccontextmanager
async def iceoryx_echo(cpu: int, exchange: Exchange) -> AsyncIterator[ManyCalls]:
    """Request and response of iceoryx2 in shared memory, by looking again and again.

    The other process only looks while calls are measured.

    :raises PeerMissingError: if iceoryx2 is not installed.
    """
    iceoryx = _imported("iceoryx2")
    name = f"asyncnn-bench-{os.getpid()}-{time.monotonic_ns()}"
    request = bytes(exchange.request)
    last = bytes([_LAST]) + request[1:]
    with process(cpu, _serve_iceoryx, name, exchange) as pipe:
        service = _iceoryx_service(iceoryx, name, exchange)
        client = service.client_builder().create()

        def call(data: bytes) -> bytes:
            loan = client.loan_uninit()
            ctypes.memmove(loan.payload_ptr, data, len(data))
            pending = loan.assume_init().send()
            response = _polled(pending.receive)
            return ctypes.string_at(response.payload_ptr, exchange.response)

        def measured(runs: int) -> list[float]:
            pipe.send_bytes(READY)
            call(request)
            samples = []
            for _ in range(runs):
                started = time.perf_counter_ns()
                call(request)
                samples.append((time.perf_counter_ns() - started) / 1000)
            call(last)
            return samples

        yield ManyCalls(measured)


def _imported(module: str, package: str = "") -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = package or module
        raise PeerMissingError(
            f"{package} cannot be imported: {error}",
            hint=f"install it with: pip install {package}",
        ) from error


def _serve_pipe_stream(pipe: Pipe) -> None:
    pipe.send_bytes(READY)
    with contextlib.suppress(EOFError):
        while True:
            for _ in range(MESSAGES):
                pipe.recv_bytes()
            pipe.send_bytes(READY)


def _serve_uvloop(pipe: Pipe, path: Path, exchange: Exchange) -> None:
    _run_uvloop(streams_server(pipe, path, exchange))


def _call_uvloop(pipe: Pipe, path: Path, exchange: Exchange) -> None:
    _run_uvloop(_uvloop_client(pipe, path, exchange))


def _run_uvloop(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=_imported("uvloop").new_event_loop) as runner:
        runner.run(main)


async def _uvloop_client(pipe: Pipe, path: Path, exchange: Exchange) -> None:
    reader, writer = await asyncio.open_unix_connection(path)
    request = bytes(exchange.request)
    clock = time.perf_counter_ns
    pipe.send_bytes(READY)
    with contextlib.suppress(EOFError):
        while True:
            samples = []
            for _ in range(pipe.recv()):
                started = clock()
                writer.write(request)
                await reader.readexactly(exchange.response)
                samples.append((clock() - started) / 1000)
            pipe.send(samples)
    writer.close()


def _serve_zmq(pipe: Pipe, address: str, response: int) -> None:
    asyncio.run(_zmq_server(pipe, address, response))


async def _zmq_server(pipe: Pipe, address: str, response: int) -> None:
    context = _imported("zmq.asyncio").Context()
    socket = context.socket(_imported("zmq").REP)
    socket.bind(address)
    answer = bytes(response)
    pipe.send_bytes(READY)
    while True:
        await socket.recv()
        await socket.send(answer)


def _serve_iceoryx(pipe: Pipe, name: str, exchange: Exchange) -> None:
    service = _iceoryx_service(_imported("iceoryx2"), name, exchange)
    server = service.server_builder().create()
    answer = bytes(exchange.response)
    pipe.send_bytes(READY)
    with contextlib.suppress(EOFError):
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
