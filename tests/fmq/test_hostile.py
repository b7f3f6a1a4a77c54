"""A peer that breaks the rules closes the queue, and never holds up the other end."""

import asyncio
import fcntl
import os
from collections.abc import Callable, Iterator

import pytest

from asyncnn.fmq import LoopPoller, MessageQueue, QueueBrokenError
from asyncnn.fmq.layout import READ, READER_SLEEPS, WRITTEN
from asyncnn.hal.errors import InvalidArgumentError
from tests.fmq.conftest import CAPACITY, COUNT, QUANTUM, Ends, elements
from tests.fmq.words import words_of
from tests.waits import until

IMPOSSIBLE = [
    CAPACITY + QUANTUM,
    CAPACITY + 1,
    1,
    QUANTUM - 1,
    -QUANTUM,
    -1,
    1 << 63,
    (1 << 64) - QUANTUM,
]


@pytest.fixture
def words(ends: Ends) -> Iterator[memoryview]:
    """The words of the queue, as the other process could write them."""
    created = ends.writer if ends.writer.descriptor.fds else ends.reader
    with words_of(created) as words:
        yield words


@pytest.mark.parametrize("unread", IMPOSSIBLE)
@pytest.mark.parametrize(
    "use",
    [
        MessageQueue.read_nowait,
        MessageQueue.reading,
        MessageQueue.available_to_read,
        lambda queue: queue.read_nowait(1),
    ],
)
def test_an_impossible_write_counter_closes_the_reader(
    ends: Ends, words: memoryview, unread: int, use: Callable[[MessageQueue], object]
) -> None:
    ends.writer.write_nowait(elements(3))
    ends.reader.read_nowait()
    words[WRITTEN] = (words[READ] + unread) % (1 << 64)
    for _ in range(2):
        with pytest.raises(QueueBrokenError, match="unread"):
            use(ends.reader)
    assert ends.reader.is_closed


@pytest.mark.parametrize("unread", IMPOSSIBLE)
@pytest.mark.parametrize(
    "use",
    [
        MessageQueue.available_to_write,
        lambda queue: queue.write_nowait(elements(COUNT)),
        lambda queue: queue.writing(1),
    ],
)
def test_an_impossible_read_counter_closes_the_writer(
    ends: Ends, words: memoryview, unread: int, use: Callable[[MessageQueue], object]
) -> None:
    ends.writer.write_nowait(elements(3))
    ends.reader.read_nowait()
    words[READ] = (words[WRITTEN] - unread) % (1 << 64)
    with pytest.raises(QueueBrokenError, match="unread"):
        use(ends.writer)
    assert ends.writer.is_closed


def test_a_read_counter_before_the_beginning_closes_the_writer(
    ends: Ends, words: memoryview
) -> None:
    words[READ] = (1 << 64) - QUANTUM
    with pytest.raises(QueueBrokenError, match="unread"):
        ends.writer.available_to_write()
    assert ends.writer.is_closed


@pytest.mark.parametrize("word", [READ, WRITTEN])
def test_counters_about_to_overflow_are_refused_at_once(
    ends: Ends, words: memoryview, word: int
) -> None:
    words[word] = (1 << 64) - QUANTUM
    created = ends.writer if ends.writer.descriptor.fds else ends.reader
    with pytest.raises(InvalidArgumentError, match="out of range"):
        MessageQueue.open(created.descriptor)


def test_what_a_stranger_does_to_the_own_counter_is_not_believed(
    ends: Ends, words: memoryview
) -> None:
    words[WRITTEN] = 8 * QUANTUM
    assert ends.writer.write_nowait(elements(2, 30))
    assert words[WRITTEN] == 2 * QUANTUM
    assert ends.reader.read_nowait() == elements(2, 30)


async def test_a_waiting_reader_learns_that_its_queue_is_broken(
    ends: Ends, words: memoryview
) -> None:
    reading = asyncio.create_task(ends.reader.read(timeout=20))
    await asyncio.sleep(0.001)
    words[WRITTEN] = CAPACITY * 3
    with pytest.raises(QueueBrokenError):
        await reading


async def test_a_served_queue_that_is_broken_is_served_no_more(
    ends: Ends, words: memoryview
) -> None:
    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context["exception"]))
    served = LoopPoller.running().serve(ends.reader, ends.reader.read_nowait)
    words[WRITTEN] = 1
    await until(lambda: bool(failures))
    assert [type(error) for error in failures] == [QueueBrokenError]
    assert served.is_stopped


async def test_who_has_it_served_is_told(ends: Ends, words: memoryview) -> None:
    failures: list[BaseException] = []
    poller = LoopPoller.running()
    poller.serve(ends.reader, ends.reader.read_nowait, failures.append)
    words[WRITTEN] = 1
    await until(lambda: bool(failures))
    assert [type(error) for error in failures] == [QueueBrokenError]


class TestBells:
    """The end that opens a queue does not depend on what its creator does."""

    @pytest.fixture
    def created(self) -> Iterator[MessageQueue]:
        with MessageQueue.create(QUANTUM, COUNT) as queue:
            yield queue

    async def test_a_bell_that_blocks_does_not_hold_up_its_listener(
        self, created: MessageQueue
    ) -> None:
        bell = created.descriptor.fds[1]
        with MessageQueue.open(created.descriptor) as opened:
            reading = asyncio.create_task(opened.read())
            await asyncio.sleep(0)
            fcntl.fcntl(bell, fcntl.F_SETFL, 0)
            for _ in range(3):  # rung for nothing, and silent once looked at
                os.eventfd_write(bell, 1)
                await asyncio.sleep(0.001)
            opened._doorbell.silence()
            created.write_nowait(elements(1))
            assert await reading == elements(1)

    def test_a_bell_that_nobody_silences_does_not_hold_up_its_ringer(
        self, created: MessageQueue
    ) -> None:
        fcntl.fcntl(created.descriptor.fds[2], fcntl.F_SETFL, 0)
        with MessageQueue.open(created.descriptor) as opened:
            for number in range(100):
                created._announce(READER_SLEEPS, WRITTEN, number * QUANTUM)
                assert opened.write_nowait(elements(1))
                created.read_nowait()

    def test_a_bell_without_a_listener_rings_in_vain(
        self, created: MessageQueue
    ) -> None:
        opened = MessageQueue.open(created.descriptor)
        created._announce(READER_SLEEPS, WRITTEN, 0)
        created._doorbell.close()
        assert opened.write_nowait(elements(1))
        opened.close()


def test_room_that_the_reader_takes_back_is_not_written_to(ends: Ends) -> None:
    created = ends.writer if ends.writer.descriptor.fds else ends.reader
    ends.writer.write_nowait(elements(COUNT))
    ends.reader.read_nowait()
    spans = ends.writer.writing(COUNT)
    assert spans is not None
    with words_of(created) as words:
        words[READ] = 0
        assert ends.writer.available_to_write() == 0
        spans.commit()
        words[READ] = COUNT * QUANTUM
    assert not ends.writer.write_nowait(elements(1))
