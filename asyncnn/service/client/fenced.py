"""Fenced executions in another process, on the client's side."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from asyncnn.callbacks import ExecutionResult
from asyncnn.deadlines import unanswered
from asyncnn.fenced_run import FencedRun, Source
from asyncnn.fences import FenceSource, SyncFence, merge
from asyncnn.fences.core import outcome_now
from asyncnn.fences.fence import active_fences, pass_on
from asyncnn.fences.local import WriteEnd
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.routes import Route
from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.memory.descriptors import Descriptor
from asyncnn.service import wire
from asyncnn.service.client.answers import SentMemory
from asyncnn.service.client.unanswered import Line
from asyncnn.service.decoding import encode_given

logger = logging.getLogger(__name__)

_BY_DESCRIPTOR = 0

_MOST_HELD = 64
"""Executions sent together: the driver is to begin with some before it has all."""

_MOST_HELD_BYTES = 4096


class Named(msgspec.Struct, frozen=True, eq=False):
    """Fences by number, or `_BY_DESCRIPTOR` for each that is ``foreign``."""

    numbers: tuple[int, ...]
    foreign: Sequence[SyncFence] = ()


NO_FENCES = Named(())


class RemoteFenced(FencedRun):
    """One execution under way, in a driver.

    How it ends is state of this process, told by a message of the driver. Others wait
    for a descriptor, which the driver itself writes to: if it dies they see the end.
    """

    __slots__ = (
        *FencedRun.slots,
        "_fences",
        "_memory",
        "_route",
        "exported",
        "number",
    )

    is_remote = True

    def __init__(self, fences: "RemoteFences", memory: SentMemory) -> None:
        super().__init__()
        self.number = 0
        self._route: Route | None = None
        self.exported: WriteEnd | None = None
        self._fences = fences
        self._memory = memory

    def took(self, route: Route) -> None:
        """Learn of an unusual route; the end is going to follow."""
        self._route = route

    def is_of(self, fences: "RemoteFences") -> bool:
        """Whether it runs in the driver of these."""
        return self._fences is fences

    def hand_over(self, write_end: int) -> None:
        """Give the driver the descriptor to signal; see `asyncnn.fences.Producer`."""
        self._fences.export_soon(self, write_end)

    def cancel(self) -> None:
        """Tell the driver that nobody waits for it."""
        self._fences.cancel(self)

    def pass_on(self, write_end: int) -> None:
        """Write to the descriptor here: the driver said how it ended, and forgot it.

        That is done once the outputs are in place here.
        """
        source = FenceSource.adopt(write_end)
        self.add_done_callback(lambda _: pass_on(self, source, self.ended_ns))

    def told(self, end: wire.FencedEnd, status: ErrorStatus) -> None:
        """Take the outcome, and the outputs that are not in place yet.

        Large ones are copied on a thread; the fence is active for so much longer.
        """
        self.exported = None  # the driver has written it
        if self._result is not None:
            self._memory.let_go(status)
        else:
            end_here = partial(self._settle, end, status)
            self._memory.take_outputs(status, self._fences.finish, end_here)

    def _settle(
        self, end: wire.FencedEnd, status: ErrorStatus, failure: AsyncnnError | None
    ) -> None:
        """Complete the outcome and resolve the fence."""
        if failure is not None:
            self._fail(failure.status, str(failure), end.at_ns)
        elif status is not ErrorStatus.NONE:
            self._fail(status, end.reason, end.at_ns)
        elif self._result is None:  # while its outputs were copied on a thread
            launched, fenced = end.launched or NO_TIMING, end.fenced or NO_TIMING
            result = ExecutionResult(status, (), launched, "", None, self._route)
            self.complete(result, fenced, end.at_ns)

    def fail(self, status: ErrorStatus, reason: str) -> None:
        """Let go of the memory; fail the fence unless it is done."""
        self._memory.let_go(status)
        self._fail(status, reason)

    def _fail(self, status: ErrorStatus, reason: str, at_ns: int | None = None) -> None:
        if self._result is None:
            logger.info("fenced execution failed: %s: %s", status.name, reason)
            result = ExecutionResult(status, (), NO_TIMING, reason, None, self._route)
            self.complete(result, at_ns=at_ns)

    def expire(self, error: AsyncnnError) -> None:
        """Put the fence into the error state, also for processes that poll its pipe.

        Its slab stays until the driver has answered.
        """
        self._memory.release()
        self._fail(error.status, str(error))
        exported, self.exported = self.exported, None
        if exported is not None:
            exported.write(outcome_now(error.status))


class RemoteFences:
    """The fenced executions of a connection that are under way, by number.

    Belongs to the event loop but for `export_soon`. ``finish`` copies on a thread, as
    `DeferredExecutions.finish` does. Those ``held`` are sent by the next `flush`.
    """

    def __init__(
        self,
        line: Line,
        finish: Callable[[Callable[[], None], Callable[[], None]], None],
        max_fds: int,
    ) -> None:
        self.finish = finish
        self._line = line
        self._send = line.send
        self._deadlines = line.deadlines
        self._max_fds = max_fds
        self.loop = asyncio.get_running_loop()
        self._waiting: dict[int, RemoteFenced] = {}
        self._seen = 0
        self.held: dict[int, wire.ExecuteFenced] = {}
        self._is_holding = False
        self._is_lost = False

    def named(self, fences: Sequence[Source]) -> Named:
        """Return how to tell the driver which of ``fences`` to wait for.

        :raises InvalidArgumentError: if one has failed, or has no descriptor to send.
        """
        numbers = tuple([self._number_of(fence) for fence in fences])
        if _BY_DESCRIPTOR not in numbers:
            return Named(numbers)
        foreign: list[SyncFence] = []
        for each in active_fences(fences):
            fence = each.fence if isinstance(each, FencedRun) else each
            if not isinstance(fence, SyncFence):
                raise InvalidArgumentError(f"{fence!r} cannot be sent to a driver")
            if self._number_of(fence) == _BY_DESCRIPTOR:
                foreign.append(fence)
        own = tuple([number for number in numbers if number != _BY_DESCRIPTOR])
        if len(foreign) > self._max_fds:
            foreign = [merge(*foreign)]
        return Named(own + (_BY_DESCRIPTOR,) * len(foreign), foreign)

    def _number_of(self, fence: Source) -> int:
        """Return the number of the execution under way that is or signals ``fence``.

        The driver forgets it once this client has heard of the end.
        """
        producer = fence.producer if isinstance(fence, SyncFence) else fence
        if isinstance(producer, RemoteFenced) and producer.is_of(self):
            number = producer.number
            is_known = producer.status is None and number in self._waiting
            return number if is_known else _BY_DESCRIPTOR
        return _BY_DESCRIPTOR

    def execute(
        self,
        order: wire.Execute | wire.ExecuteBound,
        wait_for: Named,
        duration: int | None,
        fenced: RemoteFenced,
    ) -> None:
        """Send an execution that begins when ``wait_for`` have signalled."""
        message = wire.ExecuteFenced(order, wait_for.numbers, duration, self._seen)
        if wait_for.foreign:
            self._send(message, [fence.fileno() for fence in wait_for.foreign])
        else:
            self._send_or_hold(message)
        fenced.number = order.execution
        self._waiting[order.execution] = fenced
        if order.deadline is not None:
            self._deadlines.watch(order.execution, order.deadline, self._expire)

    def flush(self) -> None:
        """Send the executions that are held; those that cannot be sent fail."""
        # Emptied first, as `Line.send` flushes what is held.
        held, self.held = self.held, {}
        if held:
            try:
                self._send(wire.Several(tuple(held.values())))
            except AsyncnnError as error:
                for number in held:
                    fenced = self._waiting.pop(number, None)
                    if fenced is not None:
                        self._deadlines.answered(number)
                        fenced.fail(error.status, str(error))

    def _send_or_hold(self, message: wire.ExecuteFenced) -> None:
        """Send the first message of the loop's turn, and further ones together."""
        if not self._is_holding:
            self._send(message)
            self._is_holding = True
            self.loop.call_soon(self._end_turn)
            return
        length = len(encode_given(message))  # it fails alone, if it does
        if length > _MOST_HELD_BYTES or self._is_lost:
            self._send(message)
            return
        self.held[message.order.execution] = message
        if len(self.held) == _MOST_HELD:
            self.flush()

    def _end_turn(self) -> None:
        self._is_holding = False
        if self.held:
            self.flush()

    def done(self, message: wire.FencedDone) -> None:
        """Take what the driver says of executions that have ended."""
        for end in message.ends:
            # Even if it is not known: the driver keeps a fence until it was counted.
            self._seen += 1
            fenced = self._waiting.pop(end.execution, None)
            if fenced is not None:
                if self._deadlines.due or self._deadlines.unanswered:
                    self._deadlines.answered(end.execution)
                fenced.told(end, wire.status_of(end.status))

    def took(self, execution: int, route: Route) -> None:
        """Note the unusual route of an execution whose end is going to follow."""
        fenced = self._waiting.get(execution)
        if fenced is not None:
            fenced.took(route)

    def cancel(self, fenced: RemoteFenced) -> None:
        """Tell the driver that nobody waits for an execution."""
        if fenced.number in self._waiting:
            self._line.send_if_open(wire.CancelExecution(fenced.number))

    def _expire(self, number: int) -> None:
        """Fail an execution that the driver has not answered; see `Connection`."""
        self._deadlines.unanswered.add(number)
        self._line.send_if_open(wire.CancelExecution(number))
        fenced = self._waiting.get(number)  # sending may have failed it
        if fenced is not None:
            fenced.expire(unanswered(self._deadlines.grace_s))

    def lose(self, reason: str) -> None:
        """Fail everything that is under way: the driver is gone."""
        self._is_lost = True
        waiting, self._waiting = self._waiting, {}
        for fenced in waiting.values():
            fenced.fail(ErrorStatus.DEVICE_UNAVAILABLE, reason)

    def export_soon(self, fenced: RemoteFenced, write_end: int) -> None:
        """Send a descriptor to be written at the end, and close it; on any thread."""
        self._line.call_soon(partial(self._export, fenced, Descriptor(write_end)))

    def _export(self, fenced: RemoteFenced, write_end: Descriptor) -> None:
        try:
            # Another thread has asked for it, and it may have ended since.
            if fenced.number in self._waiting and fenced.status is None:
                if fenced.number in self._deadlines.due:
                    fenced.exported = WriteEnd.received(write_end.fd)
                self._send(wire.ExportFence(fenced.number), [write_end.fd])
            else:
                fenced.pass_on(write_end.fd)
        except AsyncnnError as error:
            logger.info("a fence was not exported: %s", error)
