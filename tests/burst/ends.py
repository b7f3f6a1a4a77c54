"""The two ends of a burst, apart: packets in, packets out."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from asyncnn.burst import OpenBursts
from asyncnn.burst.packets import (
    DATUM_BYTES,
    DEFAULT_QUEUE_LENGTH,
    RequestShape,
    decode_result,
)
from asyncnn.callbacks import (
    ExecutionResult,
    IBurstCallback,
    IExecutionCallback,
    SynchronousByCallback,
)
from asyncnn.fmq import MessageQueue
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.refusals import NoFencesNorBursts
from asyncnn.hal.types import (
    NO_TIMING,
    DataLocation,
    ErrorStatus,
    ExecutionOptions,
    MeasureTiming,
    Memory,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from asyncnn.memory.shared import allocate

Configured = tuple[ErrorStatus, IBurstContext | None]
"""How a burst was opened, from its callback and the channels of both directions."""


class ScriptedModel(SynchronousByCallback, NoFencesNorBursts):
    """Does as told: answers at once with ``outcome``, or when `end` is called."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.deadlines: list[int | None] = []
        self.loop_timeouts: list[int | None] = []
        self.outcome: tuple[ErrorStatus, tuple[OutputShape, ...], Timing] | None
        self.outcome = (ErrorStatus.NONE, (), NO_TIMING)
        self.callback: IExecutionCallback | None = None
        self.killed = 0
        self.bursts = OpenBursts(1)
        self._launched = asyncio.Event()

    async def launched(self) -> None:
        """Wait until there is something to end."""
        await asyncio.wait_for(self._launched.wait(), 20)

    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        assert callback is not None
        self.requests.append(request)
        self.deadlines.append(deadline)
        self.loop_timeouts.append(loop_timeout_duration)
        if self.outcome is None:
            self.callback = callback
            self._launched.set()
            callback.link_to_death(self._kill)
        else:
            callback.notify_1_3(*self.outcome)
        return ErrorStatus.NONE

    async def configure_execution_burst(self, *given: Any) -> Configured:
        self.bursts = OpenBursts(1)
        return self.bursts.configure(self, *given)

    def _kill(self) -> None:
        self.killed += 1
        self.end(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT)

    def end(self, status: ErrorStatus = ErrorStatus.NONE) -> None:
        callback, self.callback = self.callback, None
        self._launched.clear()
        assert callback is not None
        callback.unlink_to_death()
        callback.notify_1_3(status, (), NO_TIMING)


class KnownPools(IBurstCallback):
    """An application that knows some slots; ``asked`` is what it was asked for."""

    def __init__(self, pools: dict[int, Memory]) -> None:
        self.pools = pools
        self.asked: list[list[int]] = []
        self.was_asked = asyncio.Event()

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory, ...]]:
        self.asked.append(list(slots))
        self.was_asked.set()
        if not set(slots) <= self.pools.keys():
            return ErrorStatus.INVALID_ARGUMENT, ()
        return ErrorStatus.NONE, tuple(self.pools[slot] for slot in slots)


class Ends:
    """The application's ends of a burst's queues, and its context."""

    def __init__(
        self, requests: MessageQueue, results: MessageQueue, context: IBurstContext
    ) -> None:
        self.requests = requests
        self.results = results
        self.context = context

    async def receive(self, datums: int | None = None) -> ExecutionResult:
        packet = await self.results.read(datums, timeout=20)
        shape, timing = decode_result(packet)
        return ExecutionResult(shape.status, shape.output_shapes, timing)

    async def __call__(self, packet: bytes) -> ExecutionResult:
        assert self.requests.write_nowait(packet)
        return await self.receive()


@asynccontextmanager
async def served(
    prepared: IPreparedModel,
    callback: IBurstCallback,
    *,
    results_length: int = DEFAULT_QUEUE_LENGTH,
) -> AsyncIterator[Ends]:
    """Have ``prepared`` serve a burst, wherever it is."""
    with (
        MessageQueue.create(DATUM_BYTES, DEFAULT_QUEUE_LENGTH) as requests,
        MessageQueue.create(DATUM_BYTES, results_length) as results,
    ):
        status, context = await prepared.configure_execution_burst(
            callback, requests.descriptor, results.descriptor
        )
        assert status is ErrorStatus.NONE
        assert context is not None
        try:
            yield Ends(requests, results, context)
        finally:
            context.close()


ADDITION = RequestShape.of(
    tuple(RequestArgument(location=DataLocation(0, k, 16)) for k in (0, 64)),
    (RequestArgument(location=DataLocation(1, 0, 16)),),
    2,
)
"""A request of `addition(4)`: inputs in one pool, the output in another."""


def addition_pools() -> tuple[Memory, Memory]:
    """Pools for `ADDITION`, whose result is [11, 22, 33, 44]."""
    inputs, outputs = allocate(128), allocate(64)
    assert inputs.buffer is not None
    floats = inputs.buffer.cast("f")
    for k in range(4):
        floats[k], floats[16 + k] = k + 1, 10 * (k + 1)
    return inputs, outputs


def result_of(outputs: Memory) -> list[float]:
    assert outputs.buffer is not None
    return outputs.buffer[:16].cast("f").tolist()


def buffers_of(pools: Iterable[Any]) -> list[int]:
    """Return what tells the bytes of pools apart; other pools may have the same."""
    return [id(pool.buffer) for pool in pools]


def a_request() -> Request:
    return Request(ADDITION.inputs, ADDITION.outputs, addition_pools())


def soon(seconds: float = 0.06) -> int:
    return time.monotonic_ns() + round(seconds * 1e9)


def by(deadline: int) -> ExecutionOptions:
    return ExecutionOptions(deadline=deadline)
