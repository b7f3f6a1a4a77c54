"""Bounds of clients, and what is counted for whom."""

import asyncio
import threading
import time

import pytest

from asyncnn.hal.errors import InvalidArgumentError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import Client, Scheduler, User, WorkAccounting, acting_for
from asyncnn.qos.work import JobState
from tests.qos.recorded import Recorded
from tests.waits import until


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
    other = Recorded([], gate=gate)
    scheduler.submit(other)
    gate.set()
    await asyncio.gather(*(work.finished.wait() for work in (*pieces[:2], other)))
    scheduler.submit(pieces[2])
    await pieces[2].finished.wait()


@pytest.mark.parametrize("made", [Client, User])
@pytest.mark.parametrize("wrong", [{"weight": 0.0}, {"max_pending": -1}])
def test_weights_are_positive_and_bounds_not_negative(
    made: type[Client] | type[User], wrong: dict[str, float]
) -> None:
    with pytest.raises(InvalidArgumentError, match=f"a {made.__name__.lower()} "):
        made("nobody", **wrong)
    made("nobody", weight=0.1, max_pending=0)  # it may have nothing


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
    assert scheduler.submit(at_once)
    everything = scheduler.statistics()
    assert everything.done[ErrorStatus.NONE] == 3
    assert everything.latency.count == 3
    of_client = scheduler.statistics(client=client)
    assert of_client.done[ErrorStatus.NONE] == 1
    assert scheduler.statistics(accounting=accounting).done[ErrorStatus.NONE] == 2


async def test_it_is_charged_for_processor_time_and_a_quarter_of_other_time(
    scheduler: Scheduler,
) -> None:
    def compute() -> None:
        until_ns = time.thread_time_ns() + 20_000_000
        while time.thread_time_ns() < until_ns:
            pass

    had_ns = []
    for body in (compute, lambda: time.sleep(0.04)):
        with acting_for(Client("one of them")):
            work = Recorded([], body=body)
        scheduler.submit(work)
        await work.finished.wait()
        await until(lambda: work.state is JobState.OUTSIDE)  # noqa: B023
        had_ns.append(work.account.virtual_ns)
    # The second one begins where the first one has ended.
    assert had_ns[0] >= 20_000_000
    assert 10_000_000 <= had_ns[1] - had_ns[0] < 30_000_000
