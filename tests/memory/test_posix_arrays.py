"""Arrays over named POSIX memory, and queues there that run short of something."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
import pytest

from asyncnn import connect, offload, open_device
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import (
    DeviceClosedError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedError,
    ResourceExhaustedTransientError,
    WrongTypeError,
)
from asyncnn.memory import (
    FrameQueue,
    FrameWriter,
    open_posix_array,
    posix_array,
    queue_events,
)
from asyncnn.memory.posix_memory import own_name
from asyncnn.memory.slabs import place_of
from asyncnn.service import Server
from tests.forks import in_child_blocking
from tests.memory.foreign import no_descriptors
from tests.networks import addition

OWNER = """
import sys, time
from asyncnn.memory import posix_array
with posix_array(sys.argv[1], (2, 4)) as array:
    array[:] = 7
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def name() -> Iterator[str]:
    """A name that nothing has in the end."""
    found = f"test-array-{os.getpid()}"
    yield found
    assert not [each for each in os.listdir("/dev/shm") if found in each]


def shm(name: str) -> str:
    return f"/dev/shm/asyncnn-{os.geteuid()}-{name}"


class TestAccess:
    def test_who_trusts_the_owner_has_the_same_memory(self, name: str) -> None:
        with posix_array(name, (2, 3)) as array:
            assert not array.any()
            other = open_posix_array(name, (2, 3), trusted=True)
            array[1] = 5
            other[0] = 1
            assert array.sum() == other.sum() == 18
        assert array.sum() == 18

    def test_others_have_a_copy_that_nothing_changes(self, name: str) -> None:
        with posix_array(name, 4, np.int32) as array:
            array[:] = 3
            copy = open_posix_array(name, 4, np.int32)
            array[:] = 4
            os.truncate(shm(name), 0)
            assert list(copy) == [3, 3, 3, 3]
            assert not copy.flags.writeable
            place = place_of(copy)
            assert place is not None
            assert place[0].handle.fds  # which a driver maps
            os.truncate(shm(name), 16)

    def test_memory_of_another_program_is_opened_by_its_whole_name(
        self, name: str
    ) -> None:
        made = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, 0o600, size=100)
        try:
            os.pwrite(made.fd, np.float64(2.5).tobytes(), 0)
            assert open_posix_array(f"/{name}", (), np.float64) == 2.5
            with pytest.raises(GeneralFailureError, match="less than 104 bytes"):
                open_posix_array(f"/{name}", 13, np.float64, trusted=True)
            os.fchmod(made.fd, 0o644)
            with pytest.raises(GeneralFailureError, match="others than its user"):
                open_posix_array(f"/{name}", (), np.float64)
        finally:
            made.close_fd()
            made.unlink()

    def test_that_of_another_user_is_refused(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with posix_array(name, 4):
            path = own_name(name)
            monkeypatch.setattr(os, "geteuid", lambda: 4321)
            with pytest.raises(GeneralFailureError, match="belongs to user"):
                open_posix_array(path, 4)
            monkeypatch.undo()

    def test_only_its_user_can_open_it(self, name: str) -> None:
        with posix_array(name, 4):
            assert os.stat(shm(name)).st_mode & 0o777 == 0o600

    @pytest.mark.parametrize("wrong", ["", "/", "a/b", "a\0b", "/a\0", 65 * "x"])
    def test_names_that_cannot_be(self, wrong: str) -> None:
        with pytest.raises(InvalidArgumentError, match="no name of shared memory"):
            open_posix_array(wrong, 4)

    def test_a_name_of_another_program_is_not_taken(self, name: str) -> None:
        with (
            pytest.raises(InvalidArgumentError, match="no name"),
            posix_array(f"/{name}", 4),
        ):
            pass

    def test_nobody_has_it(self, name: str) -> None:
        with pytest.raises(GeneralFailureError, match="there is no shared memory"):
            open_posix_array(name, 4)

    def test_more_than_there_is(self, name: str) -> None:
        with pytest.raises(ResourceExhaustedError), posix_array(name, 2**50):
            pass


class TestRuns:
    @pytest.mark.parametrize("is_trusting", [True, False])
    async def test_a_driver_works_on_it_in_place_if_it_trusts_its_user(
        self, name: str, tmp_path: Path, is_trusting: bool
    ) -> None:
        path = tmp_path / "driver.sock"
        async with (
            ReferenceDevice() as hal,
            Server(hal, path, trust_same_uid=is_trusting) as server,
            connect(path) as device,
        ):
            model = await device.prepare(addition(4))
            with posix_array(name, (2, 4)) as array:
                array[:] = [[1, 2, 3, 4], [5, 6, 7, 8]]
                for _ in range(3):
                    await model.run([array[0], array[1]], out=[array[1]])
                assert list(array[1]) == [8, 12, 16, 20]
            (session,) = server._sessions
            assert session._pools._mapper.statistics().mapped == int(is_trusting)

    @pytest.mark.parametrize("is_trusting", [True, False])
    async def test_so_it_does_on_frames_of_a_trusted_producer(
        self, name: str, tmp_path: Path, is_trusting: bool
    ) -> None:
        path = tmp_path / "driver.sock"
        one = np.ones(4, np.float32)
        async with (
            ReferenceDevice() as hal,
            Server(hal, path, trust_same_uid=is_trusting) as server,
            connect(path) as device,
            FrameQueue(name, 4, places=2, trusted=True) as queue,
        ):
            model = await device.prepare(addition(4))
            with FrameWriter(name) as writer:
                for k in range(5):
                    writer.write(np.full(4, k, np.float32), timeout=5)
                    frame = await anext(queue)
                    assert list((await model.run([frame, one]))["z"]) == 4 * [k + 1]
                    del frame
            (session,) = server._sessions
            mapped = session._pools._mapper.statistics().mapped
            # Two places, and the slab of what is copied.
            assert mapped == (3 if is_trusting else 1)

    async def test_devices_of_this_process_do_not_copy_it(self, name: str) -> None:
        async with open_device("reference") as device:
            model = await device.prepare(addition(4))
            with posix_array(name, (2, 4)) as array:
                execution = model.reusable([array[0], array[1]])
                array[:] = 2
                assert (await execution.run())["z"].sum() == 16
                array[0] = 3
                assert (await execution.run())["z"].sum() == 20
                del execution


class TestOwners:
    def killed(self, name: str) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", OWNER, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            with (
                pytest.raises(GeneralFailureError, match="is taken"),
                posix_array(name, 4),
            ):
                pass
            owner.send_signal(signal.SIGKILL)
            owner.wait()

    def test_what_a_killed_one_has_left_is_taken_over(self, name: str) -> None:
        self.killed(name)
        assert open_posix_array(name, (2, 4)).sum() == 56
        with posix_array(name, 3) as array:
            assert not array.any()
            assert open_posix_array(name, 3).shape == (3,)

    def test_a_name_goes_where_descriptors_have_run_out(self, name: str) -> None:
        with ExitStack() as shortage:
            with posix_array(name, 4):
                shortage.enter_context(no_descriptors())
                with pytest.raises(ResourceExhaustedTransientError):
                    open_posix_array(name, 4)
            with pytest.raises(ResourceExhaustedTransientError), posix_array(name, 4):
                pass

    def test_a_name_goes_with_its_interpreter(self, name: str) -> None:
        code = (
            "from asyncnn.memory import posix_array\n"
            f"block = posix_array({name!r}, 4)\n"
            "array = block.__enter__()"
        )
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_a_forked_child_takes_no_name_along(self, name: str) -> None:
        with posix_array(name, 4) as array:

            def child() -> None:
                array[:] = 2
                gc.collect()

            in_child_blocking(child)
            assert array.sum() == 8
            assert open_posix_array(name, 4).sum() == 8

    def test_a_forked_child_does_not_keep_a_name(self, name: str) -> None:
        # The owner dies while its child, which has copies of all it had open, lives.
        code = (
            "import os, signal, sys, time\n"
            "from asyncnn.memory import posix_array\n"
            f"with posix_array({name!r}, 4) as array:\n"
            "    if os.fork():\n"
            "        os.kill(os.getpid(), signal.SIGKILL)\n"
            "    print('ready', flush=True)\n"
            "    sys.stdin.read()\n"
            "    os._exit(0)"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n"
            owner.wait()
            with posix_array(name, 4) as array:
                assert not array.any()

    async def test_of_many_that_want_a_name_one_has_it(self, name: str) -> None:
        self.killed(name)
        inside = most = 0

        def own() -> str:
            nonlocal inside, most
            try:
                with posix_array(name, 4):
                    inside += 1
                    most = max(most, inside)
                    for _ in range(50):
                        os.sched_yield()
                    inside -= 1
            except GeneralFailureError as error:
                return error.message
            return ""

        outcomes = await asyncio.gather(*[asyncio.to_thread(own) for _ in range(40)])
        assert most == 1
        assert "" in outcomes
        assert all("taken" in outcome for outcome in outcomes if outcome)


class TestFrameQueues:
    """Shortages, and names and producers that have changed."""

    @pytest.mark.parametrize("shape", [4, (512, 1024)])
    async def test_a_shortage_loses_no_frame_and_no_place(
        self, name: str, shape: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def short(*_: object) -> None:
            raise MemoryError

        async with FrameQueue(name, shape, places=2) as queue:
            with FrameWriter(name) as writer:
                for k in range(2):
                    writer.write(np.full(writer.shape, k, writer.dtype))
                for _ in range(3):
                    with monkeypatch.context() as patch:
                        patch.setattr(np, "empty", short)
                        patch.setattr(offload, "require_room", short)
                        with pytest.raises(ResourceExhaustedTransientError):
                            await anext(queue)
                for k in range(2, 4):
                    assert (await anext(queue)).max() == k - 2
                    writer.write(np.full(writer.shape, k, writer.dtype), timeout=5)
                assert [(await anext(queue)).max() for _ in range(2)] == [2, 3]

    async def test_one_that_drops_its_lock_and_lives_on_is_missed(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(queue_events, "_LOOK_AGAIN_S", 0.02)
        async with FrameQueue(name, 4) as queue:
            writer = FrameWriter(name)
            taking = asyncio.ensure_future(anext(queue))
            await asyncio.sleep(0.01)
            del writer
            gc.collect()
            async with asyncio.timeout(10):
                with pytest.raises(GeneralFailureError, match="has died"):
                    await taking

    @pytest.mark.parametrize("change", ["no descriptors", "mode", "another's"])
    async def test_closing_needs_no_look_into_the_name(
        self, name: str, change: str
    ) -> None:
        queue = await FrameQueue(name, 4).__aenter__()
        path = f"/dev/shm{queue.name}"
        taking = asyncio.ensure_future(anext(queue))
        await asyncio.sleep(0.01)
        if change == "mode":
            os.chmod(path, 0o666)
        elif change == "another's":
            os.unlink(path)
            os.mkdir(path)
        with no_descriptors() if change == "no descriptors" else nullcontext():
            await queue.aclose()
        async with asyncio.timeout(10):
            with pytest.raises(DeviceClosedError, match="not open"):
                await taking
        if change == "another's":
            os.rmdir(path)

    @pytest.mark.parametrize("places", ["4", 2.5, None])
    def test_places_that_are_no_number(self, name: str, places: Any) -> None:
        with pytest.raises(WrongTypeError, match="places of a frame queue"):
            FrameQueue(name, 4, places=places)

    @pytest.mark.parametrize("wrong", [5, None, b"x"])
    def test_names_that_are_no_text(self, wrong: Any) -> None:
        for each in (FrameWriter, lambda name: FrameQueue(name, 4)):
            with pytest.raises(WrongTypeError, match="no name of shared memory"):
                each(wrong)

    async def test_no_descriptor_is_a_shortage(self, name: str) -> None:
        with no_descriptors(), pytest.raises(ResourceExhaustedTransientError):
            FrameWriter(name)
