"""Who is next of those that compete, and what is due to one that was away."""

import pytest

from asyncnn.qos.virtual_time import Share, Shares

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
