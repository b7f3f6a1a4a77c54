"""Bounds of clients, waiting for room, and what is counted for whom."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from asyncnn.hal.errors import (
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import Client, Scheduler, User, WorkAccounting, acting_for
from tests.qos.recorded import Recorded


async def test_each_has_a_bound_of_its_own(scheduler: Scheduler) -> None:
    greedy = Client("greedy", max_pending=2)
    gate = threading.Event()
    with acting_for(greedy):
        pieces = [Recorded([], gate=gate) for _ in range(3)]
    scheduler.submit(pieces[0])
    scheduler.submit(pieces[1])
    with pytest.raises(ResourceExhaustedTransientError, match="of greedy"):
        scheduler.submit(pieces[2])
    pieces[2] = Recorded([], gate=gate)
    scheduler.submit(pieces[2])
    gate.set()
    await asyncio.gather(*(work.finished.wait() for work in pieces))


async def test_a_user_has_a_bound_for_all_of_its_clients(scheduler: Scheduler) -> None:
    crowd = User("crowd", max_pending=2)
    gate = threading.Event()
    pieces = []
    for number in range(3):
        with acting_for(Client(str(number), user=crowd)):
            pieces.append(Recorded([], gate=gate))
    scheduler.submit(pieces[0])
    scheduler.submit(pieces[1])
    with pytest.raises(ResourceExhaustedTransientError, match="of crowd"):
        scheduler.submit(pieces[2])
    waiting = asyncio.create_task(scheduler.submit_when_room(pieces[2]))
    other = Recorded([], gate=gate)
    scheduler.submit(other)
    gate.set()
    await asyncio.wait_for(waiting, 5)
    await asyncio.gather(*(work.finished.wait() for work in (*pieces, other)))


@pytest.mark.parametrize("made", [Client, User])
@pytest.mark.parametrize("wrong", [{"weight": 0.0}, {"max_pending": -1}])
def test_weights_are_positive_and_bounds_not_negative(
    made: Callable[..., object], wrong: dict[str, float]
) -> None:
    with pytest.raises(InvalidArgumentError):
        made("nobody", **wrong)


async def test_they_can_wait_for_room_in_order(scheduler: Scheduler) -> None:
    client = Client("patient", max_pending=1)
    served: list[int] = []

    async def run(number: int) -> None:
        with acting_for(client):
            work = Recorded([])
            await scheduler.submit_when_room(work)
        await work.finished.wait()
        served.append(number)

    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(run(number))
    assert served == list(range(20))


async def test_a_cancelled_waiter_leaves_the_room_to_the_next(
    scheduler: Scheduler,
) -> None:
    class Cancelling(Recorded):
        def finish(self) -> ErrorStatus:
            waiters[0].cancel()  # it has been told of the room by now
            return super().finish()

    with acting_for(Client("patient", max_pending=1)):
        busy = Cancelling([], gate=threading.Event())
        following = [Recorded([]), Recorded([])]
    scheduler.submit(busy)
    waiters = [
        asyncio.create_task(scheduler.submit_when_room(work)) for work in following
    ]
    await asyncio.sleep(0)
    busy.gate.set()
    await asyncio.wait_for(waiters[1], 5)
    with pytest.raises(asyncio.CancelledError):
        await waiters[0]
    await following[1].finished.wait()
    assert not following[0].started.is_set()


async def test_a_waiter_that_is_refused_leaves_the_room_to_the_next(
    scheduler: Scheduler,
) -> None:
    with acting_for(Client("patient", max_pending=1)):
        busy = Recorded([], gate=threading.Event())
        late = Recorded([], deadline_ns=time.monotonic_ns() + 1_000_000)
        patient = Recorded([])
    scheduler.submit(busy)
    waiters = [
        asyncio.create_task(scheduler.submit_when_room(work))
        for work in (late, patient)
    ]
    await asyncio.sleep(0.002)
    busy.gate.set()
    with pytest.raises(MissedDeadlinePersistentError):
        await asyncio.wait_for(waiters[0], 5)
    await asyncio.wait_for(waiters[1], 5)
    await patient.finished.wait()


async def test_work_counts_for_its_client_and_in_its_accounting(
    scheduler: Scheduler,
) -> None:
    client, accounting = Client("counted"), WorkAccounting()
    with acting_for(client):
        mine = Recorded([])
    mine.accounting = accounting
    other = Recorded([])
    for work in (mine, other):
        scheduler.submit(work)
    await asyncio.gather(mine.finished.wait(), other.finished.wait())
    at_once = Recorded([], "early")
    at_once.accounting, at_once.should_inline = accounting, True
    assert scheduler.run_or_submit(at_once)
    everything = scheduler.statistics()
    assert everything.done[ErrorStatus.NONE] == 3
    assert everything.latency.count == 3
    of_client = scheduler.statistics(client=client)
    assert of_client.done[ErrorStatus.NONE] == 1
    assert scheduler.statistics(accounting=accounting).done[ErrorStatus.NONE] == 2
