"""What becomes of a device at its end, and of those who use it then."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.types import ErrorStatus
from tests.devices.test_quality_of_service import Gate
from tests.networks import FOREVER, addition, counting_up
from tests.waits import until

PATHS = ("async", "sync", "fenced")
QUICK = asyncnn.DeviceSettings(inline_below_us=1e9)
ON_LANES = asyncnn.DeviceSettings(inline_below_us=0)
X = np.arange(4, dtype=np.float32)


def lane_threads() -> set[str]:
    names = {thread.name for thread in threading.enumerate()}
    # Of files, a thread may take a moment longer to end than what it did.
    return {name for name in names - {"asyncnn-files"} if name.startswith("asyncnn")}


async def until_idle() -> None:
    await until(lambda: not lane_threads())


@asynccontextmanager
async def warm_model(
    settings: asyncnn.DeviceSettings,
) -> AsyncIterator[asyncnn.PreparedModel]:
    """A model whose executions have lately been quick."""
    async with asyncnn.open_device(settings=settings) as device:
        prepared = await device.prepare(addition(4))
        for _ in range(2):
            await prepared.run({"x": X, "y": X})
        yield prepared


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


class TestAClosedDevice:
    """Executes nothing, on whichever path, and says why."""

    @pytest.mark.parametrize("settings", [QUICK, ON_LANES], ids=["quick", "lanes"])
    @pytest.mark.parametrize("path", PATHS)
    async def test_runs_nothing(
        self, path: str, settings: asyncnn.DeviceSettings
    ) -> None:
        async with warm_model(settings) as prepared:
            pass
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            await prepared.run({"x": X, "y": X}, path=path)  # type: ignore[arg-type]
        assert not lane_threads()

    @pytest.mark.parametrize("path", PATHS)
    async def test_runs_no_reusable_execution(self, path: str) -> None:
        async with warm_model(QUICK) as prepared:
            reusable = prepared.reusable(path=path)  # type: ignore[arg-type]
            await reusable.run()
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            await reusable.run()
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            reusable.run_fenced()

    async def test_launches_no_fenced_run(self) -> None:
        async with warm_model(QUICK) as prepared:
            pass
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            prepared.run_fenced({"x": X, "y": X})

    async def test_runs_no_burst(self) -> None:
        async with warm_model(QUICK) as prepared:
            bursting = prepared.burst()
            burst = await bursting.__aenter__()
            await burst.run({"x": X, "y": X})
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            await burst.run({"x": X, "y": X})
        await bursting.__aexit__(None, None, None)
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            async with prepared.burst():
                pytest.fail("it is open")

    async def test_prepares_nothing(self) -> None:
        async with asyncnn.open_device() as device:
            pass
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            await device.prepare(addition(4))
        assert not lane_threads()

    async def test_loads_nothing_from_a_cache(self, tmp_path: Path) -> None:
        async with asyncnn.open_device(cache_dir=tmp_path) as device:
            await device.prepare(addition(4))
        with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
            await device.prepare(addition(4))

    async def test_has_no_buffers(self) -> None:
        async with asyncnn.open_device() as device:
            prepared = await device.prepare(addition(4))
            buffer = await device.buffer_for(prepared.input("x"))
            await buffer.write(X)
        for use in (
            buffer.write(X),
            buffer.read(),
            device.buffer_for(prepared.input("x")),
        ):
            with pytest.raises(asyncnn.DeviceClosedError, match="the device is closed"):
                await use

    async def test_is_asked_nothing(self) -> None:
        async with asyncnn.open_device() as device:
            pass
        model = addition(4).model
        outcome = await device.hal.get_supported_operations_1_3(model)
        assert outcome == (ErrorStatus.DEVICE_UNAVAILABLE, ())


class TestLeaving:
    """Ends all that is pending, however it is left."""

    async def test_a_fenced_run_that_waits_ends(self) -> None:
        async with asyncnn.open_device(settings=ON_LANES) as device:
            prepared = await device.prepare(counting_up())
            first = prepared.run_fenced(FOREVER)
            second = prepared.run_fenced(first.outputs["z"], wait_for=[first])
        for run in (first, second):
            with pytest.raises(asyncnn.AsyncnnError):
                await run
        with pytest.raises(asyncnn.DeviceClosedError):
            await first

    @pytest.mark.parametrize("after_s", [0.0, 0.002])
    async def test_cancelled_on_the_way_out_it_still_closes(
        self, after_s: float
    ) -> None:
        runs: list[asyncio.Task[asyncnn.Outputs]] = []

        async def use() -> None:
            async with asyncnn.open_device(settings=ON_LANES) as device:
                prepared = await device.prepare(counting_up())
                tasks = (asyncio.create_task(prepared.run(FOREVER)) for _ in range(3))
                runs.extend(tasks)
                await asyncio.sleep(0.005)
                leaving.set()

        leaving = asyncio.Event()
        user = asyncio.create_task(use())
        await leaving.wait()
        await asyncio.sleep(after_s)
        user.cancel()
        await asyncio.gather(user, return_exceptions=True)
        async with asyncio.timeout(20):
            ended = await asyncio.gather(*runs, return_exceptions=True)
        assert all(isinstance(each, asyncnn.DeviceClosedError) for each in ended)
        await until_idle()

    @pytest.mark.alone
    async def test_a_time_limit_around_it_is_kept_and_it_closes_by_itself(
        self, gate: Gate
    ) -> None:
        device = asyncnn.open_device(settings=ON_LANES)
        opened = await device.__aenter__()
        prepared = await opened.prepare(addition(4))
        run = asyncio.create_task(prepared.run({"x": X, "y": X}))
        await gate.reached()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await device.__aexit__(None, None, None)
        assert time.monotonic() - began < 1
        gate.open()
        with pytest.raises(asyncnn.DeviceClosedError):
            await run
        await until_idle()

    @pytest.mark.alone
    async def test_work_that_is_stuck_ends_within_the_limit(self, gate: Gate) -> None:
        settings = asyncnn.DeviceSettings(inline_below_us=0, stuck_after_s=0.05)
        async with asyncnn.open_device(settings=settings) as device:
            prepared = await device.prepare(addition(4))
            run = asyncio.create_task(prepared.run({"x": X, "y": X}))
            await gate.reached()
            began = time.monotonic()
        assert time.monotonic() - began < 1
        with pytest.raises(asyncnn.DeviceClosedError):
            await run
        gate.open()
        await until_idle()

    async def test_its_end_with_the_loop_notifies_those_who_wait(self) -> None:
        told: list[BaseException | asyncnn.Outputs] = []

        async def wait(prepared: asyncnn.PreparedModel) -> None:
            try:
                told.append(await prepared.run(FOREVER))
            except BaseException as error:
                told.append(error)
                raise

        async def abandon() -> None:
            device = asyncnn.open_device(settings=ON_LANES)
            opened = await device.__aenter__()
            prepared = await opened.prepare(counting_up())
            tasks.append(asyncio.create_task(wait(prepared)))
            await asyncio.sleep(0.005)
            leaving = asyncio.create_task(device.__aexit__(None, None, None))
            await asyncio.sleep(0)
            tasks.append(leaving)

        tasks: list[asyncio.Task[object]] = []
        await asyncio.to_thread(asyncio.run, abandon())
        assert len(told) == 1
        deadline = time.monotonic() + 20
        while lane_threads() and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not lane_threads()


class TestUnexpectedErrors:
    """Become statuses with a reason, on every path, and nothing hangs."""

    @pytest.fixture(params=[QUICK, ON_LANES], ids=["quick", "lanes"])
    async def model(
        self, request: pytest.FixtureRequest
    ) -> AsyncIterator[asyncnn.PreparedModel]:
        async with warm_model(request.param) as prepared:
            yield prepared

    @pytest.fixture
    def no_memory(
        self, model: asyncnn.PreparedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(program: object, plan: object) -> None:
            raise MemoryError("no room for a workspace")

        monkeypatch.setattr("asyncnn.engine.program.Program.idle_workspace", fail)

    @pytest.mark.usefixtures("no_memory")
    @pytest.mark.parametrize("path", PATHS)
    async def test_a_run_fails(self, model: asyncnn.PreparedModel, path: str) -> None:
        async with asyncio.timeout(20):
            with pytest.raises(asyncnn.ResourceExhaustedTransientError) as raised:
                await model.run({"x": X, "y": X}, path=path)  # type: ignore[arg-type]
        assert path == "sync" or "no room" in str(raised.value)

    @pytest.mark.usefixtures("no_memory")
    async def test_fenced_runs_and_what_waits_for_them_end(
        self, model: asyncnn.PreparedModel
    ) -> None:
        first = model.run_fenced({"x": X, "y": X})
        second = model.run_fenced({"x": X, "y": X}, wait_for=[first])
        async with asyncio.timeout(20):
            with pytest.raises(asyncnn.ResourceExhaustedError, match="no room"):
                await first
            with pytest.raises(asyncnn.GeneralFailureError, match="no room"):
                await second

    @pytest.mark.usefixtures("no_memory")
    async def test_fenced_runs_that_waited_for_others_end(
        self, model: asyncnn.PreparedModel
    ) -> None:
        fence, source = asyncnn.fences.SyncFence.pair()
        run = model.run_fenced({"x": X, "y": X}, wait_for=[fence])
        source.signal()
        async with asyncio.timeout(20):
            with pytest.raises(asyncnn.ResourceExhaustedError, match="no room"):
                await run

    async def test_a_burst_fails_and_goes_on(
        self, model: asyncnn.PreparedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(program: object, plan: object) -> None:
            raise MemoryError("no room for a workspace")

        async with model.burst() as burst, asyncio.timeout(20):
            await burst.run({"x": X, "y": X})
            with monkeypatch.context() as patch:
                patch.setattr("asyncnn.engine.program.Program.idle_workspace", fail)
                with pytest.raises(asyncnn.ResourceExhaustedError, match="no room"):
                    await burst.run({"x": X, "y": X})
            outputs = await burst.run({"x": X, "y": X})
            np.testing.assert_array_equal(outputs["z"], X + X)

    async def test_claims_on_buffers_are_settled(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(program: object, plan: object) -> None:
            raise MemoryError("no room for a workspace")

        async with asyncnn.open_device(settings=QUICK) as device:
            model = await device.prepare(addition(4))
            buffer = await device.buffer_for(model.output("z"))
            inputs = {"x": X, "y": X}
            for _ in range(2):
                await model.run(inputs, out={"z": buffer})
            with monkeypatch.context() as patch:
                patch.setattr("asyncnn.engine.program.Program.idle_workspace", fail)
                with pytest.raises(asyncnn.ResourceExhaustedError, match="no room"):
                    await model.run(inputs, out={"z": buffer})
            with pytest.raises(asyncnn.GeneralFailureError):
                await buffer.read()  # without contents, but not in use
            await model.run(inputs, out={"z": buffer})
            np.testing.assert_array_equal(await buffer.read(), X + X)

    @pytest.mark.usefixtures("no_memory")
    async def test_they_are_counted(self, model: asyncnn.PreparedModel) -> None:
        for _ in range(2):
            with pytest.raises(asyncnn.ResourceExhaustedError):
                await model.run({"x": X, "y": X})


class TestThreads:
    """That cannot be started fail what needed them, and nothing else."""

    async def test_a_run_and_a_preparation_are_refused_for_now(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        async with asyncnn.open_device(settings=ON_LANES) as device:
            prepared = await device.prepare(addition(4))
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refuse)
                with pytest.raises(asyncnn.ResourceExhaustedTransientError):
                    await prepared.run({"x": X, "y": X})
                run = prepared.run_fenced({"x": X, "y": X})
                with pytest.raises(asyncnn.ResourceExhaustedTransientError):
                    await run
                async with prepared.burst() as burst:
                    with pytest.raises(asyncnn.ResourceExhaustedTransientError):
                        await burst.run({"x": X, "y": X})
            outputs = await prepared.run({"x": X, "y": X})
            np.testing.assert_array_equal(outputs["z"], X + X)
        with monkeypatch.context() as patch:
            async with asyncnn.open_device() as device:
                patch.setattr(threading.Thread, "start", refuse)
                with pytest.raises(asyncnn.ResourceExhaustedTransientError):
                    await device.prepare(addition(4))
                patch.undo()
                await device.prepare(addition(4))
