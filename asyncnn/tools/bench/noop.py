"""Executions that compute nothing: what is left is the cost of getting there.

The no-op device validates models and requests in full and notifies callbacks as the HAL
demands; outputs keep the bytes that they have.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

import asyncnn
from asyncnn import hal
from asyncnn.burst import OpenBursts
from asyncnn.callbacks import (
    ExecutionResult,
    FencedOutcome,
    OneShot,
    SynchronousByCallback,
    launched,
)
from asyncnn.devices import ReferenceDevice
from asyncnn.execution import reusable
from asyncnn.fences import SyncFence, merge
from asyncnn.fences.fence import active_fences
from asyncnn.hal.refusals import PrepareArguments, refuse_execution
from asyncnn.hal.types import DEFAULT_OPTIONS
from asyncnn.hal.validate import RequestRules, validate_measure_timing
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.service.driver.recorder import CallRecorder
from asyncnn.service.driver.server import Server
from asyncnn.service.limits import RecordingSettings
from asyncnn.service.recording import RecordedDriver
from asyncnn.tools.bench.made_models import LENGTH
from asyncnn.tools.bench.processes import Pipe, process, temporary_folder, until_closed


def addition_request(prepared: asyncnn.PreparedModel) -> hal.Request:
    """Return a request for that model whose arrays are shared."""
    x, y, total = (asyncnn.shared_array(LENGTH) for _ in range(3))
    return RequestBuilder(prepared.inputs, prepared.outputs)([x, y], [total])


def hal_execution(
    prepared: asyncnn.PreparedModel, request: hal.Request
) -> Callable[[], Awaitable[ExecutionResult]]:
    """Return the execution of a ready request at the HAL, awaited."""
    request = reusable(prepared.hal, request)
    return partial(launched, prepared.hal, request, DEFAULT_OPTIONS)


@contextlib.asynccontextmanager
async def no_op_driver_on(cpu: int, calls: int = 0) -> AsyncIterator[asyncnn.Device]:
    """Start a driver process that publishes the no-op device on one CPU; connect.

    It keeps the last ``calls``.
    """
    with temporary_folder() as path, process(cpu, _serve, path / "driver.sock", calls):
        async with asyncnn.connect(path / "driver.sock") as device:
            yield device


class NoOpPreparedModel(SynchronousByCallback):
    """Completes every valid request at once."""

    def __init__(self, model: hal.Model, bursts: OpenBursts) -> None:
        main = model.main
        self._bursts = bursts
        self._rules = RequestRules(model)
        self._shapes = tuple(
            hal.OutputShape(main.operands[index].dimensions, True)
            for index in main.output_indexes
        )

    def execute_1_3(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: hal.IExecutionCallback | None,
    ) -> hal.ErrorStatus:
        """Validate and notify; see `IPreparedModel.execute_1_3`."""
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT
        notify = OneShot(callback.notify_1_3)
        try:
            self._rules.check(request, allow_unspecified_output=True)
            validate_measure_timing(measure)
        except hal.AsyncnnError as error:
            return refuse_execution(callback, error)
        result = hal.ErrorStatus.NONE, self._shapes, hal.NO_TIMING
        if callback.takes_early_results:
            notify(*result)
        else:
            asyncio.get_running_loop().call_soon(notify, *result)
        return hal.ErrorStatus.NONE

    def execute_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[hal.ISyncFence],
        measure: hal.MeasureTiming,
        *limits: int | None,
    ) -> tuple[
        hal.ErrorStatus, hal.ISyncFence | None, hal.IFencedExecutionCallback | None
    ]:
        """Validate and wait; see `IPreparedModel.execute_fenced`."""
        try:
            self._rules.check(request, allow_unspecified_output=False)
            validate_measure_timing(measure)
            active = active_fences(wait_for)
        except hal.AsyncnnError as error:
            return error.status, None, None
        outcome = FencedOutcome()
        outcome.complete(hal.ErrorStatus.NONE, hal.NO_TIMING, hal.NO_TIMING)
        fences = [fence for fence in active if isinstance(fence, SyncFence)]
        return hal.ErrorStatus.NONE, merge(*fences) if fences else None, outcome

    async def configure_execution_burst(
        self, callback: hal.IBurstCallback | None, *channels: hal.Handle
    ) -> tuple[hal.ErrorStatus, hal.IBurstContext | None]:
        """Serve a burst; see `IPreparedModel.configure_execution_burst`."""
        return self._bursts.configure(self, callback, *channels)


class NoOpDevice(ReferenceDevice):
    """Prepares every valid model without looking at what it computes."""

    def _prepare(
        self, asked: PrepareArguments, callback: hal.IPreparedModelCallback
    ) -> hal.ErrorStatus:
        """Validate the model and notify soon."""
        asked.validate()
        prepared = NoOpPreparedModel(asked.model, self._bursts)
        notify = partial(OneShot(callback.notify_1_3), hal.ErrorStatus.NONE, prepared)
        asyncio.get_running_loop().call_soon(notify)
        return hal.ErrorStatus.NONE


async def _serve(pipe: Pipe, path: Path, calls: int) -> None:
    """Be the driver process until the other end of ``pipe`` goes."""
    kept = RecordingSettings(calls=calls)
    recorder = CallRecorder(kept, RecordedDriver()) if calls else None
    async with NoOpDevice() as device, Server(device, path, recorder=recorder):
        await until_closed(pipe)
