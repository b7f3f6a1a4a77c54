"""What breaks a rule is refused in words, and breaks nothing else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import msgspec
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

from asyncnn.oip import Address, Repository, Tokens
from asyncnn.oip.messages import METHODS, SERVICE, message_class
from asyncnn.oip.rest import rest_application
from asyncnn.oip.under_way import Door
from tests.oip.conftest import Client

X, Y = np.float32([1, 2]), np.float32([10, 20])
ONE = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}
OTHER = {**ONE, "name": "y"}
HEADER = "Inference-Header-Content-Length"


@pytest.mark.parametrize(
    ("model", "arrays", "words"),
    [
        ("none", {"x": X, "y": Y}, "there is no model 'none' .known: sum"),
        ("sum", {"x": X}, "missing input: y"),
        ("sum", {"x": X, "q": Y}, "there is no input 'q' .known: x, y"),
        ("sum", {"x": X, "y": np.float64(Y)}, "'y' is given as FP64 .the model takes"),
        ("sum", {"x": X, "y": np.float32([[1, 2]])}, r"'y' .*\[1, 2\]|shape"),
        ("counter", {"x": np.float32([1, 2, 3])}, "shape"),
    ],
)
async def test_what_does_not_fit_the_model_is_refused(
    client: Client, model: str, arrays: dict[str, Any], words: str
) -> None:
    with pytest.raises(InferenceServerException, match=words) as raised:
        await client.infer(model, arrays)
    status = str(raised.value.status())
    assert status in (
        "400",
        "404",
        "StatusCode.INVALID_ARGUMENT",
        "StatusCode.NOT_FOUND",
    )
    await client.infer("sum", {"x": X, "y": Y})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": [1, 2, 3]}, "has 3 elements"),
        ({"data": [[1], [2]]}, "has 2 elements in data of shape"),
        ({"data": [1, [2]]}, "are no numbers for FP32"),
        ({"data": ["a", "b"]}, "are no numbers for FP32"),
        ({"data": ["a" * 9, *range(9)]}, "has 10 elements in data"),
        ({"data": [[[]], [[]], [[]]]}, "has 3 elements in data"),
        ({"data": msgspec.Raw(b"[1e999, 1]")}, "Number out of range"),
        ({"data": msgspec.Raw(b"[" * 9999 + b"]" * 9999)}, "recursion"),
        ({"data": [True, False]}, "are no numbers for FP32"),
        ({"data": None}, "has no data"),
        ({"shape": [-2]}, "cannot have shape"),
        ({"shape": [0, 1 << 62], "data": []}, "cannot have shape"),
        ({"shape": [1 << 63, 1 << 63]}, "cannot have shape"),
        ({"shape": [2, 2]}, "the model takes"),
        ({"shape": [2.5]}, "Expected `int`"),
        ({"datatype": "BYTES"}, "is given as BYTES"),
        ({"parameters": {"binary_data_size": 8}}, "0 bytes follow"),
        ({"name": "y"}, "is given twice"),
    ],
)
async def test_json_that_is_no_tensor_is_refused(
    rest: httpx.AsyncClient, changes: dict[str, Any], words: str
) -> None:
    body = {"inputs": [ONE | changes, OTHER]}
    await is_refused(rest, msgspec.json.encode(body), words)


async def is_refused(
    rest: httpx.AsyncClient, body: bytes, words: str, **headers: str
) -> None:
    answer = await rest.post("/v2/models/sum/infer", content=body, headers=headers)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert answer.json()["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"parameters": {"timeout": msgspec.Raw(b"9" * 400)}}, "the parameter timeout"),
        ({"parameters": {"sequence_id": "s" * 257}}, "the parameter sequence_id"),
        ({"outputs": [{"name": "z"}, {"name": "z"}]}, "output 'z' is asked for twice"),
        ({"parameters": {"a": [{}, {}]}}, "not the protocol's JSON"),
        ({"parameters": {str(n): n for n in range(1 << 15)}}, "32768 names and texts"),
        ({"inputs": [{**ONE, "shape": [1] * 600}]}, "'x' cannot have that shape"),
    ],
)
async def test_a_request_asks_for_no_more_than_there_is(
    rest: httpx.AsyncClient, changes: dict[str, Any], words: str
) -> None:
    body = msgspec.json.encode({"inputs": [ONE, OTHER], **changes})
    await is_refused(rest, body, words)


async def test_a_model_that_loses_an_output_while_it_is_asked_is_not_available(
    rest: httpx.AsyncClient, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(*_: object) -> dict[str, Any]:
        return {"new": X}  # as if it had been loaded anew before

    monkeypatch.setattr(repository, "run", run)
    request = {"inputs": [ONE, OTHER], "outputs": [{"name": "z"}]}
    answer = await rest.post("/v2/models/sum/infer", json=request)
    assert answer.status_code == 503
    assert answer.json()["status"] == "DEVICE_UNAVAILABLE"


async def test_a_client_that_goes_when_its_run_ends_cancels_nothing_else(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, gone = asyncio.Event(), asyncio.Event()
    body = msgspec.json.encode({"inputs": [ONE, OTHER]})
    told = []

    async def receive() -> Any:
        if not told:
            told.append("body")
            return {"type": "http.request", "body": body}
        waits.set()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def run(*_: object) -> dict[str, Any]:
        await waits.wait()
        gone.set()
        await asyncio.sleep(0)  # in the next round `receive` ends, and then this
        return {"z": X}

    async def send(message: Any) -> None:
        await asyncio.sleep(0)
        told.append(message.get("status", "answer"))

    monkeypatch.setattr(repository, "run", run)
    application = rest_application(Door(repository), Tokens(), {})
    path = "/v2/models/sum/infer"
    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    await application({**scope, "query_string": b""}, receive, send)
    assert told == ["body"]
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_an_error_of_a_stream_does_not_end_it(channel: grpc.aio.Channel) -> None:
    stream = channel.stream_stream(
        f"/{SERVICE}/ModelStreamInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )
    request = service_pb2.ModelInferRequest(model_name="sum", id="1")
    request.inputs.add(name="x", datatype="FP32", shape=[0, 1 << 62])
    request.raw_input_contents.append(b"")
    answers = [answer async for answer in stream([request, request])]
    assert ["cannot have shape" in each.error_message for each in answers] == [True] * 2


async def test_a_long_error_of_grpc_is_cut(channel: grpc.aio.Channel) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await Stub(channel).infer(model_name="sum", inputs=[tensor("Ä" * 20_000)])
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


TEXT = msgspec.json.encode(
    {
        "inputs": [
            {**ONE, "data": None, "parameters": {"binary_data_size": 8}},
            {**OTHER, "data": None, "parameters": {"binary_data_size": 8}},
        ]
    }
)


@pytest.mark.parametrize(
    ("length", "behind", "words"),
    [
        (len(TEXT), bytes(15), "7 bytes follow"),
        (len(TEXT), bytes(17), "1 bytes follow that are of no input"),
        (len(TEXT) + 99, bytes(16), "bytes"),
        (-1, bytes(16), "is '-1'"),
        ("9" * 5000, bytes(16), "bytes"),
        (len(TEXT) - 1, bytes(16), "not the protocol's JSON"),
    ],
)
async def test_bytes_behind_json_have_to_be_those_of_inputs(
    rest: httpx.AsyncClient, length: int | str, behind: bytes, words: str
) -> None:
    await is_refused(rest, TEXT + behind, words, **{HEADER: str(length)})


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b'{"inputs": 1}'])
async def test_what_is_no_request_is_refused(
    rest: httpx.AsyncClient, body: bytes
) -> None:
    await is_refused(rest, body, "not the protocol's JSON")


class Stub:
    """Calls a method by messages of the project's own."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel

    async def infer(self, **fields: Any) -> Any:
        kinds = message_class("ModelInferRequest"), message_class("ModelInferResponse")
        call = self._channel.unary_unary(
            f"/{SERVICE}/ModelInfer", kinds[0].SerializeToString, kinds[1].FromString
        )
        return await call(kinds[0](**fields))


@pytest.fixture
async def channel(grpc_address: Address) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(str(grpc_address)) as opened:
        yield opened


def tensor(name: str, **contents: Any) -> dict[str, Any]:
    told = {"name": name, "shape": [2], "datatype": "FP32"}
    return {**told, "contents": contents} if contents else told


async def test_elements_of_a_message_are_as_good_as_bytes(
    channel: grpc.aio.Channel,
) -> None:
    inputs = [tensor("x", fp32_contents=[1, 2]), tensor("y", fp32_contents=[3, 4])]
    answer = await Stub(channel).infer(model_name="sum", inputs=inputs)
    assert answer.raw_output_contents == [np.float32([4, 6]).tobytes()]


@pytest.mark.parametrize(
    ("inputs", "raw", "words"),
    [
        ([tensor("x"), tensor("y")], [bytes(8)], "has no raw_input_contents"),
        ([tensor("x"), tensor("y")], [bytes(8), bytes(9)], "has 9 bytes, not 8"),
        ([tensor("x"), tensor("y")], [], "has 0 elements"),
        ([tensor("x", fp32_contents=[1]), tensor("y")], [bytes(8)] * 2, "both ways"),
        ([tensor("x"), tensor("x")], [bytes(8)] * 2, "given twice"),
    ],
)
async def test_a_message_whose_data_do_not_fit_is_refused(
    channel: grpc.aio.Channel, inputs: Any, raw: list[bytes], words: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await Stub(channel).infer(
            model_name="sum", inputs=inputs, raw_input_contents=raw
        )
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert words in (raised.value.details() or "")
    metadata = dict(raised.value.trailing_metadata())
    assert metadata["asyncnn-status"] == "INVALID_ARGUMENT"


async def test_health_is_told(channel: grpc.aio.Channel) -> None:
    stub = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        request = health_pb2.HealthCheckRequest(service=name)
        answer = await stub.Check(request)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_the_service_can_be_reflected(grpc_address: Address) -> None:
    def reflected() -> tuple[set[str], set[str]]:
        with grpc.insecure_channel(str(grpc_address)) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            file = database.FindFileContainingSymbol(SERVICE)
            methods = {method.name for method in file.service[0].method}
            return {*database.get_services()}, methods

    services, methods = await asyncio.to_thread(reflected)
    assert {SERVICE, "grpc.health.v1.Health"} < services
    assert methods == {*METHODS}


def test_messages_have_the_published_fields() -> None:
    def fields(kind: Any) -> dict[str, Any]:
        return {
            each.name: (each.number, each.type, each.is_repeated)
            for each in kind.fields
        }

    def compare(own: Any, published: Any) -> None:
        for name, field in fields(own).items():
            assert fields(published)[name] == field, own.full_name
        for field in own.fields:
            if field.message_type is not None:
                other = published.fields_by_name[field.name]
                compare(field.message_type, other.message_type)

    # What KServe adds to answers that are empty elsewhere.
    ours = {"RepositoryModelLoadResponse", "RepositoryModelUnloadResponse"}
    names = {name for messages in METHODS.values() for name in messages} - ours
    for name in names:
        compare(message_class(name).DESCRIPTOR, getattr(service_pb2, name).DESCRIPTOR)
