"""The order of jobs of one priority."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.hal.types import Priority
from asyncnn.qos.job import Account, Job
from asyncnn.qos.ready import ReadyQueue

SLACK_NS = 100


def job(account: Account, due_ns: int) -> Job:
    made = Job(Priority.MEDIUM)
    made.account = account
    made.due_ns = due_ns
    return made


def filled(jobs: Sequence[Job]) -> ReadyQueue[Job]:
    queue: ReadyQueue[Job] = ReadyQueue(SLACK_NS)
    for each in jobs:
        queue.push(each)
    return queue


def drain(queue: ReadyQueue[Job]) -> list[Job]:
    return [queue.pop() for _ in range(len(queue))]


dues = st.lists(st.integers(0, 5), max_size=40)


@given(dues)
def test_the_earliest_goes_first_and_equals_in_order_of_arrival(due: list[int]) -> None:
    account = Account(1.0)
    jobs = [job(account, each) for each in due]
    queue = filled(jobs)
    assert len(queue) == len(jobs)
    assert drain(queue) == sorted(jobs, key=lambda each: each.due_ns)
    assert len(queue) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_deadlines_count_across_clients_within_the_slack(
    specs: list[tuple[int, int]],
) -> None:
    accounts = [Account(1.0) for _ in range(4)]
    for position, account in enumerate(accounts):
        account.virtual_ns = position * SLACK_NS / 3
    jobs = [job(accounts[number], due) for number, due in specs]
    assert drain(filled(jobs)) == sorted(jobs, key=lambda each: each.due_ns)


def test_a_client_beyond_the_slack_waits_whatever_its_deadline() -> None:
    greedy, modest = Account(1.0), Account(1.0)
    greedy.virtual_ns = SLACK_NS + 1
    urgent, relaxed = job(greedy, 0), job(modest, 1000)
    assert drain(filled([urgent, relaxed])) == [relaxed, urgent]


@given(dues, st.data())
def test_discarded_jobs_are_not_popped(due: list[int], data: st.DataObject) -> None:
    accounts = [Account(1.0), Account(1.0)]
    jobs = [job(accounts[number % 2], each) for number, each in enumerate(due)]
    queue = filled(jobs)
    dropped = [each for each in jobs if data.draw(st.booleans())]
    for each in dropped:
        queue.discard(each)
    kept = [each for each in jobs if each not in dropped]
    assert len(queue) == len(kept)
    assert set(queue) == set(kept)
    assert drain(queue) == sorted(kept, key=lambda each: each.due_ns)


def test_what_has_begun_is_resumed_first() -> None:
    account = Account(1.0)
    begun, urgent = job(account, 1000), job(account, 0)
    queue = filled([urgent])
    queue.suspend(begun)
    assert drain(queue) == [begun, urgent]


def test_suspended_jobs_can_be_discarded() -> None:
    account = Account(1.0)
    begun = job(account, 0)
    queue = filled([])
    queue.suspend(begun)
    queue.discard(begun)
    assert len(queue) == 0
    assert drain(queue) == []


@pytest.mark.parametrize("clients", [1, 100])
def test_discarding_does_not_let_memory_grow(clients: int) -> None:
    queue = filled([])
    accounts = [Account(1.0) for _ in range(clients)]
    for number in range(10_000):
        each = job(accounts[number % clients], number)
        queue.push(each)
        queue.discard(each)
    assert len(queue) == 0
    assert sum(map(len, queue._heaps.values())) < 100


def test_draining_returns_everything_once() -> None:
    account = Account(1.0)
    jobs = [job(account, due) for due in range(4)]
    queue = filled(jobs[:3])
    queue.suspend(jobs[3])
    queue.discard(jobs[0])
    assert set(queue.drain()) == set(jobs[1:])
    assert len(queue) == 0
    assert list(queue) == []
