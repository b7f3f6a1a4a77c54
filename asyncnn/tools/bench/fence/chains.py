"""Executions in a driver process, one after the other, as contenders of a benchmark."""

from asyncnn.callbacks import ExecutionFuture
from asyncnn.fences import SyncFence
from asyncnn.hal.interfaces import ISyncFence
from asyncnn.hal.types import MeasureTiming, Request
from asyncnn.memory import shared_array
from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.tools.bench.addition import tiny_addition
from asyncnn.tools.bench.fence.waits import Wait

LENGTH = 100

_NO = MeasureTiming.NO


async def fenced_chain(device: Device) -> Wait:
    """Return the wait for the last of `LENGTH` executions that wait for one another."""
    prepared = await device.prepare(tiny_addition())
    request = _ready_request(prepared)

    async def chain() -> None:
        wait_for: tuple[ISyncFence, ...] = ()
        for _ in range(LENGTH):
            _, fence, _ = prepared.hal.execute_fenced(
                request, wait_for, _NO, None, None, None
            )
            wait_for = (fence or SyncFence.signalled(),)
        await wait_for[0]

    return chain


async def awaited_executions(device: Device) -> Wait:
    """Return the wait for `LENGTH` executions, each awaited before the next."""
    prepared = await device.prepare(tiny_addition())
    request = _ready_request(prepared)

    async def executions() -> None:
        for _ in range(LENGTH):
            callback = ExecutionFuture()
            prepared.hal.execute_1_3(request, _NO, None, None, callback)
            await callback

    return executions


def _ready_request(prepared: PreparedModel) -> Request:
    x, y, total = (shared_array(4) for _ in range(3))
    return RequestBuilder(prepared.inputs, prepared.outputs)([x, y], [total])
