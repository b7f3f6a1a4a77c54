"""Regions of both engines keep priorities, shares and supervision, as operations do."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn import NamedModel, PreparedModel
from asyncnn.devices import DeviceSettings
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import Priority
from asyncnn.memory.pools import from_buffer
from asyncnn.qos import Client, acting_for
from asyncnn.service import Supervision
from tests.devices.conftest import until_running
from tests.mappings import children
from tests.runtime.tflite.importing import region_of_tflite
from tests.runtime.tflite.test_regions import dense_layers

LAYERS, WIDTH = 6, 512
X = np.ones((64, WIDTH), np.float32)
HALVES = np.eye(WIDTH, dtype=np.float32) / 2


def of_litert() -> NamedModel:
    return region_of_tflite(from_buffer(dense_layers(LAYERS, WIDTH)))


def of_onnx_runtime() -> NamedModel:
    pytest.importorskip("onnx", reason="the package onnx is not installed")
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", [f"v{k}", "halves"], [f"v{k + 1}"])
        for k in range(LAYERS)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, X.shape)
        for name in ("v0", f"v{LAYERS}")
    ]
    weights = [numpy_helper.from_array(HALVES, "halves")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return asyncnn.load(model.SerializeToString())


MODELS: dict[str, Callable[[], NamedModel]] = {
    "accelerated": of_litert,
    "onnxruntime": of_onnx_runtime,
    "auto": of_onnx_runtime,
}
one_lane = DeviceSettings(lanes=1, inline_below_us=0)


async def ended_in_order(runs: list[tuple[str, PreparedModel, Any]]) -> list[str]:
    """Launch runs for clients, in this order; return their names as they end."""
    ended: list[str] = []

    async def one(name: str, prepared: PreparedModel, client: Client | None) -> None:
        with nullcontext() if client is None else acting_for(client):
            outputs = await prepared.run([X])
        np.testing.assert_array_equal(outputs[0], X / 2.0**LAYERS)
        ended.append(name)

    await asyncio.gather(*(one(*each) for each in runs))
    return ended


@pytest.mark.parametrize("name", MODELS)
class TestOrder:
    async def test_what_is_urgent_overtakes_what_waits(self, name: str) -> None:
        model = MODELS[name]()
        async with asyncnn.open_device(name, settings=one_lane) as device:
            usual = await device.prepare(model)
            urgent = await device.prepare(model, priority=Priority.HIGH)
            runs = [("usual", usual, None)] * 8 + [("urgent", urgent, None)]
            await ended_in_order(runs)  # what is made by the first runs is there then
            # One is running, and one may be with the lane already.
            assert "urgent" in (await ended_in_order(runs))[:3]

    async def test_a_client_does_not_wait_for_all_of_another(self, name: str) -> None:
        model = MODELS[name]()
        many, few = Client("many"), Client("few")
        async with asyncnn.open_device(name, settings=one_lane) as device:
            prepared = await device.prepare(model)
            runs = [("many", prepared, many)] * 12 + [("few", prepared, few)]
            await ended_in_order(runs)
            assert "few" in (await ended_in_order(runs))[:4]

    async def test_a_driver_that_is_killed_in_a_run_is_started_anew(
        self, name: str
    ) -> None:
        model = MODELS[name]()
        before = children()
        async with asyncnn.connect(
            device=name, supervised=Supervision(wait=30)
        ) as device:
            prepared = await device.prepare(model)
            runs = [asyncio.ensure_future(prepared.run([X])) for _ in range(500)]
            await until_running(device)
            (pid,) = children() - before
            os.kill(pid, signal.SIGKILL)
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
            assert any(isinstance(each, DeviceUnavailableError) for each in outcomes)
            outputs = await prepared.run([X])
            np.testing.assert_array_equal(outputs[0], X / 2.0**LAYERS)
