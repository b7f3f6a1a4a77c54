"""Fenced executions in another process, on the client's side."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from asyncnn.callbacks import ExecutionResult, result_of
from asyncnn.fenced_run import FencedRun, Source
from asyncnn.fences import FenceSource, SyncFence, merge
from asyncnn.fences.core import outcome_now
from asyncnn.fences.fence import active_fences, pass_on
from asyncnn.fences.local import WriteEnd
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import NO_TIMING, Timing
from asyncnn.memory.descriptors import Descriptor
from asyncnn.service import wire
from asyncnn.service.client.answers import SentExecution
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

    How it ends is state of this process, known by a message of the driver. Others wait
    for a descriptor, which the driver itself writes to: if it dies they see the end.
    It is one of its connection's ``fences``.
    """

    is_remote = True
    exported: WriteEnd | None = None
    fences: "RemoteFences"

    def hand_over(self, write_end: int) -> None:
        """Give the driver the descriptor to signal; see `asyncnn.fences.Producer`."""
        self.fences.export_soon(self, write_end)

    def cancel(self) -> None:
        """Notify the driver that nobody waits for it."""
        self._connection.cancel(self.number)

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
        self.complete(result, fenced, at_ns)

    def expire(self, error: AsyncnnError) -> None:
        """Put the fence into the error state, also for processes that poll its pipe.

        Its slab stays until the driver has answered.
        """
        exported = self.exported
        super().expire(error)
        if exported is not None:
            exported.write(outcome_now(error.status))


class RemoteFences:
    """How fenced executions of a connection are sent, and what they wait for is named.

    ``executing`` are the executions of its ``connection`` under way, by number;
    ``seen`` is how many ends the driver has reported. Those ``held`` are sent by the
    next `flush`. Belongs to the event loop but for `export_soon`.
    """

    def __init__(
        self, connection: Line, executing: Mapping[int, SentExecution], max_fds: int
    ) -> None:
        self.connection = connection
        self._executing = executing
        self._max_fds = max_fds
        self.loop = asyncio.get_running_loop()
        self.seen = 0
        self.held: dict[int, wire.ExecuteFenced] = {}
        self._is_holding = False

    def named(self, fences: Sequence[Source]) -> Named:
        """Return how to name to the driver which of ``fences`` to wait for.

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
        if isinstance(producer, RemoteFenced) and producer.fences is self:
            return producer.number if self._is_under_way(producer) else _BY_DESCRIPTOR
        return _BY_DESCRIPTOR

    def _is_under_way(self, fenced: RemoteFenced) -> bool:
        return fenced.status is None and fenced.number in self._executing

    def send(
        self,
        order: wire.Execute | wire.ExecuteBound,
        wait_for: Named,
        duration: int | None,
    ) -> None:
        """Send an execution that begins when ``wait_for`` have signalled.

        The first of the loop's turn is sent at once, further ones together.
        """
        message = wire.ExecuteFenced(order, wait_for.numbers, duration, self.seen)
        if wait_for.foreign:
            self.connection.send(
                message, [fence.fileno() for fence in wait_for.foreign]
            )
        elif not self._is_holding:
            self.connection.send(message)
            self._is_holding = True
            self.loop.call_soon(self._end_turn)
        elif (
            len(encode_given(message)) > _MOST_HELD_BYTES  # it fails alone, if it does
            or self.connection.cause_of_death() is not None
        ):
            self.connection.send(message)
        else:
            if len(self.held) == _MOST_HELD:
                self.flush()  # now, when all of these are known to be under way
            self.held[order.execution] = message

    def flush(self) -> None:
        """Send the executions that are held; those that cannot be sent fail."""
        # Emptied first, as `Connection.send` flushes what is held.
        held, self.held = self.held, {}
        if held:
            try:
                self.connection.send(wire.Several(tuple(held.values())))
            except AsyncnnError as error:
                for number in held:
                    self.connection.end(number, result_of(error))

    def _end_turn(self) -> None:
        self._is_holding = False
        if self.held:
            self.flush()

    def export_soon(self, fenced: RemoteFenced, write_end: int) -> None:
        """Send a descriptor to be written at the end, and close it; on any thread."""
        self.connection.call_soon(partial(self._export, fenced, Descriptor(write_end)))

    def _export(self, fenced: RemoteFenced, write_end: Descriptor) -> None:
        try:
            # Another thread has asked for it, and it may have ended since.
            if self._is_under_way(fenced):
                if fenced.number in self.connection.deadlines.due:
                    fenced.exported = WriteEnd.received(write_end.fd)
                self.connection.send(wire.ExportFence(fenced.number), [write_end.fd])
            else:
                fenced.pass_on(write_end.fd)
        except AsyncnnError as error:
            logger.info("a fence was not exported: %s", error)
