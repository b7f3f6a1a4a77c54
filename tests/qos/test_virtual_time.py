"""Who is next of those that compete, and what is due to one that was away."""

import random

import pytest

from asyncnn.hal.types import Priority
from asyncnn.qos.run_queue import Policy, RunQueue
from asyncnn.qos.virtual_time import Share, Shares
from asyncnn.qos.work import Client, QueueEntry, User

CREDIT_NS = 100


@pytest.fixture
def shares() -> Shares[Share]:
    return Shares(CREDIT_NS)


def entered(shares: Shares[Share], weight: float = 1.0, had_ns: int = 0) -> Share:
    """Let a share enter that has work waiting, and let it have so much of a lane."""
    share = Share(weight)
    share.waiting = 1
    shares.enter(share)
    share.virtual_ns += had_ns / weight
    return share


def test_whoever_has_had_least_by_weight_is_next(shares: Shares[Share]) -> None:
    light, heavy = entered(shares), entered(shares, weight=4.0)
    light.virtual_ns += 200
    heavy.virtual_ns += 400 / heavy.weight
    assert shares.next() is heavy


def test_one_without_waiting_work_is_passed_over(shares: Shares[Share]) -> None:
    running = entered(shares)
    waiting = entered(shares, had_ns=500)
    running.waiting = 0
    assert shares.next() is waiting


def test_one_that_comes_anew_is_level_and_first(shares: Shares[Share]) -> None:
    old = entered(shares, had_ns=5000)
    new = entered(shares)
    assert new.virtual_ns == old.virtual_ns == 5000
    assert shares.next() is new


@pytest.mark.parametrize(("weight", "credit"), [(1.0, 100), (4.0, 25)])
def test_little_of_what_was_not_used_is_made_up_for(
    shares: Shares[Share], weight: float, credit: float
) -> None:
    away = entered(shares, weight)
    shares.leave(away)
    entered(shares, had_ns=5000)
    shares.enter(away)
    assert away.virtual_ns == 5000 - credit


def test_a_moment_away_loses_nothing(shares: Shares[Share]) -> None:
    away = entered(shares, had_ns=1000)
    entered(shares, had_ns=40)
    shares.leave(away)
    shares.enter(away)
    assert away.virtual_ns == 1000


def test_going_away_pays_no_debt(shares: Shares[Share]) -> None:
    level = entered(shares)
    greedy = entered(shares, had_ns=3000)
    shares.leave(greedy)
    shares.leave(level)
    shares.enter(level)
    shares.enter(greedy)
    assert greedy.virtual_ns - level.virtual_ns == 3000
    assert shares.next() is level


class Eager(RunQueue[QueueEntry]):
    """One that lets each client go at once, even if nobody else is there."""

    def _forget(self, job: QueueEntry) -> None:
        super()._forget(job)
        if self._resting is not None:
            self._leave(self._resting)
            self._resting = None


@pytest.mark.parametrize("seed", range(50))
def test_who_was_alone_is_where_it_would_be_had_it_gone(seed: int) -> None:
    rng = random.Random(seed)
    users = [User("one"), User("two", weight=2.0)]
    clients = [Client(str(n), weight=1.0 + n, user=users[n % 2]) for n in range(4)]
    queues = [kind(Policy(slice_ns=100), 2) for kind in (RunQueue[QueueEntry], Eager)]
    on_lanes: list[list[QueueEntry]] = []
    for now_ns in range(0, 300_000, 1000):
        turn = rng.choice(("arrives", "is taken", "ends", "ends"))
        if turn == "arrives":
            client = rng.choice(clients)
            for queue in queues:
                queue.add(QueueEntry(Priority.MEDIUM, None, client), now_ns)
        elif turn == "is taken" and len(on_lanes) < 2 and queues[0].waiting:
            taken = [job for queue in queues if (job := queue.take(now_ns))]
            assert taken[0].client is taken[1].client
            on_lanes.append(taken)
        elif turn == "ends" and on_lanes:
            ending = on_lanes.pop(rng.randrange(len(on_lanes)))
            used_ns = rng.choice((None, 0, 300))
            for queue, job in zip(queues, ending, strict=True):
                queue.end(job, now_ns, used_ns)
