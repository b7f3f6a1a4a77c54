"""What client processes get of a driver's lane when all of them want all of it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest

from asyncnn import Device, connect
from asyncnn.hal.types import ErrorStatus
from asyncnn.service.process import driver_process

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]
Flooding: TypeAlias = "subprocess.Popen[bytes]"
WINDOW_S = 0.6
ATTEMPTS = 8


@contextmanager
def flooding(path: Path, connections: int, priority: str) -> Iterator[Flooding]:
    """Run a client process that soon has executions pending all the time."""
    command = [sys.executable, "-m", "tests.service.clients"]
    command += ["flood", str(path), str(connections), priority]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


async def ended(device: Device, pids: list[int]) -> list[int]:
    """Return how many executions of each of these processes have succeeded."""
    statistics = await device.statistics()
    of = {client.name: client.executions.done for client in statistics.clients}
    return [of[f"pid {pid}"][ErrorStatus.NONE] for pid in pids]


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, "HIGH"), (1, "MEDIUM")), ((8, "HIGH"), (1, "LOW"))],
    ids=["priorities", "connections"],
)
async def test_two_that_flood_get_half_of_the_lane_each(
    one: tuple[int, str], other: tuple[int, str]
) -> None:
    """Their executions are of one kind: what is counted is lane time.

    A busy machine takes now one and now the other off its CPUs; no luck makes a lane
    fair that is not.
    """
    with ExitStack() as stack:
        path = stack.enter_context(driver_process()).path
        both = [stack.enter_context(flooding(path, *each)) for each in (one, other)]
        for process in both:
            assert process.stdout is not None
            assert process.stdout.readline() == b"pending\n"
        pids = [process.pid for process in both]
        async with connect(path) as device:
            shares: list[float] = []
            before = await ended(device, pids)
            while len(shares) < ATTEMPTS:
                await asyncio.sleep(WINDOW_S)
                after = await ended(device, pids)
                had, total = after[0] - before[0], sum(after) - sum(before)
                shares.append(had / max(total, 1))
                if 0.45 <= shares[-1] <= 0.55 and total >= 50:
                    return
                before = after
    pytest.fail(f"of the lane, the first had {shares}")
