"""Fenced executions of a driver in another process: who waits for whom, and where."""

import asyncio
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import IFencedExecutionCallback
from asyncnn.devices import ReferenceDevice
from asyncnn.fenced_run import FencedRun
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    GeneralFailureError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    Request,
    RequestArgument,
)
from asyncnn.memory import as_array, map_file, shared_array
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import Server, ServiceLimits, Supervision
from asyncnn.service.channel import Channel
from asyncnn.service.process import driver_process
from tests.fences.test_processes import SOON_NS, end_of, peer
from tests.measuring import best_of
from tests.memory.foreign import leaks, traces
from tests.networks import addition
from tests.places import served
from tests.waits import until

ONE = np.ones(4, np.float32)
LARGE = 2**16
"""Elements of an array that lies in a file of its own."""
PATIENT = Supervision(first_delay=0.005, max_delay=0.02, wait=5.0, give_up_after=5.0)


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Path]:
    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as device, Server(device, path):
        yield path


@pytest.fixture
async def device(driver: Path) -> AsyncIterator[Device]:
    async with connect(driver) as device:
        yield device


@pytest.fixture
async def model(device: Device) -> PreparedModel:
    return await device.prepare(addition(4))


class Gate:
    """A fence of this process; while it is closed, what waits for it waits."""

    def __init__(self) -> None:
        self.fence, self.source = SyncFence.pair()

    def open(self) -> None:
        self.source.signal()


@pytest.fixture
def gate() -> Gate:
    return Gate()


def kept_in_drivers() -> int:
    """Count what drivers of this process keep of fenced executions."""
    gc.collect()
    return sum(type(each).__name__ == "_Fenced" for each in gc.get_objects())


def total(run: FencedRun) -> float:
    return float(run.outputs["z"][0])


class TestWaiting:
    async def test_a_chain_adds_up(self, model: PreparedModel, gate: Gate) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        for _ in range(100):
            run = model.run_fenced([run.outputs["z"], ONE], wait_for=[run])
        await asyncio.sleep(0.01)
        assert run.status is None
        gate.open()
        await run
        assert total(run) == 102

    async def test_fences_of_the_driver_are_named_and_not_sent(
        self, model: PreparedModel, gate: Gate, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        x, y, z = (shared_array(4) for _ in range(3))
        await model.run_fenced([x, y], out=[z])
        sent: list[int] = []
        send_now = Channel._send_now

        def watched(self: Channel, packet: bytes, fds: tuple[int, ...]) -> bool:
            sent.append(len(fds))
            return send_now(self, packet, fds)

        monkeypatch.setattr(Channel, "_send_now", watched)
        run = model.run_fenced([x, y], out=[z], wait_for=[gate.fence])
        for _ in range(100):
            run = model.run_fenced([x, y], out=[z], wait_for=[run])
        gate.open()
        await run
        assert sum(sent) == 1  # the gate's
        # They are sent by the dozen, but for a client that traces each line of Python.
        assert len(sent) < 60 or sys.gettrace() is not None

    async def test_it_waits_for_runs_of_other_drivers_and_this_process(
        self, model: PreparedModel, gate: Gate, tmp_path: Path
    ) -> None:
        other = tmp_path / "other.sock"
        async with served(other) as elsewhere:
            there = await elsewhere.prepare(addition(4))
            first = there.run_fenced([ONE, ONE], wait_for=[gate.fence])
            second = model.run_fenced(
                [first.outputs["z"], ONE], wait_for=[first, gate.fence]
            )
            third = there.run_fenced(
                [first.outputs["z"], second.outputs["z"]], wait_for=[second, first]
            )
            gate.open()
            await third
            assert total(third) == 5

    async def test_more_fences_than_a_message_has_room_for(
        self, model: PreparedModel
    ) -> None:
        gates = [Gate() for _ in range(100)]
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence for gate in gates])
        for gate in gates:
            assert run.status is None
            gate.open()
        await run

    async def test_a_fence_that_was_signalled_elsewhere_in_the_meantime(
        self, model: PreparedModel
    ) -> None:
        """The driver may know of an end that has not arrived here yet."""
        run = model.run_fenced([ONE, ONE])
        for _ in range(3):
            await asyncio.sleep(0)
            run = model.run_fenced([run.outputs["z"], ONE], wait_for=[run])
        await run
        assert total(run) == 5

    async def test_a_driver_forgets_what_its_client_has_seen(
        self, model: PreparedModel
    ) -> None:
        x, y, z = (shared_array(4) for _ in range(3))
        before = kept_in_drivers()
        for _ in range(50):
            await model.run_fenced([x, y], out=[z])
        assert kept_in_drivers() - before <= 2

    async def test_thousands_of_runs_on_arrays_of_their_own_may_be_under_way(
        self, model: PreparedModel, gate: Gate
    ) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        for _ in range(2000):
            run = model.run_fenced([run.outputs["z"], ONE], wait_for=[run])
        gate.open()
        await run
        assert total(run) == 2002

    async def test_one_that_is_too_many_names_the_limit(
        self, gate: Gate, tmp_path: Path
    ) -> None:
        limits = ServiceLimits(max_fenced_executions=3)
        async with served(tmp_path / "small.sock", limits=limits) as device:
            model = await device.prepare(addition(4))
            runs = [
                model.run_fenced([ONE, ONE], wait_for=[gate.fence]) for _ in range(4)
            ]
            with pytest.raises(
                ResourceExhaustedTransientError, match="max_fenced_executions"
            ):
                await runs.pop()
            gate.open()
            for run in runs:
                await run

    async def test_more_large_arrays_than_the_driver_maps_name_the_limit(
        self, gate: Gate, tmp_path: Path
    ) -> None:
        limits = ServiceLimits(max_pools=4)
        async with served(tmp_path / "small.sock", limits=limits) as device:
            model = await device.prepare(addition(LARGE))
            x, y = shared_array(LARGE), shared_array(LARGE)
            runs = [model.run_fenced([x, y], wait_for=[gate.fence]) for _ in range(2)]
            with pytest.raises(ResourceExhaustedTransientError, match="max_pools"):
                model.run_fenced([x, y], wait_for=[gate.fence])
            gate.open()
            for run in runs:
                await run
            runs.clear()
            del run
            await model.run_fenced([x, y])

    async def test_outputs_are_in_place_when_the_fence_signals(
        self, model: PreparedModel
    ) -> None:
        z = np.zeros(4, np.float32)
        run = model.run_fenced([ONE, 2 * ONE], out=[z])
        await run.fence
        np.testing.assert_array_equal(z, 3 * ONE)


class TestFailing:
    async def test_a_fence_that_failed_is_refused_beside_one_of_the_driver(
        self, model: PreparedModel, gate: Gate, tmp_path: Path
    ) -> None:
        request, _ = on_file(tmp_path / "values")
        run, _ = Copied(model, request)(gate.fence)
        failed = SyncFence.failed(ErrorStatus.GENERAL_FAILURE, "no light")
        refused = model.hal.execute_fenced(
            request, [run, failed], MeasureTiming.NO, None, None, None
        )
        assert refused == (ErrorStatus.INVALID_ARGUMENT, None, None)
        gate.open()
        await run.wait(20)

    async def test_the_cause_goes_down_the_chain(
        self, model: PreparedModel, gate: Gate
    ) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        runs = [run := model.run_fenced([ONE, ONE], wait_for=[run]) for _ in range(9)]
        gate.source.fail(ErrorStatus.INVALID_ARGUMENT, "the camera is unplugged")
        for run in runs:
            with pytest.raises(GeneralFailureError):
                await run

    async def test_cancel_ends_it_and_what_follows(
        self, model: PreparedModel, gate: Gate
    ) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        follows = model.run_fenced([ONE, ONE], wait_for=[run])
        run.cancel()
        with pytest.raises(ResourceExhaustedTransientError):
            await run
        with pytest.raises(GeneralFailureError, match="cancelled"):
            await follows

    async def test_the_deadline_covers_the_waiting(
        self, model: PreparedModel, gate: Gate
    ) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence], timeout=0.01)
        with pytest.raises(MissedDeadlineTransientError):
            await run

    async def test_hanging_up_fails_what_is_under_way(
        self, driver: Path, gate: Gate
    ) -> None:
        async with connect(driver) as device:
            model = await device.prepare(addition(4))
            run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        with pytest.raises(DeviceUnavailableError):
            await run
        with pytest.raises(DeviceUnavailableError):
            model.run_fenced([ONE, ONE])


class TestExporting:
    async def test_a_descriptor_tells_of_the_end_and_its_time(
        self, model: PreparedModel, gate: Gate
    ) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        exported = SyncFence.from_fd(run.fence.fileno())
        gate.open()
        await exported.wait(20)
        await run
        assert exported.signalled_at_ns == run.fence.signalled_at_ns

    async def test_a_descriptor_tells_of_a_failure(
        self, model: PreparedModel, gate: Gate
    ) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        exported = SyncFence.from_fd(run.fence.fileno())
        run.cancel()
        with pytest.raises(ResourceExhaustedTransientError):
            await exported.wait(20)

    @pytest.mark.parametrize("turns", range(8))
    async def test_it_may_be_asked_for_at_any_moment(
        self, model: PreparedModel, turns: int
    ) -> None:
        """Before the driver has told, at the same time, or after."""
        run = model.run_fenced([ONE, ONE])
        for _ in range(turns):
            await asyncio.sleep(0)
        exported = SyncFence.from_fd(run.fence.fileno())
        await exported.wait(20)

    async def test_it_may_be_asked_for_on_any_thread(
        self, model: PreparedModel, gate: Gate
    ) -> None:
        run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
        found: list[SyncFence] = []
        thread = threading.Thread(
            target=lambda: found.append(SyncFence.from_fd(run.fence.fileno()))
        )
        thread.start()
        thread.join()
        gate.open()
        await found[0].wait(20)


def on_file(path: Path) -> tuple[Request, np.ndarray]:
    """Return a sum in a file that could shrink, and its arguments: x, y and z."""
    path.write_bytes(bytes(48))
    pool = map_file(path, writable=True)
    x, y, z = (RequestArgument(False, DataLocation(0, at, 16)) for at in (0, 16, 32))
    return Request((x, y), (z,), (pool,)), as_array(pool, np.float32, (3, 4))


class Copied:
    """Launches at the HAL what can only be executed on copies."""

    def __init__(self, model: PreparedModel, request: Request) -> None:
        self._hal = model.hal
        self._request = request

    def __call__(
        self, *wait_for: SyncFence, timeout: float | None = None
    ) -> tuple[SyncFence, IFencedExecutionCallback]:
        deadline = None
        if timeout is not None:
            deadline = time.monotonic_ns() + round(timeout * 1e9)
        status, fence, callback = self._hal.execute_fenced(
            self._request, wait_for, MeasureTiming.YES, deadline, None, None
        )
        assert status is ErrorStatus.NONE
        assert isinstance(fence, SyncFence)
        assert callback is not None
        return fence, callback


class TestCopies:
    """Files that could shrink are not mapped: they are copied at the right time."""

    async def test_inputs_are_copied_when_the_fences_have_signalled(
        self, model: PreparedModel, gate: Gate, tmp_path: Path
    ) -> None:
        request, values = on_file(tmp_path / "values")
        fence, callback = Copied(model, request)(gate.fence)
        await asyncio.sleep(0.05)  # the driver may be told of it late
        values[0], values[1] = 3, 4
        gate.open()
        await fence.wait(20)
        np.testing.assert_array_equal(values[2], [7] * 4)
        status, launched, fenced = callback.get_execution_info()
        assert status is ErrorStatus.NONE
        assert launched.time_in_driver >= 10_000 > fenced.time_on_device

    async def test_what_follows_finds_the_outputs(
        self, model: PreparedModel, gate: Gate, tmp_path: Path
    ) -> None:
        request, values = on_file(tmp_path / "values")
        # Sums itself up: x + y becomes y.
        again = replace(request, outputs=request.inputs[1:])
        fence, _ = Copied(model, again)(gate.fence)
        for _ in range(5):
            fence, _ = Copied(model, again)(fence)
        values[:2] = 1
        gate.open()
        await fence.wait(20)
        np.testing.assert_array_equal(values[1], [7] * 4)

    async def test_it_can_be_cancelled_and_miss_its_deadline(
        self, model: PreparedModel, gate: Gate, tmp_path: Path
    ) -> None:
        launch = Copied(model, on_file(tmp_path / "values")[0])
        late, _ = launch(gate.fence, timeout=0.01)
        fence, callback = launch(gate.fence)
        callback.cancel()
        with pytest.raises(ResourceExhaustedTransientError):
            await fence.wait(20)
        with pytest.raises(MissedDeadlineTransientError):
            await late.wait(20)

    async def test_the_cause_of_a_failure_is_passed_on(
        self, model: PreparedModel, gate: Gate, tmp_path: Path
    ) -> None:
        fence, _ = Copied(model, on_file(tmp_path / "values")[0])(gate.fence)
        gate.source.fail(ErrorStatus.INVALID_ARGUMENT)
        with pytest.raises(GeneralFailureError, match="INVALID_ARGUMENT"):
            await fence.wait(20)

    async def test_the_first_failure_counts_while_others_are_active(
        self, model: PreparedModel, gate: Gate, tmp_path: Path
    ) -> None:
        other = Gate()
        launch = Copied(model, on_file(tmp_path / "values")[0])
        fence, _ = launch(gate.fence, other.fence)
        other.source.fail(ErrorStatus.INVALID_ARGUMENT)
        with pytest.raises(GeneralFailureError):
            await fence.wait(20)

    async def test_hanging_up_ends_it(
        self, driver: Path, gate: Gate, tmp_path: Path
    ) -> None:
        async with connect(driver) as device:
            model = await device.prepare(addition(4))
            fence, _ = Copied(model, on_file(tmp_path / "values")[0])(gate.fence)
            exported = SyncFence.from_fd(fence.fileno())
            await asyncio.sleep(0.01)
        for each in (fence, exported):
            with pytest.raises(AsyncnnError):
                await each.wait(20)


class TestDeath:
    @pytest.mark.alone
    async def test_every_waiter_learns_at_once_that_the_driver_was_killed(
        self, gate: Gate
    ) -> None:
        """Tasks of the client, what follows, and another process by a descriptor."""

        async def latency_ns() -> float:
            with driver_process() as driver, peer() as waiter:
                async with connect(driver.path) as device:
                    model = await device.prepare(addition(4))
                    run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
                    follows = model.run_fenced([ONE, ONE], wait_for=[run])
                    exported = SyncFence.from_fd(follows.fence.fileno())
                    waiter.waits_for(run.fence)
                    fences = (run.fence, follows.fence, exported)
                    waiting = [asyncio.create_task(end_of(fence)) for fence in fences]
                    await asyncio.sleep(0.05)
                    killed_ns = time.monotonic_ns()
                    os.kill(driver.pid, signal.SIGKILL)
                    ends = [*await asyncio.gather(*waiting), waiter.report()[:2]]
            assert {status for status, _ in ends} == {ErrorStatus.DEVICE_UNAVAILABLE}
            return max(heard_ns for _, heard_ns in ends) - killed_ns

        await best_of(3, latency_ns, SOON_NS)

    async def test_a_driver_that_comes_back_leaves_no_descriptor_behind(
        self, tmp_path: Path
    ) -> None:
        async def use() -> None:
            gate, path = Gate(), tmp_path / "driver.sock"
            async with AsyncExitStack() as stack:
                hal = await stack.enter_async_context(ReferenceDevice())
                async with Server(hal, path):
                    device = await stack.enter_async_context(
                        connect(path, supervised=PATIENT)
                    )
                    model = await device.prepare(addition(4))
                    run = model.run_fenced([ONE, ONE], wait_for=[gate.fence])
                    exported = SyncFence.from_fd(run.fence.fileno())
                    await asyncio.sleep(0.01)
                for fence in (run.fence, exported):
                    with pytest.raises(AsyncnnError):
                        await fence.wait(20)
                async with Server(hal, path):
                    await model.run([ONE, ONE])  # waits for the driver
                    await model.run_fenced([ONE, ONE])

        await use()
        gc.collect()
        before = traces()
        for _ in range(3):
            await use()
        await until(lambda: not leaks(before))
