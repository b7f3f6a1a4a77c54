"""Frames of other programs: in order, none lost, whatever becomes of the producer."""

import asyncio
import gc
import os
import signal
import struct
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import numpy as np
import posix_ipc
import pytest

from asyncnn import open_device
from asyncnn.hal.errors import (
    BusyError,
    DeviceClosedError,
    DeviceUnavailableError,
    ForkedError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineError,
    ResourceExhaustedError,
)
from asyncnn.memory import FrameQueue, FrameWriter
from tests.forks import in_child
from tests.memory.foreign_producer import STAGES
from tests.networks import addition
from tests.waits import cancelled

FOREIGN = Path(__file__).with_name("foreign_producer.py")
SHAPE = (3, 4)


@pytest.fixture
def name() -> str:
    return f"test-frames-{os.getpid()}"


@pytest.fixture(autouse=True)
def no_names(name: str) -> Iterator[None]:
    """Fail a test that leaves a name behind."""
    yield
    assert not [each for each in os.listdir("/dev/shm") if name in each]


@pytest.fixture(params=["copied", "mapped"])
def trusted(request: pytest.FixtureRequest) -> bool:
    return request.param == "mapped"


@asynccontextmanager
async def foreign(
    queue: FrameQueue, frames: int, stage: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A producer of another process, which is killed in the end."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(FOREIGN),
        queue.name,
        str(frames),
        stage,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def numbers(queue: FrameQueue) -> list[int]:
    """Return what the frames of one producer are full of."""
    found = []
    async for frame in queue:
        assert frame.shape == SHAPE
        assert (frame == frame.flat[0]).all()
        found.append(int(frame.flat[0]))
    return found


def written(name: str, values: range) -> None:
    """Write frames that are full of these numbers, as a producer in Python."""
    with FrameWriter(name) as writer:
        for value in values:
            writer.write(full(writer, value), timeout=10)


@contextmanager
def bytes_of(queue: FrameQueue) -> Iterator[int]:
    """A descriptor of the queue's memory, as any process of its user may have."""
    fd = os.open(f"/dev/shm{queue.name}", os.O_RDWR)
    try:
        yield fd
    finally:
        os.close(fd)


def full(writer: FrameWriter, value: float) -> np.ndarray:
    return np.full(writer.shape, value, writer.dtype)


class TestFrames:
    async def test_they_come_in_order_from_another_program(
        self, name: str, trusted: bool
    ) -> None:
        async with (
            FrameQueue(name, SHAPE, trusted=trusted) as queue,
            foreign(queue, 50, "end"),
        ):
            assert await numbers(queue) == [*range(1, 51)]

    async def test_the_next_producer_goes_on(self, name: str, trusted: bool) -> None:
        async with FrameQueue(name, SHAPE, places=3, trusted=trusted) as queue:
            for first in (1, 8, 15):
                async with foreign(queue, 7, "end"):
                    assert await numbers(queue) == [*range(first, first + 7)]

    async def test_a_writer_in_python_waits_for_places(
        self, name: str, trusted: bool
    ) -> None:
        async with FrameQueue(name, SHAPE, places=2, trusted=trusted) as queue:
            with FrameWriter(name) as writer:
                for k in range(2):
                    writer.write(full(writer, k))
                with pytest.raises(MissedDeadlineError, match="no place"):
                    writer.write(full(writer, 2), timeout=0.01)
                wait = asyncio.to_thread(writer.write, full(writer, 2))
                writing = asyncio.create_task(wait)
                assert (await anext(queue))[0, 0] == 0
                await writing
                assert (await anext(queue))[0, 0] == 1
                assert (await anext(queue))[0, 0] == 2

    @pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int64, np.bool_])
    async def test_they_have_the_shape_and_dtype_of_the_queue(
        self, name: str, dtype: type
    ) -> None:
        async with FrameQueue(name, (5,), dtype) as queue:
            with FrameWriter(queue.name) as writer:
                assert (writer.shape, writer.dtype) == ((5,), np.dtype(dtype))
                for wrong in (np.zeros(4, dtype), np.zeros(5, np.complex64)):
                    with pytest.raises(InvalidArgumentError, match="is no frame of"):
                        writer.write(wrong)
                writer.write(np.arange(10).astype(dtype)[::2])
            frame = await anext(queue)
            assert frame.dtype == dtype
            np.testing.assert_array_equal(frame, np.arange(0, 10, 2).astype(dtype))

    async def test_large_ones_are_copied_beside_the_loop_and_survive_a_cancel(
        self, name: str
    ) -> None:
        async with FrameQueue(name, (1024, 1024), places=2) as queue:
            with FrameWriter(name) as writer:
                writer.write(full(writer, 1))
                taking = asyncio.ensure_future(anext(queue))
                await asyncio.sleep(0)
                await cancelled(taking)
                writer.write(full(writer, 2))
                assert [(await anext(queue)).max() for _ in range(2)] == [1, 2]

    async def test_a_place_is_given_back_with_the_last_view(self, name: str) -> None:
        async with FrameQueue(name, SHAPE, places=2, trusted=True) as queue:
            with FrameWriter(name) as writer:
                for k in range(2):
                    writer.write(full(writer, k))
                part = (await anext(queue))[1:]
                second = await anext(queue)
                del second
                with pytest.raises(MissedDeadlineError):
                    # Its turn is the first place's, which is looked at.
                    writer.write(full(writer, 2), timeout=0.01)
                assert (part == 0).all()
                assert not part.flags.writeable
                del part
                gc.collect()
                writer.write(full(writer, 2), timeout=5)
                writer.write(full(writer, 3), timeout=5)
                assert [(await anext(queue)).max() for _ in range(2)] == [2, 3]

    async def test_a_frame_outlives_the_queue(self, name: str, trusted: bool) -> None:
        async with FrameQueue(name, SHAPE, trusted=trusted) as queue:
            with FrameWriter(name) as writer:
                writer.write(full(writer, 7))
            frame = await anext(queue)
        assert (frame == 7).all()

    async def test_runs_take_them(self, name: str, trusted: bool) -> None:
        async with (
            open_device("reference") as device,
            FrameQueue(name, 12, trusted=trusted) as queue,
            foreign(queue, 9, "end"),
        ):
            model = await device.prepare(addition(12))
            one = np.ones(12, np.float32)
            found = [
                int((await model.run([frame, one]))["z"][0]) async for frame in queue
            ]
        assert found == [*range(2, 11)]


class TestEnds:
    @pytest.mark.parametrize("stage", STAGES)
    async def test_a_producer_that_is_killed_anywhere_takes_nothing_with_it(
        self, name: str, stage: str
    ) -> None:
        done = 5 if stage in ("numbered", "posted") else 4
        if stage in ("locked", "named", "counted"):
            done = 0
        async with FrameQueue(name, SHAPE, places=3) as queue:
            taking = asyncio.create_task(numbers(queue))
            async with foreign(queue, 5, stage) as producer:
                assert producer.stdout is not None
                assert (await producer.stdout.readline()).decode() == f"{stage}\n"
                pid = producer.pid
            seen = taking
            if stage in ("locked", "named"):
                # It has not said that it is there, so nobody misses it.
                assert not taking.done()
            else:
                async with asyncio.timeout(5):
                    with pytest.raises(GeneralFailureError, match=f"{pid}, has died"):
                        await taking
                seen = asyncio.create_task(numbers(queue))
            await asyncio.to_thread(written, name, range(done + 1, done + 21))
            assert await seen == [*range(done + 1, done + 21)]

    async def test_frames_of_one_that_has_died_are_taken_first(self, name: str) -> None:
        async with FrameQueue(name, SHAPE) as queue:
            async with foreign(queue, 3, "posted") as producer:
                assert producer.stdout is not None
                await producer.stdout.readline()
            found = [int((await anext(queue))[0, 0]) for _ in range(3)]
            assert found == [1, 2, 3]
            with pytest.raises(GeneralFailureError, match="has died"):
                await anext(queue)

    async def test_one_that_cannot_be_watched_is_missed_by_its_lock(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(os, "pidfd_open")
        async with FrameQueue(name, SHAPE) as queue:
            taking = asyncio.create_task(numbers(queue))
            async with foreign(queue, 3, "posted") as producer:
                assert producer.stdout is not None
                await producer.stdout.readline()
            with pytest.raises(GeneralFailureError, match="has died"):
                await taking

    async def test_there_is_one_producer_at_a_time(self, name: str) -> None:
        async with FrameQueue(name, SHAPE):
            with FrameWriter(name), pytest.raises(BusyError, match="has a producer"):
                FrameWriter(name)
            FrameWriter(name).close()

    async def test_a_cancelled_taker_loses_nothing(self, name: str) -> None:
        async with FrameQueue(name, SHAPE) as queue:
            for _ in range(3):
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(queue), 0.01)
            with FrameWriter(name) as writer:
                writer.write(full(writer, 1))
                assert (await anext(queue))[0, 0] == 1
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(anext(queue), 0.01)

    async def test_several_takers_share_the_frames(self, name: str) -> None:
        async with FrameQueue(name, SHAPE) as queue:
            taking = [asyncio.ensure_future(anext(queue)) for _ in range(3)]
            await asyncio.sleep(0.01)
            with FrameWriter(name) as writer:
                for k in range(3):
                    writer.write(full(writer, k))
                found = await asyncio.gather(*taking)
        assert sorted(int(frame[0, 0]) for frame in found) == [0, 1, 2]

    async def test_closing_ends_takers_and_the_producer(self, name: str) -> None:
        queue = FrameQueue(name, SHAPE, places=2)
        async with queue:
            taking = asyncio.ensure_future(anext(queue))
            await asyncio.sleep(0.01)
            writer = FrameWriter(name)
            await queue.aclose()
            with pytest.raises(DeviceClosedError, match="not open"):
                await taking
        with pytest.raises(DeviceUnavailableError, match="nobody takes frames"):
            writer.write(full(writer, 1))
        writer.close()
        with pytest.raises(DeviceClosedError, match="is closed"):
            writer.write(full(writer, 1))
        with pytest.raises(GeneralFailureError, match="no shared memory"):
            FrameWriter(name)
        with pytest.raises(InvalidArgumentError, match="used once"):
            await queue.__aenter__()

    async def test_closing_wakes_a_producer_that_waits_for_a_place(
        self, name: str
    ) -> None:
        async with FrameQueue(name, SHAPE, places=2):
            writer = FrameWriter(name)
            for k in range(2):
                writer.write(full(writer, k))
            wait = asyncio.to_thread(writer.write, full(writer, 2))
            writing = asyncio.create_task(wait)
            await asyncio.sleep(0.02)
        with pytest.raises(DeviceUnavailableError, match="nobody takes frames"):
            await writing
        writer.close()

    async def test_closing_does_not_need_the_token_that_it_posts(
        self, name: str
    ) -> None:
        async with FrameQueue(name, SHAPE) as queue:
            taking = asyncio.ensure_future(anext(queue))
            await asyncio.sleep(0.01)
            thief = posix_ipc.Semaphore(queue.name + ".filled")
            closing = asyncio.create_task(queue.aclose())
            stolen = await asyncio.to_thread(_steal, thief)
            await closing
            thief.close()
            assert stolen >= 0
            with pytest.raises(DeviceClosedError):
                await taking

    async def test_cancelling_the_close_leaves_nothing(self, name: str) -> None:
        queue = await FrameQueue(name, SHAPE).__aenter__()
        closing = asyncio.create_task(queue.aclose())
        await asyncio.sleep(0)
        await cancelled(closing)

    async def test_a_forked_child_has_no_part_in_it(self, name: str) -> None:
        async with FrameQueue(name, SHAPE, places=2, trusted=True) as queue:
            with FrameWriter(name) as writer:
                writer.write(full(writer, 1))
                frame = await anext(queue)

                def child() -> None:
                    nonlocal frame
                    with pytest.raises(ForkedError):
                        anext(queue).send(None)
                    with pytest.raises(ForkedError):
                        writer.write(full(writer, 2))
                    writer.close()
                    del frame

                await in_child(child)
                writer.write(full(writer, 2))
                assert (frame == 1).all()
                assert (await anext(queue))[0, 0] == 2


def _steal(semaphore: posix_ipc.Semaphore) -> int:
    stolen = 0
    for _ in range(200):
        with suppress(posix_ipc.BusyError):
            semaphore.acquire(0.0005)
            stolen += 1
    return stolen


class TestHostile:
    async def test_a_queue_that_is_cut_short_is_an_error(self, name: str) -> None:
        async with FrameQueue(name, SHAPE) as queue:
            with FrameWriter(name) as writer:
                writer.write(full(writer, 1))
                os.truncate(f"/dev/shm{queue.name}", 4096)
                with pytest.raises(GeneralFailureError, match="cut short"):
                    await anext(queue)
                os.truncate(f"/dev/shm{queue.name}", 0)
                with pytest.raises(GeneralFailureError, match="cut short"):
                    await anext(queue)

    @pytest.mark.parametrize("value", [1, 2**31, 2**32 + 1, 2**63, 2**64 - 1])
    async def test_no_number_that_a_producer_writes_is_believed(
        self, name: str, value: int
    ) -> None:
        async with FrameQueue(name, SHAPE, places=2) as queue:
            with bytes_of(queue) as memory:
                before = os.pread(memory, 288, 0)
                for at in range(0, 288, 8):
                    os.pwrite(memory, struct.pack("=Q", value), at)
                woken = posix_ipc.Semaphore(queue.name + ".filled")
                woken.release()
                woken.close()
                # Frames that never were, or the end of a producer: an answer at once,
                # or none.
                for _ in range(3):
                    with suppress(
                        TimeoutError, StopAsyncIteration, GeneralFailureError
                    ):
                        frame = await asyncio.wait_for(anext(queue), 0.05)
                        assert frame.shape == SHAPE
                with suppress(GeneralFailureError):
                    FrameWriter(name).close()
                os.pwrite(memory, before[:128], 0)

    @pytest.mark.parametrize("at", [*range(0, 72, 8)])
    async def test_a_writer_does_not_believe_a_description(
        self, name: str, at: int
    ) -> None:
        async with FrameQueue(name, SHAPE) as queue:
            with bytes_of(queue) as memory:
                os.pwrite(memory, struct.pack("=Q", 2**62 + 7), at)
            with pytest.raises(
                GeneralFailureError, match=f"{queue.name} is no frame queue"
            ):
                FrameWriter(name)

    async def test_a_flood_of_posts_is_absorbed(self, name: str) -> None:
        async with FrameQueue(name, SHAPE) as queue:
            posted = posix_ipc.Semaphore(queue.name + ".filled")
            for _ in range(500):
                posted.release()
            posted.close()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(queue), 0.1)
            await asyncio.to_thread(written, name, range(1, 4))
            assert await numbers(queue) == [1, 2, 3]


class TestNames:
    @pytest.mark.parametrize(
        "wrong", ["", "/", "a/b", "/abc", "a\0b", 65 * "x", "\ud800"]
    )
    def test_names_that_cannot_be(self, wrong: str) -> None:
        with pytest.raises(InvalidArgumentError, match="no name of shared memory"):
            FrameQueue(wrong, SHAPE)

    @pytest.mark.parametrize(
        ("shape", "dtype", "places"),
        [
            ((0, 3), np.float32, 4),
            (SHAPE, object, 4),
            (SHAPE, [("a", "f4")], 4),
            ((1,) * 9, np.float32, 4),
            (SHAPE, np.float32, 1),
            (SHAPE, np.float32, 1025),
        ],
    )
    def test_queues_that_cannot_be(
        self, name: str, shape: tuple[int, ...], dtype: type, places: int
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            FrameQueue(name, shape, dtype, places=places)

    async def test_more_than_there_is_leaves_nothing(self, name: str) -> None:
        with pytest.raises(ResourceExhaustedError, match="No space"):
            async with FrameQueue(name, 2**50):
                pass

    async def test_a_name_that_is_taken(self, name: str) -> None:
        async with FrameQueue(name, SHAPE):
            with pytest.raises(GeneralFailureError, match="is taken"):
                async with FrameQueue(name, SHAPE):
                    pass

    async def test_what_a_killed_owner_has_left_is_taken_over(self, name: str) -> None:
        code = (
            "import asyncio, sys; from asyncnn.memory import FrameQueue\n"
            "async def main():\n"
            f"    async with FrameQueue({name!r}, 2):\n"
            "        print('open', flush=True)\n"
            "        await asyncio.sleep(60)\n"
            "asyncio.run(main())"
        )
        owner = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
        )
        assert owner.stdout is not None
        assert await owner.stdout.readline() == b"open\n"
        with FrameWriter(name) as writer:
            owner.send_signal(signal.SIGKILL)
            await owner.wait()
            with pytest.raises(DeviceUnavailableError, match="nobody takes frames"):
                writer.write(full(writer, 1))
        with pytest.raises(GeneralFailureError, match="has gone"):
            FrameWriter(name)
        async with FrameQueue(name, SHAPE) as queue, foreign(queue, 3, "end"):
            assert await numbers(queue) == [1, 2, 3]
