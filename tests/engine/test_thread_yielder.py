"""Other threads get their turn beside a series of short operations."""

import asyncio
import time

import numpy as np
import pytest

from asyncnn import pacing
from asyncnn.engine import PlanExecution, Program
from asyncnn.pacing import CALLS_PER_CHECK, YIELD_AFTER_NS, ThreadYielder
from tests.measuring import best_of
from tests.networks import chain


class Sleeps:
    """Counts the pauses, and makes the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.now_ns = 0
        monkeypatch.setattr(pacing.time, "sleep", self._sleep)
        monkeypatch.setattr(pacing.time, "monotonic_ns", lambda: self.now_ns)

    def _sleep(self, delay_s: float) -> None:
        self.count += 1


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> Sleeps:
    return Sleeps(monkeypatch)


def test_many_short_calls_pause_once_a_turn(sleeps: Sleeps) -> None:
    yielder = ThreadYielder()
    for _ in range(10):
        sleeps.now_ns += YIELD_AFTER_NS // 2
        yielder.count(CALLS_PER_CHECK)
    assert sleeps.count == 5


def test_few_calls_never_pause(sleeps: Sleeps) -> None:
    yielder = ThreadYielder()
    sleeps.now_ns += 10 * YIELD_AFTER_NS
    yielder.count(CALLS_PER_CHECK - 1)
    assert not sleeps.count


def test_calls_of_many_short_series_add_up(sleeps: Sleeps) -> None:
    yielder = ThreadYielder()
    for _ in range(CALLS_PER_CHECK):
        sleeps.now_ns += YIELD_AFTER_NS // 8
        yielder.count(1)
    assert sleeps.count == 1


def test_an_execution_counts_its_calls(sleeps: Sleeps) -> None:
    program = Program(chain(3 * CALLS_PER_CHECK, 4).model)
    x, z = np.zeros(4, np.float32), np.empty(4, np.float32)
    execution = PlanExecution(program, program.plan(((4,),)), [x], [z])
    sleeps.now_ns += YIELD_AFTER_NS
    assert execution.advance()
    assert sleeps.count == 1
    assert (z == 3 * CALLS_PER_CHECK).all()


@pytest.mark.alone
async def test_a_loop_is_not_kept_waiting_by_products_of_small_matrices() -> None:
    await best_of(3, longest_wait_s, 0.0999)


async def longest_wait_s() -> float:
    """Return how long a loop had to wait while another thread multiplied."""
    a, b, out = (np.ones((8, 8), np.float32) for _ in range(3))
    has_ended = False

    def compute() -> None:
        yielder = ThreadYielder()
        ends = time.monotonic() + 0.5
        while time.monotonic() < ends and not has_ended:
            for _ in range(CALLS_PER_CHECK):
                a.dot(b, out)
            yielder.count(CALLS_PER_CHECK)

    computing = asyncio.create_task(asyncio.to_thread(compute))
    longest = 0.0
    last = time.monotonic()
    while not computing.done():
        await asyncio.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    has_ended = True
    return longest
