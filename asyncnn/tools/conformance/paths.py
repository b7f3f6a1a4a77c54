"""The HAL calls that can carry an execution, made alike."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

from msgspec.structs import replace

from asyncnn.burst import BurstController
from asyncnn.callbacks import (
    ExecutionFuture,
    ExecutionResult,
    IFencedExecutionCallback,
)
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.interfaces import IPreparedModel, ISyncFence
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Memory,
    Request,
)
from asyncnn.memory import shareable, view

Execute: TypeAlias = Callable[
    [IPreparedModel, Request, MeasureTiming, int | None], Awaitable[ExecutionResult]
]
"""Executes a request, measured or not, with a loop timeout in nanoseconds."""


async def _execute_async(
    prepared: IPreparedModel,
    request: Request,
    measure: MeasureTiming,
    loop_timeout: int | None,
) -> ExecutionResult:
    callback = ExecutionFuture()
    prepared.execute_1_3(request, measure, None, loop_timeout, callback)
    return await callback


async def _execute_sync(
    prepared: IPreparedModel,
    request: Request,
    measure: MeasureTiming,
    loop_timeout: int | None,
) -> ExecutionResult:
    return ExecutionResult(
        *await prepared.execute_synchronously_1_3(request, measure, None, loop_timeout)
    )


async def _execute_fenced(
    prepared: IPreparedModel,
    request: Request,
    measure: MeasureTiming,
    loop_timeout: int | None,
) -> ExecutionResult:
    """Execute behind a fence, and once more behind the fence of that, as the suite."""
    gate, source = SyncFence.pair()
    fence: ISyncFence | None = gate
    launched: list[tuple[ISyncFence, IFencedExecutionCallback]] = []
    while len(launched) < 2:
        assert fence is not None
        status, fence, callback = prepared.execute_fenced(
            request, (fence,), measure, None, loop_timeout, None
        )
        if callback is None:
            return _failed(status, "the launch was refused")
        if fence is None:
            return _failed(ErrorStatus.GENERAL_FAILURE, "no fence was returned")
        launched.append((fence, callback))
    source.signal()
    for told, callback in launched:
        with suppress(AsyncnnError):
            await told
        status, timing, _ = callback.get_execution_info()
        if status is not ErrorStatus.NONE:
            break  # what follows a failure tells of nothing but that
    return ExecutionResult(status, (), timing, told.reason)


class NotCarriedError(Exception):
    """A way of executing has no room for what is asked of it."""


async def _execute_burst(
    prepared: IPreparedModel,
    request: Request,
    measure: MeasureTiming,
    loop_timeout: int | None,
) -> ExecutionResult:
    """Execute by a burst of its own, twice: the second packet is a known one."""
    if loop_timeout is not None:
        raise NotCarriedError("bursts have no loop timeout")
    own = [pool for pool in request.pools if isinstance(pool, Memory)]
    pools = tuple([shareable(pool) for pool in own])
    with await BurstController.open(prepared) as burst:
        for _ in range(2):
            result = await burst.execute(
                replace(request, pools=pools), ExecutionOptions(measure)
            )
        if burst.statistics().fallbacks:
            raise NotCarriedError(burst.statistics().fallback_reason)
    for pool, shared in zip(own, pools, strict=True):
        view(pool)[:] = view(shared)
    return result


def _failed(status: ErrorStatus, reason: str) -> ExecutionResult:
    return ExecutionResult(status, (), NO_TIMING, reason)


PATHS: dict[str, Execute] = {
    "async": _execute_async,
    "sync": _execute_sync,
    "burst": _execute_burst,
    "fenced": _execute_fenced,
}
"""The ways of executing, by the names of the command line."""

REFUSES_OPEN_OUTPUTS = frozenset({"fenced"})
"""Ways that report no shapes: outputs that are open or empty are invalid there."""
