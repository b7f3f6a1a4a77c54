"""Many bursts from many processes at once, some of which die.

ASYNCNN_BURST_SECONDS sets for how long. In a short run, what else the machine does
tells on the shares of the processes.
"""

import asyncio
import json
import os
import statistics
import sys
from pathlib import Path

import pytest

from asyncnn.service.process import DriverProcess, driver_process
from tests.waits import until

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
SECONDS = os.environ.get("ASYNCNN_BURST_SECONDS", "3")
CLIENTS, BURSTS = 8, 8
LEAST_SHARE = 0.5 if float(SECONDS) >= 30 else 0.25
"""Of the mean, for the burst that got the least."""


class Client:
    """A process of `clients`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def ready(cls, driver: DriverProcess, number: int) -> "Client":
        """Start one and wait until its bursts are open."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.burst.clients",
            *map(str, (driver.path, 100 * number, BURSTS)),
            cwd=ROOT,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            assert await process.stdout.readline() == b"ready\n"
        return cls(process)

    def go(self, seconds: str = SECONDS) -> None:
        """Have it use its bursts."""
        self.process.stdin.write(seconds.encode() + b"\n")

    async def counts(self) -> list[int]:
        """Wait for the end; return the runs of each burst, which were all right."""
        out, _ = await self.process.communicate()
        assert self.process.returncode == 0
        results = json.loads(out)
        assert all(right == count for count, right in results)
        return [count for count, _ in results]

    async def kill(self) -> None:
        self.process.kill()
        await self.process.communicate()


def queues_of(driver: DriverProcess) -> int:
    """Return how many queues a driver has mapped."""
    maps = Path(f"/proc/{driver.pid}/maps").read_text()
    return maps.count("memfd:asyncnn-queue")


async def until_it_has(driver: DriverProcess, queues: int) -> None:
    await until(lambda: queues_of(driver) == queues)


@pytest.mark.exhaustive
async def test_all_get_their_results_and_their_share() -> None:
    with driver_process() as driver:
        starting = (Client.ready(driver, number) for number in range(CLIENTS))
        clients = await asyncio.gather(*starting)
        for client in clients:
            client.go()
        counts = [n for client in clients for n in await client.counts()]
        assert len(counts) == CLIENTS * BURSTS
        assert min(counts) >= LEAST_SHARE * statistics.mean(counts), sorted(counts)


async def test_killing_a_client_frees_its_queues_and_harms_nobody() -> None:
    with driver_process() as driver:
        survivor, *victims = await asyncio.gather(
            *(Client.ready(driver, number) for number in range(4))
        )
        assert queues_of(driver) == 4 * BURSTS * 2
        for client in (survivor, *victims):
            client.go("1")
        await asyncio.sleep(0.2)
        for left, victim in zip((3, 2, 1), victims, strict=True):
            await victim.kill()
            await until_it_has(driver, left * BURSTS * 2)
        assert min(await survivor.counts()) > 0
        await until_it_has(driver, 0)
