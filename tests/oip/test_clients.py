"""tritonclient, as it is published, finds all that it expects of a server."""

import asyncio
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.oip import Address
from asyncnn.oip.admission import AskedRun
from asyncnn.oip.repository import Repository
from tests.networks import AT_ONCE, FOREVER
from tests.oip.conftest import Client, talking
from tests.waits import cancelled, until

X, Y = np.float32([1, 2]), np.float32([10, 20])
GONE = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


async def test_it_finds_a_server_and_its_models(client: Client) -> None:
    assert await client.own.is_server_live()
    assert await client.own.is_server_ready()
    assert await client.own.is_model_ready("sum")
    assert await client.own.is_model_ready("sum", "1")
    assert (await client.told("get_server_metadata"))["name"] == "asyncnn"
    told = await client.told("get_model_metadata", "counter")
    assert (told["name"], told["versions"]) == ("counter", ["1"])
    (x,) = told["inputs"]
    assert (x["name"], x["datatype"], [*map(int, x["shape"])]) == ("x", "FP32", [4])


@pytest.mark.parametrize("asks", [False, True])
async def test_a_model_runs(client: Client, asks: bool) -> None:
    outputs = [client.module.InferRequestedOutput("z")] if asks else None
    result = await client.infer(
        "sum", {"x": X, "y": Y}, outputs=outputs, request_id="seven"
    )
    np.testing.assert_array_equal(result.as_numpy("z"), [11, 22])
    told = result.get_response()
    told = told if isinstance(told, dict) else {"id": told.id}
    assert told["id"] == "seven"


async def test_numbers_in_json_are_as_good_as_bytes(repository: Repository) -> None:
    async with talking("http", repository) as client:
        inputs = [client.input("x", X), client.input("y", Y)]
        inputs[0].set_data_from_numpy(X, binary_data=False)
        output = client.module.InferRequestedOutput("z", binary_data=False)
        result = await client.own.infer("sum", inputs, outputs=[output])
    np.testing.assert_array_equal(result.as_numpy("z"), [11, 22])
    assert result.get_response()["outputs"][0]["data"] == [11, 22]


async def test_models_are_unloaded_and_loaded(client: Client) -> None:
    states = {"sum": "READY", "endless": "READY", "counter": "READY"}

    async def index() -> dict[str, str]:
        told = await client.told("get_model_repository_index")
        models = told if isinstance(told, list) else told["models"]
        return {each["name"]: each["state"] for each in models}

    assert await index() == states
    await client.own.unload_model("sum")
    assert await index() == states | {"sum": "UNAVAILABLE"}
    assert not await client.own.is_model_ready("sum")
    with pytest.raises(InferenceServerException, match="not ready: unloaded"):
        await client.infer("sum", {"x": X, "y": Y})
    await client.own.load_model("sum")
    assert await index() == states
    await client.infer("sum", {"x": X, "y": Y})
    with pytest.raises(InferenceServerException, match="cannot be loaded with config"):
        await client.own.load_model("sum", config="{}")
    with pytest.raises(InferenceServerException, match="no model 'other'"):
        await client.own.load_model("other")


async def test_requests_are_counted(client: Client) -> None:
    await client.infer("sum", {"x": X, "y": Y})
    with pytest.raises(InferenceServerException):
        await client.infer("sum", {"x": X})
    told = await client.told("get_inference_statistics", "sum")
    (counted,) = told["model_stats"]
    stats = counted["inference_stats"]
    assert [int(stats[k]["count"]) for k in ("success", "fail")] == [1, 1]
    parts = ("compute_input", "compute_infer", "compute_output")
    assert sum(int(stats[each]["ns"]) for each in parts) == int(stats["success"]["ns"])
    assert len((await client.told("get_inference_statistics"))["model_stats"]) == 3


async def test_a_priority_is_the_hals(client: Client, repository: Repository) -> None:
    for number in (1, 2, 3):
        await client.infer("endless", {"x": AT_ONCE}, priority=number)
    assert {*repository.find("endless").prepared} == {*Priority}
    with pytest.raises(InferenceServerException, match="priority is 7"):
        await client.infer("endless", {"x": AT_ONCE}, priority=7)


async def test_a_run_ends_at_its_deadline(client: Client) -> None:
    with pytest.raises(InferenceServerException) as raised:
        await client.infer("endless", {"x": FOREVER}, timeout=10_000)
    assert raised.value.status() in ("504", "StatusCode.DEADLINE_EXCEEDED")


async def one_run_was_cancelled(repository: Repository) -> None:
    """Wait for it; a run that nobody cancels has another status at its end."""
    counted = repository.device.statistics
    async with asyncio.timeout(20):
        while not (await counted()).executions.ended:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    assert (await counted()).executions.done[GONE] == 1


async def test_the_time_that_grpc_gives_is_the_runs_deadline(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []
    run = repository.run

    async def noted(served: Any, inputs: Any, wanted: AskedRun) -> Any:
        given.append(wanted.timeout)
        return await run(served, inputs, wanted)

    monkeypatch.setattr(repository, "run", noted)
    own: dict[str, Any] = {"client_timeout": 50}
    async with talking("grpc", repository) as client:
        for options in ({}, own, {**own, "timeout": 40_000_000}):
            await client.infer("sum", {"x": X, "y": Y}, **options)
        with pytest.raises(InferenceServerException, match=r"[Dd]eadline"):
            await client.infer("endless", {"x": FOREVER}, client_timeout=0.01)
    without, timed, both = given[:3]
    assert without is None
    assert 40 < timed < 60  # as exact as its header
    assert both == 40


async def test_a_call_that_is_cancelled_stops_computing(
    client: Client, repository: Repository
) -> None:
    running = asyncio.create_task(client.infer("endless", {"x": FOREVER}))
    await until(lambda: repository.admission.requests)
    await cancelled(running)
    await one_run_was_cancelled(repository)
    await until(lambda: not repository.admission.requests)


async def test_its_cancel_of_a_call_from_threads_stops_computing(
    repository: Repository, grpc_address: Address
) -> None:
    told: list[Any] = []

    def cancel() -> None:
        client = tritonclient.grpc.InferenceServerClient(str(grpc_address))
        x = tritonclient.grpc.InferInput("x", [1], "FP32")
        x.set_data_from_numpy(FOREVER)

        def done(result: Any, error: Any) -> None:
            told.append(error)

        call = client.async_infer("endless", [x], done)
        while not repository.admission.requests:
            pass
        call.cancel()
        while not told:
            pass
        client.close()

    await asyncio.to_thread(cancel)
    assert told[0].status() == "StatusCode.CANCELLED"
    await one_run_was_cancelled(repository)
    await until(lambda: not repository.admission.requests)
