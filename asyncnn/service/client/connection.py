"""The client's end of a connection: calls out, notifications in.

When the driver is gone, every call that waits for an answer gets DEVICE_UNAVAILABLE,
exactly once, in the very callback of the loop that learns of it. A call that could not
be sent raises instead, and is not answered.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Callable, Sequence, Sized
from contextlib import ExitStack
from functools import partial
from weakref import WeakSet

from asyncnn import hal
from asyncnn.callbacks import ExecutionResult
from asyncnn.deadlines import DEADLINE_GRACE_S, unanswered
from asyncnn.hal.errors import closed_error
from asyncnn.hal.types import ExecutionOptions
from asyncnn.interpreter_hooks import disown_in_children
from asyncnn.memory import slabs
from asyncnn.service import wire
from asyncnn.service.channel import Channel, ChannelBounds
from asyncnn.service.client.answers import DeferredExecutions, SentExecution
from asyncnn.service.client.asking import (
    ConnectionQueries,
    ModelSender,
    RequestedPreparations,
)
from asyncnn.service.client.burst import RemoteBursts
from asyncnn.service.client.fenced_calls import Named, RemoteFenced, RemoteFences
from asyncnn.service.client.sent_pools import Numbers
from asyncnn.service.client.staging import Staging
from asyncnn.service.client.unanswered import (
    DEAD_OBJECT,
    Cause,
    DeadlineWatch,
    forked,
    notify,
)
from asyncnn.service.decoding import MessageFile, decode_to_client, encode_given
from asyncnn.service.limits import OwnedTasks, PendingAnswers, ServiceLimits

logger = logging.getLogger(__name__)

_MAX_UNSENT_BYTES = 64 * 2**20
"""Executions that a driver has not read yet; one that reads nothing is given up."""

_MAX_TASKS = 1024
"""Models and executions on their way at a time; no driver takes more."""


class Connection:
    """Talks to the driver at the other end of a socket.

    ``facts`` are what `greet` has learned, ``queries`` what it is asked,
    ``preparations`` the models that it is to prepare, ``deferred`` the executions that
    are sent later, ``known`` what it knows by number, ``bursts`` those
    that are open, and what it may call for them, ``cache_files`` how many files of each
    kind it saves a model in. It ``is_busy`` while it says that a queue is full.

    A driver that ``may_see_slabs`` works on small shared arrays where they are, beside
    others that are none of its business. Calls with deadlines are given up
    ``deadline_grace`` seconds after those.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        may_see_slabs: bool = True,
        deadline_grace: float = DEADLINE_GRACE_S,
    ) -> None:
        self._limits = limits = ServiceLimits()
        self._loop = asyncio.get_running_loop()
        self.numbers = itertools.count(1)
        self._cause: Cause | None = None
        self._closed = asyncio.Event()
        self._welcome: asyncio.Future[wire.Welcome] | None = None
        self.facts: wire.Welcome
        self.is_busy = False
        self.cache_files = 0, 0
        self._executing: dict[int, SentExecution] = {}
        self.answers = PendingAnswers()
        self.deadlines = DeadlineWatch(deadline_grace)
        self.known = Numbers(self, limits, self._free_idle, may_see_slabs=may_see_slabs)
        self._may_see_slabs = may_see_slabs
        self._stagings: WeakSet[Staging] = WeakSet()
        self._tasks = OwnedTasks(_MAX_TASKS)
        models = ModelSender(self, self.known)
        self.preparations = RequestedPreparations(
            self, models, self._tasks, self.release_prepared
        )
        self.deferred = DeferredExecutions(_MAX_TASKS)
        self.finish = self.deferred.finish
        self.queries = ConnectionQueries(self, models)
        self.bursts = RemoteBursts(self, self.known)
        most_fds = limits.max_fds_per_message
        self.fences = RemoteFences(self, self._executing, most_fds)
        self._channel = Channel(
            connection,
            decode_to_client,
            self._receive,
            self._lost,
            ChannelBounds(
                max_message_bytes=limits.max_message_bytes,
                max_fds=limits.max_fds_per_message,
                max_unread_bytes=2 * _MAX_UNSENT_BYTES,
            ),
        )
        disown_in_children(self)

    @property
    def is_closed(self) -> bool:
        """Whether the driver is gone or the connection was closed."""
        return self._channel.is_closed

    @property
    def reason(self) -> str:
        """Why it is closed; empty while it is not."""
        return str(self.cause_of_death() or "")

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return a new error that says why it is closed, None while it is not."""
        if self._cause is not None:
            return self._cause()
        # It was abandoned in this very turn of the loop.
        return hal.DriverDiedError(DEAD_OBJECT) if self._channel.is_closed else None

    @property
    def is_awaited(self) -> bool:
        """Whether a call waits for the driver, or may, as there is a burst."""
        parts: tuple[Sized, ...] = self._executing, self.answers, self.preparations
        return any(len(part) for part in (*parts, self.bursts))

    def abandon(self, reason: str) -> None:
        """Give the driver up as if it had died."""
        self._channel.abandon(reason)

    def check_open(self) -> None:
        """Check that there is a driver.

        :raises DeviceClosedError: if the connection was closed.
        :raises DriverDiedError: if the driver is gone.
        """
        death = self.cause_of_death()
        if death is not None:
            raise death

    def close(self) -> None:
        """Hang up; what is pending ends with DEVICE_UNAVAILABLE."""
        if self._cause is not forked and not self._closed.is_set():
            self._channel.close()
            self._end(closed_error)

    async def wait_ended(self) -> None:
        """Wait until no thread works for it any more, once it is closed."""
        if self._cause is forked:
            return
        await self._channel.wait_ended()
        await self._tasks.wait_ended()
        await self.deferred.wait_ended()

    async def wait_closed(self) -> None:
        """Wait until the driver is gone or the connection was closed."""
        await self._closed.wait()

    async def greet(self) -> None:
        """Exchange greetings.

        :raises NoDriverError: if the driver does not serve this client, hangs up, or
            speaks another version of the protocol.
        """
        self.send(wire.Hello(wire.PROTOCOL_VERSION))
        # Not too late for the answer: nothing is read before this coroutine waits.
        self._welcome = self._loop.create_future()
        welcome = await self._welcome
        if welcome.version != wire.PROTOCOL_VERSION:
            raise hal.NoDriverError(
                f"the driver speaks version {welcome.version} of the protocol, "
                f"this client {wire.PROTOCOL_VERSION}"
            )
        self.known.most_requests = welcome.max_bound_requests
        self.known.most_pools = welcome.max_pools
        self.known.most_bytes = welcome.max_pool_bytes
        self.cache_files = welcome.model_cache_files, welcome.data_cache_files
        self.facts = welcome

    def release_prepared(self, number: int) -> None:
        """Notify the driver that a prepared model is not needed any more."""
        self.send_if_open(wire.ReleasePreparedModel(number))

    def release_prepared_soon(self, number: int) -> None:
        """Release a prepared model from any thread, as a finaliser has to."""
        self.call_soon(partial(self.release_prepared, number))

    def new_staging(self, check: Callable[[hal.Request, bool], None]) -> Staging:
        """Return what stages the requests of one prepared model."""
        staging = Staging(check, self._free_idle, may_see_slabs=self._may_see_slabs)
        self._stagings.add(staging)
        return staging

    def execute(
        self,
        prepared: int,
        execution: SentExecution,
        options: ExecutionOptions,
        wait_for: Named | None = None,
    ) -> None:
        """Send an execution whose pools all travel, filled in before.

        That is by number if its request has one. A fenced one has ``wait_for``.

        :raises ResourceExhaustedTransientError: if the driver owes too many answers, or
            too many fenced ones wait to be sent.
        :raises AsyncnnError: if its pools cannot be sent, as the driver is gone, say.
        """
        deadlines, deadline = self.deadlines, options.deadline
        if deadlines.unanswered:
            deadlines.check_answers()
        request, sendable = execution.request, execution.sendable
        bound = sendable.number
        if bound is None:
            bound = self.known.bind(prepared, sendable, request)
        number = next(self.numbers)
        times = options.measure, deadline, options.loop_timeout
        order: wire.Execute | wire.ExecuteBound
        if bound is not None:
            order = wire.ExecuteBound(number, bound, *times)
        else:
            sent = slabs.in_slabs(request)
            of = sent.inputs, sent.outputs, self.known.of_pools(sent.pools)
            order = wire.Execute(number, prepared, *of, *times)
        if wait_for is None:
            self.send(order)
        elif self._channel.unsent_bytes > _MAX_UNSENT_BYTES:
            raise hal.ResourceExhaustedTransientError(
                f"{_MAX_UNSENT_BYTES >> 20} MiB of executions wait to be sent",
                hint="await some of them first",
            )
        else:
            self.fences.send(order, wait_for, options.duration)
        execution.number = number
        self._executing[number] = execution
        if deadline is not None:
            deadlines.watch(number, deadline, self._expire)

    def cancel(self, execution: int) -> None:
        """Notify the driver that nobody waits for an execution."""
        if execution in self._executing:
            self.send_if_open(wire.CancelExecution(execution))

    def _expire(self, number: int) -> None:
        """Report an execution as missed, as the driver has not answered.

        It stays known until the driver answers or is gone: until then, no other
        execution may use the memory that it was sent with.
        """
        self.deadlines.unanswered.add(number)
        self.cancel(number)
        execution = self._executing.get(number)  # sending may have failed it
        if execution is not None:
            notify(execution.expire, unanswered(self.deadlines.grace_s))

    def disown(self) -> None:
        """Send nothing more in a forked child, and have its loop do nothing."""
        self._cause = forked

    def _free_idle(self) -> None:
        for staging in tuple(self._stagings):
            staging.trim()
        slabs.trim()

    def call_soon(self, call: Callable[[], None]) -> None:
        """Have ``call`` called by the event loop; on any thread."""
        if self._cause is forked:  # the loop's waking up would reach the parent's
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: so are we
            self._loop.call_soon_threadsafe(call)

    def send_if_open(self, message: wire.ToDriver) -> None:
        """Send a message unless the driver is gone, or memory has run out."""
        # What is sent so is of use to the driver alone. Callers have ends to report.
        with contextlib.suppress(
            hal.DeviceUnavailableError, hal.ResourceExhaustedTransientError
        ):
            self.send(message)

    def send(
        self, message: wire.ToDriver | MessageFile, fds: Sequence[int] = ()
    ) -> None:
        """Send a message, or raise; the caller waits for an answer only afterwards.

        :raises InvalidArgumentError: if it holds what cannot be encoded.
        :raises ResourceExhaustedPersistentError: if the driver would not take it.
        :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
        :raises DeviceClosedError: if the connection was closed.
        :raises DriverDiedError: if the driver is gone.
        """
        channel = self._channel
        if not channel.is_closed:
            if self.fences.held:
                self.fences.flush()  # they were sent before
            data = (
                message if isinstance(message, MessageFile) else encode_given(message)
            )
            try:
                channel.send(data, fds)
            except OSError as error:
                raise hal.ResourceExhaustedTransientError(
                    f"a message cannot be sent: {error.strerror}"
                ) from error
        if self._cause is not None or channel.is_closed:
            self.check_open()

    def _receive(self, message: wire.ToClient, fds: list[int] | None) -> None:
        if fds:
            raise hal.InvalidArgumentError("descriptors beside a message that has none")
        if type(message) is wire.Executed:  # the one that comes most often
            status = wire.status_of(message.status)
            of = message.output_shapes, message.timing, message.reason
            self.end(message.execution, ExecutionResult(status, *of))
        elif type(message) is wire.FencedDone:
            for end in message.ends:
                # Even if it is unknown: the driver keeps a fence until it was counted.
                self.fences.seen += 1
                ended = self._executing.get(end.execution)
                if not isinstance(ended, RemoteFenced | None):
                    raise hal.InvalidArgumentError(
                        "a fence of an execution without one"
                    )
                status, launched = (
                    wire.status_of(end.status),
                    end.launched or hal.NO_TIMING,
                )
                result = ExecutionResult(status, (), launched, end.reason)
                self.end(end.execution, result, end.fenced or hal.NO_TIMING, end.at_ns)
        else:
            self._handle(message)

    def end(self, execution: int, result: ExecutionResult, *more: object) -> None:
        """Notify an execution under way of how it ended; a fenced one gets more."""
        # Forgotten first: it may close the connection, which notifies all it knows.
        ended = self._executing.pop(execution, None)
        if ended is not None:
            if self.deadlines.due or self.deadlines.unanswered:
                self.deadlines.answered(execution)
            try:
                ended.take(result, *more)
            except (Exception, asyncio.CancelledError):
                logger.exception("a listener failed while it was notified")

    def _handle(self, message: wire.ToClient) -> None:
        match message:
            case wire.Took():
                executed = self._executing.get(message.execution)
                if executed is not None and message.is_left:
                    executed.leave()
                if executed is not None and message.route is not None:
                    notify(executed.took, message.route)
            case wire.Prepared():
                self.preparations.prepared(message)
            case wire.SupportedOperations() | wire.Statistics() | wire.ModelSaved():
                self.answers.answered(message.call, message)
            case wire.BufferCopied():
                self.answers.answered(message.call, message)
            case wire.PoolsRefused():
                self.known.refused(message.numbers)
            case wire.Allocated():
                self.answers.answered(message.buffer, message)
            case wire.GetMemories():
                self.bursts.answer(message)
            case wire.BurstConfigured():
                self.bursts.configured(message)
            case wire.BurstEnded():
                self.bursts.ended(message.burst)
            case wire.StatusChanged():
                self.is_busy = message.status == hal.DeviceStatus.BUSY
            case wire.Welcome():
                if self._welcome is not None and not self._welcome.done():
                    self._welcome.set_result(message)
            case wire.Refused():
                self._fail_greeting(f"the driver refuses this client: {message.reason}")
                self._channel.abandon(message.reason)

    def _lost(self, reason: str) -> None:
        logger.warning("driver lost: %s", reason)
        self._end(partial(hal.DriverDiedError, f"{DEAD_OBJECT}: {reason}"))

    def _end(self, cause: Cause) -> None:
        """Answer everything that waits, whatever happens to some of it."""
        # First: a listener that is notified below and calls again is refused.
        self._cause, reason = cause, str(cause())
        self._closed.set()
        with ExitStack() as parts:
            parts.callback(self._fail_executions, reason)
            parts.callback(self.deadlines.close)
            parts.callback(self.deferred.lose, cause)
            parts.callback(self.preparations.lose, cause)
            parts.callback(self._fail_greeting, reason)
            parts.callback(self.answers.lose, cause)
            parts.callback(self.bursts.close)
            parts.callback(self._tasks.cancel)
            parts.callback(self.known.clear)

    def _fail_greeting(self, reason: str) -> None:
        if self._welcome is not None and not self._welcome.done():
            self._welcome.set_exception(hal.NoDriverError(reason))

    def _fail_executions(self, reason: str) -> None:
        unavailable = hal.ErrorStatus.DEVICE_UNAVAILABLE
        result = ExecutionResult(unavailable, (), hal.NO_TIMING, reason)
        for number in tuple(self._executing):
            self.end(number, result)
