"""Kills a node of a cluster in the middle of runs, and tells how each of them ended.

python node_death.py [RUNS]

The cluster is one of this machine: a head, and two nodes with a replica each. Another
node comes for the one that is killed, as an autoscaler would have it.
"""

import asyncio
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections import Counter
from pathlib import Path
from typing import Any

import asyncnn
import numpy as np
from asyncnn.cluster import ClusterSettings
from asyncnn.tools.demo import encode, load_digits_test, model_path
from ray.cluster_utils import Cluster

PER_S = 250
NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


class Load:
    """Runs of one model on one input, each of which has to end once, and right."""

    def __init__(self, prepared: Any, x: Any, expected: Any) -> None:
        self.prepared = prepared
        self.x = x
        self.expected = expected
        self.statuses = Counter[str]()
        self.ended: list[tuple[float, float]] = []

    async def run(self) -> None:
        """Run it once, with a deadline."""
        begun = time.monotonic()
        try:
            found = await self.prepared.run([self.x], timeout=5)
        except asyncnn.AsyncnnError as error:
            self.statuses[error.status.name] += 1
            return
        assert np.array_equal(found[0], self.expected)
        self.statuses["NONE"] += 1
        self.ended.append((begun, time.monotonic() - begun))

    def p99(self, begin: float, end: float) -> str:
        """Return the 99th percentile of what runs took that were begun between."""
        taken = [took for at, took in self.ended if begin <= at < end]
        return f"{np.percentile(taken or [np.nan], 99) * 1e3:.1f} ms"


async def count(device: asyncnn.Device) -> int:
    """Return how many replicas are there."""
    hal: Any = device.hal
    try:
        return len(await hal.replica_statistics())
    except asyncnn.AsyncnnError:  # one of them is just lost
        return 1


async def until(device: asyncnn.Device, wanted: int) -> None:
    """Wait for so many replicas to be there."""
    while await count(device) != wanted:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)


async def replace(
    device: asyncnn.Device, nodes: Any, node: Any
) -> tuple[float, Process]:
    """Kill a node, start another one, and return when all replicas are there."""
    await asyncio.to_thread(nodes.remove_node, node, allow_graceful=False)
    await until(device, 1)
    ray = Path(sys.executable).with_name("ray")
    join = "start", f"--address={nodes.address}", "--num-cpus=1", "--block"
    new = await asyncio.create_subprocess_exec(
        ray, *join, stdout=DEVNULL, stderr=DEVNULL
    )
    await until(device, 2)
    return time.monotonic(), new


async def main(runs: int = 10_000) -> None:
    """Run them at a steady rate, and print what became of them."""
    nodes = Cluster(initialize_head=True, head_node_args={**NODE, "num_cpus": 0})
    node, _ = (nodes.add_node(**NODE) for _ in range(2))
    settings = ClusterSettings(replicas=2)
    opening = asyncnn.open_device(f"ray://{nodes.address}", replicas=settings)
    async with opening as device:
        prepared = await device.prepare(await asyncnn.load_model(model_path("float")))
        x = encode(load_digits_test()[0][:1], prepared.inputs[0])[0]
        load = Load(prepared, x, (await prepared.run([x]))[0])
        begin = time.monotonic()
        async with asyncio.TaskGroup() as running:
            for number in range(runs):
                if number == runs // 2:
                    killed = time.monotonic()
                    replacing = running.create_task(replace(device, nodes, node))
                left_s = begin + number / PER_S - time.monotonic()
                await asyncio.sleep(max(0, left_s))
                running.create_task(load.run())
        back, new = replacing.result()
        while time.monotonic() < back + 4:
            await load.run()
    print(f"{sum(load.statuses.values()):,} runs: {dict(load.statuses)}")
    print(f"all replicas were back after {back - killed:.1f} s")
    print(f"p99 before: {load.p99(begin, killed)}")
    print(f"p99 while one was away: {load.p99(killed, back)}")
    print(f"p99 within 2 s after: {load.p99(back, back + 2)}")
    print(f"p99 later: {load.p99(back + 2, back + 4)}")
    new.terminate()
    await new.wait()
    nodes.shutdown()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
