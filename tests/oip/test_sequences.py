"""Sequences keep the state of a model from request to request, within bounds."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from asyncnn.oip import Address
from tests.oip.conftest import KINDS, Client, loaded, talking
from tests.runtime.stateful import X


async def step(client: Client, sequence: int | str, which: str = "") -> list[float]:
    """Take a step of `counting`, the ``start`` or the ``end`` of a sequence or both."""
    result = await client.infer(
        "counter",
        {"x": X},
        sequence_id=sequence,
        sequence_start="start" in which,
        sequence_end="end" in which,
    )
    return [*map(float, result.as_numpy("y"))]


def after(steps: int) -> list[float]:
    return [*map(float, 2 * steps * X)]


@pytest.mark.parametrize("name", [5, "five"])
async def test_each_has_a_state_of_its_own(client: Client, name: int | str) -> None:
    assert await step(client, name, "start") == after(1)
    assert await step(client, 6, "start") == after(1)
    assert await step(client, name) == after(2)
    assert await step(client, name) == after(3)
    assert await step(client, 6, "end") == after(2)
    assert await step(client, name, "end") == after(4)
    assert await step(client, 0) == after(1)


async def test_one_that_has_ended_or_not_begun_is_refused(client: Client) -> None:
    assert await step(client, 5, "start end") == after(1)
    for sequence in (5, 6):
        with pytest.raises(InferenceServerException, match="has started"):
            await step(client, sequence)


async def test_one_that_starts_again_begins_anew(client: Client) -> None:
    await step(client, 5, "start")
    assert await step(client, 5, "start") == after(1)
    assert await step(client, 5) == after(2)


async def test_a_model_without_state_has_none(client: Client) -> None:
    x = np.zeros(2, np.float32)
    with pytest.raises(InferenceServerException, match="no state"):
        await client.infer("sum", {"x": x, "y": x}, sequence_id=5, sequence_start=True)


async def test_unloading_a_model_ends_its_sequences(client: Client) -> None:
    await step(client, 5, "start")
    await client.own.unload_model("counter")
    await client.own.load_model("counter")
    with pytest.raises(InferenceServerException, match="has started"):
        await step(client, 5)


@pytest.mark.parametrize("kind", KINDS)
async def test_too_many_are_refused(kind: str, files: dict[str, Path]) -> None:
    async with (
        loaded(files, max_sequences=2) as repository,
        talking(kind, repository) as client,
    ):
        await step(client, 5, "start")
        await step(client, 6, "start")
        with pytest.raises(InferenceServerException, match="max_sequences") as no:
            await step(client, 7, "start")
        assert no.value.status() in ("429", "StatusCode.RESOURCE_EXHAUSTED")
        await step(client, 6, "end")
        await step(client, 7, "start")


async def test_one_that_is_idle_ends(files: dict[str, Path]) -> None:
    async with (
        loaded(files, sequence_idle_s=0.01, max_sequences=1) as repository,
        talking("grpc", repository) as client,
    ):
        await step(client, 5, "start")
        async with asyncio.timeout(20):
            while True:
                with suppress(InferenceServerException):  # there is one already
                    await step(client, 6, "start end")
                    break
        with pytest.raises(InferenceServerException, match="has started"):
            await step(client, 5)


async def test_a_stream_answers_in_order_and_outlives_errors(
    grpc_address: Address,
) -> None:
    own = tritonclient.grpc.aio.InferenceServerClient(str(grpc_address))
    steps = [("1", True), ("2", False), ("none", False), ("3", False)]

    async def requests() -> AsyncIterator[dict[str, Any]]:
        for name, starts in steps:
            x = tritonclient.grpc.InferInput("x", [4], "FP32")
            x.set_data_from_numpy(X)
            yield {
                "model_name": "counter" if name != "none" else name,
                "inputs": [x],
                "request_id": name,
                "sequence_id": 5,
                "sequence_start": starts,
            }

    told = []
    async with asyncio.timeout(20):
        async for result, error in own.stream_infer(requests()):
            told.append(str(error) if error else [*map(float, result.as_numpy("y"))])
            if len(told) == len(steps):
                break
    await own.close()
    assert told.pop(2).startswith("there is no model 'none'")
    assert told == [after(1), after(2), after(3)]
