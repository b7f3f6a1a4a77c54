"""One execution, partition by partition, each begun when the one before has ended.

A `SteppedRun` is the callback of all its partitions. Partitions that are done within
their call follow each other in a loop, without a turn of the event loop; others begin
within the notification of the one before. If a device fails, its partition or the whole
model goes to the CPU, by the rules of `fallback`.
"""

import asyncio
import time
from collections.abc import Callable
from typing import ClassVar

from msgspec.structs import replace

from asyncnn import hal
from asyncnn.callbacks import (
    ExecutionResult,
    IExecutionCallback,
    result_of,
    unexplained,
)
from asyncnn.devices.own_devices import CPU
from asyncnn.hal.errors import MISSED
from asyncnn.hal.routes import Route, RouteStep
from asyncnn.hal.types import UINT64_MAX, ExecutionOptions, OutputShapes
from asyncnn.qos import acting_for, calling_client
from asyncnn.runtime.framework import Fallback
from asyncnn.runtime.framework.fallback import FINAL, had_ample_time, reason_of
from asyncnn.runtime.framework.managed_memory import BuffersInUse
from asyncnn.runtime.framework.spaces import NeedsWholeError, Space
from asyncnn.runtime.framework.steps import DeviceStep, Partitioned
from asyncnn.tracing import Layer, Phase, Recorder, Trace, active

MOST_GROWTHS = 8
"""Attempts to find room for a tensor of unknown size."""

MOST_LATE_S = 1.0
"""Seconds after a deadline in which a device has to say that it was missed."""

LEFT_OUT = "it is left out after failures"

PARTITION_PREFIX = "partition on "
"""Start of the name of a partition's span; the device's name follows."""

_NONE = hal.ErrorStatus.NONE
_INSUFFICIENT = hal.ErrorStatus.OUTPUT_INSUFFICIENT_SIZE


class SteppedRun(IExecutionCallback):
    """One execution of a prepared model; ``ended`` is given the result, once.

    Its route is None if it is the usual one. A request that names device-managed
    buffers is executed with the memory that ``use`` claims.

    A partition that has failed is computed on the CPU ``_instead``, which is how it
    failed; if ``_is_whole``, all of the model is.
    """

    takes_early_results: ClassVar[bool] = True

    def __init__(
        self,
        model: Partitioned,
        request: hal.Request,
        options: ExecutionOptions,
        ended: Callable[[ExecutionResult], None],
        use: BuffersInUse | None = None,
    ) -> None:
        """Claim the buffers.

        :raises GeneralFailureError: as `BuffersInUse.begin`.
        """
        super().__init__()
        self._model = model
        self._request = request if use is None else use.begin(request)
        self._options = options
        self._ended = ended
        self._use = use
        self._client = calling_client.get()
        self._started_ns = time.monotonic_ns()
        self._called_ns = self._given_ns = 0
        self._index = 0
        self._growths = 0
        self._on_device_us = 0
        self._shapes = list(model.declared)
        self._route: list[RouteStep] = []
        self._space: Space | None = None
        self._answer: ExecutionResult | None = None
        self._instead: ExecutionResult | None = None
        self._failed: DeviceStep | None = None
        self._is_whole = False
        self._is_calling = False
        self._is_outstanding = False
        self._is_clean = True
        self._task: asyncio.Task[hal.IPreparedModel] | None = None
        self._patience: asyncio.TimerHandle | None = None
        self.is_pending = True
        model.host.active.add(self)

    def begin(
        self,
        index: int = 0,
        space: Space | None = None,
        *,
        on_device_us: int = 0,
        failure: ExecutionResult | None = None,
    ) -> None:
        """Execute partition ``index`` and all others; those before have used ``space``.

        It has failed already, if ``failure`` says how.
        """
        self._index = index
        self._space = space
        self._on_device_us = on_device_us
        self._route = [step.usual for step in self._model.steps[:index]]
        if failure is not None:
            self._guarded(lambda: self._take(failure))
        self._advance()

    def notify_1_3(
        self, status: hal.ErrorStatus, output_shapes: OutputShapes, timing: hal.Timing
    ) -> None:
        """Take the outcome of a partition, and begin the next."""
        self._is_outstanding = False
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        self.unlink_to_death()
        reason, self.reason = self.reason, ""
        answer = ExecutionResult(status, output_shapes, timing, reason)
        if self.is_left:
            answer = replace(answer, is_left=True)
        if self._is_calling:
            self._answer = answer
        elif not self.is_pending:
            self._release()
        else:
            self._guarded(lambda: self._take(answer))
            self._advance()

    def die(self) -> None:
        """End soon: nobody waits for the outcome."""
        super().die()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """End at once, since the framework is closed; devices are asked to stop."""
        self._end(hal.ErrorStatus.DEVICE_UNAVAILABLE, (), "the device is closed")
        self.die()

    def _advance(self) -> None:
        """Execute partitions until one is not done within its call."""
        while self.is_pending and not self._is_outstanding and self._task is None:
            if self._index == len(self._model.steps):
                self._end(_NONE, tuple(self._shapes), "")
            else:
                self._guarded(self._execute_next)

    def _guarded(self, do: Callable[[], None]) -> None:
        try:
            do()
        except NeedsWholeError as error:
            if self._model.fallback is Fallback.FORBID or self._is_whole:
                self._end(error.status, (), str(error))
            else:
                self._instead, self._failed = result_of(error), None
                self._is_whole = True
        except Exception as error:
            result = result_of(error)
            self._end(result.status, (), result.reason)

    @property
    def _step(self) -> DeviceStep:
        return self._model.whole if self._is_whole else self._model.steps[self._index]

    def _execute_next(self) -> None:
        step = self._step
        prepared = step.prepared
        if self._instead is not None:
            on_cpu = step.on_cpu
            if on_cpu is None:
                self._prepare_on_cpu(step)
                return
            prepared = on_cpu
        elif self._is_left_out(step):
            status = hal.ErrorStatus.DEVICE_UNAVAILABLE
            self._fall_back(ExecutionResult(status, (), hal.NO_TIMING, LEFT_OUT))
            return
        request = self._request
        if self._model.spaces is not None and not self._is_whole:
            if self._space is None:
                self._space = self._model.spaces.take()
            request = self._space.request_of(self._index, request, prepared)
        answer = self._call(prepared, request)
        if answer is not None:
            self._take(answer)

    def _is_left_out(self, step: DeviceStep) -> bool:
        member = step.member
        return (
            member.health.has_failed
            and not member.is_cpu
            and self._model.fallback is not Fallback.FORBID
            and not member.health.allows()
        )

    def _call(
        self, prepared: hal.IPreparedModel, request: hal.Request
    ) -> ExecutionResult | None:
        options, deadline = self._options, self._options.deadline
        self._called_ns = time.monotonic_ns()
        if deadline is not None:
            left_ns = deadline - self._called_ns
            if self._instead is None:
                self._given_ns = left_ns
            elif self._instead.status in MISSED and left_ns <= 0:
                deadline = None  # late rather than never
        self._is_calling = self._is_outstanding = True
        self._answer = None
        try:
            with acting_for(self._client):
                prepared.execute_1_3(
                    request, options.measure, deadline, options.loop_timeout, self
                )
        except Exception as error:
            self._is_outstanding = False
            return result_of(error)
        finally:
            self._is_calling = False
        if self._is_outstanding and deadline is not None:
            patience_s = (deadline - time.monotonic_ns()) / 1e9 + MOST_LATE_S
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(patience_s, self._give_up)
        return self._answer

    def _give_up(self) -> None:
        """End, as the device says nothing; it may write yet, so nobody else does."""
        self._patience = None
        member, status = self._step.member, hal.ErrorStatus.MISSED_DEADLINE_TRANSIENT
        member.health.failed(status)
        self._end(status, (), f"{member.name} has not answered")
        self.die()

    def _take(self, answer: ExecutionResult) -> None:
        if answer.status is _NONE:
            self._succeed(answer)
        elif answer.is_left:  # it may write yet, so nobody else does
            self.is_left, step = True, self._step
            had_time = had_ample_time(self._given_ns, step.took_ns)
            step.member.failed(answer.status, had_time=had_time)
            self._end(answer.status, (), answer.reason)
        elif self._may_repeat(answer):
            self._repeat()
        elif answer.status is _INSUFFICIENT:
            self._grow(answer)
        elif (
            self.is_dead
            or answer.status in FINAL
            or self._instead is not None
            or self._step.member.is_cpu
            or self._model.fallback is Fallback.FORBID
        ):
            what = f"execution of {self._step.usual}"
            reason = answer.reason or unexplained(what, answer.status)
            self._end(answer.status, (), reason)
        else:
            self._fall_back(answer)

    def _may_repeat(self, answer: ExecutionResult) -> bool:
        """Return whether a buffer may be at fault, or have lost what lies there."""
        is_final = answer.status is _INSUFFICIENT or (
            answer.status in MISSED and self._model.fallback is Fallback.FORBID
        )
        return self._has_buffers and not self.is_dead and not is_final

    @property
    def _has_buffers(self) -> bool:
        """Whether tensors between partitions lie in memory of a device."""
        space = self._space
        return space is not None and space.reserved is not None and not self._is_whole

    def _repeat(self) -> None:
        """Begin anew, with nothing in memory of devices."""
        space, self._space = self._space, None
        spaces = self._model.spaces
        assert space is not None
        assert spaces is not None
        spaces.give_back(space, is_clean=False)
        self._space = spaces.take(in_order=False)
        self._index = self._growths = self._on_device_us = 0
        self._shapes = list(self._model.declared)
        self._route = []

    def _succeed(self, answer: ExecutionResult) -> None:
        step = self._step
        on_device_us = answer.timing.time_on_device
        if UINT64_MAX in (on_device_us, self._on_device_us):
            self._on_device_us = UINT64_MAX
        else:
            self._on_device_us += on_device_us
        if active.recorder is not None and on_device_us != UINT64_MAX:
            _record(active.recorder, step.usual.device, on_device_us)
        self._learn(answer)
        self._growths = 0
        if self._is_whole:
            self._route = [self._went(step)]
            self._index = len(self._model.steps)
            return
        self._route.append(self._went(step))
        if self._space is not None:
            self._space.learn(self._index, answer.output_shapes)
        self._index += 1

    def _learn(self, answer: ExecutionResult) -> None:
        outputs = self._step.outputs
        for position, shape in zip(outputs, answer.output_shapes, strict=False):
            if position >= 0:
                self._shapes[position] = shape

    def _went(self, step: DeviceStep) -> RouteStep:
        """Return how a partition went, and count it if it was not as planned."""
        failure, failed = self._instead, self._failed
        self._instead = self._failed = None
        took_ns = time.monotonic_ns() - self._called_ns
        if failure is None:
            step.took_ns = took_ns
            if step.member.health.has_failed:
                step.member.health.succeeded()
            return step.usual
        instead_of = step.usual.device
        reason = reason_of(failure.status, failure.reason)
        if failed is not None:
            instead_of = failed.member.name
            if failure.reason is LEFT_OUT:
                failed.member.passed_over(failure.status, reason)
            else:
                had_time = had_ample_time(self._given_ns, took_ns, failed.took_ns)
                failed.member.fell_back(failure.status, reason, had_time=had_time)
        return RouteStep(CPU, step.usual.operations, instead_of, reason)

    def _grow(self, answer: ExecutionResult) -> None:
        """Try again with more room, if that was for tensors between partitions."""
        self._growths += 1
        if (
            not self._is_whole
            and self._space is not None
            and self._growths <= MOST_GROWTHS
            and self._space.grow(self._index, answer.output_shapes)
        ):
            return
        self._learn(answer)
        self._end(_INSUFFICIENT, tuple(self._shapes), answer.reason)

    def _fall_back(self, answer: ExecutionResult) -> None:
        if self._has_buffers:  # the CPU does not see them
            self._repeat()
            return
        self._instead, self._failed = answer, self._step
        self._is_clean = False
        if self._model.fallback is Fallback.FULL:
            self._is_whole = True
        elif self._space is not None:
            # A device that was given up may write to the old place at any time.
            self._space.move_outputs(self._index)

    def _prepare_on_cpu(self, step: DeviceStep) -> None:
        loop = asyncio.get_running_loop()
        with acting_for(self._client):
            self._task = loop.create_task(step.prepare_on_cpu())
        # Not in the task, which never begins if it is cancelled first.
        self._task.add_done_callback(self._prepared_on_cpu)

    def _prepared_on_cpu(self, task: "asyncio.Task[hal.IPreparedModel]") -> None:
        failure = self._instead
        assert failure is not None
        self._task = None
        if task.cancelled():
            status = hal.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            self._end(status, (), "the execution was cancelled")
        elif error := task.exception():
            words = failure.reason or failure.status.name
            reason = f"{words}; nor can the CPU: {hal.failure_of(error)}"
            self._end(failure.status, (), reason)
        if not self.is_pending:
            self._release()
        self._advance()

    def _end(self, status: hal.ErrorStatus, shapes: OutputShapes, reason: str) -> None:
        if not self.is_pending:
            return
        self.is_pending = False
        self._is_clean &= status is _NONE
        timing = hal.NO_TIMING
        if status is _NONE and self._options.measure is hal.MeasureTiming.YES:
            in_driver_us = (time.monotonic_ns() - self._started_ns) // 1000
            on_device_us = self._on_device_us
            if on_device_us != UINT64_MAX:
                in_driver_us = max(in_driver_us, on_device_us)
            timing = hal.Timing(on_device_us, in_driver_us)
        route = None
        if any(step.instead_of for step in self._route):
            route = Route(tuple(self._route))
        self._release()
        if self._use is not None:
            self._use.end(status, shapes)
        is_left = self.is_left or self._is_outstanding
        end = ExecutionResult(status, shapes, timing, reason, None, route, is_left)
        self._ended(end)

    def _release(self) -> None:
        """Give all back once no device works for this any more."""
        if self._is_outstanding or self._task is not None:
            return
        space, self._space = self._space, None
        if space is not None and self._model.spaces is not None:
            self._model.spaces.give_back(space, is_clean=self._is_clean)
        self._model.host.ended(self)


def _record(recorder: Recorder, device: str, on_device_us: int) -> None:
    trace, ended_ns = Trace(recorder), time.monotonic_ns()
    begun_ns = ended_ns - on_device_us * 1000
    name = f"{PARTITION_PREFIX}{device}"
    trace.add(name, Layer.RUNTIME, Phase.EXECUTION, begun_ns, ended_ns)
