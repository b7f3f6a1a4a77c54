"""Recorded calls, made again in the same order.

A call begins once all have ended that had ended before it began. So no more are under
way than there were, and none reads what another one has not written yet.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import ExitStack, suppress
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.burst import BurstController
from asyncnn.callbacks import ExecutionFuture, launched_preparation
from asyncnn.hal.errors import MISSED
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.types import ExecutionOptions, OutputShapes
from asyncnn.memory.pools import from_buffer, view
from asyncnn.memory.shared import allocate
from asyncnn.service.recorded_memory import CallKind
from asyncnn.service.recording import (
    CallRecord,
    RecordedBuffer,
    RecordedCall,
    RecordedPool,
    RecordedRequest,
)
from asyncnn.tools.replay.pinning import EXECUTIONS, CallNeeds, is_cancelled

MOST_S = 20.0
"""A call that has not ended after this time counts as one that hangs."""

_Ended = tuple[int, str, OutputShapes]
T = TypeVar("T")


class CallOutcome(msgspec.Struct, frozen=True):
    """How a repeated call ended, in ns from its launch on.

    ``outputs`` are bytes of the arguments that lie in pools, None of others; outputs of
    a call are cut to what is written.
    """

    status: int
    took_ns: int
    reason: str = ""
    outputs: tuple[bytes | None, ...] = ()
    shapes: OutputShapes = ()


class CannotRepeatError(hal.GeneralFailureError):
    """A call whose arguments are not in the recording."""


class PoolSpan(NamedTuple):
    """Bytes of a pool."""

    pool: RecordedPool
    start: int
    end: int

    def meets(self, other: "PoolSpan") -> bool:
        """Return whether both have bytes in common."""
        if self.pool != other.pool:
            return False
        return self.start < other.end and other.start < self.end


class RepeatedExecution(NamedTuple):
    """An execution that is to be repeated."""

    call: RecordedCall
    prepared: hal.IPreparedModel
    request: hal.Request
    options: ExecutionOptions


class Repetition:
    """Makes the calls of a recording on a device, whose models are ``models``.

    ``outcomes`` has how each has ended by its place, and ``refusals`` why others were
    not made. ``prepared`` has what became of models.
    """

    def __init__(
        self, record: CallRecord, device: hal.IDevice, models: Mapping[int, hal.Model]
    ) -> None:
        self.outcomes: dict[int, CallOutcome] = {}
        self.refusals: dict[int, str] = {}
        self.needs = CallNeeds(record)
        self._record = record
        self._device = device
        self._models = models
        self.prepared: dict[int, hal.IPreparedModel | hal.AsyncnnError] = {}
        self._pools: dict[RecordedPool, hal.Memory] = {}
        self._buffers: dict[int, tuple[hal.IBuffer | None, hal.BufferToken]] = {}
        self._bursts: dict[tuple[int, int], BurstController] = {}
        self._fences: dict[tuple[int, int], hal.ISyncFence | None] = {}
        self._open: dict[int, asyncio.Task[CallOutcome]] = {}
        self._overwritten: set[int] = set()

    async def run(self, *, is_paced: bool) -> None:
        """Make all calls, at their times or as soon as may be.

        It ends early if the driver dies.
        """
        began = time.monotonic()
        calls = self._record.calls
        events = [(call.began_ns, 1, place) for place, call in enumerate(calls)]
        ends = [(each.ended_ns, place) for place, each in enumerate(calls)]
        events += [(ended, 0, place) for ended, place in ends if ended is not None]
        with ExitStack() as bursts:
            bursts.callback(self._close)
            for at_ns, is_begin, place in sorted(events):
                if not is_begin:
                    await self._end(place)
                    continue
                late_s = began + at_ns / 1e9 - time.monotonic()
                if is_paced and late_s > 0:
                    await asyncio.sleep(late_s)
                await self._begin(place)
            for place in list(self._open):
                await self._end(place)

    def model_of(self, call: RecordedCall) -> hal.Model | None:
        """Return the model that a call is of, if there is one."""
        request = self._record.requests.get(call.subject)
        return self._models.get(request.model if request else call.subject)

    def _close(self) -> None:
        for burst in self._bursts.values():
            burst.close()
        for task in self._open.values():
            task.cancel()

    async def _begin(self, place: int) -> None:
        call = self._record.calls[place]
        try:
            if not self.needs.is_known[place] and call.kind is CallKind.FENCED:
                raise CannotRepeatError("what it waited for is not in the recording")
            began_ns = time.perf_counter_ns()
            ending = await self._launch(place, call)
        except CannotRepeatError as error:
            self.refusals[place] = error.message
            return
        self._open[place] = asyncio.create_task(self._timed(began_ns, ending, call))
        await asyncio.sleep(0)  # so that it is under way before the next

    async def _timed(
        self, began_ns: int, ending: Awaitable[_Ended], call: RecordedCall
    ) -> CallOutcome:
        status, reason, shapes = await ending
        took_ns = time.perf_counter_ns() - began_ns
        outputs = self._outputs(call)
        return CallOutcome(status, took_ns, reason, outputs, shapes)

    async def _end(self, place: int) -> None:
        task = self._open.pop(place, None)
        if task is None:
            return
        try:
            async with asyncio.timeout(MOST_S):
                outcome = await task
        except TimeoutError:
            outcome = CallOutcome(-1, int(MOST_S * 1e9), "it hangs")
        if place in self._overwritten:
            outcome = replace(outcome, outputs=())
        self.outcomes[place] = outcome

    async def _launch(self, place: int, call: RecordedCall) -> Awaitable[_Ended]:
        """Launch a call; return what gives its end.

        :raises CannotRepeatError: if that is not possible.
        """
        match call.kind:
            case CallKind.PREPARE:
                return self._preparing(call.subject, _past_or_none(call))
            case CallKind.SUPPORTED:
                return self._querying(call.subject)
            case CallKind.ALLOCATE:
                found = _recorded(self._record.buffers, call.buffer, "buffer")
                models = [await self._model(number) for number in found.models]
                return self._allocated(found, models)
            case CallKind.COPY_TO | CallKind.COPY_FROM:
                return await self._copy(call)
            case CallKind.LOAD:
                raise CannotRepeatError("cache files are not recorded")
        return await self._execute(place, call)

    def _preparing(self, number: int, deadline: int | None) -> Awaitable[_Ended]:
        model, known = _recorded(self._models, number), self._record.models[number]
        asked = PrepareArguments(
            model,
            _enumerator(hal.ExecutionPreference, known.preference),
            _enumerator(hal.Priority, known.priority),
            deadline,
        )
        callback = launched_preparation(self._device, asked)

        async def ended() -> _Ended:
            try:
                self.prepared[number] = await callback
            except hal.AsyncnnError as error:
                self.prepared[number] = error
                return error.status, str(error), ()
            return hal.ErrorStatus.NONE, "", ()

        return ended()

    async def _model(self, number: int) -> hal.IPreparedModel:
        if number not in self.prepared:
            await self._preparing(number, None)
        prepared = self.prepared[number]
        if isinstance(prepared, hal.AsyncnnError):
            raise CannotRepeatError(f"its model is refused: {prepared.message}")
        return prepared

    def _querying(self, number: int) -> Awaitable[_Ended]:
        model = _recorded(self._models, number)

        async def ended() -> _Ended:
            status, _ = await self._device.get_supported_operations_1_3(model)
            return status, "", ()

        return ended()

    async def _allocated(
        self, recorded: RecordedBuffer, models: list[hal.IPreparedModel]
    ) -> _Ended:
        roles = recorded.input_roles, recorded.output_roles
        status, buffer, token = await self._device.allocate(
            hal.BufferDesc(recorded.dimensions), models, *roles
        )
        if status is hal.ErrorStatus.NONE:
            self._buffers[recorded.token] = buffer, hal.BufferToken(token)
        return status, "", ()

    async def _buffer(self, token: int) -> tuple[hal.IBuffer | None, hal.BufferToken]:
        if token not in self._buffers:
            for each in self._record.buffers.values():
                if each.token == token:
                    models = [await self._model(number) for number in each.models]
                    await self._allocated(each, models)
        return _recorded(self._buffers, token, "buffer")

    async def _copy(self, call: RecordedCall) -> Awaitable[_Ended]:
        buffer, _ = await self._buffer(call.details.buffer)
        assert buffer is not None
        pool = self._copied(call)
        if call.kind is CallKind.COPY_FROM:
            view(pool)[:] = _content(call, pool.size)
            copying = buffer.copy_from(pool, call.details.dimensions)
        else:
            copying = buffer.copy_to(pool)

        async def ended() -> _Ended:
            return await copying, "", ()

        return ended()

    def _copied(self, call: RecordedCall) -> hal.Memory:
        return self._pool(RecordedPool(-call.connection, call.number))

    async def _execute(self, place: int, call: RecordedCall) -> Awaitable[_Ended]:
        recorded = _recorded(self._record.requests, call.subject, "request")
        prepared = await self._model(recorded.model)
        pools = [await self._named(pool) for pool in recorded.pools]
        request = hal.Request(recorded.inputs, recorded.outputs, tuple(pools))
        self._write_inputs(place, call, recorded)
        options = ExecutionOptions(
            measure=_enumerator(hal.MeasureTiming, call.measure),
            deadline=_past_or_none(call),
        )
        if call.kind is CallKind.BURST:
            return await self._by_burst(
                RepeatedExecution(call, prepared, request, options)
            )
        if call.kind is CallKind.FENCED:
            return self._fenced(RepeatedExecution(call, prepared, request, options))
        callback = ExecutionFuture()
        times = options.measure, options.deadline, options.loop_timeout
        prepared.execute_1_3(request, *times, callback)
        if is_cancelled(call):
            callback.die()
        return _ended_by(callback)

    async def _by_burst(self, asked: "RepeatedExecution") -> Awaitable[_Ended]:
        call, prepared, request, options = asked
        key = call.connection, call.number
        burst = self._bursts.get(key)
        if burst is None:
            self._bursts[key] = burst = await BurstController.open(prepared)
        task = asyncio.ensure_future(burst.execute(request, options))
        if is_cancelled(call):
            await asyncio.sleep(0)
            task.cancel()

        async def ended() -> _Ended:
            try:
                result = await task
            except asyncio.CancelledError:
                return hal.ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, "cancelled", ()
            return result.status, result.reason, result.output_shapes

        return ended()

    def _fenced(self, asked: "RepeatedExecution") -> Awaitable[_Ended]:
        call, prepared, request, options = asked
        numbers = [(call.connection, each) for each in call.details.wait_for]
        fences = [f for n in numbers if (f := self._fences.get(n)) is not None]
        status, fence, callback = prepared.execute_fenced(
            request, fences, options.measure, options.deadline, None, None
        )
        self._fences[call.connection, call.number] = fence
        if callback is not None and is_cancelled(call):
            callback.cancel()

        async def ended() -> _Ended:
            if callback is None:
                return status, "", ()
            with suppress(hal.AsyncnnError):
                if fence is not None:
                    await fence
            return callback.get_execution_info()[0], "", ()

        return ended()

    async def _named(self, pool: RecordedPool) -> hal.Memory | hal.BufferToken:
        if pool.is_buffer:
            return (await self._buffer(pool.number))[1]
        return self._pool(pool)

    def _pool(self, pool: RecordedPool) -> hal.Memory:
        memory = self._pools.get(pool)
        if memory is None:
            memory = allocate(pool.size) if pool.size else from_buffer(b"")
            self._pools[pool] = memory
        return memory

    def _write_inputs(
        self, place: int, call: RecordedCall, recorded: RecordedRequest
    ) -> None:
        """Give a call its inputs, but for those that one under way is to write."""
        pending: list[PoolSpan] = []
        for other in self._open:
            spans = list(self._spans(other))
            pending += spans
            if any(a.meets(b) for a in spans for b in self._spans(place)):
                self._overwritten.add(other)
        for argument, data in zip(recorded.inputs, call.details.inputs, strict=False):
            span = _span(recorded, argument)
            if data is None or span is None:
                continue
            if len(data) != span.end - span.start:
                raise CannotRepeatError("its inputs do not fit its request")
            if not any(span.meets(each) for each in pending):
                view(self._pool(span.pool))[span.start : span.end] = data

    def _spans(self, place: int) -> Iterable[PoolSpan]:
        """Yield where the outputs of a call lie."""
        call = self._record.calls[place]
        recorded = self._record.requests.get(call.subject)
        if recorded is not None and call.kind in EXECUTIONS:
            found = (_span(recorded, argument) for argument in recorded.outputs)
            yield from (span for span in found if span is not None)

    def _outputs(self, call: RecordedCall) -> tuple[bytes | None, ...]:
        if call.kind is CallKind.COPY_TO:
            return (bytes(view(self._copied(call))),)
        recorded = self._record.requests.get(call.subject)
        if recorded is None or call.kind not in EXECUTIONS:
            return ()
        spans = [_span(recorded, argument) for argument in recorded.outputs]
        return tuple(
            None
            if span is None
            else bytes(view(self._pool(span.pool))[span.start : span.end])
            for span in spans
        )


def is_complete(call: RecordedCall, recorded: RecordedRequest) -> bool:
    """Return whether all inputs of an execution were recorded, or are in buffers."""
    given = call.details.inputs
    for place, argument in enumerate(recorded.inputs):
        if _span(recorded, argument) is not None and (
            place >= len(given) or given[place] is None
        ):
            return False
    return True


def _span(recorded: RecordedRequest, argument: hal.RequestArgument) -> PoolSpan | None:
    """Return where an argument lies; None if it is in no pool, or outside of it."""
    place = argument.location
    if argument.has_no_value or not 0 <= place.pool_index < len(recorded.pools):
        return None
    pool = recorded.pools[place.pool_index]
    end = place.offset + place.length
    if pool.is_buffer or not 0 <= place.offset <= end <= pool.size:
        return None
    return PoolSpan(pool, place.offset, end)


async def _ended_by(callback: ExecutionFuture) -> _Ended:
    result = await callback
    return result.status, result.reason, result.output_shapes


def _recorded(known: Mapping[int, T], number: int, what: str = "model") -> T:
    """Return what has a number.

    :raises CannotRepeatError: if it is unknown.
    """
    if number not in known:
        hint = " (--model)" if what == "model" else ""
        raise CannotRepeatError(f"its {what} is not in the recording{hint}")
    return known[number]


def _past_or_none(call: RecordedCall) -> int | None:
    """Return a deadline that has passed, for what has missed its own."""
    return 1 if call.status in MISSED else None


def _enumerator(kind: Any, value: int) -> Any:
    """Return an enumerator; what is none is refused by the device."""
    try:
        return kind(value)
    except ValueError:
        return value


def _content(call: RecordedCall, size: int) -> bytes:
    given = call.details.inputs[0] if call.details.inputs else None
    return given if given is not None and len(given) == size else bytes(size)
