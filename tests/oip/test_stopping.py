"""A server that is to stop lets requests under way end, for as long as it may take."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import asyncnn
from asyncnn.oip import Address, Repository, listening
from asyncnn.oip.messages import SERVICE
from tests.networks import FOREVER
from tests.oip.conftest import KINDS, Client, loaded, talking
from tests.oip.test_command import SERVE
from tests.waits import until

X = {"x": np.zeros(2, np.float32), "y": np.zeros(2, np.float32)}
UNAVAILABLE = ("503", "StatusCode.UNAVAILABLE")


async def is_unavailable(asked: Awaitable[object]) -> None:
    with pytest.raises(InferenceServerException, match="about to stop") as raised:
        await asked
    assert raised.value.status() in UNAVAILABLE


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


Until = Callable[[asyncio.Event], None]


@pytest.fixture
def run_until(monkeypatch: pytest.MonkeyPatch) -> Until:
    """Have runs wait for an event."""
    run = Repository.run

    def hold(event: asyncio.Event) -> None:
        async def held(*given: Any) -> Any:
            await event.wait()
            return await run(*given)

        monkeypatch.setattr(Repository, "run", held)

    return hold


async def test_what_is_under_way_ends_well_and_nothing_new_is_let_in(
    kind: str, files: dict[str, Path], run_until: Until
) -> None:
    may_end = asyncio.Event()
    run_until(may_end)
    async with (
        loaded(files, grace_s=300) as repository,
        talking(kind, repository) as client,
    ):
        running = asyncio.create_task(client.infer("sum", X))
        await until(lambda: repository.admission.requests)
        stopping = asyncio.create_task(repository.stop_serving())
        while await client.own.is_server_ready():
            pass
        await is_unavailable(client.infer("sum", X))
        assert await client.own.is_server_live()
        assert not await client.own.is_model_ready("sum")
        may_end.set()
        assert not (await running).as_numpy("z").any()
        await stopping


async def test_who_leaves_meanwhile_waits_for_what_is_under_way(
    kind: str, files: dict[str, Path], run_until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = asyncio.Event()
    run_until(may_end)
    monkeypatch.setattr(listening, "END_S", 0.1)
    serve = {"http": listening.rest_served, "grpc": listening.rpc_served}[kind]
    async with loaded(files, grace_s=300) as repository:
        async with serve(repository, Address.of(":0")) as address:
            client = Client(kind, address)
            running = asyncio.create_task(client.infer("sum", X))
            await until(lambda: repository.admission.requests)
            stopping = asyncio.create_task(repository.stop_serving())
            while await client.own.is_server_ready():
                pass
            stopping.cancel()
            asyncio.get_running_loop().call_later(0.5, may_end.set)
        assert not (await running).as_numpy("z").any()
        await client.own.close()


async def test_what_does_not_end_is_cut(
    kind: str, files: dict[str, Path], run_until: Until
) -> None:
    run_until(asyncio.Event())
    async with loaded(files, grace_s=0) as repository:
        async with talking(kind, repository) as client:
            running = asyncio.create_task(client.infer("sum", X))
            await until(lambda: repository.admission.requests)
            await repository.stop_serving()
            await is_unavailable(running)
        assert not repository.admission.requests


async def test_a_call_whose_body_does_not_come_ends_at_once(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "END_S", 300)
    head = b"POST /v2/repository/models/sum/load HTTP/1.1\r\nHost: x\r\n"
    async with asyncio.timeout(20):
        async with listening.rest_served(repository, Address.of(":0")) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(head + b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n")
            assert b" 100 " in await reader.readline()  # it waits for the body
        with suppress(ConnectionError):
            assert not (await reader.read()).strip()
        writer.close()


async def test_a_stream_ends_with_its_server(
    files: dict[str, Path], run_until: Until
) -> None:
    run_until(asyncio.Event())

    async def requests() -> AsyncIterator[Any]:
        request = service_pb2.ModelInferRequest(model_name="sum")
        for name in X:
            request.inputs.add(name=name, datatype="FP32", shape=[2])
            request.raw_input_contents.append(bytes(8))
        yield request
        await asyncio.Event().wait()

    async with (
        loaded(files, grace_s=0) as repository,
        talking("grpc", repository) as client,
        grpc.aio.insecure_channel(client.address) as channel,
    ):
        stream = channel.stream_stream(
            f"/{SERVICE}/ModelStreamInfer",
            service_pb2.ModelInferRequest.SerializeToString,
            service_pb2.ModelStreamInferResponse.FromString,
        )(requests())
        await until(lambda: repository.admission.requests)
        await repository.stop_serving()
        assert "about to stop" in (await stream.read()).error_message
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_stream_that_waits_for_a_request_ends_at_once(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "END_S", 300)

    async def requests() -> AsyncIterator[Any]:
        yield service_pb2.ModelInferRequest(model_name="none")
        await asyncio.Event().wait()

    async with asyncio.timeout(20), AsyncExitStack() as stack:
        serving = listening.rpc_served(repository, Address.of(":0"))
        async with serving as address:
            channel = grpc.aio.insecure_channel(str(address))
            await stack.enter_async_context(channel)
            stream = channel.stream_stream(
                f"/{SERVICE}/ModelStreamInfer",
                service_pb2.ModelInferRequest.SerializeToString,
                service_pb2.ModelStreamInferResponse.FromString,
            )(requests())
            assert "no model" in (await stream.read()).error_message
        assert await stream.code() is grpc.StatusCode.UNAVAILABLE
        assert "about to stop" in await stream.details()


async def test_streams_whose_clients_go_as_it_stops_are_no_error(
    repository: Repository,
) -> None:
    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    for turns in range(24):
        async with AsyncExitStack() as stack:
            serving = listening.rpc_served(repository, Address.of(":0"))
            async with serving as address:
                channel = grpc.aio.insecure_channel(str(address))
                await stack.enter_async_context(channel)
                method = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")
                streams = [method(nothing()) for _ in range(4)]
                for stream in streams:
                    await stream.wait_for_connection()
                    stream.cancel()
                for _ in range(turns):
                    await asyncio.sleep(0)


async def test_sigterm_ends_a_process_whose_requests_never_end(
    files: dict[str, Path], tmp_path: Path
) -> None:
    command = [*SERVE, "--socket", tmp_path / "driver", "--setting", "lanes=1"]
    command += ["--model", f"endless={files['endless']}", "--oip", ":0"]
    command += ["--grpc", ":0", "--limit", "OipLimits.grace_s=0"]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        told = [(await process.stdout.readline()).decode() for _ in range(3)]
        clients = [
            Client(kind, line.rpartition("/")[2].strip())
            for kind, line in zip(KINDS, told, strict=False)
        ]
        # A run ends by itself after 2 s, and the next one begins then.
        asked = clients * 10
        runs = [client.infer("endless", {"x": FOREVER}) for client in asked]
        running = asyncio.gather(*runs, return_exceptions=True)
        async with asyncnn.connect(tmp_path / "driver") as device:
            async with asyncio.timeout(60):
                while await pending(device) < len(runs):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        statuses = {error.status() for error in await running}
        assert statuses >= {*UNAVAILABLE}
        assert statuses <= {*UNAVAILABLE, "504", "StatusCode.DEADLINE_EXCEEDED"}
        for client in clients:
            await client.own.close()
        async with asyncio.timeout(60):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def pending(device: asyncnn.Device) -> int:
    told = (await device.statistics()).executions
    return told.running + told.queued + told.ended
