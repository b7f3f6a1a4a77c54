"""Fenced executions on pools that are not mapped: on copies, made as late as it goes.

What an execution waits for may write its inputs. So the copies are made when its fences
have signalled, and its own fence signals when the outputs are back in the pools.
"""

import asyncio
import time
from collections.abc import Sequence

from msgspec.structs import replace

from asyncnn.callbacks import FencedOutcome, IFencedExecutionCallback
from asyncnn.devices.fenced import because
from asyncnn.errors import (
    AsyncnnError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
    error_for,
)
from asyncnn.fences import SyncFence, merge
from asyncnn.hal.types import NO_TIMING, ErrorStatus, Timing
from asyncnn.service import wire
from asyncnn.service.driver.announced import AnnouncedPools
from asyncnn.service.driver.executions import Bound
from asyncnn.service.driver.failures import explained


class FencedOnCopies(FencedOutcome):
    """One such execution; `run` is a task that its connection owns."""

    __slots__ = (
        "_bound",
        "_fences",
        "_inner",
        "_launched_ns",
        "_message",
        "_pools",
        "_source",
        "_task",
        "fence",
    )

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
        deadline_ns = self._message.order.deadline
        left_s = None
        if deadline_ns is not None:
            left_s = (deadline_ns - time.monotonic_ns()) / 1e9
        try:
            async with asyncio.timeout(left_s):
                await merge(*self._fences)
        except TimeoutError:
            raise MissedDeadlineTransientError(
                "the deadline passed before it could begin"
            ) from None
        except AsyncnnError as error:
            raise because(str(error)) from None
        finally:
            self._fences = ()

    async def _execute(self) -> None:
        bound, order = self._bound, self._message.order
        copies = await self._pools.copied(bound.pools)
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
        self.complete(ErrorStatus.NONE, self._since_launch(launched), fenced)
        self._source.signal()

    def _since_launch(self, timing: Timing) -> Timing:
        if timing == NO_TIMING:
            return timing
        in_driver_us = (time.monotonic_ns() - self._launched_ns) // 1000
        return replace(timing, time_in_driver=in_driver_us)

    def _fail(self, error: AsyncnnError) -> None:
        if self.fence.status is None:
            self.complete(error.status, NO_TIMING, NO_TIMING)
            self._source.fail(error.status, str(error))
