"""Bounds on what is under way, beside tasks that wait, come late and are cancelled."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

import pytest

from asyncnn.hal.errors import MissedDeadlineTransientError
from asyncnn.runtime.execution_options import InFlight


async def settled() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


class Visits:
    """Tasks that enter one after the other and leave when they are told to."""

    def __init__(self, in_flight: InFlight) -> None:
        self.in_flight = in_flight
        self.inside: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.ends: list[asyncio.Event] = []

    async def add(self, count: int) -> None:
        for number in range(count):
            self.ends.append(asyncio.Event())
            self.tasks.append(asyncio.create_task(self._visit(number)))
        await settled()

    async def end(self, number: int) -> None:
        self.ends[number].set()
        await settled()

    async def _visit(self, number: int) -> None:
        if self.in_flight.room:
            self.in_flight.room -= 1
        else:
            await self.in_flight.wait()
        try:
            self.inside.append(number)
            await self.ends[number].wait()
        finally:
            self.inside.remove(number)
            self.in_flight.leave()


Enter = Callable[[int], Awaitable[Visits]]


@pytest.fixture
def enter() -> Enter:
    async def visits(count: int) -> Visits:
        made = Visits(InFlight(2))
        await made.add(count)
        return made

    return visits


async def test_room_goes_in_the_order_of_arrival(enter: Enter) -> None:
    visits = await enter(5)
    assert visits.inside == [0, 1]
    await visits.end(1)
    assert visits.inside == [0, 2]
    await visits.end(0)
    await visits.end(2)
    assert visits.inside == [3, 4]
    await visits.end(3)
    await visits.end(4)
    assert visits.in_flight.room == 2


async def test_one_that_is_cancelled_while_it_waits_is_passed_over(
    enter: Enter,
) -> None:
    visits = await enter(4)
    visits.tasks[2].cancel()
    await visits.end(0)
    assert visits.inside == [1, 3]


async def test_one_that_is_cancelled_with_its_room_passes_it_on(enter: Enter) -> None:
    visits = await enter(4)
    visits.ends[0].set()
    await asyncio.sleep(0)  # it has left, and the next one has not run yet
    visits.tasks[2].cancel()
    await settled()
    assert visits.inside == [1, 3]


async def test_nothing_is_lost_when_all_are_cancelled(enter: Enter) -> None:
    visits = await enter(6)
    for task in visits.tasks:
        task.cancel()
    await settled()
    assert visits.inside == []
    assert visits.in_flight.room == 2


async def test_a_deadline_ends_the_wait_and_takes_no_room(enter: Enter) -> None:
    visits = await enter(2)
    in_flight = visits.in_flight
    with pytest.raises(MissedDeadlineTransientError, match="max_in_flight"):
        await in_flight.wait(time.monotonic_ns() + 20_000_000)
    for number in range(2):
        await visits.end(number)
    assert in_flight.room == 2
    assert not in_flight.waiters


async def test_room_that_comes_with_the_deadline_is_not_lost(enter: Enter) -> None:
    visits = await enter(2)
    in_flight = visits.in_flight
    late = asyncio.create_task(in_flight.wait(time.monotonic_ns()))
    await asyncio.sleep(0)
    visits.ends[0].set()
    for _ in range(3):
        await asyncio.sleep(0)
    with contextlib.suppress(MissedDeadlineTransientError):
        await late
        in_flight.leave()
    await visits.end(1)
    assert in_flight.room == 2
