"""The accelerated device: results, interrupted runs, caches, and doing without it."""

import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, compiled_graph
from asyncnn.devices.accelerated import AcceleratedDevice
from asyncnn.extensions import Extension
from asyncnn.hal.errors import (
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
)
from asyncnn.hal.types import (
    ExecutionPreference,
    FusedActivationFunc,
    Operand,
    OperationType,
    Priority,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel
from tests.measuring import best_of
from tests.networks import F32, addition
from tests.waits import until

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")

WIDTH = 1024
LAYERS = 24
X = np.ones((64, WIDTH), np.float32)


def layers(count: int = LAYERS, width: int = WIDTH, batch: int = 64) -> NamedModel:
    """Return a chain of FULLY_CONNECTED layers, each of which halves its input.

    One of 64 x 1024 x 1024 takes some milliseconds.
    """
    builder = ModelBuilder()
    value = builder.input("x", F32, (batch, width))
    weights = builder.constant(np.eye(width, dtype=np.float32) / 2)
    bias = builder.constant(np.zeros(width, np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    for _ in range(count):
        value = builder.operation(
            OperationType.FULLY_CONNECTED,
            [value, weights, bias, none],
            Operand(F32, (batch, width)),
        )
    builder.output(value, "y")
    return builder.build()


@pytest.fixture
async def device() -> AsyncIterator[Device]:
    async with open_device("accelerated") as device:
        yield device


async def elapsed(prepared: PreparedModel) -> float:
    """Return the seconds that a run takes, at best of three."""
    least = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        await prepared.run(X)
        least = min(least, time.perf_counter() - started)
    return least


class TestResults:
    async def test_the_engine_computes_segments(self, device: Device) -> None:
        prepared = await device.prepare(layers())
        np.testing.assert_allclose((await prepared.run(X))["y"], X / 2.0**LAYERS)
        hal = device.hal
        assert isinstance(hal, AcceleratedDevice)
        (model,) = hal.statistics().models
        assert model.operations == LAYERS

    @pytest.mark.parametrize("path", ["async", "sync", "fenced", "burst"])
    async def test_every_path_gives_the_reference_result(
        self, device: Device, path: str, shared: Path
    ) -> None:
        model = load(shared / "models" / "vww_96_int8.tflite")
        x = np.random.default_rng(0).integers(-128, 128, (1, 96, 96, 3), np.int8)
        async with open_device("reference") as reference:
            expected = await (await reference.prepare(model)).run(x)
        prepared = await device.prepare(model)
        async with prepared.runner(path) as run:  # type: ignore[arg-type]
            for _ in range(3):
                computed = await run(x)
                for name, array in expected.items():
                    difference = array.astype(np.int32) - computed[name]
                    assert np.abs(difference).max() <= 1

    async def test_the_first_run_of_a_model_is_on_a_lane_however_short(self) -> None:
        settings = DeviceSettings(inline_below_us=1e6)
        async with open_device("accelerated", settings=settings) as device:
            hal = device.hal
            assert isinstance(hal, AcceleratedDevice)
            prepared = await device.prepare(addition(300, 40))
            before = hal.statistics().threads
            x = np.ones((300, 40), np.float32)
            await prepared.run([x, x])
            assert hal.statistics().threads == before + 1

    async def test_runs_of_one_model_overlap(self, device: Device) -> None:
        prepared = await device.prepare(layers(4))
        inputs = [np.full_like(X, k) for k in range(12)]
        results = await asyncio.gather(*map(prepared.run, inputs))
        for k, outputs in enumerate(results):
            np.testing.assert_array_equal(outputs["y"], inputs[k] / 16)

    async def test_shapes_may_come_with_the_request(self, device: Device) -> None:
        prepared = await device.prepare(addition(0, 0))
        for shape in ((300, 40), (2, 2), (300, 40)):
            x = np.random.default_rng(0).random(shape, np.float32)
            outputs = await prepared.run([x, x])
            np.testing.assert_array_equal(outputs["z"], x + x)

    async def test_there_is_a_lane_for_each_cpu_unless_another_number_is_set(
        self,
    ) -> None:
        for lanes in (None, 1):
            settings = DeviceSettings(lanes=lanes, inline_below_us=0)
            async with open_device("accelerated", settings=settings) as device:
                prepared = await device.prepare(layers(4))
                await asyncio.gather(*(prepared.run(X) for _ in range(8)))
                threads = (await device.statistics()).threads
                # As many in C as in Python, beside the one that plans.
                assert threads <= 1 + 2 * (lanes or len(os.sched_getaffinity(0)))

    async def test_its_version_names_the_engine(self, device: Device) -> None:
        assert "2.3" in device.version


@pytest.mark.alone
class TestInterrupts:
    """A run of some 50 ms, in parts of a few: what comes meanwhile need not wait."""

    async def test_cancelling_a_run_frees_its_lane_soon(self) -> None:
        settings = DeviceSettings(lanes=1)
        async with open_device("accelerated", settings=settings) as device:
            prepared = await device.prepare(layers())
            whole_s = await elapsed(prepared)
            quick = await device.prepare(layers(1, 64, 1))

            async def until_free() -> float:
                task = asyncio.create_task(prepared.run(X))
                await asyncio.sleep(whole_s / 8)
                started = time.perf_counter()
                if not task.cancel():
                    return float("inf")  # the loop was late
                with pytest.raises(asyncio.CancelledError):
                    await task
                await quick.run(np.ones((1, 64), np.float32))
                return (time.perf_counter() - started) / whole_s

            await best_of(5, until_free, 3 / LAYERS)

    async def test_a_deadline_ends_a_run_in_the_middle(self, device: Device) -> None:
        prepared = await device.prepare(layers())
        whole_s = await elapsed(prepared)

        async def until_missed() -> float:
            started = time.perf_counter()
            try:
                await prepared.run(X, timeout=whole_s / 4)
            except MissedDeadlineTransientError:
                pass
            else:
                return float("inf")
            return (time.perf_counter() - started) / whole_s

        await best_of(5, until_missed, 0.5)
        np.testing.assert_allclose((await prepared.run(X))["y"], X / 2.0**LAYERS)

    async def test_what_is_urgent_begins_within_a_part_of_what_is_not(self) -> None:
        settings = DeviceSettings(lanes=1)
        async with open_device("accelerated", settings=settings) as device:
            low = await device.prepare(layers(), priority=Priority.LOW)
            high = await device.prepare(layers(1, 64, 1), priority=Priority.HIGH)
            whole_s = await elapsed(low)
            x = np.ones((1, 64), np.float32)
            await high.run(x)
            slow: list[asyncio.Task[object]] = []

            async def until_done() -> float:
                slow.append(asyncio.create_task(low.run(X)))
                await asyncio.sleep(whole_s / 8)
                started = time.perf_counter()
                await high.run(x)
                took_s = time.perf_counter() - started
                return float("inf") if slow[-1].done() else took_s / whole_s

            await best_of(5, until_done, 3 / LAYERS)
            for outputs in await asyncio.gather(*slow):
                np.testing.assert_allclose(outputs["y"], X / 2.0**LAYERS)  # type: ignore[index]

    async def test_closing_interrupts_what_runs(self) -> None:
        async def until_closed() -> float:
            async with open_device("accelerated") as device:
                prepared = await device.prepare(layers())
                whole_s = await elapsed(prepared)
                task = asyncio.create_task(prepared.run(X))
                await asyncio.sleep(whole_s / 8)
                started = time.perf_counter()
            took_s = time.perf_counter() - started
            try:
                await task
            except DeviceUnavailableError:
                return took_s / whole_s
            return float("inf")  # the loop was late

        await best_of(5, until_closed, 0.5)


class TestCaches:
    async def test_a_model_from_its_cache_gives_the_same(self, tmp_path: Path) -> None:
        results = []
        for _ in range(2):
            async with open_device("accelerated", cache_dir=tmp_path) as device:
                prepared = await device.prepare(layers(3))
                results.append((await prepared.run(X))["y"])
        np.testing.assert_array_equal(*results)

    @pytest.mark.parametrize("maps", [False, True], ids=["copied", "mapped"])
    async def test_arranged_weights_are_kept_where_files_are_mapped(
        self, tmp_path: Path, maps: bool
    ) -> None:
        weights = tmp_path / "weights"
        settings = DeviceSettings(
            maps_cache_files=maps, packed_weights_dir=str(weights)
        )
        for _ in range(2):
            async with open_device(
                "accelerated", settings=settings, cache_dir=tmp_path
            ) as device:
                for model in (layers(1), layers(1, width=64)):
                    await device.prepare(model)
            kept = list(weights.iterdir()) if weights.exists() else []
            assert len(kept) == maps  # the other model is too small

    async def test_the_other_device_does_not_use_it(self, tmp_path: Path) -> None:
        for name in ("accelerated", "reference", "accelerated"):
            async with open_device(name, cache_dir=tmp_path) as device:
                prepared = await device.prepare(layers(3))
                np.testing.assert_array_equal((await prepared.run(X))["y"], X / 8)


@contextmanager
def counting_descriptors() -> Iterator[None]:
    gc.collect()  # what earlier tests have left is not to go meanwhile
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


async def test_nothing_is_left_behind() -> None:
    async with open_device("accelerated") as device:  # loads the engine
        await (await device.prepare(layers(2))).run(X)
    with counting_descriptors():
        for _ in range(5):
            async with open_device("accelerated") as device:
                for preference in ExecutionPreference:
                    model = layers(2)
                    prepared = await device.prepare(model, preference=preference)
                    await prepared.run(X)
                    task = asyncio.create_task(prepared.run(X))
                    await asyncio.sleep(0)
                    task.cancel()
            del model, prepared, task


async def test_an_isolated_device_has_a_process_of_its_own() -> None:
    async with open_device("accelerated", isolated=True) as device:
        assert "c_api" in device.version
        outputs = await (await device.prepare(layers(2))).run(X)
        np.testing.assert_array_equal(outputs["y"], X / 4)
    with pytest.raises(InvalidArgumentError, match="imports its extensions"):
        async with open_device(isolated=True, extensions=[Extension("com.example")]):
            pass


async def test_its_capabilities_are_better_than_those_of_the_kernels() -> None:
    async with (
        open_device("reference") as reference,
        open_device("accelerated") as fast,
    ):
        slow = {e.type: e.info for e in reference.capabilities.operand_performance}
        for entry in fast.capabilities.operand_performance:
            assert entry.info.exec_time <= slow[entry.type].exec_time
            if entry.type is F32:
                assert entry.info.exec_time < slow[F32].exec_time


@pytest.mark.alone
async def test_a_lane_that_litert_does_not_give_back_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gates: list[threading.Event] = []
    attempt = compiled_graph.GraphRun.attempt

    def waiting(run: Any, inputs: Any, outputs: Any) -> bool:
        if inputs[0].flat[0] == 0:
            gates.append(threading.Event())
            gates[-1].wait(30)
        return attempt(run, inputs, outputs)

    monkeypatch.setattr(compiled_graph.GraphRun, "attempt", waiting)
    monkeypatch.setattr(compiled_graph.GraphRun, "segment", lambda _: None)
    settings = DeviceSettings(lanes=2, inline_below_us=0, stuck_after_s=0.3)
    zeros, ones = (np.full((1, 64), value, np.float32) for value in (0, 1))
    async with open_device("accelerated", settings=settings) as device:
        prepared = await device.prepare(layers(4, 64, 1))
        for _ in range(2):
            runs = [asyncio.create_task(prepared.run(zeros)) for _ in range(2)]
            for run in runs:
                with pytest.raises(GeneralFailureError, match="took too long"):
                    await run
            outputs = await prepared.run(ones)
            np.testing.assert_array_equal(outputs["y"], ones / 16)
        stuck = asyncio.create_task(prepared.run(zeros))
        await until(lambda: len(gates) >= 5)
    with pytest.raises(DeviceUnavailableError):
        await stuck
    assert len(gates) == 5
    del prepared
    for gate in gates:  # they end after the device, and free their graphs then
        gate.set()
    async with open_device("accelerated", settings=settings) as device:
        await (await device.prepare(layers(4, 64, 1))).run(ones)
