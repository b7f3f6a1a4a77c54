"""What runs in an actor: an ordinary device, and the models prepared on it.

`ReplicaHost` is a plain class, of which Ray makes an actor; all its calls are
coroutines of the actor's event loop. A client numbers its calls, and cancels them by
number, maybe before they have come here.
"""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar, cast

import numpy as np
from msgspec.structs import replace

from asyncnn.callbacks import ExecutionResult, launched, launched_preparation
from asyncnn.cluster.exchange import (
    Answer,
    PackedModel,
    RunOrder,
    Sent,
    answer_of,
    unpacked,
)
from asyncnn.cluster.streams import StreamPort
from asyncnn.devices import OWN_PROCESS, DeviceStatistics, IMeasured
from asyncnn.devices.own_devices import default_device
from asyncnn.execution import binding_of
from asyncnn.hal.errors import GeneralFailureError, failure_of
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.operands import dtype_of
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.refusals import DeviceFacts, PrepareArguments
from asyncnn.hal.types import NO_TIMING, ErrorStatus, ExecutionPreference, Priority
from asyncnn.runtime.framework.device_registry import opener_of

_T = TypeVar("_T")

LANE_NICE = 4
"""Ray starts actors with a nice value of 15, and 19 is the most."""

_REMEMBERED = 4096
"""Cancelled calls that may still come, as many as can be under way."""

CANCELLED = Answer(ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, "the run was cancelled")
NOT_HERE = Answer(
    ErrorStatus.DEVICE_UNAVAILABLE, "the model is not prepared here", begun=False
)


class _Hosted:
    """A prepared model, and what its whole arrays for outputs are like."""

    def __init__(self, prepared: IPreparedModel, asked: PrepareArguments) -> None:
        main = asked.model.main
        operands = [main.operands[index] for index in main.output_indexes]
        self.prepared = prepared
        self._binding = binding_of(prepared)
        self._made = [(each.dimensions, dtype_of(each.type)) for each in operands]

    def launch(
        self, order: RunOrder, inputs: Sent
    ) -> tuple[Awaitable[ExecutionResult], Sequence[Array]]:
        """Launch an order; return its end, and where its outputs will be."""
        binding, outputs = self._binding, []
        if order.space is None:
            outputs = [np.empty(shape, dtype) for shape, dtype in self._made]
            if binding is not None:
                tensors = (*inputs, *outputs)
                end = binding.launch_on(tensors, order.options, False)
                if end is not None:
                    return end, outputs
            order = order.spread(inputs, outputs)
        request, outputs = order.request(inputs)
        if binding is not None:
            return binding.launch(request, order.options), outputs
        return launched(self.prepared, request, order.options), outputs


class ReplicaHost:
    """Hosts the device of a name; an empty one is what `open_device` opens by default.

    What cannot be computed is an `Answer` with its status: no call of a model raises.
    """

    def __init__(self, device: str = "", lane_nice: int = LANE_NICE) -> None:
        self._name = device
        self._lane_nice = lane_nice
        self._stack = AsyncExitStack()
        self._device: IDevice | None = None
        self._opening = asyncio.Lock()
        self._models: dict[int, _Hosted] = {}
        self._tasks: dict[int, asyncio.Task[object]] = {}
        self._cancelled: dict[int, bool] = {}
        self._listening = StreamPort(self)

    async def open(self) -> DeviceFacts:
        """Open the device, once, and say what it is.

        :raises AsyncnnError: if it cannot be opened.
        """
        async with self._opening:
            if self._device is None:
                settings = replace(OWN_PROCESS, lane_nice=self._lane_nice)
                opened = opener_of(self._name)(settings) if self._name else None
                context = opened or default_device(settings)
                self._device = await self._stack.enter_async_context(context)
        return DeviceFacts.of(self._device)

    async def listen(self, address: str) -> tuple[int, bytes]:
        """Have runs come by streams as well; return the port, and the token for it.

        :raises OSError: if the address cannot be had.
        """
        return await self._listening.open(address)

    async def clock(self) -> int:
        """Return the time of the steady clock here, in nanoseconds."""
        return time.monotonic_ns()

    async def statistics(self) -> DeviceStatistics:
        """Return what the device has done; see `IMeasured`.

        :raises GeneralFailureError: if it keeps no statistics.
        """
        device = cast("object", self._device)
        if not isinstance(device, IMeasured):
            raise GeneralFailureError("the device keeps no statistics")
        return await device.get_statistics()

    async def supported(
        self, sent: PackedModel
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return which operations would run; see `IDevice`."""
        await self.open()
        assert self._device is not None
        return await self._device.get_supported_operations_1_3(unpacked(sent))

    async def prepare(
        self,
        key: int,
        number: int,
        sent: PackedModel,
        how: tuple[int, int],
        deadline: int | None,
    ) -> Answer:
        """Prepare a model as ``key``, for a preference and a priority: ``how``."""
        await self.open()
        assert self._device is not None
        asked_for = ExecutionPreference(how[0]), Priority(how[1]), deadline
        asked = PrepareArguments(unpacked(sent), *asked_for)
        if self._cancelled.pop(number, False):
            return CANCELLED
        try:
            end = launched_preparation(self._device, asked)
            prepared = await self._cancellable(number, end)
        except Exception as error:
            return _failed(error)
        if prepared is None:
            return CANCELLED
        self._models[key] = _Hosted(prepared, asked)
        return Answer(ErrorStatus.NONE)

    async def run(self, order: RunOrder, inputs: Sent) -> Answer:
        """Run an order; its inputs are read where they are."""
        hosted = self._models.get(order.key)
        if hosted is None:
            return NOT_HERE
        if self._cancelled.pop(order.number, False):
            return CANCELLED
        try:
            end, outputs = hosted.launch(order, inputs)
            result = await self._cancellable(order.number, end)
        except Exception as error:
            return _failed(error)
        return CANCELLED if result is None else answer_of(result, outputs)

    async def cancel(self, number: int) -> None:
        """Do what `stop` does, for a client without a stream."""
        self.stop(number)

    def stop(self, number: int) -> None:
        """Stop a call at its next boundary, or before it begins."""
        task = self._tasks.get(number)
        if task is None:
            self._cancelled[number] = True
            if len(self._cancelled) > _REMEMBERED:
                del self._cancelled[next(iter(self._cancelled))]
        else:
            task.cancel()

    async def release(self, key: int) -> None:
        """Forget a model, once what it runs has ended."""
        self._models.pop(key, None)

    async def close(self) -> None:
        """Close the device; what it runs comes to a boundary first."""
        self._listening.close()
        self._models.clear()
        await self._stack.aclose()

    async def _cancellable(self, number: int, end: Awaitable[_T]) -> _T | None:
        """Wait for an end; None if the call is cancelled by its number."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks[number] = task
        try:
            return await end
        except asyncio.CancelledError:
            task.uncancel()
            return None
        finally:
            del self._tasks[number]


def _failed(error: Exception) -> Answer:
    failure = failure_of(error)
    shapes = getattr(failure, "output_shapes", ())
    return answer_of(ExecutionResult(failure.status, shapes, NO_TIMING, str(failure)))
