"""What a caller is told of why there is no device: by oneself, died, or none there."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from asyncnn.callbacks import ExecutionFuture
from asyncnn.hal.errors import (
    DeviceClosedError,
    DeviceUnavailableError,
    DriverDiedError,
    NoDriverError,
)
from asyncnn.hal.interfaces import IMortal, IPreparedModel
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    ErrorStatus,
    MeasureTiming,
    Request,
)
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import RemoteDevice, Supervision
from asyncnn.service.process import running_driver
from asyncnn.service.supervised_device import SupervisedDevice, supervised
from tests.networks import addition
from tests.preparing import prepared_by
from tests.service.restarting import BRIEFLY, Driver, back, lost

MODEL = addition(2).model
UNAVAILABLE = ErrorStatus.DEVICE_UNAVAILABLE
IMPATIENT = Supervision(first_delay=0.005, max_delay=0.01, wait=0.0)


async def is_refused(
    device: RemoteDevice | SupervisedDevice, model: IPreparedModel
) -> None:
    """Check that every call ends with DEVICE_UNAVAILABLE."""
    with pytest.raises(DeviceUnavailableError):
        await prepared_by(device, MODEL)
    nothing = Request((), (), ())
    callback = ExecutionFuture()
    status = model.execute_1_3(nothing, MeasureTiming.NO, None, None, callback)
    assert status in (UNAVAILABLE, ErrorStatus.INVALID_ARGUMENT)
    assert (await device.get_supported_operations_1_3(MODEL))[0] is UNAVAILABLE


def cause_of(thing: object) -> DeviceUnavailableError | None:
    assert isinstance(thing, IMortal)
    return thing.cause_of_death()


def is_new(thing: IMortal, kind: type[DeviceUnavailableError], words: str) -> bool:
    """Return whether each call gives an error of ``kind`` of its own."""
    first, second = thing.cause_of_death(), thing.cause_of_death()
    assert words in str(first)
    return type(first) is kind and first is not second


class TestConnections:
    async def test_one_that_is_closed_says_so_on_every_path(
        self, driver: Driver
    ) -> None:
        async with RemoteDevice(driver.path) as device:
            model = await prepared_by(device, MODEL)
            _, buffer, _ = await device.allocate(
                BufferDesc(()), [model], [BufferRole(0, 0, 1.0)], []
            )
            for thing in (device, model, buffer):
                assert cause_of(thing) is None
        await is_refused(device, model)
        for thing in (device, model, buffer):
            assert isinstance(thing, IMortal)
            assert is_new(thing, DeviceClosedError, "the device is closed")
        with pytest.raises(DeviceClosedError):
            await device.get_statistics()

    async def test_one_whose_driver_has_gone_says_so_on_every_path(
        self, driver: Driver
    ) -> None:
        async with RemoteDevice(driver.path) as device:
            model = await prepared_by(device, MODEL)
            await driver.stop()
            await device.wait_lost()
            await is_refused(device, model)
            for thing in (device, model):
                assert isinstance(thing, IMortal)
                assert is_new(thing, DriverDiedError, "DEAD_OBJECT")
            with pytest.raises(DriverDiedError, match="DEAD_OBJECT"):
                await device.get_statistics()
        assert isinstance(cause_of(device), DriverDiedError)

    async def test_a_query_that_is_pending_keeps_the_cause(
        self, driver: Driver
    ) -> None:
        async with RemoteDevice(driver.path) as device:
            asking = asyncio.create_task(device.get_statistics())
            await asyncio.sleep(0)
        with pytest.raises(DeviceClosedError):
            await asking

    async def test_one_that_was_never_made_has_no_cause(self, tmp_path: Path) -> None:
        device = RemoteDevice(tmp_path / "nothing")
        with pytest.raises(NoDriverError):
            await device.__aenter__()
        assert device.cause_of_death() is None


class TestNoDriver:
    @pytest.mark.parametrize("is_supervised", [False, True])
    async def test_nothing_listens(self, tmp_path: Path, is_supervised: bool) -> None:
        with pytest.raises(NoDriverError, match="no driver at"):
            async with connect(tmp_path / "nothing", supervised=is_supervised):
                pytest.fail("connected")

    async def test_none_can_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        with pytest.raises(NoDriverError, match="No such file"):
            async with running_driver():
                pytest.fail("started")


class TestSupervised:
    async def test_nothing_is_known_while_nothing_was_lost(
        self, driver: Driver
    ) -> None:
        async with supervised(lambda: RemoteDevice(driver.path), BRIEFLY) as device:
            model = await prepared_by(device, MODEL)
            assert cause_of(device) is cause_of(model) is None

    async def test_the_loss_is_told_at_once_and_after_there_is_another(
        self, driver: Driver
    ) -> None:
        async with connect(driver.path, supervised=IMPATIENT) as device:
            assert isinstance(device.hal, SupervisedDevice)
            model = await prepared_by(device.hal, MODEL)
            await driver.stop()
            await lost(device)
            assert isinstance(cause_of(model), DriverDiedError)
            await is_refused(device.hal, model)
            with pytest.raises(DriverDiedError):
                await device.hal.get_statistics()
            await driver.start()
            await back(device)
            for thing in (device.hal, model):
                assert isinstance(thing, IMortal)
                assert is_new(thing, DriverDiedError, "DEAD_OBJECT")

    async def test_one_that_has_given_up_has_no_driver(self, driver: Driver) -> None:
        settings = Supervision(first_delay=0.005, max_delay=0.01, give_up_after=0.02)
        async with connect(driver.path, supervised=settings) as device:
            assert isinstance(device.hal, SupervisedDevice)
            model = await prepared_by(device.hal, MODEL)
            await driver.stop()
            await has(lambda: prepared_by(device.hal, MODEL), NoDriverError, device.hal)
            await is_refused(device.hal, model)
            for thing in (device.hal, model):
                assert isinstance(thing, IMortal)
                assert is_new(thing, NoDriverError, "stays alive")

    async def test_one_that_is_closed_says_so(self, driver: Driver) -> None:
        async with connect(driver.path, supervised=BRIEFLY) as device:
            assert isinstance(device.hal, SupervisedDevice)
            model = await prepared_by(device.hal, MODEL)
        await is_refused(device.hal, model)
        for thing in (device.hal, model):
            assert isinstance(thing, IMortal)
            assert is_new(thing, DeviceClosedError, "is closed")


async def has(
    call: Callable[[], Awaitable[object]],
    kind: type[DeviceUnavailableError],
    thing: IMortal,
) -> None:
    """Wait until ``call`` fails and ``thing`` knows of a cause of that kind."""
    while not isinstance(thing.cause_of_death(), kind):
        with pytest.raises(DeviceUnavailableError):
            await call()
