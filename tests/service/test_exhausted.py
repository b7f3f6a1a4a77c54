"""Driver processes that run out of what the system gives them."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncnn.hal.errors import NoDriverError
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.shared import allocate
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import wire
from asyncnn.service.process import DriverProcess
from tests.limits import lowered
from tests.networks import addition, chain
from tests.service.conftest import is_served
from tests.service.limited import limited_driver
from tests.service.raw import RawClient, execute, ping, prepare
from tests.waits import until

EXHAUSTED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
SUM = addition(4).model
PLACES = ((0, 0, 16), (0, 16, 16), (0, 32, 16))


def descriptors_of(driver: DriverProcess) -> int:
    return len(os.listdir(f"/proc/{driver.pid}/fd"))


def unsealed_file() -> int:
    """Return a file that a driver keeps the descriptor of, as it cannot map it."""
    fd = os.memfd_create("unsealed")
    os.truncate(fd, 4096)
    return fd


async def takes_all(client: RawClient, fd: int) -> wire.Executed:
    """Announce pools until one is refused; return how its execution ends."""
    await client.greet()
    assert (await client.prepare(1, SUM)).status == ErrorStatus.NONE
    for first in range(10, 2000, 16):
        infos = [wire.PoolInfo(first + n, "ashmem", 4096, (), 1) for n in range(16)]
        client.send(wire.AnnouncePools(tuple(infos)), [fd] * 16)
        last = first + 15
        answer = await client.execute(execute(first, 1, *PLACES, pools=(last,)))
        if answer.status != ErrorStatus.NONE:
            return answer
    raise AssertionError("the driver takes everything")


@pytest.fixture
def unsealed() -> Iterator[int]:
    fd = unsealed_file()
    yield fd
    os.close(fd)


@pytest.mark.parametrize("limit", [256, 1024])
async def test_one_that_takes_every_descriptor_leaves_others_theirs(
    tmp_path: Path, limit: int, unsealed: int
) -> None:
    with limited_driver(tmp_path, f"-n {limit}") as driver:
        async with connect(driver.path) as device:
            model = await device.prepare(addition(4))
            x = np.arange(4, dtype=np.float32)
            await model.run({"x": x, "y": x})
            before = descriptors_of(driver)
            greedy = [RawClient.of_another_process(driver.path) for _ in range(3)]
            for client in greedy:
                answer = await takes_all(client, unsealed)
                assert answer.status == EXHAUSTED
                assert "ulimit -n" in answer.reason or "max_" in answer.reason
                assert await is_served(driver.path)
            await model.run({"x": x, "y": x})
            assert descriptors_of(driver) < limit
            for client in greedy:
                client.close()
            await until(lambda: descriptors_of(driver) <= before)
            late = RawClient.of_another_process(driver.path)
            await takes_all(late, unsealed)  # as many as the first one had
            late.close()


async def test_a_client_without_a_descriptor_gets_the_reason(tmp_path: Path) -> None:
    with limited_driver(tmp_path, "-n 64") as driver:
        clients: list[RawClient] = []
        welcome: object = None
        while not isinstance(welcome, wire.Refused):
            client = RawClient.connect(driver.path)
            clients.append(client)
            client.send(wire.Hello(wire.PROTOCOL_VERSION))
            welcome = await client.receive()
        assert "ulimit -n" in welcome.reason
        clients.pop().close()
        with pytest.raises(NoDriverError, match=r"no descriptor left.*ulimit -n"):
            async with connect(driver.path):
                pass
        assert len(clients) > 10
        # Whoever is there goes on, even with what needs a descriptor for a moment.
        client = clients[0]
        assert (await client.prepare(1, chain(1000, 4).model)).status == 0
        client.send(wire.GetSupportedOperations(2, chain(30_000, 4).model, ()))
        answer = await client.receive()
        assert isinstance(answer, wire.SupportedOperations)
        assert answer.status == ErrorStatus.NONE
        fd = unsealed_file()
        client.announce_fd(7, fd, 4096)
        os.close(fd)
        answer = await client.execute(
            execute(1, 1, (0, 0, 16), (0, 16, 16), pools=(7,))
        )
        assert answer.status == EXHAUSTED
        assert "ulimit -n" in answer.reason
        for each in clients[1:]:
            each.close()
        await until(lambda: descriptors_of(driver) < 40)
        assert await is_served(driver.path)
        client.close()


def virtual_bytes_of(driver: DriverProcess) -> int:
    pages = Path(f"/proc/{driver.pid}/statm").read_text().split()[0]
    return int(pages) * resource.getpagesize()


async def test_memory_that_has_run_out_fails_calls_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")  # others have room set aside
    with limited_driver(tmp_path) as driver:
        assert await is_served(driver.path)
        client = await RawClient.connect(driver.path).greet()
        assert (await client.prepare(1, SUM)).status == ErrorStatus.NONE
        large = msgspec.structs.replace(SUM, operand_values=bytes(40 * 2**20))
        pool = allocate(64 * 2**20)
        most = virtual_bytes_of(driver) + 24 * 2**20
        with lowered(driver, resource.RLIMIT_AS, most):
            client.announce(2, pool)
            request = execute(1, 1, *PLACES, pools=(2,))
            answer = await client.execute(request)
            assert answer.status == EXHAUSTED
            assert "memory" in answer.reason
            client.send(prepare(3, large))
            answer = await client.receive()
            assert isinstance(answer, wire.Prepared)
            assert answer.status == EXHAUSTED
            client.send(wire.GetSupportedOperations(4, large, ()))
            assert await client.receive() == wire.SupportedOperations(4, EXHAUSTED, ())
            client.send(ping(5))
            assert await client.receive() == wire.SupportedOperations(5, 0, (True,))
            assert await is_served(driver.path)
        client.send(wire.ForgetPools((2,)))
        client.announce(2, pool)
        answer = await client.execute(request)
        assert answer.status == ErrorStatus.NONE
        client.close()


async def test_files_that_have_no_room_fail_calls_and_come_back(tmp_path: Path) -> None:
    """Memory files have no limit of their own but this one."""
    with limited_driver(tmp_path) as driver:
        client = await RawClient.connect(driver.path).greet()
        model = chain(30_000, 4).model
        client.send(wire.GetSupportedOperations(1, model, ()))
        await client.receive()
        with lowered(driver, resource.RLIMIT_FSIZE, 0):
            client.send(wire.GetSupportedOperations(2, model, ()))
            assert await client.receive() == wire.SupportedOperations(2, EXHAUSTED, ())
            assert await is_served(driver.path)
        client.send(wire.GetSupportedOperations(3, model, ()))
        answer = await client.receive()
        assert answer == wire.SupportedOperations(3, 0, (True,) * 30_000)
        client.close()


async def test_threads_that_have_run_out_fail_calls_and_come_back(
    tmp_path: Path,
) -> None:
    """Limits of processes do not hold for root, so they are feigned."""
    full = tmp_path / "full"
    before = (
        "import os, threading\n"
        "start = threading.Thread.start\n"
        "def limited(thread):\n"
        f"    if os.path.exists({str(full)!r}):\n"
        '        raise RuntimeError("can\'t start new thread")\n'
        "    start(thread)\n"
        "threading.Thread.start = limited\n"
    )
    model = chain(1000, 4).model
    with limited_driver(tmp_path, before=before) as driver:
        assert await is_served(driver.path)
        client = await RawClient.connect(driver.path).greet()
        full.touch()
        answer = await client.prepare(1, model)
        assert answer.status == EXHAUSTED
        assert "thread" in answer.reason
        async with connect(driver.path):
            pass
        full.unlink()
        assert (await client.prepare(1, model)).status == ErrorStatus.NONE
        assert await is_served(driver.path)
        client.close()
