"""LOW work on lanes with a nice value, beside a machine that is busy with others."""

import asyncio
import os
from contextlib import suppress
from typing import Any

import pytest

from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Pause, Policy, Scheduler, Work
from asyncnn.qos.native_lanes import NICE, ILanePort

LIMIT_NS = Policy().starvation_limit_ns


class Thread:
    """A native lane that does nothing by itself."""

    has_ended = True

    def __init__(self, nice: int) -> None:
        self.nice = nice

    def close(self) -> None: ...


class Port(ILanePort):
    """Gives back what a test says that lanes have done."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._back: list[Any] = []

    def lane(self, name: str, nice: int = 0) -> Thread:
        return Thread(nice)

    def leave(self, lane: Any, *end: Any) -> None:
        self._back.append((lane, *end))
        os.eventfd_write(self._fd, 1)

    def drain(self, ended: list[Any], /) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        ended += self._back
        self._back = []


class Offered(Work):
    """LOW work for native lanes alone."""

    def __init__(self) -> None:
        super().__init__(Priority.LOW)
        self.goes_native = True
        self.lanes: asyncio.Queue[Any] = asyncio.Queue()
        self.ended = asyncio.Event()

    def offer(self, idle: list[Any]) -> bool:
        lane = idle.pop()
        lane.work = self
        self.lanes.put_nowait(lane)
        return True

    def come_back(self, outcome: Any, *times: int) -> bool:
        return outcome == "done"

    def advance(self, pause: Pause) -> bool:
        raise NotImplementedError

    def abort(self, status: ErrorStatus) -> None: ...

    def finish(self) -> ErrorStatus:
        self.ended.set()
        return ErrorStatus.NONE


@pytest.mark.parametrize(
    ("had_ns", "nice"), [(LIMIT_NS // 20, 0), (LIMIT_NS // 3, 0), (LIMIT_NS, NICE)]
)
async def test_what_had_no_processor_goes_on_on_an_ordinary_lane(
    had_ns: int, nice: int
) -> None:
    """It is looked at when the starvation limit is over, and nothing has to end."""
    ports: list[Port] = []

    def make_port(fd: int) -> Port:
        ports.append(Port(fd))
        return ports[-1]

    scheduler = Scheduler("lane", max_pending=8, make_port=make_port)
    work = Offered()
    scheduler.submit(work)
    lane = work.lanes.get_nowait()
    assert lane.thread.nice == NICE
    assert work.pause.from_ns == work.resumed_ns + LIMIT_NS
    async with asyncio.timeout(20):
        ports[0].leave(lane, "paused", 1, 1 + LIMIT_NS, had_ns)
        lane = await work.lanes.get()
        assert lane.thread.nice == nice
        assert (work.pause.from_ns is None) == (nice == 0)
        assert work.preemptions == 0
        ports[0].leave(lane, "done", 1, 2, 1)
        await work.ended.wait()
        await scheduler.aclose()


async def test_what_makes_way_for_higher_work_stays_where_it_is() -> None:
    ports: list[Port] = []

    def make_port(fd: int) -> Port:
        ports.append(Port(fd))
        return ports[-1]

    scheduler = Scheduler("lane", max_pending=8, make_port=make_port)
    low, high = Offered(), Offered()
    high.priority = Priority.HIGH
    scheduler.submit(low)
    scheduler.submit(high)
    lane, ordinary = low.lanes.get_nowait(), high.lanes.get_nowait()
    assert (lane.thread.nice, ordinary.thread.nice) == (NICE, 0)
    async with asyncio.timeout(20):
        ports[0].leave(lane, "paused", 1, 1 + LIMIT_NS, 0)
        ports[0].leave(ordinary, "done", 1, 2, 1)
        await high.ended.wait()
        lane = await low.lanes.get()
        assert lane.thread.nice == NICE
        ports[0].leave(lane, "done", 1, 2, 1)
        await low.ended.wait()
        await scheduler.aclose()
