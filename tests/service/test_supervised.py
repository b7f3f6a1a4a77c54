import asyncio
import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    DriverDiedError,
    InvalidArgumentError,
    MissedDeadlineTransientError,
)
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, MeasureTiming, Request
from asyncnn.memory.slabs import place_of
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import ServiceLimits, Supervision
from asyncnn.service.process import driver_process, running_driver
from asyncnn.service.supervision import SETTLED_S, Backoff
from tests.mappings import children
from tests.networks import FOREVER, addition, chain, counting_up
from tests.service.restarting import BRIEFLY, Driver, back, lost
from tests.service.test_descriptors import only
from tests.waits import cancelled, until

X = np.array([1, 2], np.float32)
NO_DRIVER = pytest.raises(DeviceUnavailableError)


async def add(model: PreparedModel, **options: float) -> None:
    outputs = await model.run({"x": X, "y": X}, **options)
    assert np.array_equal(outputs["z"], 2 * X)


class TestReconnecting:
    async def test_prepared_models_work_again(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            models = [await device.prepare(addition(2)) for _ in range(3)]
            longer = await device.prepare(chain(5, 2))
            for _ in range(5):
                await driver.restart(device)
                await asyncio.gather(*map(add, models))
                outputs = await longer.run(X, path="sync")
                assert np.array_equal(outputs["z"], X + 5)

    async def test_what_was_pending_gets_the_error(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            endless = await device.prepare(counting_up())
            running = [
                asyncio.create_task(endless.run(FOREVER, loop_timeout=15))
                for _ in range(5)
            ]
            preparing = asyncio.create_task(device.prepare(addition(2)))
            await asyncio.sleep(0)
            await driver.restart(device)
            for task in (*running, preparing):
                with NO_DRIVER:
                    await task
            await add(model)

    async def test_calls_in_between_wait(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            running = [asyncio.create_task(add(model)) for _ in range(5)]
            preparing = asyncio.create_task(device.prepare(addition(2)))
            asking = asyncio.create_task(
                device.hal.get_supported_operations_1_3(addition(2).model)
            )
            await asyncio.sleep(0.03)
            assert not any(task.done() for task in (*running, preparing, asking))
            await driver.start()
            await asyncio.gather(*running)
            await add(await preparing)
            assert await asking == (ErrorStatus.NONE, (True,))

    async def test_a_client_without_a_descriptor_for_it_tries_again(
        self, driver: Driver, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            with only(0), contextlib.ExitStack() as taken:

                def is_told() -> bool:
                    with contextlib.suppress(
                        OSError
                    ):  # that of an attempt that was under way
                        fd = os.open(os.devnull, os.O_RDONLY)
                        taken.callback(os.close, fd)
                    return "Too many open files" in caplog.text

                await until(is_told)
            await driver.start()
            await add(model)

    async def test_a_model_that_was_dropped_is_not_prepared_again(
        self, driver: Driver
    ) -> None:
        driver.limits = ServiceLimits(max_prepared_models=1)
        await driver.restart()
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            del model
            await driver.start()
            await back(device)
            await add(await device.prepare(addition(2)))

    async def test_a_model_that_cannot_be_prepared_again_says_why(
        self, driver: Driver
    ) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            models = [await device.prepare(addition(2)) for _ in range(2)]
            driver.limits = ServiceLimits(max_prepared_models=1)
            await driver.restart(device)
            outcomes = await asyncio.gather(*map(add, models), return_exceptions=True)
            kinds = sorted(type(outcome).__name__ for outcome in outcomes)
            assert kinds == ["NoneType", "ResourceExhaustedTransientError"]
            driver.limits = ServiceLimits()
            await driver.restart(device)
            await asyncio.gather(*map(add, models))

    async def test_the_device_describes_itself_meanwhile(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            facts = (device.version, device.type, device.capabilities)
            await driver.stop()
            await lost(device)
            assert (device.version, device.type, device.capabilities) == facts


class TestWaiting:
    async def test_it_is_bounded(self, driver: Driver) -> None:
        settings = Supervision(wait=0.02)
        async with connect(driver.path, supervised=settings) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            with NO_DRIVER:
                await add(model)
            with NO_DRIVER:
                await device.prepare(addition(2))
            status, _ = await device.hal.get_supported_operations_1_3(chain(1).model)
            assert status is ErrorStatus.DEVICE_UNAVAILABLE

    async def test_it_can_be_declined(self, driver: Driver) -> None:
        settings = Supervision(wait=0.0, first_delay=0.005)
        async with connect(driver.path, supervised=settings) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            with NO_DRIVER:
                await add(model)
            await driver.start()
            await back(device)
            await add(await device.prepare(addition(2)))

    async def test_a_deadline_ends_it(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            for timeout in (0.01, -1.0):
                with pytest.raises(MissedDeadlineTransientError, match="the deadline"):
                    await add(model, timeout=timeout)
            with pytest.raises(MissedDeadlineTransientError):
                await device.prepare(addition(2), timeout=0.01)

    async def test_cancelling_ends_it(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            waiting = [
                asyncio.create_task(add(model)),
                asyncio.create_task(device.prepare(addition(2))),
            ]
            await asyncio.sleep(0.01)
            assert model.hal.waiting == 1
            for task in waiting:
                await cancelled(task)
            assert model.hal.waiting == 0

    async def test_what_is_wrong_anyway_is_refused_at_once(
        self, driver: Driver
    ) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            with pytest.raises(InvalidArgumentError):
                await device.prepare(
                    addition(2),
                    preference=ExecutionPreference.LOW_POWER + 7,  # type: ignore[arg-type]
                )
            status, _, _ = await model.hal.execute_synchronously_1_3(
                Request((), (), ()), MeasureTiming.NO, None, None
            )
            assert status is ErrorStatus.INVALID_ARGUMENT
            no_callback = model.hal.execute_1_3(
                Request((), (), ()), MeasureTiming.NO, None, None, None
            )
            assert no_callback is ErrorStatus.INVALID_ARGUMENT


class TestEnding:
    async def test_the_first_connection_has_to_succeed(self, tmp_path: Path) -> None:
        with NO_DRIVER:
            async with connect(tmp_path / "nothing", supervised=True):
                pytest.fail("connected")

    @pytest.mark.alone
    async def test_it_gives_up_in_the_end(self, driver: Driver) -> None:
        settings = Supervision(first_delay=0.005, max_delay=0.01, give_up_after=0.05)
        async with connect(driver.path, supervised=settings) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            started = time.monotonic()
            for _ in range(2):  # one that waited, one that comes later
                with pytest.raises(DeviceUnavailableError, match="stays alive"):
                    await add(model)
            assert time.monotonic() - started < 2
            with pytest.raises(DeviceUnavailableError, match="stays alive"):
                await device.prepare(addition(2))
            status, _ = await device.hal.get_supported_operations_1_3(chain(1).model)
            assert status is ErrorStatus.DEVICE_UNAVAILABLE

    async def test_leaving_the_block_ends_what_waits(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
            await driver.stop()
            await lost(device)
            waiting = asyncio.create_task(add(model))
            await asyncio.sleep(0)
        with pytest.raises(DeviceUnavailableError, match="is closed"):
            await waiting
        with pytest.raises(DeviceUnavailableError, match="is closed"):
            await add(model)

    @pytest.mark.parametrize("error", [KeyError("mine"), asyncio.CancelledError()])
    async def test_an_error_of_the_block_comes_out_as_it_is(
        self, driver: Driver, error: BaseException
    ) -> None:
        with pytest.raises(type(error)) as raised:
            async with connect(driver.path, supervised=BRIEFLY):
                raise error
        assert raised.value is error

    async def test_calls_that_fail_leave_nothing_behind(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            model = await device.prepare(addition(2))
        x = asyncnn.shared_array(2)
        place = place_of(x)
        assert place is not None
        memory = weakref.ref(place[0])
        for _ in range(2):
            with contextlib.suppress(DeviceUnavailableError):
                await model.run([x, x])
        del x, place
        gc.collect()
        assert memory() is None

    async def test_nothing_is_left(self, driver: Driver) -> None:
        def held() -> tuple[int, int, int]:
            gc.collect()
            fds = len(os.listdir("/proc/self/fd"))
            return fds, len(asyncio.all_tasks()), threading.active_count()

        def holds_no_more() -> bool:
            return all(now <= then for now, then in zip(held(), before, strict=True))

        async def use() -> None:
            async with connect(driver.path, supervised=BRIEFLY) as device:
                model = await device.prepare(addition(2))
                for _ in range(3):
                    await driver.restart(device)
                    await add(model)

        await use()
        before = held()
        await use()
        await until(holds_no_more)


class TestBackoff:
    SETTINGS = Supervision(first_delay=1, max_delay=4, give_up_after=10)

    def test_pauses_double_up_to_a_bound(self) -> None:
        backoff = Backoff(self.SETTINGS)
        assert [backoff.lost(0.0, 0.0) for _ in range(4)] == [1, 2, 4, 4]

    def test_it_gives_up_after_a_while(self) -> None:
        backoff = Backoff(self.SETTINGS)
        assert backoff.lost(100.0, 0.0) == 1
        assert backoff.lost(109.9, 0.0) == 2
        assert backoff.lost(110.0, 0.0) is None

    @pytest.mark.parametrize(("lived", "pause"), [(SETTLED_S, 1), (0.5, 2)])
    def test_a_driver_that_settled_starts_it_anew(
        self, lived: float, pause: float
    ) -> None:
        backoff = Backoff(self.SETTINGS)
        backoff.lost(100.0, 0.0)
        assert backoff.lost(105.0, lived) == pause


class TestRealProcesses:
    async def test_a_driver_that_somebody_restarts(self, tmp_path: Path) -> None:
        path = tmp_path / "driver.sock"
        settings = Supervision(wait=20.0)
        with driver_process(path) as first:
            async with connect(path, supervised=settings) as device:
                model = await device.prepare(addition(2))
                running = [asyncio.create_task(add(model)) for _ in range(20)]
                await asyncio.sleep(0)
                first.kill()
                outcomes = await asyncio.gather(*running, return_exceptions=True)
                kinds = {type(outcome) for outcome in outcomes}
                assert kinds <= {DriverDiedError, type(None)}
                later = asyncio.create_task(add(model))
                async with running_driver(path):
                    await later

    async def test_a_driver_of_our_own_is_restarted(self) -> None:
        before = children()
        async with asyncnn.connect(supervised=Supervision(wait=20.0)) as device:
            model = await device.prepare(addition(2))
            for _ in range(2):
                (pid,) = set(children()) - set(before)
                os.kill(pid, signal.SIGSTOP)  # before it has done all of them
                running = [asyncio.create_task(add(model)) for _ in range(20)]
                await asyncio.sleep(0)
                os.kill(pid, signal.SIGKILL)
                outcomes = await asyncio.gather(*running, return_exceptions=True)
                assert all(
                    outcome is None or isinstance(outcome, AsyncnnError)
                    for outcome in outcomes
                )
                await add(model)
        assert children() == before

    async def test_a_driver_of_our_own_ends_with_the_block(self) -> None:
        before = children()
        async with asyncnn.connect() as device:
            await add(await device.prepare(addition(2)))
        assert children() == before
