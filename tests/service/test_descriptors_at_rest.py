"""Descriptors of a driver and its client: as many as what is open takes, ever."""

import gc
import os
import resource
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from asyncnn.memory import slabs
from asyncnn.memory.handles import READ_WRITE, MappedSpan, create_file
from asyncnn.memory.pages import map_pages
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service.process import driver_process
from tests.networks import addition
from tests.waits import until

ONE = np.ones(4, np.float32)
MOST_AT_REST = 64
FEW = 256


def descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Beside(NamedTuple):
    """A client, and the process of its driver."""

    driver: subprocess.Popen[bytes]
    device: Device


@pytest.fixture
async def beside(tmp_path: Path) -> AsyncIterator[Beside]:
    path = tmp_path / "driver.sock"
    with driver_process(path) as process:
        async with connect(path) as device:
            yield Beside(process, device)


@pytest.fixture
def few(beside: Beside) -> Iterator[None]:
    """Let neither process have more than a few descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.prlimit(beside.driver.pid, resource.RLIMIT_NOFILE, (FEW, FEW))
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def chains(model: PreparedModel, count: int) -> None:
    """Await chains of twenty runs, each with an output array of its own."""
    for _ in range(count):
        run = model.run_fenced([ONE, ONE])
        for _ in range(19):
            run = model.run_fenced([run.outputs["z"], ONE], wait_for=[run])
        assert ((await run)["z"] == 21).all()


async def test_both_hold_few_at_rest_whatever_has_run(beside: Beside) -> None:
    before = descriptors()
    model = await beside.device.prepare(addition(4))
    for _ in range(300):
        await model.run([ONE, ONE])
        await model.run([shared_array(4), ONE], out=[shared_array(4)])
    await chains(model, 80)
    gc.collect()
    assert descriptors() - before <= MOST_AT_REST
    assert descriptors(beside.driver.pid) <= MOST_AT_REST


@pytest.mark.usefixtures("few")
async def test_chains_with_new_arrays_do_not_use_them_up(beside: Beside) -> None:
    model = await beside.device.prepare(addition(4))
    await chains(model, 40)


@pytest.mark.usefixtures("few")
async def test_nor_do_large_arrays(beside: Beside) -> None:
    model = await beside.device.prepare(addition(2**15))
    x = np.ones(2**15, np.float32)
    for _ in range(2 * FEW):
        outputs = await model.run([x, x], out=[shared_array(2**15)])
    assert (outputs["z"] == 2).all()


@pytest.mark.usefixtures("few")
async def test_more_arrays_may_be_held_than_there_are_descriptors(
    beside: Beside,
) -> None:
    model = await beside.device.prepare(addition(4))
    arrays = [shared_array(4) for _ in range(10 * FEW)]
    for array in arrays[::100]:
        await model.run([ONE, ONE], out=[array])
        assert (array == 2).all()


@pytest.mark.usefixtures("few")
async def test_others_can_connect_meanwhile(beside: Beside, tmp_path: Path) -> None:
    model = await beside.device.prepare(addition(4))
    held = [model.run_fenced([ONE, ONE]) for _ in range(5 * FEW)]
    async with connect(tmp_path / "driver.sock") as other:
        there = await other.prepare(addition(4))
        assert ((await there.run([ONE, ONE]))["z"] == 2).all()
    for run in held:
        await run


async def test_the_driver_lets_go_of_slabs_that_its_client_lets_go_of(
    beside: Beside,
) -> None:
    model = await beside.device.prepare(addition(4))
    await chains(model, 2)

    def mapped() -> int:
        maps = Path(f"/proc/{beside.driver.pid}/maps").read_text()
        return maps.count("asyncnn-slab")

    assert mapped()
    del model
    gc.collect()
    slabs.trim()
    await until(lambda: not mapped())


def test_a_mapping_keeps_no_descriptor() -> None:
    fd = create_file("test")
    os.truncate(fd, 8192)
    os.pwrite(fd, b"here", 4096)
    before = descriptors()
    data = map_pages(MappedSpan(fd, READ_WRITE, 4096, 4096), 0)
    assert descriptors() == before
    os.close(fd)
    assert bytes(data[:4]) == b"here"
