"""The order of a client's jobs of one priority."""

import weakref
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.hal.types import Priority
from asyncnn.qos.work import QueueEntry, ReadyQueue


class Watched(QueueEntry):
    """A job that can be referred to weakly."""


def job(due_ns: int) -> QueueEntry:
    made = QueueEntry(Priority.MEDIUM)
    made.due_ns = due_ns
    return made


def filled(jobs: Sequence[QueueEntry]) -> ReadyQueue[QueueEntry]:
    queue: ReadyQueue[QueueEntry] = ReadyQueue()
    for each in jobs:
        queue.push(each)
    return queue


def drain(queue: ReadyQueue[QueueEntry]) -> list[QueueEntry]:
    return [queue.pop() for _ in range(queue.length)]


dues = st.lists(st.integers(0, 5), max_size=40)


@given(dues)
def test_the_earliest_goes_first_and_equals_in_order_of_arrival(due: list[int]) -> None:
    jobs = [job(each) for each in due]
    queue = filled(jobs)
    assert queue.length == len(jobs)
    assert drain(queue) == sorted(jobs, key=lambda each: each.due_ns)
    assert queue.length == 0


@given(dues, st.data())
def test_discarded_jobs_are_not_popped(due: list[int], data: st.DataObject) -> None:
    jobs = [job(each) for each in due]
    queue = filled(jobs)
    dropped = [each for each in jobs if data.draw(st.booleans())]
    for each in dropped:
        queue.discard(each)
    kept = [each for each in jobs if each not in dropped]
    assert queue.length == len(kept)
    assert set(queue) == set(kept)
    assert drain(queue) == sorted(kept, key=lambda each: each.due_ns)


def test_what_has_begun_is_resumed_first() -> None:
    begun, urgent = job(1000), job(0)
    queue = filled([urgent])
    queue.suspend(begun)
    assert drain(queue) == [begun, urgent]


def test_suspended_jobs_can_be_discarded() -> None:
    begun = job(0)
    queue = filled([])
    queue.suspend(begun)
    queue.discard(begun)
    assert queue.length == 0
    assert drain(queue) == []


@pytest.mark.parametrize("waiting", [0, 100])
def test_discarding_does_not_let_memory_grow(waiting: int) -> None:
    queue = filled([job(0) for _ in range(waiting)])
    for number in range(10_000):
        each = job(number)
        queue.push(each)
        queue.discard(each)
    assert queue.length == waiting
    assert len(queue._heap) <= 2 * waiting + 16


@pytest.mark.parametrize("is_begun", [True, False])
def test_nothing_that_was_discarded_is_kept_when_nothing_waits(is_begun: bool) -> None:
    last = job(0)
    queue = filled([] if is_begun else [last])
    if is_begun:
        queue.suspend(last)
    discarded = Watched(Priority.MEDIUM)
    discarded.due_ns = 1
    queue.push(discarded)
    queue.discard(discarded)
    is_alive = weakref.ref(discarded)
    del discarded
    assert queue.pop() is last
    assert is_alive() is None


def test_it_yields_what_it_has_once() -> None:
    jobs = [job(due) for due in range(4)]
    queue = filled(jobs[:3])
    queue.suspend(jobs[3])
    queue.discard(jobs[0])
    assert sorted(queue, key=id) == sorted(jobs[1:], key=id)
