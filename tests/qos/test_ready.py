"""The order of jobs of one priority."""

import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.hal.types import Priority
from asyncnn.qos.ready_queue import ReadyQueue
from asyncnn.qos.work import ClientAccount, Job, UserAccount


def client() -> ClientAccount:
    return ClientAccount(1.0, UserAccount(1.0, 0))


class Watched(Job):
    """A job that can be referred to weakly."""


def job(account: ClientAccount, due_ns: int) -> Job:
    made = Job(Priority.MEDIUM)
    made.account = account
    made.due_ns = due_ns
    return made


def filled(jobs: Sequence[Job]) -> ReadyQueue[Job]:
    queue: ReadyQueue[Job] = ReadyQueue()
    for each in jobs:
        queue.push(each)
    return queue


def drain(queue: ReadyQueue[Job], account: ClientAccount) -> list[Job]:
    return [queue.pop(account) for _ in range(len(queue))]


dues = st.lists(st.integers(0, 5), max_size=40)


@given(dues)
def test_the_earliest_goes_first_and_equals_in_order_of_arrival(due: list[int]) -> None:
    account = client()
    jobs = [job(account, each) for each in due]
    queue = filled(jobs)
    assert len(queue) == len(jobs)
    assert drain(queue, account) == sorted(jobs, key=lambda each: each.due_ns)
    assert len(queue) == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=40))
def test_each_client_has_an_order_of_its_own(specs: list[tuple[int, int]]) -> None:
    accounts = [client() for _ in range(4)]
    jobs = [job(accounts[number], due) for number, due in specs]
    queue = filled(jobs)
    for account in accounts:
        mine = [each for each in jobs if each.account is account]
        popped = [queue.pop(account) for _ in mine]
        assert popped == sorted(mine, key=lambda each: each.due_ns)
    assert len(queue) == 0


@given(dues, st.data())
def test_discarded_jobs_are_not_popped(due: list[int], data: st.DataObject) -> None:
    accounts = [client(), client()]
    jobs = [job(accounts[number % 2], each) for number, each in enumerate(due)]
    queue = filled(jobs)
    dropped = [each for each in jobs if data.draw(st.booleans())]
    for each in dropped:
        queue.discard(each)
    kept = [each for each in jobs if each not in dropped]
    assert len(queue) == len(kept)
    assert set(queue) == set(kept)
    for account in accounts:
        mine = [each for each in kept if each.account is account]
        popped = [queue.pop(account) for _ in mine]
        assert popped == sorted(mine, key=lambda each: each.due_ns)


def test_what_has_begun_is_resumed_first() -> None:
    account = client()
    begun, urgent = job(account, 1000), job(account, 0)
    queue = filled([urgent])
    queue.suspend(begun)
    assert drain(queue, account) == [begun, urgent]


def test_suspended_jobs_can_be_discarded() -> None:
    account = client()
    begun = job(account, 0)
    queue = filled([])
    queue.suspend(begun)
    queue.discard(begun)
    assert len(queue) == 0
    assert drain(queue, account) == []


@pytest.mark.parametrize("clients", [1, 100])
def test_discarding_does_not_let_memory_grow(clients: int) -> None:
    queue = filled([])
    accounts = [client() for _ in range(clients)]
    for number in range(10_000):
        each = job(accounts[number % clients], number)
        queue.push(each)
        queue.discard(each)
    assert len(queue) == 0
    assert not queue._clients


def test_what_is_discarded_is_let_go_of_beside_a_busy_client() -> None:
    busy, other = client(), client()
    queue = filled([job(busy, number) for number in range(1000)])
    discarded = Watched(Priority.MEDIUM)
    discarded.account, discarded.due_ns = other, 0
    queue.push(discarded)
    queue.discard(discarded)
    is_alive = weakref.ref(discarded)
    del discarded
    assert is_alive() is None


def test_draining_returns_everything_once() -> None:
    account = client()
    jobs = [job(account, due) for due in range(4)]
    queue = filled(jobs[:3])
    queue.suspend(jobs[3])
    queue.discard(jobs[0])
    assert set(queue.drain()) == set(jobs[1:])
    assert len(queue) == 0
    assert list(queue) == []
