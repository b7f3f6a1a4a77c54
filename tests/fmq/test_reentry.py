"""Whatever a callback does to a queue while that calls it, the queue survives."""

import asyncio

import pytest

from asyncnn.fmq import LoopPoller, MessageQueue, QueueClosedError
from asyncnn.fmq.layout import READ, READER_SLEEPS, WRITER_SLEEPS, WRITTEN
from asyncnn.fmq.poller import MAX_WINDOW_NS
from tests.fmq.conftest import COUNT, QUANTUM, Ends, elements
from tests.fmq.test_poller import Echo, is_cold, until


class TestBellsThatClose:
    """The bell is called last, so that it may close what rings it."""

    def test_by_a_packet(self, ends: Ends) -> None:
        ends.writer._wake_peer = ends.writer.close
        assert ends.reader._announce(READER_SLEEPS, WRITTEN, 0)
        assert ends.writer.write_nowait(elements(1))
        assert ends.writer.is_closed
        assert ends.reader.read_nowait() == elements(1)

    def test_by_space(self, ends: Ends) -> None:
        ends.reader._wake_peer = ends.reader.close
        ends.writer.write_nowait(elements(1))
        assert ends.writer._announce(WRITER_SLEEPS, READ, 0)
        assert ends.reader.read_nowait() == elements(1)
        assert ends.reader.is_closed

    def test_by_a_packet_in_place(self, ends: Ends) -> None:
        ends.writer._wake_peer = ends.writer.close
        assert ends.reader._announce(READER_SLEEPS, WRITTEN, 0)
        spans = ends.writer.writing(1)
        assert spans is not None
        spans.commit()
        assert ends.writer.is_closed
        assert ends.reader.available_to_read() == 1

    def test_by_going(self, ends: Ends) -> None:
        class Bell:
            def __call__(self) -> None:
                ends.writer._wake_peer = print
                ends.writer.rings = self  # type: ignore[attr-defined]

        ends.writer._wake_peer = Bell()
        assert ends.reader._announce(READER_SLEEPS, WRITTEN, 0)
        assert ends.writer.write_nowait(elements(1))
        assert isinstance(ends.writer.rings, Bell)  # type: ignore[attr-defined]


def test_a_count_that_closes_the_queue_reads_nothing(ends: Ends) -> None:
    class Count:
        def __index__(self) -> int:
            ends.reader.close()
            return 1

    ends.writer.write_nowait(elements(1))
    with pytest.raises((QueueClosedError, TypeError)):  # it compares where it is Python
        ends.reader.read_nowait(Count())  # type: ignore[arg-type]


async def test_who_closed_in_this_turn_is_not_looked_at(ends: Ends) -> None:
    reading = asyncio.create_task(ends.reader.read())
    await until(lambda: is_cold(ends.reader))
    ends.reader.close()
    for _ in range(2):
        LoopPoller.running()._recheck()
    with pytest.raises(QueueClosedError):
        await reading


async def test_a_callback_may_close_the_queue_that_its_caller_waits_at(
    ends: Ends,
) -> None:
    with (
        MessageQueue.create(QUANTUM, COUNT) as requests,
        MessageQueue.open(requests.descriptor) as served,
    ):
        reading = asyncio.create_task(ends.reader.read())
        await until(lambda: is_cold(ends.reader))
        ends.writer.write_nowait(elements(1))
        await reading
        LoopPoller.running().serve(served, ends.reader.close)
        requests.write_nowait(elements(1))
        with pytest.raises(QueueClosedError):
            await ends.reader.read()
        served.close()


async def test_one_that_pauses_and_resumes_within_its_callback_is_hot_once(
    ends: Ends,
) -> None:
    for end in ends:
        end.is_local = False
    echo = Echo(ends.reader)
    read = echo.on_ready

    def on_ready() -> None:
        echo.served.pause()
        read()
        echo.served.resume()

    echo.served.on_ready = on_ready
    await until(lambda: is_cold(ends.reader))
    echo.served.window_ns = MAX_WINDOW_NS
    ends.writer.write_nowait(elements(1))
    await until(echo.has_read(1))
    echo.served.pause()
    ends.writer.write_nowait(elements(1))
    await asyncio.sleep(0.002)
    assert len(echo.read) == 1


async def test_what_escapes_from_one_callback_leaves_the_others_served(
    ends: Ends,
) -> None:
    escaped: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: escaped.append(context["exception"]))

    def escape() -> None:
        queue.read_nowait()
        raise asyncio.CancelledError

    with (
        MessageQueue.create(QUANTUM, COUNT) as writer,
        MessageQueue.open(writer.descriptor) as queue,
    ):
        LoopPoller.running().serve(queue, escape)
        echo = Echo(ends.reader)
        writer.write_nowait(elements(1))
        await until(lambda: bool(escaped))
        ends.writer.write_nowait(elements(1))
        await until(echo.has_read(1))
    assert [type(error) for error in escaped] == [asyncio.CancelledError]
