"""One loop serves many queues: at once while they are in use, for nothing when not."""

import asyncio
import gc
import resource
import time
import weakref
from collections.abc import Callable

import pytest

from asyncnn.fmq import LoopPoller, MessageQueue, Served
from asyncnn.fmq import poller as poller_module
from asyncnn.fmq.layout import READER_SLEEPS
from asyncnn.fmq.poller import MAX_WINDOW_NS, SPIN_SLICE_NS
from tests.fmq.conftest import COUNT, QUANTUM, Ends, elements
from tests.measuring import best_of


def is_cold(queue: MessageQueue) -> bool:
    return bool(queue._word(READER_SLEEPS))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - shared memory has no events
            await asyncio.sleep(0)


class Echo:
    """Serves one end of a queue and keeps what it reads."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.read: list[bytes] = []
        self.served = LoopPoller.running().serve(queue, self.on_ready)

    def on_ready(self) -> None:
        data = self.queue.read_nowait()
        assert data is not None
        self.read.append(data)

    def has_read(self, count: int) -> Callable[[], bool]:
        return lambda: len(self.read) >= count


class TestServing:
    async def test_packets_that_were_there_are_served(self, ends: Ends) -> None:
        ends.writer.write_nowait(elements(2))
        echo = Echo(ends.reader)
        assert not echo.read
        await until(lambda: echo.read == [elements(2)])

    async def test_a_cold_queue_is_woken_by_its_bell(self, ends: Ends) -> None:
        echo = Echo(ends.reader)
        for number in range(3):
            await until(lambda: is_cold(ends.reader))
            ends.writer.write_nowait(elements(1, number))
            await until(echo.has_read(number + 1))
        assert echo.read == [elements(1, number) for number in range(3)]

    async def test_what_was_not_read_is_offered_again(self, ends: Ends) -> None:
        got: list[bytes | None] = []
        ends.writer.write_nowait(elements(5))
        LoopPoller.running().serve(
            ends.reader, lambda: got.append(ends.reader.read_nowait(1))
        )
        await until(lambda: len(got) == 5)
        assert got == [elements(1, number) for number in range(5)]

    async def test_a_paused_queue_is_left_alone(self, ends: Ends) -> None:
        echo = Echo(ends.reader)
        await until(lambda: is_cold(ends.reader))
        echo.served.pause()
        echo.served.pause()
        ends.writer.write_nowait(elements(1))
        await asyncio.sleep(0.02)
        assert not echo.read
        echo.served.resume()
        assert not echo.read
        await until(lambda: echo.read == [elements(1)])

    @pytest.mark.parametrize("is_cold_first", [False, True])
    async def test_beside_others_it_waits_for_its_turn(
        self, ends: Ends, is_cold_first: bool
    ) -> None:
        got: list[bytes | None] = []
        waiting: list[Callable[[], bool]] = []
        may_read = False

        def take_turn(proceed: Callable[[], bool]) -> bool:
            if not may_read:
                waiting.append(proceed)
            return may_read

        poller = LoopPoller.running()
        served = poller.serve(
            ends.reader,
            lambda: got.append(ends.reader.read_nowait()),
            take_turn=take_turn,
        )
        if is_cold_first:
            await until(lambda: is_cold(ends.reader))
        ends.writer.write_nowait(elements(1))
        await until(lambda: len(got) == 1)
        assert not waiting, "it is the only one"
        with (
            MessageQueue.create(QUANTUM, COUNT) as other,
            MessageQueue.open(other.descriptor) as end,
        ):
            echo = Echo(end)
            if is_cold_first:
                await until(lambda: is_cold(ends.reader))
            ends.writer.write_nowait(elements(2))
            await until(lambda: bool(waiting))
            other.write_nowait(elements(3))
            await until(lambda: echo.read == [elements(3)])
            assert len(got) == len(waiting) == 1, "it is asked for once"
            assert waiting.pop()()
            assert got[1] == elements(2)
            may_read = True
            ends.writer.write_nowait(elements(3))
            await until(lambda: len(got) == 3)
            may_read = False
            ends.writer.write_nowait(elements(4))
            await until(lambda: bool(waiting))
            served.stop()
            assert not waiting.pop()()
            assert len(got) == 3

    async def test_it_may_pause_itself(self, ends: Ends) -> None:
        echo = Echo(ends.reader)
        read = echo.on_ready
        echo.served.on_ready = lambda: (read(), echo.served.pause())
        for number in range(2):
            ends.writer.write_nowait(elements(1))
            await until(echo.has_read(number + 1))
            ends.writer.write_nowait(elements(1))
            await asyncio.sleep(0.002)
            assert len(echo.read) == number + 1
            ends.reader.read_nowait()
            echo.served.resume()

    async def test_a_stopped_queue_can_be_read_by_others(self, ends: Ends) -> None:
        echo = Echo(ends.reader)
        await until(lambda: is_cold(ends.reader))
        echo.served.stop()
        echo.served.stop()
        echo.served.resume()
        reading = asyncio.create_task(ends.reader.read())
        await asyncio.sleep(0)
        ends.writer.write_nowait(elements(1))
        assert await reading == elements(1)
        assert not echo.read
        assert not LoopPoller.running().served

    async def test_a_failure_ends_the_serving_and_is_reported(self, ends: Ends) -> None:
        failures: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context)
        )
        error = RuntimeError("no")

        def fail() -> None:
            raise error

        served = LoopPoller.running().serve(ends.reader, fail)
        ends.writer.write_nowait(elements(1))
        await until(lambda: served.is_stopped)
        assert failures == [{"message": "serving a queue failed", "exception": error}]

    async def test_a_closed_queue_is_served_no_more(self, ends: Ends) -> None:
        echo = Echo(ends.reader)
        await until(lambda: is_cold(ends.reader))
        ends.reader.close()
        assert echo.served.is_stopped
        await asyncio.sleep(0.02)

    async def test_a_hot_queue_may_be_closed(self, ends: Ends) -> None:
        echo = Echo(ends.reader)
        ends.reader.close()
        assert echo.served.is_stopped
        await asyncio.sleep(0)

    async def test_a_lost_bell_costs_a_few_milliseconds(
        self, ends: Ends, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ends.writer, "_wake_peer", lambda: None)
        echo = Echo(ends.reader)
        await until(lambda: is_cold(ends.reader))
        ends.writer.write_nowait(elements(1))
        await until(lambda: bool(echo.read))

    async def test_many_queues_are_served_by_one_poller(self) -> None:
        writers = [MessageQueue.create(QUANTUM, COUNT) for _ in range(20)]
        readers = [MessageQueue.open(writer.descriptor) for writer in writers]
        echoes = [Echo(reader) for reader in readers]
        for number in range(10):
            for writer in writers[number:]:
                writer.write_nowait(elements(1, number))
            await asyncio.sleep(0.001)
        await until(lambda: sum(len(echo.read) for echo in echoes) == 155)
        for queue in writers + readers:
            queue.close()
        assert not LoopPoller.running().served


async def test_who_spins_on_the_same_loop_serves_meanwhile(ends: Ends) -> None:
    """A driver and its client on one loop, as a device in process is."""
    with (
        MessageQueue.create(QUANTUM, COUNT) as answers,
        MessageQueue.open(answers.descriptor) as to_answer,
    ):

        def answer() -> None:
            to_answer.write_nowait(ends.reader.read_nowait() or b"")

        LoopPoller.running().serve(ends.reader, answer)
        async with asyncio.timeout(20):
            for number in range(300):
                ends.writer.write_nowait(elements(2, number))
                assert await answers.read() == elements(2, number)


async def test_a_callback_does_not_serve_within_itself(ends: Ends) -> None:
    poller = LoopPoller.running()
    depth: list[int] = [0, 0]

    def on_ready() -> None:
        depth[0] += 1
        depth[1] = max(depth)
        poller.serve_ready()
        ends.reader.read_nowait()
        depth[0] -= 1

    poller.serve(ends.reader, on_ready)
    ends.writer.write_nowait(elements(1))
    poller.serve_ready()
    assert depth == [0, 1]


class FakeClock:
    """Time that passes only while somebody gives way, or is made to."""

    def __init__(self) -> None:
        self.now = 10**12
        self.yield_ns = 1000
        self.spun_ns = 0
        self.during_yield: Callable[[], object] = lambda: None

    def __call__(self) -> int:
        return self.now

    def yield_core(self) -> None:
        self.now += self.yield_ns
        self.spun_ns += self.yield_ns
        self.during_yield()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(poller_module, "clock", clock)
    monkeypatch.setattr(poller_module, "yield_core", clock.yield_core)
    return clock


class TestWindows:
    """How long a served queue stays hot, in times that are made up."""

    @pytest.fixture
    async def echo(self, ends: Ends, clock: FakeClock) -> Echo:
        for end in ends:
            end.is_local = False
        self.writer = ends.writer
        echo = Echo(ends.reader)
        await until(lambda: is_cold(ends.reader))
        return echo

    async def arrive(self, echo: Echo, clock: FakeClock, gap_ns: int) -> int:
        """Have a packet arrive after a gap; return how long was spun for in vain."""
        count = len(echo.read)
        arrival = echo.served.idle_since_ns + gap_ns
        before = clock.spun_ns
        await until(lambda: is_cold(echo.queue) or clock.now >= arrival)
        clock.now = max(clock.now, arrival)
        self.writer.write_nowait(elements(1))
        await until(lambda: len(echo.read) > count)
        spun = clock.spun_ns
        await until(lambda: is_cold(echo.queue))
        assert clock.spun_ns - spun <= MAX_WINDOW_NS + SPIN_SLICE_NS
        return clock.spun_ns - before

    async def test_the_first_packet_is_not_waited_for(
        self, echo: Echo, clock: FakeClock
    ) -> None:
        assert await self.arrive(echo, clock, 10**9) == 0

    @pytest.mark.parametrize("gap_us", [1, 50, 300, 1000, 2400])
    async def test_one_after_a_short_gap_is_waited_for(
        self, echo: Echo, clock: FakeClock, gap_us: int
    ) -> None:
        await self.arrive(echo, clock, 10**9)
        spun_ns = await self.arrive(echo, clock, gap_us * 1000)
        assert gap_us * 1000 <= spun_ns

    async def test_a_camera_is_not(self, echo: Echo, clock: FakeClock) -> None:
        for gap_ms in (1, 1, 1, *[33] * 10):
            await self.arrive(echo, clock, gap_ms * 10**6)
        for _ in range(30):
            assert await self.arrive(echo, clock, 33 * 10**6) == 0

    async def test_pairs_of_packets_are_waited_for_no_longer_than_it_takes(
        self, echo: Echo, clock: FakeClock
    ) -> None:
        for _ in range(20):
            await self.arrive(echo, clock, 33 * 10**6)
            spun_ns = await self.arrive(echo, clock, 60_000)
        assert spun_ns <= 4 * 60_000 + SPIN_SLICE_NS

    async def test_a_core_is_left_to_others_once_packets_have_waited_for_it(
        self, echo: Echo, clock: FakeClock
    ) -> None:
        await self.arrive(echo, clock, 10**9)
        clock.yield_ns = 4 * 10**6
        clock.during_yield = lambda: self.writer.write_nowait(elements(1))
        yields = [
            await self.arrive(echo, clock, 10_000) // clock.yield_ns for _ in range(200)
        ]
        assert 2 <= sum(yields) <= 5

    async def test_a_core_that_others_want_is_left_to_them_until_the_next_packet(
        self, echo: Echo, clock: FakeClock
    ) -> None:
        await self.arrive(echo, clock, 10**9)
        clock.yield_ns = 4 * 10**6
        for _ in range(10):
            assert await self.arrive(echo, clock, 10_000) == clock.yield_ns


async def test_a_bell_that_rings_late_does_not_cool_a_hot_queue(
    ends: Ends, clock: FakeClock
) -> None:
    for end in ends:
        end.is_local = False
    clock.yield_ns = 100
    echo = Echo(ends.reader)
    await until(lambda: is_cold(ends.reader))
    echo.served.window_ns = MAX_WINDOW_NS
    ends.writer.write_nowait(elements(1))
    await until(echo.has_read(1))
    ends.writer._wake_peer()
    await asyncio.sleep(0.015)  # longer than it takes to look again
    assert not is_cold(ends.reader)


async def test_ends_in_one_process_are_never_hot_for_long(
    ends: Ends, clock: FakeClock
) -> None:
    echo = Echo(ends.reader)
    for _ in range(10):
        ends.writer.write_nowait(elements(1))
        await until(lambda: is_cold(ends.reader))
    assert echo.served.window_ns == 0
    assert clock.spun_ns == 0


def times_slept() -> int:
    """Return how often this thread has gone to sleep, whichever loop it runs."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


@pytest.mark.alone
async def test_idle_queues_use_no_processor_time(ends: Ends) -> None:
    for end in ends:
        end.is_local = False
    echo = Echo(ends.reader)
    for _ in range(50):  # make it hot first
        ends.writer.write_nowait(elements(1))
        await asyncio.sleep(0.0005)
    assert echo.served.window_ns
    with (
        MessageQueue.create(QUANTUM, COUNT) as queue,
        MessageQueue.open(queue.descriptor) as other,
    ):
        reading = asyncio.create_task(other.read())
        await asyncio.sleep(0.05)  # windows pass, second looks are taken

        async def share_of_the_limits() -> float:
            turns, used = times_slept(), time.thread_time()
            await asyncio.sleep(0.5)
            return max((times_slept() - turns) / 4, (time.thread_time() - used) / 0.01)

        await best_of(4, share_of_the_limits, 1.0)
        queue.write_nowait(elements(1))
        assert await reading == elements(1)


def test_a_poller_goes_with_its_loop() -> None:
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def served() -> Served:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        with (
            MessageQueue.create(QUANTUM, COUNT) as queue,
            MessageQueue.open(queue.descriptor) as other,
        ):
            served = LoopPoller.running().serve(other, other.read_nowait)
            assert LoopPoller.running() is LoopPoller.running()
            return served

    assert asyncio.run(served()).is_stopped
    gc.collect()
    assert [loop() for loop in loops] == [None]  # which no poller keeps
