"""Arrays that other processes find by name, for as long as their owner is there."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
import pytest

from asyncnn import connect, named_array, open_named_array
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.memory.shared import allocate
from asyncnn.memory.slabs import place_of
from asyncnn.runtime import named_arrays
from asyncnn.service import Server
from asyncnn.service.process import Peer
from tests.forks import in_child
from tests.memory.foreign import leaks, traces
from tests.networks import addition

OWNER = """
import asyncio, sys
import numpy as np
import asyncnn

async def main():
    async with asyncnn.named_array(sys.argv[1], (2, 4)) as array:
        array[:] = [[1, 2, 3, 4], [5, 6, 7, 8]]
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture
def name() -> str:
    return f"test-{os.getpid()}"


@asynccontextmanager
async def owner(name: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Another process that owns an array of that name."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, name, stdin=pipe, stdout=pipe
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class TestOfAnotherProcess:
    async def test_both_work_on_the_same_memory(self, name: str) -> None:
        async with owner(name):
            one, other = [await open_named_array(name) for _ in range(2)]
            assert (one.shape, one.dtype) == ((2, 4), np.float32)
            assert one.sum() == 36
            one[1] = 0
            assert other.sum() == 10

    async def test_a_driver_that_trusts_nobody_runs_on_it_in_place(
        self, name: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "driver.sock"
        async with (
            owner(name),
            ReferenceDevice() as hal,
            Server(hal, path) as server,
            connect(path) as device,
        ):
            model = await device.prepare(addition(4))
            array = await open_named_array(name)
            for k in range(3):
                array[0, 0] = k
                await model.run([array[0], array[1]], out=[array[1]])
            assert list(array[1]) == [5 + 0 + 1 + 2, 6 + 3 * 2, 7 + 3 * 3, 8 + 3 * 4]
            (session,) = server._sessions
            statistics = session._pools._mapper.statistics()
            assert (statistics.mapped, statistics.copied) == (1, 0)

    async def test_nothing_is_left_of_one_that_is_killed(self, name: str) -> None:
        names = os.listdir("/dev/shm")
        async with owner(name) as process:
            array = await open_named_array(name)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            with pytest.raises(GeneralFailureError, match="no named array"):
                await open_named_array(name)
        assert array.sum() == 36  # who has it keeps it
        assert os.listdir("/dev/shm") == names
        async with named_array(name, 4) as again:
            assert not again.any()

    async def test_one_that_is_stopped_is_not_waited_for_for_ever(
        self, name: str
    ) -> None:
        async with owner(name) as process:
            process.send_signal(signal.SIGSTOP)
            with pytest.raises(GeneralFailureError, match="does not answer"):
                await open_named_array(name, timeout=0.05)
            process.send_signal(signal.SIGCONT)
            assert (await open_named_array(name)).sum() == 36


class TestNames:
    async def test_a_name_ends_with_its_block(self, name: str) -> None:
        async with named_array(name, 4) as array:
            found = await open_named_array(name)
            array[:] = 3
            assert found.sum() == 12
        with pytest.raises(GeneralFailureError, match="no named array"):
            await open_named_array(name)
        found[:] = 1
        assert array.sum() == 4

    async def test_a_taken_name_is_refused(self, name: str) -> None:
        async with named_array(name, 4):
            with pytest.raises(GeneralFailureError, match=name):
                async with named_array(name, 4):
                    pass
            assert (await open_named_array(name)).shape == (4,)

    @pytest.mark.parametrize("bad", ["", "x" * 65, "\ud800"])
    async def test_what_cannot_be_a_name_is_refused(self, bad: str) -> None:
        with pytest.raises(InvalidArgumentError, match="no name"):
            await open_named_array(bad)
        with pytest.raises(InvalidArgumentError, match="no name"):
            async with named_array(bad, 4):
                pass

    @pytest.mark.parametrize("good", ["a", "/a/b", "\0", "кадры", "x" * 64])
    async def test_what_can_be_one_is_found(self, good: str) -> None:
        async with named_array(good, 4, np.uint8):
            assert (await open_named_array(good)).dtype == np.uint8

    async def test_what_cannot_be_an_array_takes_no_name(self, name: str) -> None:
        for shape, dtype in (((-1,), "f4"), ((2,), "O")):
            with pytest.raises(InvalidArgumentError):
                async with named_array(name, shape, dtype):
                    pass
        async with named_array(name, 4):
            pass

    async def test_it_does_not_stay_with_a_forked_child(self, name: str) -> None:
        reader, writer = os.pipe()
        async with named_array(name, 4):
            child = asyncio.create_task(in_child(lambda: os.read(reader, 1)))
            await asyncio.sleep(0)
            assert (await open_named_array(name)).shape == (4,)
        with pytest.raises(GeneralFailureError, match="no named array"):
            await open_named_array(name)
        os.write(writer, b"g")
        assert await child == b"g"
        os.close(reader)
        os.close(writer)

    async def test_nothing_is_left_open(self, name: str) -> None:
        before = traces()
        for _ in range(20):
            async with named_array(name, 4):
                await open_named_array(name)
        assert not leaks(before)


async def test_one_that_cannot_be_accepted_waits_and_does_not_keep_the_loop_busy(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, attempts = socket.socket.accept, 0

    def fail_at_first(listener: socket.socket) -> object:
        nonlocal attempts
        attempts += 1
        if attempts <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listener)

    async with named_array(name, 4) as array:
        monkeypatch.setattr("asyncnn.service.process._PAUSE_S", 0.01)
        monkeypatch.setattr(socket.socket, "accept", fail_at_first)
        opening = asyncio.create_task(open_named_array(name))
        for _ in range(10):
            await asyncio.sleep(0)
        assert attempts == 1
        array[:] = 7
        assert (await opening).tolist() == [7, 7, 7, 7]


async def test_a_name_can_end_while_nobody_can_be_accepted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: socket.socket) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("asyncnn.service.process._PAUSE_S", 0.01)
    async with named_array(name, 4):
        monkeypatch.setattr(socket.socket, "accept", fail)
        opening = asyncio.create_task(open_named_array(name))
        await asyncio.sleep(0.02)
    with pytest.raises(GeneralFailureError):
        await opening


class TestStrangers:
    async def test_another_user_is_told_nothing(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with named_array(name, 4):
            monkeypatch.setattr(
                named_arrays, "peer_of", lambda _: Peer(1, os.geteuid() + 1)
            )
            with pytest.raises(GeneralFailureError, match="belongs to user"):
                await open_named_array(name)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
                stranger.connect(named_arrays._address(name))
                stranger.setblocking(False)
                loop = asyncio.get_running_loop()
                async with asyncio.timeout(20):
                    assert await loop.sock_recv(stranger, 100) == b""
            monkeypatch.undo()
            assert (await open_named_array(name)).shape == (4,)

    async def test_those_that_hang_up_at_once_harm_nobody(self, name: str) -> None:
        async with named_array(name, 4):
            for _ in range(50):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hasty:
                    hasty.connect(named_arrays._address(name))
            assert (await open_named_array(name)).shape == (4,)

    @pytest.mark.parametrize(
        ("dtype", "shape", "sealed"),
        [
            ("<f4", (5,), True),
            ("<f4", (-1,), True),
            ("O", (1,), True),
            ("no", (1,), True),
            ("<f4", (4,), False),
            (7, (4,), True),
            ("<f4", None, True),
        ],
    )
    async def test_an_owner_that_lies_is_found_out(
        self, name: str, dtype: object, shape: object, sealed: bool
    ) -> None:
        memory, before = allocate(16), traces()
        fd = os.dup(memory.handle.fds[0]) if sealed else os.memfd_create("loose")
        if not sealed:
            os.truncate(fd, 16)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as liar:
            liar.bind(named_arrays._address(name))
            liar.listen()
            opening = asyncio.create_task(open_named_array(name))
            await asyncio.sleep(0)
            end, _ = liar.accept()
            packet = msgspec.msgpack.encode((dtype, shape))
            with end:
                socket.send_fds(end, [packet], [fd])
                with pytest.raises(GeneralFailureError):
                    await opening
        del opening
        await asyncio.sleep(0)  # which has its error, and that all else
        os.close(fd)
        assert not leaks(before)

    async def test_so_is_one_that_sends_nothing(self, name: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as liar:
            liar.bind(named_arrays._address(name))
            liar.listen()
            opening = asyncio.create_task(open_named_array(name))
            await asyncio.sleep(0)
            liar.accept()[0].close()
            with pytest.raises(GeneralFailureError):
                await opening


async def test_it_is_an_array_that_travels(name: str) -> None:
    async with named_array(name, 4) as array:
        for each in (array, await open_named_array(name)):
            place = place_of(each)
            assert place is not None
            assert place[0].handle.fds
