"""The Open Inference Protocol beside plain services: ``asyncnn bench oip``.

All servers are processes of one event loop, which get the same requests from the same
clients. The plain ones are what an application would write: they decode, compute in
`asyncio.to_thread`, and encode. They add by NumPy, which no model is faster than.
"""

import asyncio
import contextlib
import gc
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import asyncnn
from asyncnn import OperationType
from asyncnn.tools.bench.benches import Group, PlacedBench, on_cpu
from asyncnn.tools.bench.environment import peer_module
from asyncnn.tools.bench.made_models import LENGTH, chain, tiny_addition
from asyncnn.tools.bench.processes import READY, Pipe, process, temporary_folder
from asyncnn.tools.bench.report import Goal
from asyncnn.tools.bench.rounds import Call

LARGE = 1 << 18
"""Floats in each tensor of the large model, which are 1 MiB."""

_X, _Y = np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)
_SERVICE, _METHOD = "inference.GRPCInferenceService", "ModelInfer"
_PATH = "/v2/models/add/infer"
_EXTRA = "asyncnn[oip]"


def _module(name: str) -> Any:
    return peer_module(name, name.partition(".")[0], _EXTRA)


async def _serve_models(pipe: Pipe, folder: Path) -> None:
    """Serve both models, and report at which addresses."""
    from asyncnn.oip import Address, NamedFile, Repository, rest_served, rpc_served

    anywhere = Address.of(":0")
    async with asyncnn.open_device("reference") as device:
        named = [NamedFile(n, "1", folder / f"{n}.asyncnn") for n in ("add", "large")]
        repository = Repository(device, named, shares_memory=True)
        await repository.load_all()
        async with (
            rest_served(repository, anywhere) as rest,
            rpc_served(repository, anywhere) as rpc,
        ):
            gc.freeze()  # as `asyncnn serve` does
            pipe.send_bytes(READY)
            pipe.send((rest.port, rpc.port))
            await asyncio.Event().wait()


async def _serve_plainly(pipe: Pipe, _: Path) -> None:
    """Serve the addition as applications do, and report at which addresses."""
    import grpc  # type: ignore[import-untyped]
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    kinds = _messages()

    async def infer(request: Any, _: object) -> Any:
        x, y = (np.frombuffer(raw, np.float32) for raw in request.raw_input_contents)
        total = await asyncio.to_thread(np.add, x, y)
        answer = kinds[1](model_name=request.model_name)
        answer.outputs.add(name="sum", datatype="FP32", shape=total.shape)
        answer.raw_output_contents.append(total.tobytes())
        return answer

    async def add(request: Request) -> JSONResponse:
        inputs = (await request.json())["inputs"]
        x, y = (np.array(each["data"], np.float32) for each in inputs)
        total = await asyncio.to_thread(np.add, x, y)
        head = {"name": "sum", "datatype": "FP32", "shape": list(total.shape)}
        return JSONResponse({"outputs": [{**head, "data": total.tolist()}]})

    handler = grpc.unary_unary_rpc_method_handler(
        infer, kinds[0].FromString, kinds[1].SerializeToString
    )
    service = grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: handler})
    server = _module("grpc.aio").server()
    server.add_generic_rpc_handlers((service,))
    rpc = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    app = Starlette(routes=[Route(_PATH, add, methods=["POST"])])
    config = uvicorn.Config(app, log_config=None, access_log=False)
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    serving = asyncio.create_task(uvicorn.Server(config).serve([listener]))
    pipe.send_bytes(READY)
    pipe.send((listener.getsockname()[1], rpc))
    await serving


def _messages() -> tuple[Any, Any]:
    _module("google.protobuf.message")
    from asyncnn.oip.messages import message_class

    return message_class("ModelInferRequest"), message_class("ModelInferResponse")


@contextlib.contextmanager
def _server(cpu: int, serve: Callable[..., Awaitable[None]]) -> Iterator[list[int]]:
    """Run a server; yield its ports for HTTP and gRPC."""
    for needed in ("grpc_health", "starlette", "uvicorn"):
        _module(needed)
    with temporary_folder() as folder:
        asyncnn.save(tiny_addition(), folder / "add.asyncnn")
        large = chain((LARGE,), [(OperationType.ABS,)])
        asyncnn.save(large, folder / "large.asyncnn")
        with process(cpu, serve, folder) as pipe:
            yield pipe.recv()


@contextlib.asynccontextmanager
async def _http(port: int) -> AsyncIterator[Callable[[str, bytes], Awaitable[bytes]]]:
    """Yield what posts a body to a path, at next to no cost."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def ask(path: str, body: bytes) -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n".encode() + body)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = head.partition("content-length: ")[2].partition("\r\n")[0]
        return await reader.readexactly(int(length))

    try:
        yield ask
    finally:
        writer.close()
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def _by_http(
    cpu: int, serve: Callable[..., Awaitable[None]]
) -> AsyncIterator[Call]:
    head = {"shape": [LENGTH], "datatype": "FP32"}
    inputs = [
        {"name": n, **head, "data": v.tolist()} for n, v in (("x", _X), ("y", _Y))
    ]
    body = msgspec.json.encode({"inputs": inputs})
    with _server(cpu, serve) as (port, _):
        async with _http(port) as ask:
            answer = msgspec.json.decode(await ask(_PATH, body))
            assert answer["outputs"][0]["data"] == (_X + _Y).tolist()
            yield lambda: ask(_PATH, body)


@contextlib.asynccontextmanager
async def _by_grpc(
    cpu: int, serve: Callable[..., Awaitable[None]]
) -> AsyncIterator[Call]:
    """Ask by gRPC, with the message that a client has for each request."""
    kinds = _messages()
    request = kinds[0](model_name="add")
    for name, value in (("x", _X), ("y", _Y)):
        request.inputs.add(name=name, datatype="FP32", shape=[LENGTH])
        request.raw_input_contents.append(value.tobytes())
    with _server(cpu, serve) as (_, port):
        async with _method(port, kinds) as method:
            answer = await method(request)
            assert answer.raw_output_contents == [(_X + _Y).tobytes()]
            yield lambda: method(request)


@contextlib.asynccontextmanager
async def _method(port: int, kinds: tuple[Any, Any]) -> AsyncIterator[Any]:
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    address = f"127.0.0.1:{port}"
    async with _module("grpc.aio").insecure_channel(address, options) as channel:
        yield channel.unary_unary(
            f"/{_SERVICE}/{_METHOD}", kinds[0].SerializeToString, kinds[1].FromString
        )


@contextlib.asynccontextmanager
async def _unshared(cpu: int) -> AsyncIterator[Call]:
    """Send 1 MiB in a message, and get as much; an array at both ends."""
    kinds, x = _messages(), np.arange(LARGE, dtype=np.float32)
    with _server(cpu, _serve_models) as (_, port):
        async with _method(port, kinds) as method:

            async def call() -> Any:
                request = kinds[0](model_name="large", raw_input_contents=[x.tobytes()])
                request.inputs.add(name="x", datatype="FP32", shape=[LARGE])
                answer = await method(request)
                return np.frombuffer(answer.raw_output_contents[0], np.float32)

            yield call


@contextlib.asynccontextmanager
async def _shared(cpu: int) -> AsyncIterator[Call]:
    """Write 1 MiB to shared memory, and find as much there; an array at both ends."""
    kinds, x = _messages(), np.arange(LARGE, dtype=np.float32)
    path, size = f"/dev/shm/oip-bench-{os.getpid()}", x.nbytes
    given, got = np.memmap(path, np.float32, "w+", shape=(2, LARGE))
    os.chmod(path, 0o600)  # no server takes what others may access
    request = kinds[0](model_name="large")
    tensors = (
        (request.inputs.add(name="x", datatype="FP32", shape=[LARGE]), 0),
        (request.outputs.add(name="y"), size),
    )
    for tensor, offset in tensors:
        tensor.parameters["shared_memory_region"].string_param = "both"
        tensor.parameters["shared_memory_byte_size"].int64_param = size
        tensor.parameters["shared_memory_offset"].int64_param = offset
    try:
        with _server(cpu, _serve_models) as (port, rpc):
            await _registered(port, os.path.basename(path), 2 * size)
            async with _method(rpc, kinds) as method:

                async def call() -> Any:
                    given[:] = x
                    await method(request)
                    return got

                np.testing.assert_array_equal(await call(), x)
                yield call
    finally:
        os.unlink(path)


async def _registered(port: int, name: str, size: int) -> None:
    body = msgspec.json.encode({"key": name, "byte_size": size})
    path = "/v2/systemsharedmemory/region/both/register"
    async with _http(port) as ask:
        await ask(path, body)


oip = PlacedBench(
    {
        "grpc": "a model by gRPC, asyncnn serve",
        "plain_grpc": "the same by grpc.aio around to_thread",
        "http": "a model by HTTP and JSON, asyncnn serve",
        "plain_http": "the same by Starlette around to_thread",
        "shared": "1 MiB in and out, in shared memory, by gRPC",
        "unshared": "1 MiB in and out, in messages of gRPC",
    },
    [
        Group(
            {
                "grpc": on_cpu(_by_grpc, _serve_models),
                "plain_grpc": on_cpu(_by_grpc, _serve_plainly),
                "http": on_cpu(_by_http, _serve_models),
                "plain_http": on_cpu(_by_http, _serve_plainly),
            }
        ),
        Group({"shared": on_cpu(_shared), "unshared": on_cpu(_unshared)}),
    ],
    goals=[
        Goal("grpc", "plain_grpc", 0.9),
        Goal("http", "plain_http", 0.9),
        Goal("shared", "unshared", 0.6),
    ],
    packages=("grpcio", "starlette", "uvicorn"),
)
