"""Which job makes way for another one, by a stop or on a lane beside it."""

from asyncnn.qos.work import QueueEntry
from tests.qos.test_run_queue import ALICE, BOB, HIGH, LOW, MEDIUM, add, run_queue


def test_what_makes_way_beside_the_others_has_its_lane_again_before_they_come() -> None:
    r = run_queue()
    low = add(r, LOW)
    assert r.take(0) is low
    for now in (1, 3):
        high = QueueEntry(HIGH, None, ALICE)
        assert r.add(high, now) is low
        assert r.set_aside(low)
        assert not r.set_aside(low)
        assert not r.resettle(low)  # the other one is to go before it
        assert r.take(now) is high
        assert not r.resettle(low)
        also_low = add(r, LOW)
        r.end(high, now + 1)
        assert r.resettle(low)
        assert r.running == (low,)
        assert r.room == 0
        assert r.discard(also_low)


def test_rivals_are_other_clients_with_work() -> None:
    r = run_queue(lanes=2)
    mine = add(r, LOW)
    add(r, HIGH)
    assert not r.has_rivals(mine)
    other = QueueEntry(HIGH, None, BOB)
    r.add(other, 0)
    assert r.has_rivals(mine)
    assert r.has_rivals(other)
    assert r.discard(other)
    assert not r.has_rivals(mine)


def test_the_lowest_priority_stops() -> None:
    r = run_queue(lanes=2)
    medium, low = add(r, MEDIUM), add(r, LOW)
    assert {r.take(0), r.take(0)} == {medium, low}
    assert r.add(QueueEntry(HIGH, None, ALICE), 1) is low


def test_nothing_stops_while_a_lane_is_free() -> None:
    r = run_queue(lanes=2)
    add(r, LOW)
    r.take(0)
    assert r.add(QueueEntry(HIGH, None, ALICE), 1) is None
