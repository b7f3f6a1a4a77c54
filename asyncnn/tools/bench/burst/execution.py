"""Executions by burst, for ``asyncnn bench burst``: whole ones, and their parts.

The whole ones are those of a driver process that publishes the no-op device. The parts
are timed in this process, each by itself: what an execution takes beyond their sum goes
to waiting, to the event loops and to what happens between the calls.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial

from asyncnn.burst import BurstController
from asyncnn.burst.packets import (
    DATUM_BYTES,
    DEFAULT_QUEUE_LENGTH,
    RequestShape,
    ResultShape,
)
from asyncnn.burst.slots import Binder, PoolSlots
from asyncnn.callbacks import IExecutionCallback
from asyncnn.fmq import MessageQueue
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Memory, OutputShape, Timing
from asyncnn.logs import SparseLogger
from asyncnn.runtime.device import Device
from asyncnn.tools.bench.addition import LENGTH, addition_request, tiny_addition
from asyncnn.tools.bench.drivers import no_op_driver_on
from asyncnn.tools.bench.noop import NoOpDevice
from asyncnn.tools.bench.rounds import Call

BURST = "burst"
BURST_RUN = "burst_run"
PART_REQUEST = "part_request_queue"
PART_BIND = "part_bind"
PART_EXECUTE = "part_execute"
PART_RESULT = "part_result_queue"

BURSTS = {
    BURST: "a burst: no-op execution of a ready request at the HAL, awaited",
    BURST_RUN: "a burst: run_in_place of the same, awaited",
}
PARTS = {
    PART_REQUEST: "of it: the packet of the request written and read",
    PART_BIND: "of it: the packet known again, with its memory",
    PART_EXECUTE: "of it: the request validated, the callback notified",
    PART_RESULT: "of it: the packet of the result made, written, read and known again",
}


@contextlib.asynccontextmanager
async def burst_execution(cpu: int) -> AsyncIterator[Call]:
    """Execute a ready request, at the HAL, in a driver process on another CPU."""
    async with no_op_driver_on(cpu) as device:
        prepared = await device.prepare(tiny_addition())
        request = addition_request(prepared)
        with await BurstController.open(prepared.hal) as burst:
            yield partial(burst.execute, request)


@contextlib.asynccontextmanager
async def burst_run(cpu: int) -> AsyncIterator[Call]:
    """Run a model on arrays in place, as an application would, likewise."""
    async with no_op_driver_on(cpu) as device:
        prepared = await device.prepare(tiny_addition())
        async with prepared.burst() as burst:
            yield burst.run_in_place


@contextlib.asynccontextmanager
async def burst_parts() -> AsyncIterator[Mapping[str, Call]]:
    """Yield the parts of an execution, one call each."""
    async with NoOpDevice() as device:
        prepared = await Device("no-op", device).prepare(tiny_addition())
        request = addition_request(prepared)
        slots = PoolSlots(lambda _: None)
        pools = [pool for pool in request.pools if isinstance(pool, Memory)]
        shape = RequestShape.of(request.inputs, request.outputs, len(pools))
        packet = shape.encode(slots.of(pools), MeasureTiming.NO)
        binder = Binder(slots, SparseLogger(logging.getLogger(__name__)))
        await binder.bind(packet)
        result = ResultShape.of(ErrorStatus.NONE, (OutputShape((LENGTH,), True),))
        with _both_ends() as (writer, reader):

            def carry(data: bytes) -> bytes:
                writer.write_nowait(data)
                return reader.read_nowait() or b""

            yield {
                PART_REQUEST: partial(carry, packet),
                PART_BIND: partial(binder.bind_nowait, packet),
                PART_EXECUTE: partial(
                    prepared.hal.execute_1_3,
                    request,
                    MeasureTiming.NO,
                    None,
                    None,
                    _Unheard(),
                ),
                PART_RESULT: lambda: result.decode(carry(result.encode())),
            }


@contextlib.contextmanager
def _both_ends() -> Iterator[tuple[MessageQueue, MessageQueue]]:
    with (
        MessageQueue.create(DATUM_BYTES, DEFAULT_QUEUE_LENGTH) as writer,
        MessageQueue.open(writer.descriptor) as reader,
    ):
        yield writer, reader


class _Unheard(IExecutionCallback):
    """Takes results, early ones too, and does nothing with them."""

    takes_early_results = True

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        pass
