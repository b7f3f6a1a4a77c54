"""This project as a system under test: its devices, transports and paths."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from statistics import median
from typing import cast, get_args

import msgspec
import numpy as np

from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.own_devices import OWN_DEVICES, own_device, usual_device_name
from asyncnn.extensions import Extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.axes import as_options, example_shapes
from asyncnn.runtime.burst import Burst
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import Path as HalPath
from asyncnn.runtime.model import NamedModel, has_fixed_shape
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service.process import running_driver
from asyncnn.tools.loadgen import Scenario
from asyncnn.tools.loadgen.library import Library
from asyncnn.tools.loadgen.systems import (
    AwaitExecute,
    BlockingSystem,
    Execute,
    LoopSystem,
    SampleSlot,
    System,
    ThreadsafeSystem,
    slots_of,
)

IN_PROCESS, REMOTE = "inprocess", "remote"
TRANSPORTS = IN_PROCESS, REMOTE
THREADSAFE, BURST = "threadsafe", "burst"
PATHS = (THREADSAFE, *get_args(HalPath), BURST)
"""How queries reach the device: launched by LoadGen's thread, or by a HAL call."""

_TRIED = 8


class QueryWay(msgspec.Struct, frozen=True):
    """A transport and a path, by which as many executions go as there are ``lanes``.

    ``by_loop``, bursts are awaited in every scenario.
    """

    transport: str = IN_PROCESS
    path: str = THREADSAFE
    lanes: int = 2
    by_loop: bool = False

    def __str__(self) -> str:
        return f"{self.transport}, {self.path}"


@asynccontextmanager
async def opened(
    device: str | None,
    transport: str,
    extensions: Sequence[Extension] = (),
    places: Sequence[str] = (),
) -> AsyncIterator[Device]:
    """Open a device in this process, or in a driver process for as long.

    It has ``extensions``, which a driver process imports from ``places``.

    :raises AsyncnnError: if there is no such device, or it cannot be opened.
    """
    device = device or await usual_device_name()
    if transport == IN_PROCESS:
        opening = open_device(device, settings=OWN_PROCESS, extensions=extensions)
        async with opening as own:
            yield own
        return
    if own_device(device) is None:
        raise InvalidArgumentError(
            f"a driver process does not serve {device}",
            hint=f"use {' or '.join(OWN_DEVICES)}, or --transport inprocess",
        )
    async with (
        running_driver(device=device, extensions=places) as driver,
        connect(driver.path) as remote,
    ):
        yield remote


def check_model(model: NamedModel) -> None:
    """Check that LoadGen's queries can be executed on arrays that are made once.

    :raises InvalidArgumentError: if the model leaves shapes open.
    """
    for info in (*model.inputs, *model.outputs):
        if not has_fixed_shape(info):
            shapes = {
                each.name: [
                    n or name
                    for n, name in zip(each.dimensions, each.lengths, strict=True)
                ]
                for each in model.inputs
            }
            options = as_options(example_shapes(shapes))
            raise InvalidArgumentError(
                f"{info.name} has no fixed shape",
                hint=f"give shapes of inputs, such as {options}",
            )


@asynccontextmanager
async def system_of(
    prepared: PreparedModel, library: Library, way: QueryWay, scenario: Scenario
) -> AsyncIterator[System]:
    """Make the system that goes one way; it ends with the block.

    A burst has one execution at a time, so that there are several of them. Where each
    query waits for the one before, LoadGen's own thread executes by burst.
    """
    lanes = way.lanes
    if way.path == THREADSAFE:
        # Twice as many as lanes: each has its next execution before it asks for it.
        yield ThreadsafeSystem(slots_of(prepared.reusable, library, 2 * lanes))
        return
    async with AsyncExitStack() as stack:
        if way.path != BURST:
            make = partial(prepared.reusable, path=cast("HalPath", way.path))
            executes = [_awaited(slot) for slot in slots_of(make, library, 2 * lanes)]
        elif scenario is Scenario.SINGLE_STREAM and not way.by_loop:
            burst = await stack.enter_async_context(prepared.burst())
            # On a thread: then the loop never listens for results.
            await asyncio.to_thread(burst.run_in_place_blocking)
            yield BlockingSystem(_blocking(burst, library))
            return
        else:
            spins = scenario is Scenario.SINGLE_STREAM
            bursts = [
                await stack.enter_async_context(prepared.burst(spins=spins))
                for _ in range(1 if spins else lanes)
            ]
            executes = [_by_burst(burst, library) for burst in bursts]
        system = LoopSystem(executes)
        yield await stack.enter_async_context(system.serving())


def _awaited(slot: SampleSlot) -> AwaitExecute:
    async def execute(number: int) -> Sequence[Array]:
        await slot.executions[number].run()
        return slot.outputs

    return execute


def _placing(
    burst: Burst, library: Library
) -> tuple[Callable[[int], None], list[Array]]:
    """Return what copies a sample into the inputs of a burst, and its outputs."""
    places = [burst.input(k) for k in range(len(library.inputs[0]))]

    def put(number: int) -> None:
        for place, array in zip(places, library.inputs[number], strict=True):
            np.copyto(place, array)

    return put, [burst.output(k) for k in range(library.output_count)]


def _by_burst(burst: Burst, library: Library) -> AwaitExecute:
    put, outputs = _placing(burst, library)

    async def execute(number: int) -> Sequence[Array]:
        put(number)
        await burst.run_in_place()
        return outputs

    return execute


def _blocking(burst: Burst, library: Library) -> Execute:
    put, outputs = _placing(burst, library)

    def execute(number: int) -> Sequence[Array]:
        put(number)
        burst.run_in_place_blocking()
        return outputs

    return execute


async def latency_s(prepared: PreparedModel, library: Library) -> float:
    """Return about how many seconds an execution takes, one after the other."""
    run = prepared.reusable(list(library.inputs[0])).run
    samples = []
    for _ in range(_TRIED):
        started = time.perf_counter()
        await run()
        samples.append(time.perf_counter() - started)
    return median(samples[_TRIED // 2 :])
