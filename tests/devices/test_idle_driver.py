"""What a driver process costs while nobody asks anything of it."""

import asyncio
from pathlib import Path

import pytest

from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service.process import running_driver
from tests.mappings import resident_bytes
from tests.networks import chain

pytestmark = pytest.mark.exhaustive

SIDE = 1024
UNTIL_IDLE_S = 3.0  # a device is idle after two seconds
IDLE_S = 10.0
CPU_NS = 10_000_000


def threads_of(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())


def cpu_ns(pid: int) -> int:
    """Return the processor time of all its threads."""
    stats = [(thread / "schedstat").read_text() for thread in threads_of(pid)]
    return sum(int(stat.split()[0]) for stat in stats)


async def work(prepared: PreparedModel) -> None:
    """Execute by all ways; the pools go with the arrays when this returns."""
    x, *results = (shared_array((SIDE, SIDE)) for _ in range(5))
    for _ in range(3):
        await asyncio.gather(*(prepared.run([x], out=[z]) for z in results))
        await prepared.run_fenced([x], out=results[:1])
    async with prepared.burst() as burst:
        await burst.run([x])


@pytest.mark.started_anew  # one that is forked gets the thread of its BLAS later
async def test_an_idle_driver_process_gives_back_all_that_work_took() -> None:
    async with running_driver() as driver, connect(driver.path) as device:
        threads = len(threads_of(driver.pid))
        prepared = await device.prepare(chain(40, SIDE, SIDE))
        await asyncio.sleep(UNTIL_IDLE_S)
        prepared_bytes = resident_bytes(driver.pid)

        await work(prepared)
        assert len(threads_of(driver.pid)) > threads
        assert resident_bytes(driver.pid) > prepared_bytes

        await asyncio.sleep(UNTIL_IDLE_S)
        before_ns = cpu_ns(driver.pid)
        await asyncio.sleep(IDLE_S)
        assert cpu_ns(driver.pid) - before_ns < CPU_NS
        assert len(threads_of(driver.pid)) == threads
        assert resident_bytes(driver.pid) < 1.05 * prepared_bytes
