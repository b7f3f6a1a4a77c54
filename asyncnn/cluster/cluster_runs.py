"""Runs on a cluster: given to dispatch, sent by links, answered once."""

import asyncio
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from asyncnn import hal
from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import Completion, ExecutionResult, result_of
from asyncnn.cluster.dispatch import Action, Dispatcher, Send
from asyncnn.cluster.exchange import Answer, RunOrder, Sent, size_bytes
from asyncnn.cluster.links import Cluster, LostError, ReplicaLink
from asyncnn.cluster.replicas import ClusterWork
from asyncnn.cluster.streams import SMALL_BYTES
from asyncnn.deadlines import DEADLINE_GRACE_S, unanswered
from asyncnn.devices import DeviceSettings
from asyncnn.devices.device_buffers import Buffers
from asyncnn.hal.errors import closed_error
from asyncnn.offload import offload
from asyncnn.runtime.cluster_settings import ClusterSettings
from asyncnn.runtime.framework.steps import ActiveExecutions

LARGE_BYTES = 4 * 2**20
"""Inputs from which on a thread puts them into Ray's store, rather than the loop."""

_NONE = hal.ErrorStatus.NONE


class ClusterRun(Completion):
    """A run, from when it is asked for until its end; see `ClusterRuns.launch`.

    It is `given` arrays before it is sent. ``write`` is called on a thread once its
    outputs are there, ``notify`` gets the result as well.
    """

    notify: Callable[[ExecutionResult], None] | None = None
    write: Callable[[], None] | None = None
    inputs: Sent = ()
    size_bytes = 0
    is_small = True
    ref: object = None
    model: object = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, device: "ClusterRuns", work: ClusterWork, order: RunOrder
    ) -> None:
        self.work = work
        self.order = order
        self._targets: Sequence[memoryview] = ()
        self._device = device
        if work.deadline_ns is not None:
            loop = asyncio.get_running_loop()
            left_s = (work.deadline_ns - time.monotonic_ns()) / 1e9
            self._timer = loop.call_later(left_s + DEADLINE_GRACE_S, self._give_up)

    def given(self, inputs: Sent, targets: Sequence[memoryview]) -> None:
        """Take its inputs, and what gets the bytes of its outputs."""
        self.inputs = inputs
        self.size_bytes = size_bytes(inputs)
        self.is_small = self.size_bytes + sum(map(len, targets)) <= SMALL_BYTES
        self._targets = targets

    def taken(self, answer: Answer) -> ExecutionResult:
        """Copy the outputs of an answer; return what it amounts to."""
        if answer.status == _NONE:
            if len(answer.outputs) != len(self._targets):
                return result_of(hal.GeneralFailureError("a replica has other outputs"))
            for target, array in zip(self._targets, answer.outputs, strict=True):
                data = array.reshape(-1).view(np.uint8).data
                if len(data) > len(target):
                    return result_of(hal.GeneralFailureError("an output is too long"))
                target[: len(data)] = data
        return answer.result

    def settle(self, result: ExecutionResult) -> None:
        """End it."""
        if self._timer is not None:
            self._timer.cancel()
        self.inputs, self.ref, self._targets = (), None, ()
        self._resolve(result)
        if self.notify is not None:
            self.notify(result)

    def abandon(self) -> None:
        """Stop it where it is: nobody waits for its end."""
        cancelled = hal.ResourceExhaustedTransientError("the execution was cancelled")
        self._device.abandon(self, result_of(cancelled))

    @property
    def is_pending(self) -> bool:
        """Whether it has not ended yet."""
        return self._result is None

    die = abandon
    close = abandon

    def _give_up(self) -> None:
        self._device.abandon(self, result_of(unanswered(DEADLINE_GRACE_S)))


class ClusterRuns(ActiveExecutions):
    """What the runs of a device share: ``links``, and the ``dispatcher`` among them.

    A link is made for the number of a replica by ``make_link``.

    It belongs to the event loop, as do all runs.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: ClusterSettings,
        make_link: Callable[[int], ReplicaLink],
    ) -> None:
        limits = DeviceSettings()
        buffers = Buffers(limits.max_buffer_bytes, self.cause_of_death)
        super().__init__(buffers, OpenBursts(limits.max_bursts))
        self.dispatcher = Dispatcher(settings.dispatch)
        self.settings = settings
        self.links: dict[int, ReplicaLink] = {}
        self.numbers = count(1)
        self.waiting_runs: set[Any] = set()
        self.loop = asyncio.get_running_loop()
        self._cluster = cluster
        self._runs: dict[int, ClusterRun] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._make_link = make_link
        self._replica_numbers = count()
        for _ in range(settings.replicas):
            self._add_link()

    def _add_link(self) -> ReplicaLink:
        """Know a replica more, which has not been opened."""
        link = self._make_link(next(self._replica_numbers))
        link.lost = self._lost
        self.links[link.number] = link
        self.dispatcher.add(link.number, self.settings.lanes)
        return link

    @abstractmethod
    def _lost(self, link: ReplicaLink) -> None:
        """Note that a replica is lost, with all that it has begun."""

    def cause_of_death(self) -> hal.DeviceUnavailableError | None:
        """Return why the device takes no work for good; see `IMortal`."""
        return closed_error() if self._is_closed else None

    def check_open(self) -> None:
        """Check that it takes work.

        :raises DeviceClosedError: if it is closed.
        """
        if self._is_closed:
            raise closed_error()

    @abstractmethod
    def recover(self, link: ReplicaLink) -> None:
        """Have the models of a replica prepared again, which lacks some."""

    def launch(self, run: ClusterRun, fill: Callable[[], None] | None = None) -> None:
        """Have a run computed, wherever that is soonest.

        It is given its arrays by ``fill``, on a thread, if it has none yet.
        """
        self._runs[run.work.number] = run
        self.active.add(run)
        if fill is None:
            self.act(self.dispatcher.submit(run.work, time.monotonic_ns()))
        else:
            self._begin(self._launch_filled(run, fill))

    async def _launch_filled(self, run: ClusterRun, fill: Callable[[], None]) -> None:
        try:
            await offload(fill)
        except Exception as error:
            self.abandon(run, result_of(error))
        if run.result is None:
            self.act(self.dispatcher.submit(run.work, time.monotonic_ns()))

    def abandon(self, run: ClusterRun, result: ExecutionResult) -> None:
        """End a run with ``result``, and have it stopped where it is."""
        number = run.work.number
        if number not in self._runs:
            return
        replica = self.dispatcher.cancel(number, time.monotonic_ns())
        self._settle(run, result)
        if replica is not None:
            self._cancel_there(self.links[replica], number)

    def act(self, actions: Sequence[Action]) -> None:
        """Do what dispatch has decided, and have it called when time has passed."""
        pending = list(actions)
        while pending:
            action = pending.pop(0)
            run = self._runs.get(action.work.number)
            if isinstance(action, Send):
                if run is None:  # it was abandoned while it was to be sent again
                    now = time.monotonic_ns()
                    pending += self.dispatcher.ended(action.work.number, now)
                else:
                    self._send(run, self.links[action.replica])
            elif run is not None:
                is_gone = action.status is hal.ErrorStatus.DEVICE_UNAVAILABLE
                of = action.reason, hal.DriverDiedError if is_gone else None
                self._settle(
                    run, ExecutionResult(action.status, (), hal.NO_TIMING, *of)
                )
        self._set_alarm()

    def _send(self, run: ClusterRun, link: ReplicaLink) -> None:
        if run.size_bytes < LARGE_BYTES or run.ref is not None:
            self._post(run, link)
        else:
            self._begin(self._send_large(run, link, run.work.sent))

    async def _send_large(self, run: ClusterRun, link: ReplicaLink, sent: int) -> None:
        failure = None
        try:
            run.ref = await offload(self._cluster.ray.put, run.inputs)
        except Exception as error:
            failure = hal.failure_of(error)
        if failure is not None or run.result is not None:  # or it was abandoned
            self._answered(run, link, sent, failure)
        elif self._is_there(run, link, sent):
            self._post(run, link)

    def _is_there(self, run: ClusterRun, link: ReplicaLink, sent: int) -> bool:
        """Return whether dispatch knows of no later than the ``sent``th sending."""
        is_there = self.dispatcher.place(run.work.number) == link.number
        return is_there and run.work.sent == sent

    def _post(self, run: ClusterRun, link: ReplicaLink) -> None:
        order = run.order._replace(deadline=link.there(run.work.deadline_ns))
        inputs = run.inputs if run.ref is None else run.ref
        answered = partial(self._answered, run, link, run.work.sent)
        link.run(order, inputs, answered, is_small=run.is_small)

    def _answered(
        self, run: ClusterRun, link: ReplicaLink, sent: int, answer: Any
    ) -> None:
        """Take the answer to a run, which may be late, or that there is none."""
        number, now = run.work.number, time.monotonic_ns()
        if isinstance(answer, LostError):
            return  # `_lost` has reported what becomes of it
        if isinstance(answer, Answer) and not answer.begun:
            # Its actor has died and come back, and nothing has shown that before.
            if self.dispatcher.lacks(link.number, run.work.model, now):
                self.recover(link)
            if self._is_there(run, link, sent):
                self.act(self.dispatcher.returned(number, now))
            return
        if run.result is None:
            if isinstance(answer, hal.AsyncnnError):
                self._settle(run, result_of(answer))
            elif run.write is not None and answer.status == _NONE:
                self._begin(self._settle_written(run, answer, run.write))
            else:
                self._settle(run, run.taken(answer))
        if self._is_there(run, link, sent):
            self.act(self.dispatcher.ended(number, now))

    async def _settle_written(
        self, run: ClusterRun, answer: Answer, write: Callable[[], None]
    ) -> None:
        result = run.taken(answer)
        try:
            await offload(write)
        except Exception as error:
            result = result_of(error)
        if run.result is None:
            self._settle(run, result)

    def _settle(self, run: ClusterRun, result: ExecutionResult) -> None:
        del self._runs[run.work.number]
        run.settle(result)
        self.ended(run)

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self.dispatcher.waiting and not self._is_closed:
            at_ns = self.dispatcher.alarm_ns()
            if at_ns is not None:
                delay = (at_ns - time.monotonic_ns()) / 1e9
                loop = asyncio.get_running_loop()
                self._alarm = loop.call_later(max(0.0, delay), self._expire)

    def _expire(self) -> None:
        self._alarm = None
        self.act(self.dispatcher.expire(time.monotonic_ns()))

    def _cancel_there(self, link: ReplicaLink, number: int) -> None:
        if not self._is_closed:
            link.stop(number)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
