"""Fenced executions in another process, on the client's side."""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Protocol

import msgspec
from msgspec.structs import replace

from asyncnn.callbacks import ExecutionResult
from asyncnn.deadlines import unanswered
from asyncnn.fenced_run import FencedRun, Source
from asyncnn.fences import FenceSource, SyncFence, merge
from asyncnn.fences.core import outcome_now
from asyncnn.fences.fence import active_fences, pass_on
from asyncnn.fences.local import WriteEnd
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.routes import Route
from asyncnn.hal.types import NO_TIMING, ErrorStatus, Request, Timing
from asyncnn.memory.descriptors import Descriptor
from asyncnn.service import wire
from asyncnn.service.client.answers import SentExecution
from asyncnn.service.client.pools import Sendable
from asyncnn.service.client.staging import Staging
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


class RemoteFenced(SentExecution, FencedRun):
    """One execution under way, in a driver.

    How it ends is state of this process, told by a message of the driver. Others wait
    for a descriptor, which the driver itself writes to: if it dies they see the end.
    """

    __slots__ = (
        *dict.fromkeys((*SentExecution.slots, *FencedRun.slots)),
        *("_fences", "exported"),
    )

    is_remote = True

    def __init__(
        self,
        connection: "IFencedLine",
        staging: Staging,
        request: Request,
        sendable: Sendable,
    ) -> None:
        super().__init__(connection, staging, request, sendable)
        self._core = self._dependants = self.prepared = None
        self._fences = connection.fences
        self.loop = self._fences.loop
        self.exported: WriteEnd | None = None

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

    def _settle(
        self,
        result: ExecutionResult,
        fenced: Timing = NO_TIMING,
        at_ns: int | None = None,
    ) -> None:
        self.exported = None  # the driver has written it
        if self._result is None:  # not while its outputs were copied on a thread
            if self._route is not None:
                result = replace(result, route=self._route)
            self.complete(result, fenced, at_ns)

    def expire(self, error: AsyncnnError) -> None:
        """Put the fence into the error state, also for processes that poll its pipe.

        Its slab stays until the driver has answered.
        """
        exported = self.exported
        super().expire(error)
        if exported is not None:
            exported.write(outcome_now(error.status))


class IFencedLine(Line, Protocol):
    """A connection with the fenced executions that it has under way."""

    fences: "RemoteFences"


class RemoteFences:
    """The fenced executions of a connection that are under way, by number.

    Belongs to the event loop but for `export_soon`. Those ``held`` are sent by the next
    `flush`.
    """

    def __init__(self, line: Line, max_fds: int) -> None:
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
                        self._fail(fenced, error.status, str(error))

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
                status, launched = wire.status_of(end.status), end.launched or NO_TIMING
                result = ExecutionResult(status, (), launched, end.reason)
                fenced.take(result, end.fenced or NO_TIMING, end.at_ns)

    def _fail(self, fenced: RemoteFenced, status: ErrorStatus, reason: str) -> None:
        fenced.take(ExecutionResult(status, (), NO_TIMING, reason))

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
            self._fail(fenced, ErrorStatus.DEVICE_UNAVAILABLE, reason)

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
