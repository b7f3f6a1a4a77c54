"""A client process that keeps several bursts busy and counts what it got."""

import asyncio
import contextlib
import json
import sys
import time

import numpy as np

from asyncnn.runtime.burst import Burst
from asyncnn.runtime.opening_devices import connect
from tests.networks import addition

Y = np.arange(4, dtype=np.float32)


async def use(burst: Burst, number: int, until: float) -> tuple[int, int]:
    """Run until ``until`` of the steady clock; count the runs, and the right ones.

    Once at least: a busy machine may let it begin behind that.
    """
    count = right = 0
    while not count or time.monotonic() < until:
        x = number + count % 1000
        burst.input("x")[...] = x
        outputs = await burst.run_in_place()
        right += bool((outputs["z"] == Y + x).all())
        count += 1
    assert burst.statistics().fallbacks == 0
    return count, right


async def main(path: str, first: int, count: int) -> None:
    """Say ready, take the number of seconds, and print what `use` counted as JSON."""
    async with connect(path) as device, contextlib.AsyncExitStack() as stack:
        prepared = await device.prepare(addition(4))
        bursts = [
            await stack.enter_async_context(prepared.burst()) for _ in range(count)
        ]
        for burst in bursts:
            await burst.run([Y, Y])
        print("ready", flush=True)  # noqa: T201
        until = time.monotonic() + float(sys.stdin.readline())
        uses = [use(burst, first + k, until) for k, burst in enumerate(bursts)]
        print(json.dumps(await asyncio.gather(*uses)))  # noqa: T201


if __name__ == "__main__":
    place, start, bursts_ = sys.argv[1:]
    asyncio.run(main(place, int(start), int(bursts_)))
