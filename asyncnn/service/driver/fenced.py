"""The fenced executions that one client asked for, on the driver's side.

A client names a fence by the number of the execution that signals it, and may do so
until it has heard of the end. So fences are kept until a later message says that it
has: the client counts the ends that it was told of, and tells how many there were.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import cast

import msgspec
from msgspec.structs import replace

from asyncnn.callbacks import FencedOutcome, IFencedExecutionCallback
from asyncnn.deadlines import late_for_fences, seconds_until
from asyncnn.fences import FenceSource, SyncFence, merge
from asyncnn.fences.fence import pass_on
from asyncnn.hal.errors import (
    AsyncnnError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    error_for,
    too_many,
    waited_in_vain,
)
from asyncnn.hal.interfaces import refusal_of
from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.service import wire
from asyncnn.service.driver.executions import Bound, Executions
from asyncnn.service.driver.parts import Common, SessionPart
from asyncnn.service.driver.pools import AnnouncedPools
from asyncnn.service.driver.quotas import Quota, Table
from asyncnn.service.driver.reporting import explained, log


class FencedOnCopies(FencedOutcome):
    """One such execution; `run` is a task that its connection owns."""

    def __init__(
        self,
        pools: AnnouncedPools,
        bound: Bound,
        message: wire.ExecuteFenced,
        fences: Sequence[SyncFence],
    ) -> None:
        super().__init__()
        self._pools = pools
        self._bound = bound
        self._message = message
        self._fences = fences
        self._launched_ns = time.monotonic_ns()
        self._inner: IFencedExecutionCallback | None = None
        self._task: asyncio.Task[None] | None = None
        self.fence, self._source = SyncFence.pair()

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
            if self.fence.status is None:
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
        deadline = self._message.order.deadline
        try:
            async with asyncio.timeout(seconds_until(deadline)):
                await merge(*self._fences)
        except AsyncnnError as error:
            raise waited_in_vain(str(error)) from None
        except TimeoutError:
            raise late_for_fences(deadline, self._launched_ns) from None
        finally:
            self._fences = ()

    async def _execute(self) -> None:
        bound, order = self._bound, self._message.order
        copies = await self._pools.copied(bound.request.pools)
        status, fence, inner = bound.prepared.execute_fenced(
            replace(bound.request, pools=copies),
            (),
            order.measure,  # type: ignore[arg-type]
            order.deadline,
            order.loop_timeout,
            self._message.duration,
        )
        if inner is None:
            raise error_for(status, "the device refused the fenced execution")
        self._inner = inner
        if fence is not None:
            await fence
        await self._pools.write_back(copies, bound.request.outputs)
        _, launched, fenced = inner.get_execution_info()
        self.route = inner.route
        if launched != NO_TIMING:
            in_driver_us = (time.monotonic_ns() - self._launched_ns) // 1000
            launched = replace(launched, time_in_driver=in_driver_us)
        self.complete(ErrorStatus.NONE, launched, fenced)
        self._source.signal()

    def _fail(self, error: AsyncnnError) -> None:
        if self.fence.status is None:
            self.complete(error.status, NO_TIMING, NO_TIMING)
            self._source.fail(error.status, str(error))


class _Fenced(msgspec.Struct, eq=False):
    """An execution, its fence, and the fences of others that it waits for."""

    fence: SyncFence
    outcome: IFencedExecutionCallback
    borrowed: Sequence[SyncFence] = ()
    exported: FenceSource | None = None
    ended_ns: int = 0

    @property
    def descriptors(self) -> int:
        """How many descriptors of the client are kept open for it."""
        return len(self.borrowed) + (self.exported is not None)

    def cancel(self) -> None:
        """End the execution soon, whatever a device makes of it."""
        try:
            self.outcome.cancel()
        except Exception as error:
            message = "a fenced execution could not be cancelled"
            log.log(logging.ERROR, message, error=error)


class FencedOrders(SessionPart):
    """Fenced executions by number; ``executions`` knows the bound requests.

    As many ``descriptors`` of the client are kept open.
    """

    def __init__(self, common: Common, executions: Executions, quota: Quota) -> None:
        super().__init__(common)
        self._loop = asyncio.get_running_loop()
        self._executions = executions
        self._quota = quota
        self._known: Table[_Fenced] = quota.table()
        self._signalled = SyncFence.signalled()
        self.descriptors = 0
        self._ended: deque[int] = deque()
        self._seen = 0
        self._untold: list[wire.FencedEnd] = []

    def execute(
        self,
        message: wire.ExecuteFenced,
        fds: Sequence[int],
        refusal: AsyncnnError | None = None,
    ) -> None:
        """Launch an execution; its fence tells of errors, or of a ``refusal``.

        :raises InvalidArgumentError: if its number is in use, or the client has seen
            more ends than there were.
        """
        self._forget(message.seen)
        number = message.order.execution
        if number in self._known:
            raise InvalidArgumentError(f"fenced execution {number} exists already")
        try:
            fenced = _failed(refusal) if refusal else self._launch(message, fds)
        except Exception as error:
            fenced = _failed(explained(error))
        self._known[number] = fenced
        status = fenced.fence.status
        if status is None:
            self.descriptors += fenced.descriptors
            fenced.fence.add_done_callback(partial(self._done, number))
        else:
            self._end(number, fenced, status)

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
        if fenced.fence.status is None:
            fenced.exported = source
            self.descriptors += 1
        else:
            # The client may be told of the end later than this pipe.
            fenced.ended_ns = fenced.ended_ns or time.monotonic_ns()
            pass_on(fenced.fence, source, fenced.ended_ns)

    def cancel(self, number: int) -> None:
        """Stop an execution that nobody waits for; it is still answered."""
        fenced = self._known.get(number)
        if fenced is not None and fenced.fence.status is None:
            fenced.cancel()

    def close(self) -> None:
        """Let go of everything, and stop what is under way."""
        # Forgotten first: their ends are told to nobody.
        known = tuple(self._known.values())
        self._known.clear()
        self._untold.clear()
        for fenced in known:
            if fenced.fence.status is None:
                fenced.cancel()

    def _launch(self, message: wire.ExecuteFenced, fds: Sequence[int]) -> _Fenced:
        self._quota.check(self._known)
        borrowed: Sequence[SyncFence] = ()
        if fds:
            self._check_descriptors(len(fds))
            borrowed = [SyncFence.from_fd(fd) for fd in fds]
        fences = self._fences(message.wait_for, borrowed)
        order = message.order
        bound = self._executions.find(order)
        if not bound.is_mapped:
            self._tasks.check_room()
            copying = FencedOnCopies(self._pools, bound, message, fences)
            self._tasks.start(copying.run())
            return _Fenced(copying.fence, copying, borrowed)
        status, fence, outcome = bound.prepared.execute_fenced(
            bound.request,
            fences,
            order.measure,  # type: ignore[arg-type]
            order.deadline,
            order.loop_timeout,
            message.duration,
        )
        if outcome is None:
            refused = refusal_of(bound.prepared, "the device refused the execution")
            raise error_for(status, refused)
        # Every device makes fences of this class, which alone can be exported.
        signals = cast("SyncFence", fence or self._signalled)
        return _Fenced(signals, outcome, borrowed)

    def _fences(
        self, numbers: Sequence[int], borrowed: Sequence[SyncFence]
    ) -> list[SyncFence]:
        """Return the fences that are active yet, of those that a message names.

        :raises GeneralFailureError: if one has failed, since the client asked.
        :raises InvalidArgumentError: if one is unknown, or lacks its descriptor.
        """
        unnamed = iter(borrowed)
        active: list[SyncFence] = []
        for number in numbers:
            if number:
                fenced = self._known.get(number)
                fence = None if fenced is None else fenced.fence
            else:
                fence = next(unnamed, None)
            if fence is None:
                raise InvalidArgumentError(f"there is no fence {number}")
            status = fence.status
            if status is None:
                active.append(fence)
            elif status is not ErrorStatus.NONE:
                raise waited_in_vain(fence.reason or status.name)
        return active

    def _check_descriptors(self, more: int) -> None:
        if self.descriptors + more > self._limits.max_fence_fds:
            raise too_many(
                "descriptors of fences",
                "ServiceLimits.max_fence_fds",
                self._limits.max_fence_fds,
            )

    def _done(self, number: int, fence: SyncFence) -> None:
        fenced = self._known.get(number)
        if fenced is not None and fenced.fence is fence:
            self.descriptors -= fenced.descriptors
            self._end(number, fenced, fence.status or ErrorStatus.NONE)

    def _end(self, number: int, fenced: _Fenced, status: ErrorStatus) -> None:
        at_ns = fenced.ended_ns = fenced.ended_ns or time.monotonic_ns()
        fenced.borrowed = ()
        if fenced.exported is not None:
            pass_on(fenced.fence, fenced.exported, at_ns)
            fenced.exported = None
        self._ended.append(number)
        if not self._untold:
            self._loop.call_soon(self._tell)
        if fenced.outcome.route is not None:
            self._send(wire.Took(number, fenced.outcome.route))
        reason = fenced.fence.reason if status is not ErrorStatus.NONE else ""
        _, launched, since_fences = fenced.outcome.get_execution_info()
        self._untold.append(
            wire.FencedEnd(
                number,
                status,
                reason,
                at_ns,
                None if launched is NO_TIMING else launched,
                None if since_fences is NO_TIMING else since_fences,
            )
        )

    def _tell(self) -> None:
        """Tell of all that has ended in this turn of the loop, in one message."""
        untold, self._untold = self._untold, []
        if untold:
            self._send(wire.FencedDone(tuple(untold)))

    def _forget(self, seen: int) -> None:
        if seen > self._seen + len(self._ended):
            raise InvalidArgumentError(f"{seen} ends were seen, more than there were")
        while self._seen < seen:
            del self._known[self._ended.popleft()]
            self._seen += 1


def _failed(error: AsyncnnError) -> _Fenced:
    outcome = FencedOutcome()
    outcome.complete(error.status, NO_TIMING, NO_TIMING)
    return _Fenced(SyncFence.failed(error.status, str(error)), outcome)
