import pytest
from msgspec.structs import replace

from asyncnn.callbacks import IPreparedModelCallback
from asyncnn.devices import ReferenceDevice
from asyncnn.extensions import NO_EXTENSIONS
from asyncnn.extensions.regions import DECLARED
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Model,
    Operation,
    OperationType,
    Priority,
)
from tests.engine.test_control_flow import if_model
from tests.networks import addition, chain

FAST, MEDIUM = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM


class Recorder(IPreparedModelCallback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[ErrorStatus, IPreparedModel | None]] = []

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        self.seen.append((status, prepared_model))


def malformed() -> Model:
    model = addition(4).model
    operations = (Operation(OperationType.ADD, (0, 1, 99), (3,)),)
    return replace(model, main=replace(model.main, operations=operations))


class TestQueries:
    async def test_answers_are_what_the_hal_allows(self, device: IDevice) -> None:
        assert isinstance(device, IDevice)
        assert device.get_status() is DeviceStatus.AVAILABLE
        status, version = device.get_version_string()
        assert status is ErrorStatus.NONE
        assert version
        assert device.get_type() == (ErrorStatus.NONE, DeviceType.CPU)
        status, extensions = device.get_supported_extensions()
        assert status is ErrorStatus.NONE
        others = [each for each in extensions if each.name not in DECLARED]
        assert others == list(NO_EXTENSIONS.described())
        assert device.get_number_of_cache_files_needed() == (ErrorStatus.NONE, 1, 1)

    async def test_capabilities_are_positive_sorted_and_complete(
        self, device: IDevice
    ) -> None:
        status, capabilities = device.get_capabilities_1_3()
        assert status is ErrorStatus.NONE
        types = [entry.type for entry in capabilities.operand_performance]
        assert types == sorted(set(types))
        infos = [entry.info for entry in capabilities.operand_performance]
        infos += [capabilities.if_performance, capabilities.while_performance]
        assert all(info.exec_time > 0 and info.power_usage > 0 for info in infos)


class TestSupportedOperations:
    async def test_there_is_an_answer_for_each_operation(self, device: IDevice) -> None:
        model = chain(3, 4).model
        assert await device.get_supported_operations_1_3(model) == (
            ErrorStatus.NONE,
            (True,) * len(model.main.operations),
        )

    async def test_control_flow_is_as_supported_as_its_subgraphs(
        self, device: IDevice
    ) -> None:
        answer = await device.get_supported_operations_1_3(if_model((3,)))
        assert answer == (ErrorStatus.NONE, (True,))

    async def test_a_malformed_model_is_invalid(self, device: IDevice) -> None:
        answer = await device.get_supported_operations_1_3(malformed())
        assert answer == (ErrorStatus.INVALID_ARGUMENT, ())


class TestPrepare:
    def prepare(
        self,
        device: IDevice,
        callback: IPreparedModelCallback | None,
        model: Model | None = None,
        preference: int = FAST,
        priority: int = MEDIUM,
    ) -> ErrorStatus:
        return device.prepare_model_1_3(
            model or addition(4).model,
            preference,  # type: ignore[arg-type]
            priority,  # type: ignore[arg-type]
            None,
            (),
            (),
            bytes(32),
            callback,
        )

    async def test_a_null_callback_is_refused(self, device: IDevice) -> None:
        assert self.prepare(device, None) is ErrorStatus.INVALID_ARGUMENT

    @pytest.mark.parametrize(
        ("model", "preference", "priority"),
        [
            (malformed(), FAST, MEDIUM),
            (None, -1, MEDIUM),
            (None, 3, MEDIUM),
            (None, FAST, -1),
            (None, FAST, 3),
        ],
    )
    async def test_a_launch_error_has_notified_when_the_call_returns(
        self, device: IDevice, model: Model | None, preference: int, priority: int
    ) -> None:
        callback = Recorder()
        status = self.prepare(device, callback, model, preference, priority)
        assert status is ErrorStatus.INVALID_ARGUMENT
        assert callback.seen == [(ErrorStatus.INVALID_ARGUMENT, None)]
        assert callback.reason


async def test_a_device_that_is_entered_again_is_closed_again() -> None:
    device = ReferenceDevice()
    for _ in range(2):
        async with device:
            assert device.get_status() is DeviceStatus.AVAILABLE
        assert device.get_status() is DeviceStatus.OFFLINE
