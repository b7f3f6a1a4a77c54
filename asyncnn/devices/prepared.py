"""The prepared model of devices in this process."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from asyncnn import hal
from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import (
    ExecutionResult,
    IExecutionCallback,
    OneShot,
    launched,
    notify_outcome,
)
from asyncnn.devices.buffer_use import BoundBuffers, IBufferUse, KnownBuffer
from asyncnn.devices.cache_format import Compiled
from asyncnn.devices.caching import ModelCaches
from asyncnn.devices.device_buffers import Buffers
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.executable import Executable, IModelBatching, Spreading
from asyncnn.devices.fenced import FencedExecutions
from asyncnn.devices.preparations import NewShapes
from asyncnn.devices.process_wide import blas_threads_limited
from asyncnn.devices.releasing import ModelReleaser
from asyncnn.devices.run import Run
from asyncnn.devices.statistics import ModelStatistics
from asyncnn.devices.traced_work import Traced
from asyncnn.engine.arguments import bound_arrays, input_shapes
from asyncnn.engine.job import made
from asyncnn.execution import Execution
from asyncnn.fenced_run import BasePreparedModel, FencedRun, Source
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import BurstArguments, CacheArguments, status_of_launch
from asyncnn.hal.types import ExecutionOptions
from asyncnn.hal.validate import RequestRules, execution_options, signature_of
from asyncnn.logs import DRIVER, EXECUTION
from asyncnn.offload import offload_steps
from asyncnn.qos import PendingSnapshot, Scheduler, WorkAccounting, calling_client
from asyncnn.qos.watching import IdleTimer
from asyncnn.tracing import Layer, Phase, active, span

logger = logging.getLogger(__name__)

_LOW_POWER = 4.0
"""How much longer those on the loop may be, and what their lane time counts."""

# Kept by name, since looking up a member of an enum takes as long as a call.
_NONE = hal.ErrorStatus.NONE


class DeviceParts(NamedTuple):
    """What a device has from the time that its context is entered."""

    settings: DeviceSettings
    executions: Scheduler
    preparations: Scheduler
    plans: Scheduler
    new_shapes: NewShapes
    fenced: FencedExecutions
    bursts: OpenBursts
    buffers: Buffers
    caches: ModelCaches
    releaser: ModelReleaser
    sustained: IdleTimer
    undo_process_wide: Callable[[], None]


class InProcessPreparedModel(BasePreparedModel):
    """A program and the scheduler that executes it.

    Its executions have its priority and may overlap. ``client`` is the number of the
    client that it was prepared for. ``buffers`` leads to the device-managed buffers.
    """

    def __init__(self, compiled: Compiled, device: DeviceParts, client: int) -> None:
        program, preference = compiled.program, compiled.preference
        settings = device.settings
        factor = _LOW_POWER if preference is hal.ExecutionPreference.LOW_POWER else 1.0
        self._compiled = compiled
        self._caches = device.caches
        self._program = program
        self._scheduler = scheduler = device.executions
        self._new_shapes = device.new_shapes
        self._fenced = device.fenced
        self._bursts = device.bursts
        self._client = client
        self._rules = RequestRules(program.model)
        self._usual: Execution | None = None
        self.buffers = device.buffers.of(signature_of(program.model))
        self._accounting = WorkAccounting()
        self._executable = Executable(
            program,
            settings.inline_below_us * 1000 * factor,
            compiled.priority,
            self._accounting,
            device.new_shapes.cancel,
            refuses_unmeetable_deadlines=settings.refuses_unmeetable_deadlines,
            computing=blas_threads_limited(settings.blas_threads),
        )
        self._executable.cost = factor
        if preference is hal.ExecutionPreference.FAST_SINGLE_ANSWER:
            threads = min(settings.most_threads, scheduler.lanes)
            if threads > 1 and program.has_engine:
                spreading = Spreading(
                    program, threads, device.releaser.advance_on_thread
                )
                self._executable.spreading = spreading
                self._executable.may_spread = True  # the first says how long they are
        self._kind: type[Run] = Run
        if compiled.batching is not None and not compiled.batching.why_not:
            self._be_batched(compiled.batching, settings)
        self._is_sustained = preference is hal.ExecutionPreference.SUSTAINED_SPEED

    @property
    def stays_ready(self) -> bool:
        """Whether it keeps its memory for longer: it was asked to, or gains much."""
        spreading = self._executable.spreading
        return self._is_sustained or (
            spreading is not None and spreading.is_worth_keeping
        )

    @property
    def signature(self) -> hal.Model:
        """The inputs and outputs of the model; see `IDescribed`."""
        return signature_of(self._program.source)

    def execute_1_3(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> hal.ErrorStatus:
        """Launch an execution; see `IPreparedModel.execute_1_3`."""
        if callback is None:
            return hal.ErrorStatus.INVALID_ARGUMENT
        if EXECUTION.is_on:
            _report_launch("execute", request, deadline)
        report = OneShot(partial(notify_outcome, callback))
        try:
            request, use = self._taken(request, is_fenced=False)
            options = execution_options(measure, deadline, loop_timeout_duration)
        except hal.AsyncnnError as error:
            report(error, (), hal.NO_TIMING)
            return error.status
        kind = self._kind if active.recorder is None else Traced
        work = kind(
            self._executable,
            request,
            options,
            calling_client.get(),
            report,
            callback.may_be_left,
        )
        if not callback.takes_early_results:
            work.reports_early = False
        try:
            if use is not None:
                work.claim(use)
            waits = not work.has_plan and self._new_shapes.take(work)
            is_over = not waits and self._scheduler.submit(work)
        except hal.AsyncnnError as error:
            return _refused(work, error)
        if not is_over:
            callback.link_to_death(work.abandon)
        return _NONE

    def launch(
        self, execution: hal.Request, options: ExecutionOptions
    ) -> Awaitable[ExecutionResult]:
        """Launch an execution, and return its end; see `IInProcess.launch`."""
        executable = self._executable
        if type(execution) is not Execution or execution.executable is not executable:
            return launched(self, execution, options)
        arrays, buffers = execution.arrays, execution.buffers
        use = None if buffers is None else buffers.use(execution)
        if arrays is None and use is None:
            return launched(self, execution, options)
        if EXECUTION.is_on:
            _report_launch("execute", execution, options.deadline)
        kind = self._kind if active.recorder is None else Traced
        client = calling_client.get()
        run: Run
        if use is None:
            run = made(kind, executable, execution, arrays, options, client)
        else:
            run = kind(executable, execution, options, client)
        try:
            if use is not None:
                run.claim(use)
            self._scheduler.submit(run)
        except hal.AsyncnnError as error:
            _refused(run, error)
        return run

    def launch_on(
        self, tensors: Sequence[object], options: ExecutionOptions, are_usual: bool, /
    ) -> Awaitable[ExecutionResult] | None:
        """Launch an execution on arrays; see `IBinding.launch_on`."""
        usual = self._usual
        if not are_usual or usual is None or usual.plan is not self._program.fixed_plan:
            bound = self.bind(tensors, are_usual)
            return None if bound is None else self.launch(bound, options)
        if EXECUTION.is_on:
            _report_launch("execute", usual, options.deadline)
        kind = self._kind if active.recorder is None else Traced
        client = calling_client.get()
        run: Run = made(kind, self._executable, usual, tensors, options, client)
        try:
            self._scheduler.submit(run)
        except hal.AsyncnnError as error:
            _refused(run, error)
        return run

    def execute_threadsafe(
        self,
        request: hal.Request,
        measure: hal.MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback,
    ) -> hal.ErrorStatus:
        """Launch an execution on any thread; see `IInProcess.execute_threadsafe`."""
        if EXECUTION.is_on:
            _report_launch("execute_threadsafe", request, deadline)
        report = OneShot(partial(notify_outcome, callback))
        try:
            if hal.BufferToken in map(type, request.pools):
                raise hal.InvalidArgumentError("buffers belong to the event loop")
            request, _ = self._taken(request, is_fenced=False)
            options = execution_options(measure, deadline, loop_timeout_duration)
        except hal.AsyncnnError as error:
            report(error, (), hal.NO_TIMING)
            return error.status
        kind = Run if active.recorder is None else Traced
        client = calling_client.get()
        work = kind(self._executable, request, options, client, report)
        cancel = self._scheduler.cancel_threadsafe
        aborted = hal.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        # First: the end may have been reported when the next call returns.
        callback.link_to_death(partial(cancel, work, aborted))
        try:
            self._scheduler.submit_threadsafe(work)
        except hal.AsyncnnError as error:
            return _refused(work, error)
        return _NONE

    def launch_fenced(
        self,
        request: hal.Request,
        wait_for: Sequence[Source],
        options: ExecutionOptions,
    ) -> FencedRun:
        """Launch a run that begins once ``wait_for`` have signalled; see `IFencing`.

        :raises AsyncnnError: if it is not taken.
        """
        if EXECUTION.is_on:
            fences = len(wait_for)
            _report_launch("execute_fenced", request, options.deadline, fences=fences)
        request, use = self._taken(request, is_fenced=True)
        return self._fenced.launch(self._executable, request, use, wait_for, options)

    def launch_fenced_on(
        self, tensors: Sequence[object], options: ExecutionOptions, are_usual: bool, /
    ) -> FencedRun | None:
        """Launch a fenced execution on arrays; see `IInProcess.launch_fenced_on`."""
        usual = self._usual
        if not are_usual or usual is None or usual.plan is not self._program.fixed_plan:
            bound = self.bind(tensors, are_usual)
            return None if bound is None else self.launch_fenced(bound, (), options)
        if EXECUTION.is_on:
            _report_launch("execute_fenced", usual, options.deadline, fences=0)
        arrays = cast("Sequence[Array]", tensors)
        return self._fenced.launch(self._executable, usual, None, (), options, arrays)

    def bind(
        self, tensors: Sequence[object], are_usual: bool = False, /
    ) -> hal.Request | None:
        """Return a request on arrays; see `IInProcess.bind`."""
        plan, usual = self._program.fixed_plan, self._usual
        arrays: Any = tensors  # `cast` would be a call
        if are_usual and usual is not None and plan is usual.plan:
            return Execution((), (), (), self._executable, plan, arrays)
        if plan is None or len(tensors) != len(plan.ports):
            return self._bind_open(tensors)
        for tensor, port in zip(tensors, plan.ports, strict=True):
            if (
                type(tensor) is not np.ndarray
                or tensor.nbytes != port.size_bytes
                or (tensor.dtype is not port.dtype and tensor.dtype != port.dtype)
                or not tensor.flags.aligned
            ):
                return self._bind_open(tensors)
        if are_usual:
            self._usual = Execution((), (), (), self._executable, plan, ())
        return Execution((), (), (), self._executable, plan, arrays)

    def _bind_open(self, tensors: Sequence[Any]) -> hal.Request | None:
        """Return a request by the plan for the lengths of inputs; None without one."""
        program = self._program
        main = program.model.main
        count = len(main.input_indexes)
        arrays, spaces = [*tensors[:count]], tensors[count:]
        kinds = {*map(type, arrays)}
        if len(spaces) != len(main.output_indexes) or kinds - {np.ndarray}:
            return None
        shapes = tuple([array.shape for array in arrays])
        are_made = type(tensors) is list and {*map(type, spaces)} == {type(None)}
        plan = program.known_plan(shapes)
        if plan is None and are_made:
            plan = program.plan_at_once(shapes)
        is_open = are_made and plan is program.open_plan
        if plan is None or not (plan.is_fixed or is_open):
            return None
        for port, space in zip(plan.outputs, spaces, strict=True):
            if are_made:
                array = None if is_open else np.empty(port.shape or (), port.dtype)
            elif type(space) is not np.ndarray or space.nbytes < port.size_bytes:
                return None
            else:  # where lengths are open, it may have more elements than there are
                array = space.reshape(-1)[: port.count].reshape(port.shape or ())
            arrays.append(array)
        for array, port in zip(arrays, plan.ports, strict=True):
            if array is None:
                continue
            flags = array.flags
            if array.dtype != port.dtype or not (flags.c_contiguous and flags.aligned):
                return None
        if are_made:
            tensors[:] = arrays  # type: ignore[index]
            arrays = cast("list[Any]", tensors)
        return Execution((), (), (), self._executable, plan, arrays)

    def create_reusable_execution(self, request: hal.Request) -> hal.Request:
        """Return a checked request; see `IReusing.create_reusable_execution`."""
        if type(request) is Execution and request.executable is self._executable:
            return request
        self._check(request, is_fenced=False)
        found = self.buffers.found(request)
        if found:
            self.buffers.use(request, found)
        return self._bound(request, found)

    def _check(self, request: hal.Request, *, is_fenced: bool) -> None:
        with span("validate", Layer.DRIVER, Phase.EXECUTION):
            self._rules.check(request, allow_unspecified_output=not is_fenced)

    def _bound(
        self, request: hal.Request, found: Mapping[int, KnownBuffer]
    ) -> Execution:
        """Return a checked request with what is the same in all its runs.

        ``found`` are the buffers that it names, by position of the pool.
        """
        program = self._program
        plan = program.fixed_plan
        if plan is None and not found:
            plan = program.known_plan(input_shapes(program, request))
            if plan is not None and not plan.is_fixed:
                plan = None
        arrays, buffers = None, None
        if plan is not None and found:
            buffers = BoundBuffers.of(plan, request, found)
        elif plan is not None:
            arrays = bound_arrays(plan, request)
        if arrays is None and buffers is None:
            plan = None
        of = request.inputs, request.outputs, request.pools
        return Execution(*of, self._executable, plan, arrays, buffers)

    def _taken(
        self, request: hal.Request, *, is_fenced: bool
    ) -> tuple[hal.Request, IBufferUse | None]:
        """Return what to execute, and what that does with buffers, if it names any."""
        is_own = False
        if type(request) is Execution and request.executable is self._executable:
            if request.arrays is not None and id(request.plan) in self._program.idle:
                return request, None
            buffers = request.buffers
            use = None if buffers is None else buffers.use(request)
            if use is not None:
                return request, use
            is_own = True
        if is_fenced or not is_own:
            self._check(request, is_fenced=is_fenced)
        found = self.buffers.found(request)
        if found:
            return request, self.buffers.use(request, found)
        return self._bound(request, found), None

    async def save_to_cache(
        self, model_cache: hal.Handle, data_cache: hal.Handle, token: bytes
    ) -> hal.ErrorStatus:
        """Save the model, on a thread; see `ISavable.save_to_cache`."""
        DRIVER("save_to_cache")
        cause = self.cause_of_death()
        if cause is not None:
            return cause.status
        try:
            cache = CacheArguments((model_cache,), (data_cache,), token)
            await offload_steps(self._caches.saving(self._compiled, cache))
        except hal.AsyncnnError as error:
            logger.info("a model is not cached: %s: %s", error.status.name, error)
            return error.status
        return hal.ErrorStatus.NONE

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return why its device executes nothing any more; see `IMortal`."""
        return self._scheduler.cause_of_death()

    def statistics(self, number: int, snapshot: PendingSnapshot) -> ModelStatistics:
        """Return what became of this model's executions; ``number`` names it."""
        batching = self._compiled.batching
        return ModelStatistics(
            number=number,
            client=self._client,
            operations=len(self._program.model.main.operations),
            priority=self._compiled.priority,
            executions=snapshot.of(self._accounting),
            idle_bytes=self._program.idle_bytes,
            batching="" if batching is None else batching.words,
        )

    def _be_batched(self, batching: IModelBatching, settings: DeviceSettings) -> None:
        self._kind = batching.kind
        self._executable.batching = batching
        priority = self._compiled.priority
        computing = blas_threads_limited(settings.blas_threads)
        batching.use(
            lambda program: Executable(
                program,
                0.0,
                priority,
                WorkAccounting(),
                self._scheduler.cancel,
                computing=computing,
            )
        )

    def trim(self) -> int:
        """Free the buffers that no execution uses; return their bytes."""
        spreading = self._executable.spreading
        if spreading is not None:
            spreading.begin_anew()
        if self._executable.batching is not None:
            self._executable.batching.trim()
        return self._program.trim()

    async def _configure(
        self, asked: BurstArguments
    ) -> tuple[hal.ErrorStatus, hal.IBurstContext | None]:
        DRIVER("configure_execution_burst")
        return self._bursts.configure(self, *asked)


def _refused(work: Run, error: hal.AsyncnnError) -> hal.ErrorStatus:
    work.fail(error)
    work.finish()
    return status_of_launch(error)


def _report_launch(
    call: str, request: hal.Request, deadline: int | None, **more: object
) -> None:
    inputs, outputs = len(request.inputs), len(request.outputs)
    EXECUTION(call, inputs=inputs, outputs=outputs, deadline_ns=deadline, **more)
