"""The fenced executions that one client asked for, on the driver's side.

A client names a fence by the number of the execution that signals it, and may do so
until it has heard of the end. So fences are kept until a later message says that it
has: the client counts the ends that it was notified of, and reports how many.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from asyncnn.callbacks import result_of
from asyncnn.fenced_run import EndedRun, FencedRun, Source, launcher_of
from asyncnn.fences import FenceSource, SyncFence
from asyncnn.fences.core import Gate
from asyncnn.fences.fence import pass_on
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    too_many,
    waited_in_vain,
)
from asyncnn.hal.types import NO_TIMING, ErrorStatus, ExecutionOptions
from asyncnn.hal.validate import execution_options
from asyncnn.service import wire
from asyncnn.service.driver.executions import Bound, Executions
from asyncnn.service.driver.parts import SessionFields, SessionPart
from asyncnn.service.driver.pools import AnnouncedPools
from asyncnn.service.driver.quotas import CountedTable, Quota
from asyncnn.service.driver.reporting import explained, log

if TYPE_CHECKING:
    from asyncnn.service.driver.recorder import NotedBlob


class FencedOnCopies(FencedRun):
    """One such execution; `run` is a task that its connection owns."""

    def __init__(
        self,
        pools: AnnouncedPools,
        bound: Bound,
        options: ExecutionOptions,
        sources: Sequence[Source],
    ) -> None:
        super().__init__()
        self._pools = pools
        self._bound = bound
        self._options = options
        self._sources = sources
        self._launched_ns = time.monotonic_ns()
        self._inner: FencedRun | None = None
        self._task: asyncio.Task[None] | None = None

    def cancel(self) -> None:
        """End it soon; see `IFencedExecutionCallback.cancel`."""
        if self._inner is not None:
            self._inner.cancel()
        else:
            self._fail(ResourceExhaustedTransientError("the execution was cancelled"))
            if self._task is not None:
                self._task.cancel()

    async def run(self) -> None:
        """Wait, copy, execute, write back and signal."""
        self._task = asyncio.current_task()
        try:
            if self._result is None:
                await self._wait()
                await self._execute()
        except AsyncnnError as error:
            self._fail(error)
        except asyncio.CancelledError:
            self.cancel()
            raise
        except Exception as error:
            self._fail(explained(error))

    async def _wait(self) -> None:
        opened: asyncio.Future[AsyncnnError | None] = self.loop.create_future()
        gate = Gate(self._sources, self._options.deadline, opened.set_result)
        try:
            failure = await opened if self._sources else None
        finally:
            gate.close()
            self._sources = ()
        if failure is not None:
            raise failure

    async def _execute(self) -> None:
        bound = self._bound
        copies = await self._pools.copied(bound.request.pools)
        request = replace(bound.request, pools=copies)
        self._inner = run = launcher_of(bound.prepared)(request, (), self._options)
        result = await run.ended()
        await self._pools.write_back(copies, bound.request.outputs)
        _, launched, fenced = run.get_execution_info()
        if launched != NO_TIMING:
            in_driver_us = (time.monotonic_ns() - self._launched_ns) // 1000
            launched = replace(launched, time_in_driver=in_driver_us)
        self.complete(replace(result, timing=launched), fenced)

    def _fail(self, error: AsyncnnError) -> None:
        if self._result is None:
            self.complete(result_of(error))


class _Fenced(msgspec.Struct, eq=False):
    """An execution, and the fences of others that it waits for."""

    run: FencedRun
    borrowed: Sequence[SyncFence] = ()
    exported: FenceSource | None = None
    call: int = 0
    noted: "NotedBlob | None" = None

    @property
    def descriptors(self) -> int:
        return len(self.borrowed) + (self.exported is not None)

    def cancel(self) -> None:
        try:
            self.run.cancel()
        except Exception as error:
            message = "a fenced execution could not be cancelled"
            log.log(logging.ERROR, message, error=error)


class FencedOrders(SessionPart):
    """Fenced executions by number; ``executions`` knows the bound requests.

    As many ``descriptors`` of the client are kept open.
    """

    def __init__(
        self, session: SessionFields, executions: Executions, quota: Quota
    ) -> None:
        super().__init__(session)
        self._loop = asyncio.get_running_loop()
        self._executions = executions
        self._quota = quota
        self._known: CountedTable[_Fenced] = quota.table()
        self.descriptors = 0
        self._ended: deque[int] = deque()
        self._seen = 0
        self._unsent: list[wire.FencedEnd] = []
        self._unusual: list[wire.Took] = []

    def execute(
        self,
        message: wire.ExecuteFenced,
        fds: Sequence[int],
        refusal: AsyncnnError | None = None,
    ) -> None:
        """Launch an execution; its fence reports errors, or a ``refusal``.

        :raises InvalidArgumentError: if its number is in use, or the client has seen
            more ends than there were.
        """
        self._forget(message.seen)
        number = message.order.execution
        if number in self._known:
            raise InvalidArgumentError(f"fenced execution {number} exists already")
        call, noted = 0, None
        if self._recorder is not None:
            noted = self._executions.noted(message.order)
            call = self._recorder.execution(message.order, noted, message, len(fds))
        try:
            if refusal is not None:
                raise refusal
            fenced = self._launch(message, fds)
        except Exception as error:
            fenced = _Fenced(EndedRun(explained(error)))
        fenced.call, fenced.noted = call, noted
        self._known[number] = fenced
        if fenced.run.status is None:
            self.descriptors += fenced.descriptors
            fenced.run.add_done_callback(partial(self._done, number, fenced))
        else:
            self._end(number, fenced)

    def export(self, number: int, fds: Sequence[int]) -> None:
        """Write the end of an execution to a pipe of the client's as well.

        :raises InvalidArgumentError: if there is no such execution, it was exported
            before, or there is not one descriptor.
        """
        fenced = self._known.get(number)
        if fenced is None or fenced.exported is not None or len(fds) != 1:
            raise InvalidArgumentError(f"the fence of {number} cannot be exported")
        try:
            self._check_descriptors(1)
            source = FenceSource.adopt(fds[0])
        except AsyncnnError as error:
            explained(error)
            return
        if fenced.run.status is None:
            fenced.exported = source
            self.descriptors += 1
        else:
            # The client may be notified of the end later than this pipe.
            pass_on(fenced.run, source, fenced.run.ended_ns)

    def cancel(self, number: int) -> None:
        """Stop an execution that nobody waits for; it is still answered."""
        fenced = self._known.get(number)
        if fenced is not None and fenced.run.status is None:
            if self._recorder is not None:
                self._recorder.cancelled(fenced.call)
            fenced.cancel()

    def close(self) -> None:
        """Let go of everything, and stop what is under way."""
        # Forgotten first: their ends are reported to nobody.
        known = tuple(self._known.values())
        self._known.clear()
        self._unsent.clear()
        self._unusual.clear()
        for fenced in known:
            if fenced.run.status is None:
                if self._recorder is not None:
                    self._recorder.left(fenced.call)
                fenced.cancel()

    def _launch(self, message: wire.ExecuteFenced, fds: Sequence[int]) -> _Fenced:
        self._quota.check(self._known)
        borrowed: Sequence[SyncFence] = ()
        if fds:
            self._check_descriptors(len(fds))
            borrowed = [SyncFence.from_fd(fd) for fd in fds]
        sources = self._sources(message.wait_for, borrowed)
        order = message.order
        bound = self._executions.find(order)
        limits = order.deadline, order.loop_timeout, message.duration
        options = execution_options(order.measure, *limits)  # type: ignore[arg-type]
        if bound.is_mapped:
            run = launcher_of(bound.prepared)(bound.request, sources, options)
            return _Fenced(run, borrowed)
        self._tasks.check_room()
        copying = FencedOnCopies(self._pools, bound, options, sources)
        self._tasks.start(copying.run())
        return _Fenced(copying, borrowed)

    def _sources(
        self, numbers: Sequence[int], borrowed: Sequence[SyncFence]
    ) -> list[Source]:
        """Return what is active yet of what a message names."""
        unnamed = iter(borrowed)
        active: list[Source] = []
        for number in numbers:
            source: Source | None
            if number:
                fenced = self._known.get(number)
                source = None if fenced is None else fenced.run
            else:
                source = next(unnamed, None)
            if source is None:
                raise InvalidArgumentError(f"there is no fence {number}")
            status = source.status
            if status is None:
                active.append(source)
            elif status is not ErrorStatus.NONE:
                raise waited_in_vain(source.reason or status.name)
        return active

    def _check_descriptors(self, more: int) -> None:
        if self.descriptors + more > self._limits.max_fence_fds:
            raise too_many(
                "descriptors of fences",
                "ServiceLimits.max_fence_fds",
                self._limits.max_fence_fds,
            )

    def _done(self, number: int, fenced: _Fenced, _: object) -> None:
        if self._known.get(number) is fenced:
            self.descriptors -= fenced.descriptors
            self._end(number, fenced)

    def _end(self, number: int, fenced: _Fenced) -> None:
        """Note the end, to be reported outside of whatever has brought it."""
        run = fenced.run
        fenced.borrowed = ()
        if fenced.exported is not None:
            pass_on(run, fenced.exported, run.ended_ns)
            fenced.exported = None
        self._ended.append(number)
        if not self._unsent:
            self._loop.call_soon(self._report)
        if run.route is not None or run.may_still_write:
            self._unusual.append(wire.Took(number, run.route, run.may_still_write))
        status, launched, since_fences = run.get_execution_info()
        if self._recorder is not None:
            self._recorder.ended(fenced.call, status, fenced.noted)
        self._unsent.append(
            wire.FencedEnd(
                number,
                status,
                run.reason,
                run.ended_ns,
                None if launched is NO_TIMING else launched,
                None if since_fences is NO_TIMING else since_fences,
            )
        )

    def _report(self) -> None:
        """Report all that has ended in this turn of the loop, in one message."""
        unsent, self._unsent = self._unsent, []
        unusual, self._unusual = self._unusual, []
        for took in unusual:
            self._send(took)
        if unsent:
            self._send(wire.FencedDone(tuple(unsent)))

    def _forget(self, seen: int) -> None:
        if seen > self._seen + len(self._ended):
            raise InvalidArgumentError(f"{seen} ends were seen, more than there were")
        while self._seen < seen:
            del self._known[self._ended.popleft()]
            self._seen += 1
