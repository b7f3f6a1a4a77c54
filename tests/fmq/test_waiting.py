"""Ends wait for each other: in tasks, with cancelling and time-outs, and in threads."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from asyncnn.fmq import LoopPoller, MessageQueue, QueueBusyError, QueueClosedError
from asyncnn.fmq.doorbell import EventDoorbell, SocketDoorbell
from asyncnn.fmq.layout import READER_SLEEPS, WRITER_SLEEPS
from asyncnn.hal.errors import BusyError, DeviceClosedError, InvalidArgumentError
from tests.fmq.conftest import COUNT, QUANTUM, Ends, elements
from tests.waits import cancelled

FULL = elements(COUNT)


def is_announced(ends: Ends) -> bool:
    return any(ends.writer._word(flag) for flag in (READER_SLEEPS, WRITER_SLEEPS))


async def until_asleep(ends: Ends) -> None:
    async with asyncio.timeout(20):
        while not is_announced(ends):  # noqa: ASYNC110 - shared memory has no events
            await asyncio.sleep(0)


def rung(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return what bells that have rung, and are heard, will have been written into."""
    heard: list[object] = []
    for bell in (EventDoorbell, SocketDoorbell):

        def noted(self: object, silence: Callable[..., None] = bell.silence) -> None:
            heard.append(self)
            silence(self)

        monkeypatch.setattr(bell, "silence", noted)
    return heard


@pytest.fixture(params=["spinning", "sleeping"])
def spins(request: pytest.FixtureRequest, ends: Ends) -> bool:
    if request.param == "spinning":
        for end in ends:  # as if they were in two processes
            end.is_local = False
    return request.param == "spinning"


@pytest.mark.usefixtures("spins")
class TestTasks:
    async def test_a_reader_waits_for_a_packet(self, ends: Ends) -> None:
        reading = asyncio.create_task(ends.reader.read())
        await until_asleep(ends)
        assert not reading.done()
        await ends.writer.write(elements(2))
        assert await reading == elements(2)
        assert not is_announced(ends)

    async def test_a_reader_waits_for_as_many_as_it_wants(self, ends: Ends) -> None:
        reading = asyncio.create_task(ends.reader.read(3))
        for number in range(2):
            await until_asleep(ends)
            ends.writer.write_nowait(elements(1, number))
        await until_asleep(ends)
        assert not reading.done()
        ends.writer.write_nowait(elements(2, 2))
        assert await reading == elements(3)
        assert ends.reader.read_nowait() == elements(1, 3)

    async def test_a_writer_waits_for_room(self, ends: Ends) -> None:
        await ends.writer.write(FULL)
        writing = asyncio.create_task(ends.writer.write(elements(2, 50)))
        await until_asleep(ends)
        ends.reader.read_nowait(1)
        await until_asleep(ends)
        assert not writing.done()
        assert ends.reader.available_to_read() == COUNT - 1
        ends.reader.read_nowait(1)
        await writing
        assert ends.reader.read_nowait() == FULL[16:] + elements(2, 50)

    async def test_a_stream_arrives_in_order(self, ends: Ends) -> None:
        async def write() -> None:
            for number in range(300):
                await ends.writer.write(elements(number % COUNT + 1, number))

        async def read() -> None:
            for number in range(300):
                count = number % COUNT + 1
                assert await ends.reader.read(count) == elements(count, number)

        async with asyncio.timeout(10):
            await asyncio.gather(write(), read())

    async def test_cancelling_takes_nothing(self, ends: Ends) -> None:
        for _ in range(3):
            reading = asyncio.create_task(ends.reader.read())
            await until_asleep(ends)
            await cancelled(reading)
            assert not is_announced(ends)
        ends.writer.write_nowait(elements(1))
        assert await ends.reader.read() == elements(1)

    async def test_cancelling_after_the_bell_has_rung_takes_nothing(
        self, ends: Ends
    ) -> None:
        reading = asyncio.create_task(ends.reader.read())
        await until_asleep(ends)
        ends.writer.write_nowait(elements(1))
        await cancelled(reading)
        assert await ends.reader.read() == elements(1)

    @pytest.mark.parametrize("seconds", [0, 0.002])
    async def test_time_runs_out(self, ends: Ends, seconds: float) -> None:
        with pytest.raises(TimeoutError):
            await ends.reader.read(timeout=seconds)
        ends.writer.write_nowait(FULL)
        with pytest.raises(TimeoutError):
            await ends.writer.write(elements(1), timeout=seconds)
        assert await ends.reader.read(timeout=20) == FULL

    async def test_two_cannot_wait_at_one_end(self, ends: Ends) -> None:
        reading = asyncio.create_task(ends.reader.read())
        await until_asleep(ends)
        with pytest.raises(QueueBusyError):
            await ends.reader.read()
        ends.writer.write_nowait(elements(1))
        assert await reading == elements(1)

    @pytest.mark.parametrize("waiting", ["read", "write"])
    async def test_closing_wakes_whoever_waits(self, ends: Ends, waiting: str) -> None:
        if waiting == "write":
            ends.writer.write_nowait(FULL)
            task = asyncio.create_task(ends.writer.write(FULL))
        else:
            task = asyncio.create_task(ends.reader.read())  # type: ignore[arg-type]
        await until_asleep(ends)
        (ends.writer if waiting == "write" else ends.reader).close()
        with pytest.raises(QueueClosedError):
            await asyncio.wait_for(task, 20)

    async def test_what_can_never_be_is_an_error_at_once(self, ends: Ends) -> None:
        with pytest.raises(InvalidArgumentError):
            await ends.reader.read(COUNT + 1)
        with pytest.raises(InvalidArgumentError):
            await ends.writer.write(elements(COUNT + 1))

    @pytest.mark.parametrize("end", ["reader", "writer"])
    async def test_packets_that_are_there_do_not_starve_other_tasks(
        self, ends: Ends, end: str
    ) -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        waits: Callable[[], Awaitable[object]] = (
            ends.reader.read
            if end == "reader"
            else lambda: ends.writer.write(elements(1))
        )
        task = asyncio.create_task(other())
        stop = time.perf_counter() + 1.0  # some ms are enough on an idle machine
        while turns <= 10 and time.perf_counter() < stop:
            if end == "reader":
                ends.writer.write_nowait(elements(1))
            await waits()
            ends.reader.read_nowait()
        task.cancel()
        assert turns > 10


async def test_a_lost_bell_costs_a_few_milliseconds(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends.writer, "_wake_peer", lambda: None)
    reading = asyncio.create_task(ends.reader.read())
    await until_asleep(ends)
    ends.writer.write_nowait(elements(1))
    assert await asyncio.wait_for(reading, 2) == elements(1)


async def test_a_bell_that_rings_for_nothing_wakes_nobody_for_good(ends: Ends) -> None:
    reading = asyncio.create_task(ends.reader.read())
    for _ in range(3):
        await until_asleep(ends)
        ends.writer._wake_peer()
        await asyncio.sleep(0.001)
    assert not reading.done()
    ends.writer.write_nowait(elements(1))
    assert await reading == elements(1)


def test_an_end_moves_from_loop_to_loop(ends: Ends) -> None:
    async def exchange(number: int) -> None:
        reading = asyncio.create_task(ends.reader.read())
        await until_asleep(ends)
        ends.writer.write_nowait(elements(1, number))
        assert await asyncio.wait_for(reading, 20) == elements(1, number)

    for number in range(3):
        asyncio.run(exchange(number))


@pytest.mark.parametrize("spins", [True, False])
class TestThreads:
    def test_a_stream_arrives_in_order(self, ends: Ends, spins: bool) -> None:
        def write() -> None:
            for number in range(300):
                data = elements(number % COUNT + 1, number)
                ends.writer.write_blocking(data, timeout=10, spins=spins)

        thread = threading.Thread(target=write)
        thread.start()
        for number in range(300):
            count = number % COUNT + 1
            data = ends.reader.read_blocking(count, timeout=10, spins=spins)
            assert data == elements(count, number)
        thread.join()

    @pytest.mark.parametrize("timeout", [0, 0.001, 0.02])
    def test_time_runs_out(self, ends: Ends, spins: bool, timeout: float) -> None:
        started = time.perf_counter()
        with pytest.raises(TimeoutError):
            ends.reader.read_blocking(timeout=timeout, spins=spins)
        ends.writer.write_nowait(FULL)
        with pytest.raises(TimeoutError):
            ends.writer.write_blocking(FULL, timeout=timeout, spins=spins)
        assert time.perf_counter() - started >= 2 * timeout
        assert ends.reader.read_blocking(spins=spins) == FULL
        assert not is_announced(ends)

    def test_a_lost_bell_costs_a_few_milliseconds(
        self, ends: Ends, spins: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ends.writer, "_wake_peer", lambda: None)

        def write() -> None:
            while not is_announced(ends):
                time.sleep(0)
            ends.writer.write_nowait(elements(1))

        thread = threading.Thread(target=write)
        thread.start()
        assert ends.reader.read_blocking(timeout=2, spins=spins) == elements(1)
        thread.join()


def test_both_kinds_of_waiting_have_one_meaning(ends: Ends) -> None:
    """A thread at one end, a task at the other."""

    def echo() -> None:
        for number in range(50):
            ends.writer.write_blocking(elements(number % COUNT + 1, number), 10)

    async def read() -> None:
        for number in range(50):
            count = number % COUNT + 1
            assert await ends.reader.read(count, 10) == elements(count, number)

    thread = threading.Thread(target=echo)
    thread.start()
    asyncio.run(read())
    thread.join()


def test_no_loop_no_waiting(ends: Ends) -> None:
    reading = MessageQueue.read(ends.reader)
    with pytest.raises(RuntimeError):
        reading.send(None)


async def test_ends_on_one_loop_need_no_bell(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings = rung(monkeypatch)
    reading = asyncio.create_task(ends.reader.read())
    await until_asleep(ends)
    ends.writer.write_nowait(FULL)
    assert await reading == FULL
    ends.writer.write_nowait(FULL)
    writing = asyncio.create_task(ends.writer.write(FULL))
    await until_asleep(ends)
    assert ends.reader.read_nowait() == FULL
    await writing
    await asyncio.sleep(0)
    assert not rings


async def test_an_end_that_a_thread_has_blocked_at_needs_none_either(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocking = asyncio.create_task(asyncio.to_thread(ends.reader.read_blocking))
    await until_asleep(ends)
    ends.writer.write_nowait(FULL)
    assert await blocking == FULL
    reading = asyncio.create_task(ends.reader.read())
    await until_asleep(ends)
    rings = rung(monkeypatch)
    ends.writer.write_nowait(FULL)
    assert await reading == FULL
    assert not rings


async def test_an_end_on_another_loop_hears_its_bell(ends: Ends) -> None:
    reading = asyncio.create_task(ends.reader.read())
    await until_asleep(ends)
    await asyncio.to_thread(ends.writer.write_nowait, FULL)
    assert await reading == FULL


async def test_an_end_on_another_loop_is_left_to_that(ends: Ends) -> None:
    asyncio.get_running_loop().set_debug(True)  # it refuses calls of other threads
    reading = asyncio.create_task(ends.reader.read())
    await until_asleep(ends)
    errors: list[object] = []

    async def write() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        ends.writer.write_nowait(FULL)
        await asyncio.sleep(0)

    await asyncio.to_thread(asyncio.run, write())
    assert await reading == FULL
    assert not errors


def test_closed_and_busy_ends_fail_as_everything_closed_and_busy_does() -> None:
    assert issubclass(QueueClosedError, DeviceClosedError)
    assert issubclass(QueueBusyError, BusyError)


async def test_closing_does_not_swallow_cancelling() -> None:
    for order in ("close, cancel", "cancel, close"):
        with (
            MessageQueue.create(QUANTUM, COUNT) as queue,
            MessageQueue.open(queue.descriptor) as other,
        ):
            reading = asyncio.create_task(queue.read())
            await until_asleep(Ends(other, queue))
            for act in order.split(", "):
                queue.close() if act == "close" else reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading


@pytest.mark.parametrize("is_local", [True, False])
async def test_a_thread_may_block_at_an_end_that_was_awaited(
    ends: Ends, is_local: bool
) -> None:
    if not is_local:  # as if they were in two processes
        ends.writer._wake_peer = ends.writer._peer_doorbell.ring
    reading = asyncio.create_task(ends.reader.read())
    await until_asleep(ends)
    ends.writer.write_nowait(elements(1))
    await reading
    blocking = asyncio.create_task(
        asyncio.to_thread(ends.reader.read_blocking, None, 3)
    )
    await asyncio.sleep(0.02)  # longer than until it looks again
    written = time.monotonic()
    ends.writer.write_nowait(elements(1))
    assert await blocking == elements(1)
    assert time.monotonic() - written < 1


@pytest.mark.parametrize("use", ["read", "write"])
async def test_waiting_at_a_closed_end_fails_as_such_however_long_others_wait(
    ends: Ends, use: str
) -> None:
    LoopPoller.running().must_yield = lambda: True  # type: ignore[method-assign]
    end = ends.reader if use == "read" else ends.writer
    end._poller = LoopPoller.running()
    end.close()
    with pytest.raises(QueueClosedError):
        await (end.read() if use == "read" else end.write(elements(1)))
