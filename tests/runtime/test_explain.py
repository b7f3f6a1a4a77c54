import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncnn import kernels
from asyncnn.devices import ReferenceDevice, support
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import (
    ErrorStatus,
    ExtensionNameAndPrefix,
    HalVersion,
    Model,
    OperandType,
    OperationType,
)
from asyncnn.runtime.device import Device
from asyncnn.runtime.explain import Cause, OperationReport, explain
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from asyncnn.tools.bench.made_models import long_model
from asyncnn.tools.conformance.mutations.mutant import with_operand, with_operation
from tests.hal.validate.samples import (
    extension_model,
    float_model,
    nested_model,
    q8_model,
)
from tests.networks import chain

FLOOR = OperationType.FLOOR


@pytest.fixture
async def device() -> AsyncIterator[Device]:
    async with open_device() as device:
        yield device


@pytest.fixture
def without_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the kernel of FLOOR away from devices."""
    rest = kernels.supported_operations() - {FLOOR}
    monkeypatch.setattr(support.kernels, "is_supported", rest.__contains__)


async def only_report(
    device: Device, model: Model, version: HalVersion = HalVersion.AIDL_V4
) -> OperationReport:
    (report,) = (await explain(device, model, version)).operations
    return report


async def test_each_operation_tells_the_version_it_needs(device: Device) -> None:
    explanation = await explain(device, chain(3, 4))
    assert explanation.is_supported
    assert explanation.device == "reference"
    assert [report.place for report in explanation.operations] == [
        f"operation {index}" for index in range(3)
    ]
    assert {r.type for r in explanation.operations} == {"ADD"}
    assert {r.main_type for r in explanation.operations} == {"TENSOR_FLOAT32"}
    assert {r.since for r in explanation.operations} == {"V1_0"}


@pytest.mark.parametrize("name", ["reference", "framework", "remote"])
async def test_what_a_device_makes_of_hints_is_told(tmp_path: Path, name: str) -> None:
    model = chain(3, 4)
    async with AsyncExitStack() as stack:
        if name == "remote":
            hal = await stack.enter_async_context(ReferenceDevice())
            await stack.enter_async_context(Server(hal, tmp_path / "socket"))
            opening = connect(tmp_path / "socket")
        else:
            opening = open_device(name)
        device = await stack.enter_async_context(opening)
        explanation = await explain(device, model)
        assert "one layout" in explanation.hal_hints["BufferRole.frequency"]
        told = explanation.hal_hints["Model.relax_computation_float32_to_float16"]
        assert "not used: kernels have float32" in told
        assert ("(reference)" in told) is (name == "framework")


async def test_wrong_types_are_a_matter_of_the_signature(device: Device) -> None:
    model = with_operand(float_model(2), 1, type=OperandType.TENSOR_INT32)
    report = await only_report(device, model)
    assert report.cause is Cause.SIGNATURE
    assert "output 0 (output) is TENSOR_INT32" in report.reason
    assert not report.since


async def test_what_a_newer_hal_allows_is_a_matter_of_the_version(
    device: Device,
) -> None:
    half = OperandType.TENSOR_FLOAT16
    model = with_operand(float_model(2), 0, type=half)
    model = with_operand(model, 1, type=half)
    report = await only_report(device, model, HalVersion.V1_1)
    assert report.cause is Cause.VERSION
    assert "FLOOR needs HAL 1.2, not HAL 1.1" in report.reason
    assert (await only_report(device, model)).is_supported


async def test_a_missing_kernel_is_told(device: Device, without_floor: None) -> None:
    report = await only_report(device, float_model(2))
    assert report.cause is Cause.KERNEL
    assert "FLOOR" in report.reason
    assert report.since == "V1_0"


@pytest.mark.parametrize("named", [True, False])
async def test_a_missing_extension_is_told(device: Device, named: bool) -> None:
    model = extension_model()
    if not named:
        other = ExtensionNameAndPrefix("com.example.other", 4)
        model = replace(model, extension_name_to_prefix=(other,))
    report = await only_report(device, model)
    assert report.cause is Cause.EXTENSION
    expected = "extension com.example.vision" if named else "no extension of prefix 3"
    assert expected in report.reason
    assert report.type == ("com.example.vision/1" if named else "extension type 196609")


async def test_a_rule_that_is_broken_elsewhere_refuses_every_operation(
    device: Device,
) -> None:
    model = with_operation(q8_model(), 2, outputs=(5,))
    explanation = await explain(device, model)
    assert "[M10]" in explanation.problem
    assert not explanation.is_supported
    assert {report.cause for report in explanation.operations} == {Cause.MODEL}


async def test_nested_operations_are_explained_and_blamed(
    device: Device, without_floor: None
) -> None:
    explanation = await explain(device, nested_model())
    outer, inner, leaf = explanation.operations
    assert (outer.subgraph, inner.subgraph, leaf.subgraph) == (None, 0, 1)
    assert leaf.cause is Cause.KERNEL
    assert leaf.place == "operation 0 of referenced subgraph 1"
    assert inner.cause is Cause.SUBGRAPH
    assert f"{leaf.place} (FLOOR)" in inner.reason
    assert outer.cause is Cause.SUBGRAPH
    assert f"{inner.place} (IF)" in outer.reason


async def test_a_device_that_is_gone_is_an_error(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(model: Model) -> tuple[ErrorStatus, tuple[bool, ...]]:
        return ErrorStatus.DEVICE_UNAVAILABLE, ()

    monkeypatch.setattr(device.hal, "get_supported_operations_1_3", gone)
    with pytest.raises(DeviceUnavailableError, match="reference"):
        await explain(device, float_model(2))


@pytest.mark.parametrize(
    ("name", "share"), [("reference", 4), ("accelerated", 25), ("framework", 25)]
)
async def test_a_long_model_is_explained_beside_the_loop(name: str, share: int) -> None:
    model = long_model(3000, 0)
    async with open_device(name) as device:
        on_loop, everywhere = time.thread_time(), time.process_time()
        explanation = await explain(device, model)
        on_loop = time.thread_time() - on_loop
        everywhere = time.process_time() - everywhere
    assert explanation.is_supported
    assert on_loop < everywhere / share
