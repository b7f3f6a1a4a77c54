"""What is too much, too large or without a token is refused, and told as that."""

import asyncio
import json
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

import asyncnn
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import FusedActivationFunc, Operand, OperationType
from asyncnn.oip import Address, NamedFile, Repository, Security, Tokens, rest_served
from asyncnn.oip.admission import MAX_CALL_BYTES
from asyncnn.oip.listening import rpc_served
from asyncnn.oip.messages import SERVICE
from asyncnn.runtime.builder import ModelBuilder
from tests.networks import F32, FOREVER
from tests.oip.conftest import KINDS, loaded, talking
from tests.waits import cancelled, until

ANY = Address.of(":0")
HERE = Path(__file__).parent
PAIR = HERE / "certificate.pem", HERE / "key.pem"
X = {"x": np.zeros(2, np.float32), "y": np.zeros(2, np.float32)}
AS_THEY_ARE_READ = ("grpc.max_receive_message_length", -1), ("grpc.http2.bdp_probe", 0)
TOO_MUCH = ("429", "StatusCode.RESOURCE_EXHAUSTED")
TOO_LARGE = ("413", "StatusCode.RESOURCE_EXHAUSTED")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("limits", "words", "statuses"),
    [
        ({"max_requests": 1}, "OipLimits.max_requests is 1", TOO_MUCH),
        ({"max_bytes": 250}, "OipLimits.max_bytes is 250", TOO_MUCH),
        (
            {"max_request_bytes": 30},
            r"max_request_bytes is 30|message larger than max \(\d+ vs. 30\)",
            TOO_LARGE,
        ),
    ],
)
async def test_more_than_a_limit_is_refused(
    kind: str,
    limits: dict[str, int],
    words: str,
    statuses: tuple[str, ...],
    files: dict[str, Path],
) -> None:
    if kind == "grpc" and "max_bytes" in limits:  # its messages are shorter
        limits, words = {"max_bytes": 60}, "OipLimits.max_bytes is 60"
    async with (
        loaded(files, **limits) as repository,
        talking(kind, repository) as client,
    ):
        endless = {"x": FOREVER}
        running = asyncio.create_task(client.infer("endless", endless))
        if "max_request_bytes" not in limits:
            await until(lambda: repository.admission.requests)
        with pytest.raises(InferenceServerException, match=words) as raised:
            await client.infer("sum", X)
        assert raised.value.status() in statuses
        with suppress(InferenceServerException):  # it was too large, too
            await cancelled(running)
        await until(lambda: not repository.admission.requests)
        if "max_requests" in limits:
            await client.infer("sum", X)


async def test_a_body_that_does_not_say_its_length_takes_the_most_it_may(
    files: dict[str, Path],
) -> None:
    async def parts() -> Any:
        for _ in range(100):
            yield bytes(1000)

    async with loaded(files, max_request_bytes=5000) as repository:
        async with rest_served(repository, ANY) as address:
            url = f"http://{address}/v2/models/sum/infer"
            async with httpx.AsyncClient(trust_env=False) as client:
                answer = await client.post(url, content=parts())
        assert answer.status_code == 413
        assert "more than 5000 bytes" in answer.json()["error"]
        assert not repository.admission.bytes


async def test_a_body_that_does_not_come_is_given_up(files: dict[str, Path]) -> None:
    head = b"POST /v2/models/sum/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
    async with (
        loaded(files, body_s=0.01) as repository,
        rest_served(repository, ANY) as address,
        asyncio.timeout(20),
    ):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head)
        assert b" 408 " in await reader.readline()
        writer.close()
        await until(lambda: not repository.admission.requests)
        assert not repository.admission.bytes


async def test_calls_of_grpc_are_bounded_too(files: dict[str, Path]) -> None:
    async with (
        loaded(files, max_requests=1) as repository,
        rpc_served(repository, ANY) as address,
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        live = channel.unary_unary(f"/{SERVICE}/ServerLive")
        for data, code, words in (
            (bytes(MAX_CALL_BYTES + 1), "RESOURCE_EXHAUSTED", "more than 65536 bytes"),
            (b"\xff", "INVALID_ARGUMENT", "is no ServerLiveRequest"),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match=words) as raised:
                await live(data)
            assert raised.value.code() is getattr(grpc.StatusCode, code)
        watches = [health_pb2_grpc.HealthStub(channel).Watch] * (1 + 64)
        held = [watch(health_pb2.HealthCheckRequest()) for watch in watches]
        for each in held:
            assert await each.read()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await live(b"")
        assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("kind", KINDS)
async def test_connections_are_bounded_too(kind: str, files: dict[str, Path]) -> None:
    async with (
        loaded(files, max_requests=1) as repository,
        talking(kind, repository) as client,
        asyncio.timeout(60),
    ):
        host, _, port = client.address.rpartition(":")
        made = [await asyncio.open_connection(host, port) for _ in range(1 + 64 + 9)]
        running = asyncio.create_task(client.infer("endless", {"x": FOREVER}))
        await asyncio.sleep(0)
        ends = [asyncio.create_task(_until_hung_up(reader)) for reader, _ in made]
        await until(lambda: sum(end.done() for end in ends) >= 9)
        if kind == "http":  # the oldest made room for those that came later
            assert ends[0].done()
            await until(lambda: repository.admission.requests)
            made += [await asyncio.open_connection(host, port) for _ in range(64)]
            assert not running.done()
        running.cancel()
        for _, writer in made:
            writer.transport.abort()
        await asyncio.wait([running, *ends])


async def _until_hung_up(reader: asyncio.StreamReader) -> None:
    with suppress(ConnectionError):
        await reader.read()


@pytest.mark.parametrize("kind", KINDS)
async def test_handshakes_are_bounded_too(kind: str, files: dict[str, Path]) -> None:
    serve = {"http": rest_served, "grpc": rpc_served}[kind]
    async with (
        loaded(files, max_requests=1, body_s=1) as repository,
        serve(repository, ANY, Security(*PAIR)) as address,
    ):
        before = len(os.listdir("/proc/self/fd"))
        made = [await asyncio.open_connection(*address) for _ in range(100)]
        held = before + 100 + 1 + 64
        await until(lambda: len(os.listdir("/proc/self/fd")) <= held)
        await until(lambda: len(os.listdir("/proc/self/fd")) == before + 100)
        for _, writer in made:
            writer.transport.abort()


LONG = 1 << 22


@pytest.fixture
def long_answer(tmp_path: Path) -> dict[str, Path]:
    """A model whose answers have 16 MiB."""
    builder = ModelBuilder()
    x = builder.input("x", F32, (1,))
    many = builder.constant(np.zeros(LONG, np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    sums = Operand(F32, (LONG,))
    z = builder.operation(OperationType.ADD, [x, many, none], sums)
    builder.output(z, "z")
    asyncnn.save(builder.build(), tmp_path / "model")
    return {"long": tmp_path / "model"}


async def test_who_does_not_take_an_answer_is_hung_up_on(
    long_answer: dict[str, Path],
) -> None:
    given = {"name": "x", "datatype": "FP32", "shape": [1], "data": [0]}
    binary = {"binary_data_output": True}
    body = json.dumps({"inputs": [given], "parameters": binary}).encode()
    head = "POST /v2/models/long/infer HTTP/1.1\r\nHost: x\r\nContent-Length:"
    async with (
        loaded(long_answer, body_s=0.1) as repository,
        rest_served(repository, ANY) as address,
    ):
        before = len(os.listdir("/proc/self/fd"))
        with socket.create_connection(address) as peer:
            peer.sendall(f"{head} {len(body)}\r\n\r\n".encode() + body)
            tallies = repository.usable("long").tallies
            await until(lambda: tallies.counts["success"][0])
            await until(lambda: len(os.listdir("/proc/self/fd")) == before + 1)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
async def test_answers_that_nobody_takes_have_so_many_bytes(
    method: str, long_answer: dict[str, Path]
) -> None:
    request = service_pb2.ModelInferRequest(model_name="long")
    request.inputs.add(name="x", datatype="FP32", shape=[1])
    request.raw_input_contents.append(bytes(4))
    async with (
        loaded(long_answer, max_bytes=10 * LONG) as repository,
        rpc_served(repository, ANY) as address,
        grpc.aio.insecure_channel(str(address), AS_THEY_ARE_READ) as channel,
    ):
        admission = repository.admission
        calls = []
        for count in (1, 2):
            # What a client does not read, it does not take.
            calls.append(channel.stream_stream(f"/{SERVICE}/{method}")())
            await calls[-1].write(request.SerializeToString())
            await calls[-1].done_writing()
            bytes_held = count * 4 * LONG
            await until(lambda most=bytes_held: admission.answer_bytes == most)
        with pytest.raises(grpc.aio.AioRpcError, match="bytes of answers to take"):
            await channel.unary_unary(f"/{SERVICE}/ModelInfer")(
                request.SerializeToString()
            )
        assert len(await calls.pop().read()) > 4 * LONG
        await until(lambda: admission.answer_bytes == 4 * LONG)
        calls.pop().cancel()
        await until(lambda: not admission.answer_bytes)


async def test_of_a_call_without_a_token_no_message_is_awaited(
    repository: Repository,
) -> None:
    async with (
        rpc_served(repository, ANY, Security(tokens=Tokens((b"first",)))) as address,
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        # For the server it is a call whose only message has not come.
        call = channel.stream_stream(f"/{SERVICE}/ModelInfer")()
        with pytest.raises(grpc.aio.AioRpcError, match="no token"):
            async with asyncio.timeout(20):
                await call.read()


async def test_without_a_token_only_health_is_answered(
    repository: Repository, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text("# of friends\n\nfirst\nsecond \n")
    security = Security(tokens=Tokens.read(tmp_path / "tokens"))
    for kind in KINDS:
        async with talking(kind, repository, security) as client:
            assert await client.own.is_server_live()
            assert await client.own.is_server_ready()
            for token in ("", "Bearer third", "Bearer", "Basic first"):
                headers = {"authorization": token}
                with pytest.raises(InferenceServerException, match="no token") as no:
                    await client.infer("sum", X, headers=headers)
                assert no.value.status() in ("401", "StatusCode.UNAUTHENTICATED")
            for token in ("Bearer first", "bearer second"):
                await client.infer("sum", X, headers={"authorization": token})
    (tmp_path / "tokens").write_text("# none\n")
    with pytest.raises(InvalidArgumentError, match="has no token"):
        Tokens.read(tmp_path / "tokens")


async def test_tls_is_spoken_if_there_is_a_certificate(repository: Repository) -> None:
    security = Security(*PAIR)
    trusting = ssl.create_default_context(cafile=PAIR[0])
    options: dict[str, Any] = {"http": {"ssl": True, "ssl_context": trusting}}
    options["grpc"] = {"ssl": True, "root_certificates": str(PAIR[0])}
    for kind in KINDS:
        async with talking(kind, repository, security, **options[kind]) as client:
            await client.infer("sum", X)


async def test_what_cannot_be_listened_with_is_told(
    repository: Repository, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    alone = Security(PAIR[0])
    empty = Security(tmp_path / "empty", tmp_path / "empty")
    for serve in (rest_served, rpc_served):
        with pytest.raises(InvalidArgumentError, match="a certificate and its key"):
            async with serve(repository, ANY, alone):
                pass
        with pytest.raises(InvalidArgumentError, match="no TLS can be had from"):
            async with serve(repository, ANY, empty):
                pass
        async with serve(repository, ANY) as taken:
            with pytest.raises(GeneralFailureError, match=f"listening at {taken}"):
                async with serve(repository, taken):
                    pass


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8000", ("127.0.0.1", 8000)),
        ("0.0.0.0:0", ("0.0.0.0", 0)),
        ("[::1]:80", ("::1", 80)),
        ("8000", ("127.0.0.1", 8000)),
        ("host", None),
        (":x", None),
        (":65536", None),
    ],
)
def test_an_address_is_a_host_and_a_port(
    text: str, address: tuple[str, int] | None
) -> None:
    if address is not None:
        assert Address.of(text) == address
        return
    with pytest.raises(InvalidArgumentError, match="is no address"):
        Address.of(text)


@pytest.mark.parametrize("option", ["", "name", "=file", "a/b=file", ":1=file"])
def test_a_model_has_a_name_and_a_file(option: str) -> None:
    assert NamedFile.of("a:2=b=c") == ("a", "2", Path("b=c"), None)
    with pytest.raises(InvalidArgumentError, match="names no model"):
        NamedFile.of(option)


async def test_a_model_of_several_versions_is_the_newest_unless_it_is_said(
    files: dict[str, Path],
) -> None:
    async with loaded(files) as repository:
        given = {"9": "sum", "10": "counter", "old": "endless"}
        named = [NamedFile("m", number, files[name]) for number, name in given.items()]
        several = Repository(repository.device, named)
        await several.load_all()
        assert several.usable("m").version == "10"
        assert [*several.usable("m", "9").inputs] == ["x", "y"]
        with pytest.raises(
            InvalidArgumentError, match=r"no version '11' .known: 9, 10"
        ):
            several.usable("m", "11")
        with pytest.raises(InvalidArgumentError, match="is given twice"):
            Repository(repository.device, [named[0], named[0]])


async def test_health_ends_with_the_server(repository: Repository) -> None:
    async with (
        rpc_served(repository, ANY) as address,
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        told = await stub.Check(health_pb2.HealthCheckRequest())
    assert told.status == health_pb2.HealthCheckResponse.SERVING
    async with grpc.aio.insecure_channel(str(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.Check(health_pb2.HealthCheckRequest())


def test_a_mark_of_utf_8_is_part_of_no_token(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text("# a comment\nsecret\n", "utf-8-sig")
    tokens = Tokens.read(path)
    tokens.check(b"Bearer secret")
    with pytest.raises(InvalidArgumentError):
        tokens.check("Bearer \ufeff# a comment".encode())
