"""A forked child leaves the queues that it inherits to its parent."""

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncnn.fmq import LoopPoller, MessageQueue
from asyncnn.hal.errors import ForkedError
from tests.fmq.conftest import COUNT, QUANTUM, Ends, elements
from tests.fmq.words import words_of
from tests.forks import in_child_blocking
from tests.waits import until

USES: dict[str, Callable[[Ends], object]] = {
    "write_nowait": lambda ends: ends.writer.write_nowait(elements(1)),
    "write": lambda ends: asyncio.run(ends.writer.write(elements(1))),
    "write_blocking": lambda ends: ends.writer.write_blocking(elements(1), 0),
    "writing": lambda ends: ends.writer.writing(1),
    "read_nowait": lambda ends: ends.reader.read_nowait(),
    "read": lambda ends: asyncio.run(ends.reader.read()),
    "read_blocking": lambda ends: ends.reader.read_blocking(timeout=0),
    "reading": lambda ends: ends.reader.reading(),
    "is_readable": lambda ends: ends.reader.is_readable(),
    "available_to_write": lambda ends: ends.writer.available_to_write(),
}


def is_refused(use: Callable[[], object]) -> None:
    with pytest.raises(ForkedError, match="belongs to the process that opened it"):
        use()


@pytest.mark.parametrize("use", USES)
def test_every_use_is_refused(ends: Ends, use: str) -> None:
    ends.writer.write_nowait(elements(1))

    def act() -> None:
        is_refused(lambda: USES[use](ends))
        for end in ends:
            end.close()
        is_refused(lambda: USES[use](ends))

    in_child_blocking(act)
    assert ends.reader.read_nowait() == elements(1)


def test_the_ring_and_its_announcements_stay_as_they_are(ends: Ends) -> None:
    created = ends.writer if ends.writer.descriptor.fds else ends.reader
    ends.writer.write_nowait(elements(3))
    with words_of(created) as words:
        words[32] = words[48] = 1
        before = words.tobytes()

        def act() -> None:
            for use in USES.values():
                is_refused(lambda use=use: use(ends))
            for end in ends:
                end.close()
            gc.collect()

        in_child_blocking(act)
        assert words.tobytes() == before
    assert ends.writer._doorbell.fileno() >= 0


@pytest.mark.parametrize("closes", [True, False])
async def test_who_sleeps_in_the_parent_is_woken_all_the_same(
    ends: Ends, closes: bool
) -> None:
    ends.writer._wake_peer = ends.writer._peer_doorbell.ring  # as in two processes
    reading = asyncio.create_task(ends.reader.read())
    await asyncio.sleep(0.02)  # longer than until it looks again

    def act() -> None:
        assert reading is not None
        if closes:
            for end in ends:
                end.close()
        reading.get_coro().close()  # type: ignore[union-attr]

    in_child_blocking(act)
    ends.writer.write_nowait(elements(2))
    assert await asyncio.wait_for(reading, 20) == elements(2)


async def test_served_queues_are_served_by_the_parent(ends: Ends) -> None:
    ends.writer._wake_peer = ends.writer._peer_doorbell.ring
    read: list[bytes | None] = []
    poller = LoopPoller.running()
    served = poller.serve(ends.reader, lambda: read.append(ends.reader.read_nowait()))
    await asyncio.sleep(0.02)

    def act() -> None:
        assert served.is_stopped
        assert not poller.served
        served.stop()
        served.resume()
        poller.serve_ready()
        ends.reader.close()

    in_child_blocking(act)
    ends.writer.write_nowait(elements(1))
    await until(lambda: read)
    assert read == [elements(1)]
    assert not served.is_stopped


def test_a_child_may_have_queues_of_its_own(ends: Ends) -> None:
    async def exchange() -> None:
        with (
            MessageQueue.create(QUANTUM, COUNT) as queue,
            MessageQueue.open(queue.descriptor) as other,
        ):
            reading = asyncio.create_task(other.read())
            await asyncio.sleep(0)
            queue.write_nowait(elements(1))
            assert await reading == elements(1)

    in_child_blocking(lambda: asyncio.run(exchange()))


def test_what_a_child_does_not_close_goes_with_the_last_reference() -> None:
    writer = MessageQueue.create(QUANTUM, COUNT)
    fds = writer.descriptor.fds

    def act() -> None:
        nonlocal writer
        del writer
        gc.collect()
        assert not [fd for fd in fds if Path(f"/proc/self/fd/{fd}").is_symlink()]

    in_child_blocking(act)
    writer.close()
