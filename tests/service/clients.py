"""Client processes: some to be killed at any moment, some to survive their driver."""

import asyncio
import contextlib
import gc
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from asyncnn import PreparedModel, Priority
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.memory.shared import allocate
from asyncnn.runtime.opening_devices import connect
from tests.memory.foreign import leaks, traces
from tests.networks import chain
from tests.service.raw import RawClient, execute
from tests.waits import until

AT_ONCE = 5
PENDING = 4
DEEP = 32


async def prepare_for_ever(path: str) -> None:
    async with connect(path) as device:
        model = chain(300, 4)
        while True:
            await device.prepare(model)


async def execute_for_ever(path: str) -> None:
    async with connect(path) as device:
        model = await device.prepare(chain(20, 64, 64))
        x = np.zeros((64, 64), np.float32)
        while True:
            await asyncio.gather(*(model.run({"x": x}) for _ in range(8)))


async def hold_pools(path: str) -> None:
    client = await RawClient.connect(Path(path)).greet()
    await client.prepare(1, chain(1, 4).model)
    unsealed = os.memfd_create("unsealed")
    os.truncate(unsealed, 4096)
    for number in range(10, 40):
        client.announce(number, allocate(2**20))
    client.announce_fd(40, unsealed, 4096)
    while True:
        for number in range(10, 41):
            request = execute(number, 1, (0, 0, 16), (0, 16, 16), pools=(number,))
            await client.execute(request)


LIVES = (prepare_for_ever, execute_for_ever, hold_pools)


def be_killed(path: str, count: int, seed: int) -> None:
    """Fork ``count`` clients and kill each of them within the next moments."""
    chance = random.Random(seed)
    for index in range(0, count, AT_ONCE):
        children = [
            _fork(path, LIVES[(index + offset) % len(LIVES)])
            for offset in range(AT_ONCE)
        ]
        time.sleep(chance.random() * 0.25)
        for child in children:
            time.sleep(chance.random() * 0.02)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _fork(path: str, live: object) -> int:
    child = os.fork()
    if not child:
        try:
            asyncio.run(live(path))
        finally:
            os._exit(1)
    return child


def tell(line: str) -> None:
    """Tell the test something."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def survive(path: str, count: int) -> None:
    """Have executions pending on ``count`` connections; tell when each has ended."""
    gc.collect()
    tasks, before = asyncio.all_tasks(), traces()
    ends = await _pending_until_the_end(path, count)
    await until(lambda: not asyncio.all_tasks() - tasks)
    tell(json.dumps({"ends": ends, "left": sorted(leaks(before))}))


async def _pending_until_the_end(path: str, count: int) -> list[float]:
    x = np.zeros((256, 256), np.float32)
    ends: list[float] = []

    async def run(model: object) -> None:
        try:
            while True:
                await model.run({"x": x})
        except DeviceUnavailableError:
            ends.append(time.monotonic())

    async with contextlib.AsyncExitStack() as stack:
        devices = [await stack.enter_async_context(connect(path)) for _ in range(count)]
        models = [await device.prepare(chain(300, 256, 256)) for device in devices]
        runs = [asyncio.create_task(run(m)) for m in models for _ in range(PENDING)]
        await asyncio.sleep(0)
        tell("pending")
        await asyncio.gather(*runs)
    return ends


async def flood(path: str, connections: int, priority: Priority) -> None:
    """Keep executions pending on so many connections; tell when there are some."""
    x = np.zeros((64, 128), np.float32)

    async def repeat(model: PreparedModel) -> None:
        while True:
            await model.run({"x": x})

    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for _ in range(connections):
            device = await stack.enter_async_context(connect(path))
            model = await device.prepare(chain(300, 64, 128), priority=priority)
            for _ in range(DEEP):
                tasks.create_task(repeat(model))
        tell("pending")


if __name__ == "__main__":
    _, role, path, count, *rest = sys.argv
    if role == "be_killed":
        be_killed(path, int(count), int(rest[0]))
    elif role == "flood":
        asyncio.run(flood(path, int(count), Priority[rest[0]]))
    else:
        asyncio.run(survive(path, int(count)))
