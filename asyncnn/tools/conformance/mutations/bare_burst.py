"""A burst whose application sends whatever packets it is told to."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from asyncnn.burst.packets import DATUM_BYTES, DEFAULT_QUEUE_LENGTH, decode_result
from asyncnn.callbacks import ExecutionResult, IBurstCallback
from asyncnn.fmq import MessageQueue
from asyncnn.hal.errors import GeneralFailureError, error_for
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import ErrorStatus, Memory


@asynccontextmanager
async def bare_burst(
    prepared: IPreparedModel,
    pools: Sequence[Memory],
    results_length: int = DEFAULT_QUEUE_LENGTH,
) -> AsyncIterator["BareBurst"]:
    """Open a burst for the length of the block; ``pools`` are slots 0, 1, 2...

    :raises AsyncnnError: if the device does not take it.
    """
    with (
        MessageQueue.create(DATUM_BYTES, DEFAULT_QUEUE_LENGTH) as requests,
        MessageQueue.create(DATUM_BYTES, results_length) as results,
    ):
        status, context = await prepared.configure_execution_burst(
            _Pools(pools), requests.descriptor, results.descriptor
        )
        if context is None:
            raise error_for(status, "a burst was refused")
        try:
            yield BareBurst(requests, results, context)
        finally:
            context.close()


class BareBurst:
    """The application's ends of the queues, one packet and one answer at a time."""

    def __init__(
        self, requests: MessageQueue, results: MessageQueue, context: IBurstContext
    ) -> None:
        self._requests = requests
        self._results = results
        self._context = context

    async def send(self, packet: bytes) -> bytes:
        """Send a packet and return the result as it came.

        :raises GeneralFailureError: if there was an answer too many before.
        :raises AsyncnnError: if the burst has ended.
        """
        if self._results.available_to_read():
            raise GeneralFailureError("the last packet has a second answer")
        if not self._requests.write_nowait(packet):
            raise GeneralFailureError("the packet before has not been taken")
        return await self._results.read()

    async def execute(self, packet: bytes) -> ExecutionResult:
        """Send a packet and return what its result says.

        :raises PacketError: if the result is malformed.
        :raises AsyncnnError: as `send`.
        """
        shape, timing = decode_result(await self.send(packet))
        return ExecutionResult(shape.status, shape.output_shapes, timing)

    def free_memory(self, slot: int) -> None:
        """Have the driver forget a slot, known or not."""
        self._context.free_memory(slot)


class _Pools(IBurstCallback):
    """An application that knows the first few slots."""

    def __init__(self, pools: Sequence[Memory]) -> None:
        self._pools = pools

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory, ...]]:
        if not all(0 <= slot < len(self._pools) for slot in slots):
            return ErrorStatus.INVALID_ARGUMENT, ()
        return ErrorStatus.NONE, tuple(self._pools[slot] for slot in slots)
