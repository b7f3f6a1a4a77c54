"""A driver within the test's process, watched for what hostile clients leave in it."""

import gc
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server, ServiceLimits
from tests.memory.foreign import leaks, leaks_of_threads, traces
from tests.networks import addition
from tests.service.raw import RawClient
from tests.service.restarting import BRIEFLY, Driver, running
from tests.waits import until

Connect = Callable[[], RawClient]
Ends = tuple[socket.socket, socket.socket]

LIMITS = ServiceLimits(
    max_message_bytes=2**24,
    max_prepared_models=8,
    max_preparing=4,
    max_executions=16,
    max_bound_requests=4,
    max_bursts=3,
    max_buffers=5,
    max_fenced_executions=32,
    max_fence_fds=128,
    max_pools=16,
    max_pool_bytes=2**24,
    max_unread_bytes=2**16,
)


async def is_served(path: Path) -> bool:
    """Return whether an honest client's sum is right."""
    async with connect(path) as device:
        model = await device.prepare(addition(4))
        x = np.arange(4, dtype=np.float32)
        for _ in range(3):
            result = await model.run({"x": x, "y": x})
            if not np.array_equal(result["z"], 2 * x):
                return False
    return True


class Service:
    """A server and where it is."""

    def __init__(self, server: Server, path: Path) -> None:
        self.server = server
        self.path = path

    async def all_have_gone(self) -> None:
        await until(lambda: not self.server.connections)


@asynccontextmanager
async def watched(server: Server, path: Path) -> AsyncIterator[Service]:
    """Check that a driver still serves at the end of the block, and holds no more."""
    service = Service(server, path)
    assert await is_served(path)
    await service.all_have_gone()
    gc.collect()
    before = traces()
    yield service
    assert await is_served(path)
    await service.all_have_gone()
    gc.collect()
    await until(lambda: not leaks(before))  # a thread may be about to end


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A driver that must still serve when the test is over, and hold no more."""
    path = tmp_path / "driver.sock"
    async with (
        ReferenceDevice() as device,
        Server(device, path, limits=LIMITS) as server,
        watched(server, path) as service,
    ):
        yield service


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[Driver]:
    """A driver that comes and goes."""
    async with running(tmp_path / "driver.sock") as driver:
        yield driver


@pytest.fixture
async def device(driver: Driver) -> AsyncIterator[Device]:
    """A client that outlives it."""
    async with connect(driver.path, supervised=BRIEFLY) as device:
        yield device


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A pair of sockets; nothing that a test sends through them may outlive it."""
    before = traces()
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()
    assert not leaks_of_threads(before)


@pytest.fixture
def attach(service: Service) -> Iterator[Connect]:
    """Connects raw clients, which hang up when the test is over."""
    attached: list[RawClient] = []

    def connect_one() -> RawClient:
        client = RawClient.connect(service.path)
        attached.append(client)
        return client

    yield connect_one
    for client in attached:
        client.close()
