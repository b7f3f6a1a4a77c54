"""Fences between processes, and what becomes of them if one dies."""

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path

import pytest

from asyncnn.fences import FenceState, SyncFence
from asyncnn.hal.errors import AsyncnnError, DeviceUnavailableError
from asyncnn.hal.types import ErrorStatus
from tests.fences.peer import MOST_BYTES, wait_for
from tests.measuring import best_of

ROOT = Path(__file__).parents[2]
SOON_NS = 50_000_000


class Peer:
    """Another process; see `tests.fences.peer`."""

    def __init__(self, process: "subprocess.Popen[bytes]", end: socket.socket) -> None:
        self.process = process
        self.end = end

    def tell(self, word: bytes, *fences: SyncFence) -> None:
        socket.send_fds(self.end, [word], [fence.fileno() for fence in fences])

    def hear(self) -> bytes:
        return self.end.recv(MOST_BYTES)

    def fence(self) -> SyncFence:
        """Return the fence that the process owns."""
        self.tell(b"own")
        _, fds, _, _ = socket.recv_fds(self.end, MOST_BYTES, 1)
        fence = SyncFence.from_fd(fds[0])
        os.close(fds[0])
        return fence

    def waits_for(self, fence: SyncFence) -> None:
        self.tell(b"wait", fence)
        assert self.hear() == b"waiting"

    def report(self) -> tuple[ErrorStatus, int, int | None]:
        """Return how its wait ended, when, and when the fence was signalled."""
        status, heard_ns, at_ns = json.loads(self.hear())
        return ErrorStatus(status), heard_ns, at_ns

    def kill(self) -> int:
        """Return the time of the blow."""
        at_ns = time.monotonic_ns()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        return at_ns


@contextmanager
def peer() -> Iterator[Peer]:
    mine, yours = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    mine.settimeout(30)
    command = [sys.executable, "-m", "tests.fences.peer", str(yours.fileno())]
    with (
        mine,
        yours,
        subprocess.Popen(command, pass_fds=[yours.fileno()], cwd=ROOT) as process,
    ):
        yours.close()
        assert mine.recv(MOST_BYTES) == b"ready"
        try:
            yield Peer(process, mine)
        finally:
            mine.close()
            process.kill()


@pytest.fixture
def owner() -> Iterator[Peer]:
    with peer() as process:
        yield process


@pytest.fixture
def waiter() -> Iterator[Peer]:
    with peer() as process:
        yield process


@pytest.mark.parametrize(
    ("word", "status"),
    [(b"signal", ErrorStatus.NONE), (b"fail", ErrorStatus.MISSED_DEADLINE_TRANSIENT)],
)
async def test_processes_learn_of_the_end_and_of_its_time(
    owner: Peer, waiter: Peer, word: bytes, status: ErrorStatus
) -> None:
    fence = owner.fence()
    waiter.waits_for(fence)
    before = time.monotonic_ns()
    owner.tell(word)
    await asyncio.wait([ended := asyncio.create_task(end_of(fence))])
    assert ended.result()[0] is fence.status is status
    reported, _, at_ns = waiter.report()
    assert reported is status
    assert at_ns is not None
    assert before < at_ns == fence.signalled_at_ns


async def end_of(fence: SyncFence) -> tuple[ErrorStatus, int]:
    try:
        await fence.wait(30)
    except AsyncnnError as error:
        return error.status, time.monotonic_ns()
    return ErrorStatus.NONE, time.monotonic_ns()


@pytest.mark.alone
@pytest.mark.parametrize("forks", [False, True], ids=["alone", "leaving a child"])
async def test_every_waiter_learns_at_once_that_the_owner_was_killed(
    forks: bool,
) -> None:
    """Tasks, a thread and processes; a child of the owner may live on."""

    async def latency_ns() -> float:
        with ExitStack() as stack:
            owner, *waiters = [stack.enter_context(peer()) for _ in range(3)]
            fence = owner.fence()
            if forks:
                owner.tell(b"fork")
                assert owner.hear() == b"forked"
            for waiter in waiters:
                waiter.waits_for(fence)
            tasks = [asyncio.create_task(end_of(fence)) for _ in range(3)]
            in_thread: list[int] = []
            thread = threading.Thread(target=block, args=(fence, in_thread))
            thread.start()
            await asyncio.sleep(0.01)
            killed_ns = owner.kill()
            ends = await asyncio.gather(*tasks)
            thread.join()
            ends += [waiter.report()[:2] for waiter in waiters]
        assert {status for status, _ in ends} == {ErrorStatus.DEVICE_UNAVAILABLE}
        return max(*(heard_ns for _, heard_ns in ends), in_thread[0]) - killed_ns

    await best_of(3, latency_ns, SOON_NS)


def block(fence: SyncFence, heard: list[int]) -> None:
    with pytest.raises(DeviceUnavailableError, match="owner"):
        fence.wait_blocking(30)
    heard.append(time.monotonic_ns())


async def test_a_killed_waiter_is_nobodys_concern(waiter: Peer) -> None:
    fence, source = SyncFence.pair()
    waiter.waits_for(fence)
    waiter.kill()
    source.signal()
    await fence


@pytest.fixture(scope="module")
def _tracker() -> None:
    """Started before descriptors are counted, as it goes with this process only."""
    resource_tracker.ensure_running()


@pytest.mark.usefixtures("_tracker")
def test_multiprocessing_passes_fences_on() -> None:
    context = multiprocessing.get_context("spawn")
    fence, source = SyncFence.pair()
    mine, yours = context.Pipe()
    process = context.Process(target=wait_for, args=(fence, yours))
    process.start()
    assert mine.poll(30)
    assert mine.recv() is FenceState.ACTIVE
    source.signal()
    assert mine.recv() is FenceState.SIGNALLED
    process.join()
    process.close()
    mine.close()
    yours.close()
