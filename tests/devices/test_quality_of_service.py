"""Priorities and deadlines of devices: the rows QS1 to QS12 of the VTS, and beyond."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import (
    ExecutionFuture,
    IPreparedModelCallback,
    PreparedModelFuture,
)
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.accelerated import AcceleratedDevice
from asyncnn.devices.onnxruntime.onnx_device import OnnxRuntimeDevice
from asyncnn.engine.plan import Plan
from asyncnn.engine.workspace import Workspace
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionPreference,
    ExtensionNameAndPrefix,
    MeasureTiming,
    Model,
    OutputShape,
    Priority,
)
from asyncnn.runtime.model import NamedModel
from tests.devices.conftest import Caller
from tests.devices.test_execution import request_for
from tests.networks import chain
from tests.preparing import launch_preparation

NO, YES = MeasureTiming.NO, MeasureTiming.YES
LOW, MEDIUM, HIGH = Priority
MS = 1_000_000
MISSED = (ErrorStatus.MISSED_DEADLINE_TRANSIENT, ErrorStatus.MISSED_DEADLINE_PERSISTENT)
FAR_FUTURE_NS = 2**63 - 1

DEADLINES: dict[str, Callable[[], int]] = {
    "now": time.monotonic_ns,
    "unlimited": lambda: FAR_FUTURE_NS,
    "in 5 ms": lambda: time.monotonic_ns() + 5 * MS,
}
X = np.zeros((64, 64), np.float32)


async def prepare(
    device: IDevice,
    model: NamedModel,
    priority: Priority = MEDIUM,
    deadline: int | None = None,
    preference: ExecutionPreference = ExecutionPreference.FAST_SINGLE_ANSWER,
) -> IPreparedModel:
    callback = PreparedModelFuture()
    options = preference, priority, deadline
    launched = launch_preparation(device, model.model, callback, *options)
    assert launched is ErrorStatus.NONE
    return await callback


@pytest.mark.parametrize("priority", [LOW, HIGH])
async def test_models_are_prepared_with_any_priority(
    device: IDevice, priority: Priority
) -> None:
    assert await prepare(device, chain(2, 4), priority) is not None


@pytest.mark.parametrize("deadline", DEADLINES)
async def test_preparing_succeeds_or_misses_its_deadline(
    device: IDevice, deadline: str
) -> None:
    status = ErrorStatus.NONE
    try:
        await prepare(device, chain(100, 64, 64), deadline=DEADLINES[deadline]())
    except AsyncnnError as error:
        status = error.status
    assert (
        status
        in {
            "now": MISSED,
            "unlimited": (ErrorStatus.NONE,),
            "in 5 ms": (ErrorStatus.NONE, *MISSED),
        }[deadline]
    )


def with_unknown_operation() -> Model:
    """Return a model whose first operation no device of ours knows."""
    model = chain(2, 4).model
    first, *others = model.main.operations
    unknown = replace(first, type=1 << 16 | 1)
    return replace(
        model,
        main=replace(model.main, operations=(unknown, *others)),
        extension_name_to_prefix=(ExtensionNameAndPrefix("com.example.unknown", 1),),
    )


class Prepared(IPreparedModelCallback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: asyncio.Future[tuple[ErrorStatus, IPreparedModel | None]]
        self.told = asyncio.get_running_loop().create_future()

    def notify_1_3(
        self, status: ErrorStatus, prepared_model: IPreparedModel | None
    ) -> None:
        self.told.set_result((status, prepared_model))


@pytest.mark.parametrize(
    ("priority", "deadline"),
    [(LOW, None), (HIGH, None), *((MEDIUM, deadline) for deadline in DEADLINES)],
)
async def test_of_a_model_that_is_not_supported_there_is_no_prepared_one(
    device: IDevice, priority: Priority, deadline: str | None
) -> None:
    model = with_unknown_operation()
    supported = await device.get_supported_operations_1_3(model)
    others = [True] * (len(model.main.operations) - 1)
    assert supported == (ErrorStatus.NONE, (False, *others))
    callback = Prepared()
    launched = launch_preparation(
        device,
        model,
        callback,
        priority=priority,
        deadline=None if deadline is None else DEADLINES[deadline](),
    )
    assert launched is ErrorStatus.NONE
    status, prepared = await callback.told
    assert status in (ErrorStatus.GENERAL_FAILURE, *MISSED)
    assert prepared is None


@pytest.mark.parametrize("deadline", DEADLINES)
@pytest.mark.parametrize("length", [1, 3000], ids=["short", "long"])
async def test_executing_succeeds_or_misses_its_deadline(
    device: IDevice, execute: Caller, deadline: str, length: int
) -> None:
    prepared = await prepare(device, chain(length, 64, 64))
    z = np.empty_like(X)
    request = request_for([X], [z])
    result = await execute(prepared, request, NO, DEADLINES[deadline]())
    assert execute.launched is ErrorStatus.NONE
    assert result.timing == NO_TIMING
    if result.status is ErrorStatus.NONE:
        assert deadline != "now"
        assert (z == length).all()
        assert result.output_shapes == (OutputShape((64, 64), True),)
    else:
        assert result.status in MISSED
        assert deadline != "unlimited"
        assert result.output_shapes == ()


def launch(
    prepared: IPreparedModel,
    measure: MeasureTiming = NO,
    deadline: int | None = None,
    x: np.typing.NDArray[np.float32] = X,
) -> ExecutionFuture:
    callback = ExecutionFuture()
    request = request_for([x], [np.empty_like(x)])
    prepared.execute_1_3(request, measure, deadline, None, callback)
    return callback


class Gate:
    """Executions wait for it to open before they begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened = threading.Event()
        self._reached = threading.Event()
        self._make = Workspace.making
        monkeypatch.setattr(Workspace, "making", self._making)

    def _making(self, plan: Plan, *limits: Any) -> Any:
        self._reached.set()
        assert self._opened.wait(30)
        return self._make(plan, *limits)

    async def reached(self) -> None:
        """Wait until an execution waits for it."""
        assert await asyncio.to_thread(self._reached.wait, 30)

    def open(self) -> None:
        self._opened.set()


async def test_a_high_execution_overtakes_low_ones(
    device: IDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    low = await prepare(device, chain(1000, 256, 256), LOW)
    high = await prepare(device, chain(5, 256, 256), HIGH)
    x = np.zeros((256, 256), np.float32)
    gate = Gate(monkeypatch)
    ended: list[Priority] = []

    async def run(prepared: IPreparedModel, priority: Priority) -> None:
        assert await _result(launch(prepared, x=x)) is ErrorStatus.NONE
        ended.append(priority)

    async with asyncio.TaskGroup() as runs:
        for _ in range(5):
            runs.create_task(run(low, LOW))
        await gate.reached()
        runs.create_task(run(high, HIGH))
        # Answered after what was sent before, so that one has been submitted.
        await device.get_supported_operations_1_3(chain(1, 4).model)
        gate.open()
    lanes = 2 if isinstance(device, AcceleratedDevice | OnnxRuntimeDevice) else 1
    assert HIGH in ended[: 1 + lanes], "only those under way may end before"


async def _result(callback: Awaitable[object]) -> ErrorStatus:
    status = (await callback).status  # type: ignore[attr-defined]
    assert isinstance(status, ErrorStatus)
    return status


async def test_what_takes_longer_than_its_deadline_is_refused_if_so_set() -> None:
    settings = DeviceSettings(inline_below_us=0, refuses_unmeetable_deadlines=True)
    async with ReferenceDevice(settings) as device:
        prepared = await prepare(device, chain(2000, 64, 64))
        runs = [(await launch(prepared, YES)).timing.time_on_device for _ in range(5)]
        budget_ns = int(median(runs) * 1000 * 0.2)
        result = await launch(prepared, NO, time.monotonic_ns() + budget_ns)
        assert result.status is ErrorStatus.MISSED_DEADLINE_PERSISTENT
