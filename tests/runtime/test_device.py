import asyncio
import gc
import os
import threading
import time
from collections.abc import AsyncIterator

import anyio
import numpy as np
import pytest

import asyncnn
from asyncnn.hal.types import DeviceStatus, DeviceType
from asyncnn.runtime.prepared import Path
from tests.networks import F32, FOREVER, addition, chain, counting_up
from tests.waits import cancelled

X = np.array([1, 2, 3, 4], np.float32)


@pytest.fixture
async def device() -> AsyncIterator[asyncnn.Device]:
    async with asyncnn.open_device() as device:
        yield device


@pytest.fixture(params=["async", "sync"])
def path(request: pytest.FixtureRequest) -> Path:
    return request.param


class TestOpenDevice:
    async def test_an_unknown_name_is_an_error_that_lists_the_known(self) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError, match="reference"):
            async with asyncnn.open_device("gpu9"):
                pass

    async def test_describes_itself(self, device: asyncnn.Device) -> None:
        assert device.name in asyncnn.device_names()
        assert device.version == asyncnn.__version__
        assert device.type is DeviceType.CPU
        assert device.capabilities.operand_performance
        assert "AVAILABLE" in repr(device)

    async def test_a_closed_device_refuses_work(self) -> None:
        async with asyncnn.open_device() as device:
            prepared = await device.prepare(addition(4))
        assert device.hal.get_status() is DeviceStatus.OFFLINE
        with pytest.raises(asyncnn.DeviceUnavailableError):
            await prepared.run([X, X])
        with pytest.raises(asyncnn.DeviceUnavailableError):
            await device.prepare(addition(4))

    async def test_leaving_ends_what_is_pending(self) -> None:
        async with asyncnn.open_device() as device:
            prepared = await device.prepare(counting_up())
            runs = [asyncio.create_task(prepared.run(FOREVER)) for _ in range(5)]
            await asyncio.sleep(0.01)
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert {type(result) for result in results} == {asyncnn.DeviceClosedError}

    async def test_nothing_is_left_behind(self) -> None:
        async def once() -> None:
            async with asyncnn.open_device() as device:
                prepared = await device.prepare(chain(20, 64, 64))
                x = np.zeros((64, 64), np.float32)
                await asyncio.gather(*(prepared.run(x) for _ in range(20)))

        await once()
        gc.collect()
        before = _resources()
        for _ in range(5):
            await once()
        gc.collect()
        assert _resources() == before


def _resources() -> tuple[int, int, int, set[str]]:
    return (
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(asyncio.all_tasks()),
        {name for name in os.listdir("/dev/shm") if "asyncnn" in name},
    )


class TestInputs:
    @pytest.fixture
    async def prepared(self, device: asyncnn.Device) -> asyncnn.PreparedModel:
        return await device.prepare(addition(4))

    @pytest.mark.parametrize(
        "inputs",
        [{"x": X, "y": X}, {"y": X, "x": X}, [X, X], (X, list(X)), [X[::1], X.copy()]],
        ids=["by name", "any order", "list", "plain numbers", "views"],
    )
    async def test_arrays_by_name_or_in_order(
        self, prepared: asyncnn.PreparedModel, inputs: object, path: Path
    ) -> None:
        outputs = await prepared.run(inputs, path=path)
        assert list(outputs) == ["z"]
        np.testing.assert_array_equal(outputs["z"], 2 * X)

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({"x": X}, "missing input: y"),
            ({"x": X, "y": X, "q": X}, "unknown input: q"),
            ([X], "a list of 1 given for 2 inputs: x, y"),
            (X, "cannot be of type ndarray.*x, y"),
            ([X, X.astype(np.float64)], "input y has dtype float64.*astype"),
            ([X, X[:3]], r"input y has shape \[3\], the model takes \[4\]"),
            ([X, "text"], "input y is not float32 data"),
            ([X, X.reshape(1, 4)], r"shape \[1, 4\]"),
        ],
    )
    async def test_bad_inputs_are_named(
        self, prepared: asyncnn.PreparedModel, inputs: object, message: str
    ) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError, match=message):
            await prepared.run(inputs)

    async def test_an_array_that_is_not_contiguous_is_taken(
        self, prepared: asyncnn.PreparedModel
    ) -> None:
        outputs = await prepared.run([np.repeat(X, 2)[::2], X])
        np.testing.assert_array_equal(outputs["z"], 2 * X)

    async def test_an_unknown_path_is_refused(
        self, prepared: asyncnn.PreparedModel
    ) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError, match="known: async, sync"):
            await prepared.run([X, X], path="carrier pigeon")  # type: ignore[arg-type]


async def test_an_open_axis_takes_any_length(
    device: asyncnn.Device, path: Path
) -> None:
    prepared = await device.prepare(addition(0, 2))
    for rows in (1, 700, 3):
        x = np.ones((rows, 2), np.float32)
        outputs = await prepared.run([x, x], path=path)
        assert outputs["z"].shape == (rows, 2)
        np.testing.assert_array_equal(outputs["z"], 2 * x)


async def test_timing_is_there_if_measured(device: asyncnn.Device, path: Path) -> None:
    prepared = await device.prepare(chain(10, 64, 64))
    x = np.zeros((64, 64), np.float32)
    timing = (await prepared.run(x, path=path, measure=True)).timing
    assert 0 < timing.on_device_ns <= timing.in_driver_ns


async def test_a_model_that_breaks_a_rule_is_refused_with_the_rule(
    device: asyncnn.Device,
) -> None:
    builder = asyncnn.ModelBuilder()
    x = builder.input("x", F32, (4,))
    code = builder.scalar(0)
    y = builder.operation(
        asyncnn.OperationType.ADD, [x, x, code], builder.temporary(F32, (4,), scale=2.0)
    )
    builder.output(y, "y")
    with pytest.raises(asyncnn.InvalidArgumentError, match="scale"):
        await device.prepare(builder.build())


async def test_a_path_is_no_model(device: asyncnn.Device) -> None:
    with pytest.raises(asyncnn.InvalidArgumentError, match=r"type str .*asyncnn\.load"):
        await device.prepare("model.tflite")  # type: ignore[arg-type]


async def test_a_bare_hal_model_gets_numbered_names(device: asyncnn.Device) -> None:
    prepared = await device.prepare(addition(4).model)
    outputs = await prepared.run({"input_0": X, "input_1": X})
    np.testing.assert_array_equal(outputs["output_0"], 2 * X)


class TestDeadline:
    @pytest.mark.alone
    async def test_a_timeout_ends_a_run(
        self, device: asyncnn.Device, path: Path
    ) -> None:
        prepared = await device.prepare(counting_up())
        started = time.perf_counter()
        with pytest.raises(asyncnn.MissedDeadlineTransientError):
            await prepared.run(FOREVER, path=path, timeout=0.05)
        assert time.perf_counter() - started < 1

    @pytest.mark.parametrize("seconds", [0, -1])
    async def test_no_time_at_all_is_missed_at_once(
        self, device: asyncnn.Device, path: Path, seconds: float
    ) -> None:
        prepared = await device.prepare(addition(4))
        with pytest.raises(asyncnn.MissedDeadlinePersistentError):
            await prepared.run([X, X], path=path, timeout=seconds)

    async def test_preparing_has_a_deadline_too(self, device: asyncnn.Device) -> None:
        with pytest.raises(asyncnn.MissedDeadlinePersistentError):
            await device.prepare(addition(4), timeout=0)

    @pytest.mark.parametrize("seconds", [float("nan"), float("inf")])
    async def test_a_timeout_is_a_number_of_seconds(
        self, device: asyncnn.Device, seconds: float
    ) -> None:
        prepared = await device.prepare(addition(4))
        with pytest.raises(asyncnn.InvalidArgumentError, match="seconds"):
            await prepared.run([X, X], timeout=seconds)
        with pytest.raises(asyncnn.InvalidArgumentError, match="seconds"):
            await prepared.run([X, X], loop_timeout=seconds)
        with pytest.raises(asyncnn.InvalidArgumentError, match="seconds"):
            prepared.run_fenced([X, X], duration=seconds)


class TestCancellation:
    @pytest.mark.alone
    async def test_a_cancelled_run_stops_between_two_operations(
        self, device: asyncnn.Device, path: Path
    ) -> None:
        prepared = await device.prepare(counting_up())
        task = asyncio.create_task(prepared.run(FOREVER, path=path))
        await asyncio.sleep(0.02)
        await cancelled(task)
        small = await device.prepare(addition(4))
        started = time.perf_counter()
        await small.run([X, X])  # the lane is free at once, not after the long run
        assert time.perf_counter() - started < 0.25

    async def test_a_run_cancelled_while_it_waits_lets_the_others_pass(
        self, device: asyncnn.Device, path: Path
    ) -> None:
        prepared = await device.prepare(chain(1500, 128, 128))
        x = np.zeros((128, 128), np.float32)
        tasks = [asyncio.create_task(prepared.run(x, path=path)) for _ in range(9)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results[1::2]:
            assert isinstance(result, asyncio.CancelledError)
        for result in results[::2]:
            assert isinstance(result, dict)
            assert (result["z"] == 1500).all()

    async def test_scopes_of_anyio_end_runs_as_often_as_they_cancel(
        self, device: asyncnn.Device, path: Path
    ) -> None:
        prepared = await device.prepare(counting_up())
        with anyio.move_on_after(0.01) as late:
            await prepared.run(FOREVER, path=path)
        assert late.cancelled_caught

        async def beside_one_that_fails() -> None:
            async with anyio.create_task_group() as group:
                group.start_soon(prepared.run, FOREVER)
                await anyio.sleep(0.01)
                raise ValueError("of a sibling")

        with pytest.raises(ExceptionGroup) as failed:
            await beside_one_that_fails()
        assert failed.group_contains(ValueError, match="sibling")
        with anyio.CancelScope() as scope:
            async with asyncnn.open_device() as other:
                inner = await other.prepare(counting_up())
                scope.cancel()  # closing is cancelled too, each time that it waits
                await inner.run(FOREVER, path=path)
        assert scope.cancelled_caught
        assert other.hal.get_status() is DeviceStatus.OFFLINE
        with anyio.fail_after(20):
            small = await device.prepare(addition(4))
            assert ((await small.run([X, X]))["z"] == X + X).all()

    async def test_a_cancelled_preparation_leaves_the_device_usable(
        self, device: asyncnn.Device
    ) -> None:
        task = asyncio.create_task(device.prepare(chain(2000, 4)))
        await asyncio.sleep(0)
        await cancelled(task)
        prepared = await device.prepare(addition(4))
        np.testing.assert_array_equal((await prepared.run([X, X]))["z"], 2 * X)
