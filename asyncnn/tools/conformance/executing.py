"""Executes a case by any of the HAL calls that can carry it, all made alike.

Inputs lie in one pool and outputs in another, as the public suite has them.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.burst import BurstController
from asyncnn.callbacks import (
    ExecutionResult,
    IFencedExecutionCallback,
    executed_synchronously,
    launched,
)
from asyncnn.fences import SyncFence
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExecutionOptions
from asyncnn.memory import shareable, view
from asyncnn.memory.pools import from_buffer
from asyncnn.tools.conformance.vectors import Case

Execute: TypeAlias = Callable[
    [hal.IPreparedModel, hal.Request, ExecutionOptions], Awaitable[ExecutionResult]
]

_ALIGNMENT_BYTES = 64


class NotCarriedError(Exception):
    """A way of executing has no room for what is asked of it."""


class CaseRequest(msgspec.Struct, frozen=True, eq=False):
    """A request and the memory that its outputs go to."""

    request: hal.Request
    memory: Array

    def outputs(self, case: Case, shapes: Sequence[hal.OutputShape]) -> list[Array]:
        """Return the outputs with the shapes that were reported.

        Where none were, the model fixes them and they are the expected ones.
        """
        arrays = []
        for position, argument in enumerate(self.request.outputs):
            expected = case.outputs[position].value
            shape = shapes[position].dimensions if shapes else expected.shape
            start = argument.location.offset
            size = math.prod(shape) * expected.dtype.itemsize
            data = self.memory[start : start + size]
            arrays.append(data.view(expected.dtype).reshape(shape))
        return arrays


def build_request(case: Case, *, short_by: int = 0) -> CaseRequest:
    """Return a request for ``case``; the first output lacks ``short_by`` bytes.

    An empty output still gets one byte.
    """
    sizes = [0 if array is None else array.nbytes for array in case.inputs]
    offsets, total = _places(sizes)
    memory = np.zeros(max(total, 1), np.uint8)
    arguments = []
    for array, size, offset in zip(case.inputs, sizes, offsets, strict=True):
        if array is None:
            arguments.append(hal.RequestArgument(has_no_value=True))
            continue
        memory[offset : offset + size] = np.frombuffer(array.tobytes(), np.uint8)
        arguments.append(
            hal.RequestArgument(location=hal.DataLocation(0, offset, size))
        )
    capacities = [max(output.value.nbytes, 1) for output in case.outputs]
    places, total = _places(capacities)
    capacities[0] -= short_by
    results = np.zeros(total, np.uint8)
    request = hal.Request(
        tuple(arguments),
        tuple(
            hal.RequestArgument(location=hal.DataLocation(1, offset, size))
            for offset, size in zip(places, capacities, strict=True)
        ),
        (from_buffer(memory), from_buffer(results)),
    )
    return CaseRequest(request, results)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return aligned offsets of consecutive spans, and the end of the last."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += -(-size // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return offsets, end


async def _execute_fenced(
    prepared: hal.IPreparedModel, request: hal.Request, options: ExecutionOptions
) -> ExecutionResult:
    """Execute behind a fence, and once more behind the fence of that, as the suite."""
    gate, source = SyncFence.pair()
    fence: hal.ISyncFence | None = gate
    executions: list[tuple[hal.ISyncFence, IFencedExecutionCallback]] = []
    while len(executions) < 2:
        assert fence is not None
        status, fence, callback = prepared.execute_fenced(
            request, (fence,), options.measure, None, options.loop_timeout, None
        )
        if callback is None:
            return _failed(status, "the launch was refused")
        if fence is None:
            return _failed(hal.ErrorStatus.GENERAL_FAILURE, "no fence was returned")
        executions.append((fence, callback))
    source.signal()
    for ended, callback in executions:
        with suppress(hal.AsyncnnError):
            await ended
        status, timing, _ = callback.get_execution_info()
        if status is not hal.ErrorStatus.NONE:
            break  # what follows a failure says nothing but that
    return ExecutionResult(status, (), timing, ended.reason)


async def _execute_burst(
    prepared: hal.IPreparedModel,
    request: hal.Request,
    options: ExecutionOptions,
    *,
    may_fall_back: bool = False,
) -> ExecutionResult:
    """Execute by a burst of its own, twice: the second packet is a known one."""
    own = [pool for pool in request.pools if isinstance(pool, hal.Memory)]
    pools = tuple([shareable(pool) for pool in own])
    with await BurstController.open(prepared) as burst:
        for _ in range(2):
            result = await burst.execute(replace(request, pools=pools), options)
        if burst.statistics().fallbacks and not may_fall_back:
            raise NotCarriedError(burst.statistics().fallback_reason)
    for pool, shared in zip(own, pools, strict=True):
        view(pool)[:] = view(shared)
    return result


def _failed(status: hal.ErrorStatus, reason: str) -> ExecutionResult:
    return ExecutionResult(status, (), hal.NO_TIMING, reason)


PATHS: dict[str, Execute] = {
    "async": launched,
    "sync": executed_synchronously,
    "burst": _execute_burst,
    "fenced": _execute_fenced,
}
"""The ways of executing, by the names of the command line."""

CLIENT_PATHS = PATHS | {"burst": partial(_execute_burst, may_fall_back=True)}
"""The same for a client library, which finds another way for what does not fit one."""

REFUSES_OPEN_OUTPUTS = frozenset({"fenced"})
"""Ways that report no shapes: outputs that are open or empty are invalid there."""
