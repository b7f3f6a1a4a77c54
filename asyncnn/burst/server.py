"""The driver's side of bursts: takes packets, executes, answers.

`OpenBursts` holds the bursts of a device, each of them a `BurstServer`. Nothing that an
application sends is trusted: packets are decoded with every step checked, requests are
validated by the prepared model, and a malformed packet is answered with
GENERAL_FAILURE. One packet is worked on at a time; the next stays in its queue until
the result of this one is in the other.

Source: HAL 1.2/IPreparedModel.hal (configureExecutionBurst), 1.2/IBurstContext.hal.
"""

import asyncio
import contextlib
import contextvars
import logging
import time
from collections.abc import Callable, Collection, Coroutine
from functools import partial

from asyncnn.burst.packets import DATUM_BYTES, ResultShape, without_deadline
from asyncnn.burst.slots import Binder, BoundRequest, IBurstNote, IBurstRecorder
from asyncnn.callbacks import CallbackObject, IBurstCallback, IExecutionCallback
from asyncnn.fmq import LoopPoller, MessageQueue, QueueBrokenError, QueueClosedError
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    closed_error,
    too_many,
)
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import NO_TIMING, ErrorStatus, Handle, OutputShapes, Timing
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.logs import EXECUTION, SparseLogger

logger = logging.getLogger(__name__)

MIN_QUEUE_LENGTH = 2
"""Datums of the shortest packet of all, a failure."""

MAX_QUEUE_LENGTH = 4096
"""Datums of a packet at most: it is taken apart on the event loop."""

QUEUE_ENDED = (QueueBrokenError, QueueClosedError)
"""What a queue raises that will never work again."""

_FAILED = ResultShape.of(ErrorStatus.GENERAL_FAILURE).encode()


class BurstServer(CallbackObject):
    """Serves a burst of ``prepared``; the `IBurstContext` of its application.

    Owns the queues. ``ended`` is called once, when it serves no more. A forked child
    that inherits it has nothing to serve.
    """

    def __init__(
        self,
        prepared: IPreparedModel,
        callback: IBurstCallback,
        requests: MessageQueue,
        results: MessageQueue,
        ended: Callable[["BurstServer"], None],
        log: SparseLogger,
    ) -> None:
        super().__init__()
        self.prepared = prepared
        self._requests = requests
        self._results = results
        self._ended = ended
        # The application chose the length of its queue: a result may never fit.
        self._max_result_bytes = results.quantum * results.count
        self._log = log
        self._binder = Binder(prepared, callback, log)
        self.carries_deadlines = callback.carries_deadlines
        self._recorder: IBurstRecorder | None = callback.recorder
        self._result = ResultShape.of(ErrorStatus.NONE)
        self._number = 0
        self._cancelled = 0
        self._dequeued_ns = 0
        self._running: _Execution | None = None
        self._spare: _Execution | None = None
        self._task: asyncio.Task[None] | None = None
        # Executions belong to the client that calls now, in whatever context they run.
        serve = partial(contextvars.copy_context().run, self._serve)
        self._served = LoopPoller.running().serve(
            requests, serve, self._give_up, callback.take_turn
        )
        disown_in_children(self)

    def free_memory(self, slot: int) -> None:
        """Forget the memory of a slot; a request under way keeps it to its end."""
        self._binder.free(slot)

    def cancel(self, request: int) -> None:
        """Stop the execution of packet number ``request``, if it is under way."""
        if request != self._number:
            return
        if self._running is not None:
            self._note_cancelled(self._running)
            self._running.die()
        else:  # its memories are being asked for: `_bind` will see this
            self._cancelled = request

    def rest(self) -> None:
        """Forget all memories unless a request is under way; the next asks again."""
        if self._running is None and self._task is None:
            self._binder.clear()

    def close(self) -> None:
        """Stop what runs, without a result, and let go of queues and memories."""
        self.unlink_to_death()
        self.die()

    def die(self) -> None:
        """Close, and call the recipients that were linked to the death of the burst."""
        if self.is_dead:
            return
        self._served.stop()
        running, self._running = self._running, None
        task, self._task = self._task, None
        self._spare = None  # a cycle: the server should go with its last user
        # Run in reverse: executions stop before the queues close, and the owner hears
        # last. Each part runs, whatever another one raises.
        with contextlib.ExitStack() as parts:
            parts.callback(self._ended, self)
            parts.callback(super().die)
            parts.callback(self._results.close)
            parts.callback(self._requests.close)
            parts.callback(self._binder.clear)
            if task is not None:
                parts.callback(task.cancel)
            if running is not None:
                self._note_cancelled(running)
                parts.callback(running.die)

    def disown(self) -> None:
        """Be dead in a forked child, silently: all else is the parent's."""
        self._is_dead = True
        self._running = None

    def _serve(self) -> None:
        packet = self._requests.read_nowait()
        if packet is None:
            return
        self._dequeued_ns = time.perf_counter_ns()
        # Whatever it holds: the application counts what it sends.
        self._number += 1
        deadline = None
        try:
            try:
                bound = self._binder.bind_nowait(packet)
            except AsyncnnError:
                # Looked for only now: a packet that has no deadline costs nothing more.
                by = without_deadline(packet) if self.carries_deadlines else None
                if by is None:
                    raise
                packet, deadline = by
                bound = self._binder.bind_nowait(packet)
        except AsyncnnError as error:
            self._refuse(error)
            return
        if bound is None:
            self._spawn(partial(self._bind, packet, deadline))
        else:
            self._execute(bound, deadline)

    async def _bind(self, packet: bytes, deadline: int | None = None) -> None:
        try:
            bound = await self._binder.bind(packet)
            if self._cancelled == self._number:
                raise ResourceExhaustedTransientError("the request was cancelled")
        except AsyncnnError as error:
            self._task = None
            self._refuse(error)
        else:
            self._task = None
            self._execute(bound, deadline)

    def _execute(self, bound: BoundRequest, deadline: int | None = None) -> None:
        execution = self._spare if deadline is None else None
        if execution is None:
            execution = _Execution(self, deadline is not None)
        self._running, self._spare = execution, None
        note = bound.note
        if note is not None:
            if deadline is not None and self._recorder is not None:
                note = self._recorder.note(bound.noted, deadline)
            execution.note = note
            note.begin(self._dequeued_ns)
        if EXECUTION.is_on:
            EXECUTION("burst", request=self._number, pools=len(bound.request.pools))
        try:
            self.prepared.execute_1_3(
                bound.request, bound.measure, deadline, None, execution
            )
        except Exception as error:
            self._log.log(
                logging.ERROR, "an execution could not be launched", error=error
            )
            self.finish(execution, ErrorStatus.GENERAL_FAILURE, (), NO_TIMING)
            return
        if self._running is execution:  # packets stay in the queue until it has ended
            self._served.pause()
        elif not execution.is_dead and deadline is None:
            # Notified within the call, so the model is done with it: use it again.
            execution.unlink_to_death()
            self._spare = execution

    def _note_cancelled(self, execution: "_Execution") -> None:
        if self._recorder is not None and execution.note is not None:
            self._recorder.cancelled(execution.note.call)

    def finish(
        self,
        execution: "_Execution",
        status: ErrorStatus,
        shapes: OutputShapes,
        timing: Timing,
    ) -> None:
        """Answer with the outcome, unless the burst was closed meanwhile."""
        # A model may answer after the burst has died.
        if self._running is not execution:
            return
        self._running = None
        note = execution.note
        if note is not None:
            note.end(status)
        result = self._result
        if status is not result.status or shapes != result.output_shapes:
            if execution.has_deadline:  # not kept, as others may not know its status
                result = ResultShape.of(status, shapes, had_deadline=True)
            else:
                result = self._result = ResultShape.of(status, shapes)
        if timing is not NO_TIMING and timing != NO_TIMING:
            elapsed_ns = time.perf_counter_ns() - self._dequeued_ns
            timing = Timing(timing.time_on_device, elapsed_ns // 1000)
        self._answer(result.encode(timing))

    def _refuse(self, error: AsyncnnError) -> None:
        self._log.log(
            logging.INFO, "a packet is refused: %s: %s", error.status.name, error
        )
        self._answer(ResultShape.of(error.status).encode())

    def _answer(self, packet: bytes) -> None:
        """Send a result, or a failure if it does not fit."""
        if len(packet) > self._max_result_bytes:
            packet = _FAILED
        try:
            is_sent = self._results.write_nowait(packet)
            if not is_sent and not self._results.write_nowait(_FAILED):
                self._spawn(self._answer_later)
                return
        except QUEUE_ENDED as error:
            self._give_up(error)
            return
        self._served.resume()

    async def _answer_later(self) -> None:
        """Wait until the application has read an earlier result."""
        await self._results.write(_FAILED)
        self._task = None
        self._served.resume()

    def _spawn(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        self._served.pause()
        # Never eager: its end, which forgets the task, comes after this.
        self._task = asyncio.Task(self._guard(work), loop=asyncio.get_running_loop())

    async def _guard(self, work: Callable[[], Coroutine[None, None, None]]) -> None:
        """Do work that is not awaited; if it fails the burst cannot go on, and ends."""
        try:
            await work()
        except Exception as error:
            self._task = None
            self._give_up(error)

    def _give_up(self, error: BaseException) -> None:
        self._log.log(logging.WARNING, "a burst ends: %s", str(error))
        self.die()


class OpenBursts:
    """Opens the bursts of a device, and closes with it those that are left."""

    def __init__(self, max_bursts: int) -> None:
        self._max_bursts = max_bursts
        self._servers: set[BurstServer] = set()
        self._is_closed = False
        # Shared by all bursts: opening many in turn gives a client no more log lines.
        self._log = SparseLogger(logger)

    def __len__(self) -> int:
        return len(self._servers)

    def configure(
        self,
        prepared: IPreparedModel,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Serve a burst; see `IPreparedModel.configure_execution_burst`.

        The handles' descriptors are duplicated.
        """
        try:
            if callback is None:
                raise InvalidArgumentError("a burst without a callback")
            if self._is_closed:
                raise closed_error()
            if len(self._servers) >= self._max_bursts:
                raise too_many(
                    "open bursts",
                    "DeviceSettings.max_bursts",
                    self._max_bursts,
                    hint="close some of them first",
                )
            with contextlib.ExitStack() as queues:
                requests = queues.enter_context(_opened(request_channel))
                results = queues.enter_context(_opened(result_channel))
                queues.pop_all()
        except AsyncnnError as error:
            self._log.log(
                logging.INFO, "burst refused: %s: %s", error.status.name, error
            )
            return error.status, None
        server = BurstServer(
            prepared, callback, requests, results, self._servers.discard, self._log
        )
        self._servers.add(server)
        return ErrorStatus.NONE, server

    def rest(self, models: Collection[IPreparedModel]) -> None:
        """Forget the memories of the bursts of ``models``, which are idle."""
        for server in self._servers:
            if server.prepared in models:
                server.rest()

    def close(self) -> None:
        """End all bursts; no more are taken."""
        self._is_closed = True
        # Of a copy: each that dies leaves the set.
        for server in tuple(self._servers):
            server.die()


class _Execution(IExecutionCallback):
    """Receives the outcome of the execution under way.

    The result of one that ``has_deadline`` has a status of HAL 1.3.
    """

    __slots__ = ("_server", "has_deadline", "note")

    takes_early_results = True
    may_be_left = True  # the application may cancel it

    def __init__(self, server: BurstServer, has_deadline: bool) -> None:
        # All here, as a call of the base would be felt with tiny models.
        self.reason = ""
        self._is_dead = False
        self._recipients = []
        self._server = server
        self.has_deadline = has_deadline
        self.note: IBurstNote | None = None

    def notify_1_3(
        self, status: ErrorStatus, output_shapes: OutputShapes, timing: Timing
    ) -> None:
        self._server.finish(self, status, output_shapes, timing)


def _opened(channel: Handle) -> MessageQueue:
    queue = MessageQueue.open(channel)
    if (
        queue.quantum != DATUM_BYTES
        or not MIN_QUEUE_LENGTH <= queue.count <= MAX_QUEUE_LENGTH
    ):
        queue.close()
        raise InvalidArgumentError(
            f"a queue of {queue.count} elements of {queue.quantum} bytes; bursts need "
            f"{MIN_QUEUE_LENGTH} to {MAX_QUEUE_LENGTH} of {DATUM_BYTES}"
        )
    return queue
