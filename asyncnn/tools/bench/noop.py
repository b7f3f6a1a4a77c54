"""Executions that compute nothing: what is left is the cost of getting there.

The no-op device validates models and requests in full and notifies callbacks as the HAL
demands; outputs keep the bytes that they have. The tiny addition is what it, and other
devices, are given.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from asyncnn.burst import OpenBursts
from asyncnn.callbacks import (
    ExecutionFuture,
    ExecutionResult,
    FencedOutcome,
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    IPreparedModelCallback,
    OneShot,
    SynchronousByCallback,
)
from asyncnn.devices.measured_capabilities import reference_capabilities
from asyncnn.fences import SyncFence, merge
from asyncnn.fences.fence import active_fences
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel, ISyncFence
from asyncnn.hal.refusals import NoCachesNorDomains, NoFencesNorBursts
from asyncnn.hal.types import (
    NO_TIMING,
    Capabilities,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    FusedActivationFunc,
    Handle,
    MeasureTiming,
    Model,
    Operand,
    OperandType,
    OperationType,
    OutputShape,
    Priority,
    Request,
)
from asyncnn.hal.validate import (
    RequestRules,
    validate_execution_preference,
    validate_measure_timing,
    validate_model,
    validate_priority,
)
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device, connect
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.service.driver.server import Server
from asyncnn.tools.bench.processes import READY, Pipe, process, temporary_folder

MAX_BURSTS = 64

LENGTH = 4
"""Floats in each vector of the addition."""


def tiny_addition() -> NamedModel:
    """Return the model that adds two vectors of four floats."""
    builder = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    x = builder.input("x", kind, (LENGTH,))
    y = builder.input("y", kind, (LENGTH,))
    none = builder.scalar(FusedActivationFunc.NONE)
    total = builder.operation(OperationType.ADD, [x, y, none], Operand(kind, (LENGTH,)))
    builder.output(total, "sum")
    return builder.build()


def addition_request(prepared: PreparedModel) -> Request:
    """Return a request for that model whose arrays are shared."""
    x, y, total = (shared_array(LENGTH) for _ in range(3))
    return RequestBuilder(prepared.inputs, prepared.outputs)([x, y], [total])


def hal_execution(
    prepared: PreparedModel, request: Request
) -> Callable[[], Awaitable[ExecutionResult]]:
    """Return the execution of a ready request at the HAL, awaited."""

    async def call() -> ExecutionResult:
        callback = ExecutionFuture()
        prepared.hal.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        return await callback

    return call


@contextlib.asynccontextmanager
async def no_op_driver_on(cpu: int) -> AsyncIterator[Device]:
    """Start a driver process that publishes the no-op device on one CPU; connect."""
    with temporary_folder() as path, process(cpu, _serve, path / "driver.sock"):
        async with connect(path / "driver.sock") as device:
            yield device


class NoOpPreparedModel(SynchronousByCallback, NoFencesNorBursts):
    """Completes every valid request at once."""

    def __init__(self, model: Model, bursts: OpenBursts) -> None:
        main = model.main
        self._bursts = bursts
        self._rules = RequestRules(model)
        self._shapes = tuple(
            OutputShape(main.operands[index].dimensions, True)
            for index in main.output_indexes
        )

    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Validate and notify; see `IPreparedModel.execute_1_3`."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        notify = OneShot(callback.notify_1_3)
        try:
            if not self._rules.remembers(request):
                self._rules.check(request, allow_unspecified_output=True)
            validate_measure_timing(measure)
        except AsyncnnError as error:
            callback.reason = str(error)
            notify(error.status, (), NO_TIMING)
            return error.status
        if callback.takes_early_results:
            notify(ErrorStatus.NONE, self._shapes, NO_TIMING)
        else:
            asyncio.get_running_loop().call_soon(
                partial(notify, ErrorStatus.NONE, self._shapes, NO_TIMING)
            )
        return ErrorStatus.NONE

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[ISyncFence],
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        duration: int | None,
    ) -> tuple[ErrorStatus, ISyncFence | None, IFencedExecutionCallback | None]:
        """Validate and wait; see `IPreparedModel.execute_fenced`."""
        try:
            if not self._rules.remembers(request):
                self._rules.check(request, allow_unspecified_output=False)
            validate_measure_timing(measure)
            active = active_fences(wait_for)
        except AsyncnnError as error:
            return error.status, None, None
        outcome = FencedOutcome()
        outcome.complete(ErrorStatus.NONE, NO_TIMING, NO_TIMING)
        fences = [fence for fence in active if isinstance(fence, SyncFence)]
        return ErrorStatus.NONE, merge(*fences) if fences else None, outcome

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Serve a burst; see `IPreparedModel.configure_execution_burst`."""
        return self._bursts.configure(self, callback, request_channel, result_channel)


class NoOpDevice(NoCachesNorDomains):
    """Prepares every valid model without looking at what it computes."""

    def __init__(self) -> None:
        self._bursts = OpenBursts(MAX_BURSTS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bursts.close()

    def get_status(self) -> DeviceStatus:
        """Return AVAILABLE."""
        return DeviceStatus.AVAILABLE

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the version of an algorithm that there is not."""
        return ErrorStatus.NONE, "no-op"

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return that it is none of the usual kinds."""
        return ErrorStatus.NONE, DeviceType.OTHER

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return those of the reference device."""
        return ErrorStatus.NONE, reference_capabilities()

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return none."""
        return ErrorStatus.NONE, ()

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return that it takes everything."""
        try:
            validate_model(model)
        except AsyncnnError as error:
            return error.status, ()
        return ErrorStatus.NONE, (True,) * len(model.main.operations)

    def prepare_model_1_3(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Validate the model and notify soon; see `IDevice.prepare_model_1_3`."""
        if callback is None:
            return ErrorStatus.INVALID_ARGUMENT
        notify = OneShot(callback.notify_1_3)
        try:
            validate_execution_preference(preference)
            validate_priority(priority)
            validate_model(model)
        except AsyncnnError as error:
            callback.reason = str(error)
            notify(error.status, None)
            return error.status
        prepared: IPreparedModel = NoOpPreparedModel(model, self._bursts)
        asyncio.get_running_loop().call_soon(
            partial(notify, ErrorStatus.NONE, prepared)
        )
        return ErrorStatus.NONE


async def _serve(pipe: Pipe, path: Path) -> None:
    """Be the driver process until the other end of ``pipe`` goes."""
    ended = asyncio.Event()
    async with NoOpDevice() as device, Server(device, path):
        asyncio.get_running_loop().add_reader(pipe.fileno(), ended.set)
        pipe.send_bytes(READY)
        await ended.wait()
