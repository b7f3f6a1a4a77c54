"""What ``asyncnn bench accelerated`` measures of what surrounds a run.

That is a framework: a model that needs no partition, and the same in two partitions,
both beside the device alone, which computes all of it in every case. Then a loop that
has other work, and a process that has just started.
"""

import asyncio
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import FrameworkSettings
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.runtime.opening_devices import connect
from asyncnn.tools.bench.accelerated_contenders import (
    ACCELERATED,
    AWAITED,
    DEVICE,
    EXECUTOR,
    Measured,
    Refusals,
    opened,
    rounds_of,
)
from asyncnn.tools.bench.litert import LITERT, in_executor
from asyncnn.tools.bench.measured_models import Candidate
from asyncnn.tools.bench.report import noted
from asyncnn.tools.bench.rounds import measure, rotated, timed_await
from asyncnn.tools.other_runtimes import LiteRt

WHOLE, HALVES = "whole", "halves"
CONNECTED, SECONDS = "connected", "a second"

_PIECE_NS = 90_000


class _Half:
    """The device ``hal``, but that it supports one half of each model's operations."""

    def __init__(self, hal: IDevice, *, is_later: bool) -> None:
        self._hal = hal
        self._is_later = is_later

    def __getattr__(self, name: str) -> Any:
        return getattr(self._hal, name)

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return the device's answer, but no for the operations of the other half."""
        status, supports = await self._hal.get_supported_operations_1_3(model)
        middle = len(supports) // 2
        return status, tuple(
            can and (position >= middle) is self._is_later
            for position, can in enumerate(supports)
        )


@asynccontextmanager
async def _framework(*devices: Any) -> AsyncIterator[Device]:
    given = [OpenDevice(f"device-{k}", each) for k, each in enumerate(devices)]
    settings = FrameworkSettings(moving_weight=0)
    async with open_framework(OWN_PROCESS, devices=given, framework=settings) as hal:
        yield Device("framework", hal)


async def measure_framework(candidate: Candidate, rounds: int) -> Measured:
    """Measure a model on the device, through a framework, and in two partitions."""
    refusals: Refusals = {}
    inputs = candidate.inputs
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(opened())
        prepared = await device.prepare(candidate.named)
        whole = await stack.enter_async_context(_framework(device.hal))
        through = await whole.prepare(candidate.named)
        batches = [
            timed_await(AWAITED, lambda: prepared.run(inputs)),
            timed_await(WHOLE, lambda: through.run(inputs)),
        ]
        halves = (_Half(device.hal, is_later=later) for later in (False, True))
        parted = await stack.enter_async_context(_framework(*halves))
        with noted(refusals, HALVES):
            divided = await parted.prepare(candidate.named)
            batches.append(timed_await(HALVES, lambda: divided.run(inputs)))
        return rounds_of(await measure(batches, rounds=rounds)), refusals


async def measure_beside(candidate: Candidate, rounds: int) -> Measured:
    """Measure runs of the device and of an executor while the loop has other work."""
    refusals: Refusals = {}
    inputs = candidate.inputs

    async def busy() -> None:
        while True:
            until_ns = time.perf_counter_ns() + _PIECE_NS
            while time.perf_counter_ns() < until_ns:
                pass
            await asyncio.sleep(0)

    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(opened())
        prepared = await device.prepare(candidate.named)
        batches = [timed_await(AWAITED, lambda: prepared.run(inputs))]
        with noted(refusals, EXECUTOR):
            entered = in_executor(LiteRt(candidate.file), inputs)
            run = await stack.enter_async_context(entered)
            batches.append(timed_await(EXECUTOR, run))
        task = asyncio.create_task(busy())
        stack.callback(task.cancel)
        return rounds_of(await measure(batches, rounds=rounds)), refusals


_FIRST_RESULTS = {
    DEVICE: """
import asyncio, sys, asyncnn, numpy as np
async def main():
    async with asyncnn.open_device("accelerated") as device:
        model = await device.prepare(asyncnn.load(sys.argv[1]))
        await model.run([np.zeros(i.dimensions, i.dtype) for i in model.inputs])
asyncio.run(main())
""",
    LITERT: """
import sys
from ai_edge_litert.interpreter import Interpreter
model = Interpreter(sys.argv[1])
model.allocate_tensors()
model.invoke()
""",
}


async def measure_starting(candidate: Candidate, rounds: int) -> Measured:
    """Measure processes that end with their first result, and a driver's first one."""
    results: defaultdict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        for name, program in rotated(list(_FIRST_RESULTS.items()), number):
            started = time.perf_counter()
            command = sys.executable, "-c", program, str(candidate.file)
            started_process = await asyncio.create_subprocess_exec(
                *command, stderr=subprocess.DEVNULL
            )
            if await started_process.wait():
                raise GeneralFailureError(f"{name} does not start")
            results[name].append((time.perf_counter() - started) * 1000)
        started = time.perf_counter()
        async with connect(device=ACCELERATED) as device:
            prepared = await device.prepare(candidate.named)
            await prepared.run(candidate.inputs)
            results[CONNECTED].append((time.perf_counter() - started) * 1000)
        results[SECONDS].append(1000.0)
    return {name: tuple(each) for name, each in results.items()}, {}
