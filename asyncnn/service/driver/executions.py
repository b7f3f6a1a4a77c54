"""The executions that one client asked for, on the driver's side."""

import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.callbacks import IExecutionCallback
from asyncnn.execution import reusable
from asyncnn.hal.routes import Route
from asyncnn.hal.types import OutputShapes
from asyncnn.service import wire
from asyncnn.service.driver.parts import SessionFields, SessionPart
from asyncnn.service.driver.pools import Unusable, are_mapped
from asyncnn.service.driver.quotas import CountedTable, Quota
from asyncnn.service.driver.reporting import explained, kill, warn_if_refused

if TYPE_CHECKING:
    from asyncnn.service.driver.recorder import NotedBlob

logger = logging.getLogger(__name__)


_MEASURES = {int(measure): measure for measure in hal.MeasureTiming}


class Bound(msgspec.Struct, frozen=True, eq=False):
    """A request with its pools; those that are not mapped are copied to execute it."""

    prepared: hal.IPreparedModel
    request: hal.Request
    is_mapped: bool


class _KeptRequest(msgspec.Struct, frozen=True, eq=False):
    """What the client calls a bound request by number: it, or why there is none."""

    model: int
    pools: frozenset[int]
    bound: Bound | Unusable
    noted: "NotedBlob | None" = None


class Executions(SessionPart):
    """Executions and bound requests by their numbers."""

    def __init__(self, session: SessionFields, quota: Quota) -> None:
        super().__init__(session)
        self._quota = quota
        self._executing: CountedTable[_Executing] = quota.table()
        self._kept: dict[int, _KeptRequest] = {}

    def execute(self, order: wire.Execute | wire.ExecuteBound) -> None:
        """Launch an execution; the client is notified of errors if it is at all."""
        number = order.execution
        if number in self._executing:
            raise hal.InvalidArgumentError(f"execution {number} exists already")
        # Known before it is launched: its end may be reported within that call.
        callback = self._executing[number] = _Executing(self, order)
        if self._recorder is not None:
            callback.noted = self.noted(order)
            callback.call = self._recorder.execution(order, callback.noted)
        try:
            self._quota.check(self._executing, more=0)
            bound = self.find(order)
            if bound.is_mapped:
                callback.launch(bound.prepared, bound.request)
            else:
                self._tasks.check_room()
                self._tasks.start(self._launch_with_copies(bound, callback))
        except Exception as error:
            callback.fail(explained(error))

    def bind(self, message: wire.BindRequest) -> None:
        """Keep a request; one that cannot be used fails its executions.

        :raises InvalidArgumentError: if its number is in use, or there are too many.
        """
        if message.bound in self._kept:
            raise hal.InvalidArgumentError(f"request {message.bound} is bound already")
        # The client forgets executions on a pool that is gone a little before we do.
        if len(self._kept) >= 2 * self._limits.max_bound_requests:
            raise hal.InvalidArgumentError("too many requests are bound")
        bound: Bound | Unusable
        noted = self.noted(message)
        try:
            bound = self._bind(message)
        except hal.AsyncnnError as error:
            bound = Unusable(error.status, str(error))
        pools = frozenset(message.pools)
        self._kept[message.bound] = _KeptRequest(message.prepared, pools, bound, noted)

    def noted(
        self, order: wire.Execute | wire.ExecuteBound | wire.BindRequest
    ) -> "NotedBlob | None":
        """Return what notes of an order are about; None if that is not known."""
        if isinstance(order, wire.ExecuteBound):
            kept = self._kept.get(order.bound)
            return None if kept is None else kept.noted
        if self._recorder is None:
            return None
        try:
            pools = self._pools.find_for_request(order.pools)
        except hal.AsyncnnError:
            return None
        request = hal.Request(order.inputs, order.outputs, pools)
        return self._recorder.request(order.prepared, request)

    def find(self, order: wire.Execute | wire.ExecuteBound) -> Bound:
        """Return what an order is to execute.

        :raises AsyncnnError: if it cannot be executed.
        """
        if isinstance(order, wire.Execute):
            return self._bind(order)
        kept = self._kept.get(order.bound)
        if kept is None:
            raise hal.InvalidArgumentError(f"no request {order.bound} is bound")
        if isinstance(kept.bound, Unusable):
            raise hal.error_for(kept.bound.status, kept.bound.reason)
        return kept.bound

    def cancel(self, number: int) -> None:
        """Stop an execution that nobody waits for; it is still answered."""
        callback = self._executing.get(number)
        if callback is not None:
            if self._recorder is not None:
                self._recorder.cancelled(callback.call)
            kill(callback)

    def forget(self, numbers: Collection[int]) -> None:
        """Let go of the bound requests of these numbers, or that name such a pool."""
        for number in numbers:
            self._kept.pop(number, None)
        if self._kept:
            gone = frozenset(numbers)
            self._forget(lambda kept: not gone.isdisjoint(kept.pools))

    def forget_model(self, number: int) -> None:
        """Let go of the bound requests of a prepared model."""
        self._forget(lambda kept: kept.model == number)

    def close(self) -> None:
        """Let go of everything, and stop what is under way."""
        # Forgotten before they die, so that what they notify reaches nobody.
        executing = tuple(self._executing.values())
        self._executing.clear()
        self._kept.clear()
        for callback in executing:
            if self._recorder is not None:
                self._recorder.left(callback.call)
            kill(callback)

    def finish(
        self,
        callback: "_Executing",
        status: hal.ErrorStatus,
        shapes: OutputShapes,
        timing: hal.Timing,
    ) -> None:
        """Notify the client, once outputs that were not computed in place are."""
        number = callback.order.execution
        if self._executing.get(number) is not callback:
            return
        if callback.copies and status is hal.ErrorStatus.NONE:
            self._tasks.start(self._write_back(callback, shapes, timing))
            return
        del self._executing[number]
        if self._recorder is not None:
            self._recorder.ended(callback.call, status, callback.noted)
        if callback.is_left:
            self._send(wire.Took(number, None, is_left=True))
        self._send(wire.Executed(number, status, shapes, timing, callback.reason))

    def took(self, callback: "_Executing", route: Route) -> None:
        """Notify the client of an unusual route, ahead of the outcome."""
        number = callback.order.execution
        if self._executing.get(number) is callback:
            self._send(wire.Took(number, route))

    def _bind(self, order: wire.Execute | wire.BindRequest) -> Bound:
        prepared = self._model(order.prepared)
        pools = self._pools.find_for_request(order.pools)
        request = hal.Request(order.inputs, order.outputs, pools)
        is_mapped = are_mapped(pools)
        if is_mapped and isinstance(order, wire.BindRequest):
            request = reusable(prepared, request)
        return Bound(prepared, request, is_mapped)

    def _forget(self, is_gone: Callable[[_KeptRequest], bool]) -> None:
        for number in [n for n, kept in self._kept.items() if is_gone(kept)]:
            del self._kept[number]

    async def _launch_with_copies(self, bound: Bound, callback: "_Executing") -> None:
        try:
            pools = await self._pools.copied(bound.request.pools)
            callback.copies, callback.outputs = pools, bound.request.outputs
            callback.launch(bound.prepared, replace(bound.request, pools=pools))
        except Exception as error:
            callback.fail(explained(error))

    async def _write_back(
        self, callback: "_Executing", shapes: OutputShapes, timing: hal.Timing
    ) -> None:
        copies, callback.copies = callback.copies, ()
        try:
            await self._pools.write_back(copies, callback.outputs)
        except Exception as error:
            callback.fail(explained(error))
            return
        self.finish(callback, hal.ErrorStatus.NONE, shapes, timing)


class _Executing(IExecutionCallback):
    """Notifies the client of an execution's end."""

    __slots__ = ("_executions", "call", "copies", "noted", "order", "outputs")

    takes_early_results = True

    def __init__(
        self, executions: Executions, order: wire.Execute | wire.ExecuteBound
    ) -> None:
        # All here, as a call of the base would be felt with tiny models.
        self.reason = ""
        self._is_dead = False
        self._recipients = []
        self._executions = executions
        self.order = order
        self.copies: tuple[hal.Memory | hal.BufferToken, ...] = ()
        self.outputs: tuple[hal.RequestArgument, ...] = ()
        self.call = 0
        self.noted: NotedBlob | None = None

    def launch(self, prepared: hal.IPreparedModel, request: hal.Request) -> None:
        order = self.order
        measure = _MEASURES.get(order.measure, order.measure)
        times = measure, order.deadline, order.loop_timeout
        prepared.execute_1_3(request, *times, self)  # type: ignore[arg-type]

    def notify_1_3(
        self, status: hal.ErrorStatus, output_shapes: OutputShapes, timing: hal.Timing
    ) -> None:
        if status is not hal.ErrorStatus.NONE:
            warn_if_refused(self._executions.client_name, self, status)
        self._executions.finish(self, status, output_shapes, timing)

    def took(self, route: Route) -> None:
        self._executions.took(self, route)

    def fail(self, error: hal.AsyncnnError) -> None:
        self.reason = str(error)
        self._executions.finish(self, error.status, (), hal.NO_TIMING)
