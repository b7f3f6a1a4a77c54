"""Dispatch under a virtual clock: each run ends once, in its turn, where it fits."""

import random
from collections import Counter
from typing import Any

import pytest

from asyncnn.cluster.dispatch import Action, Dispatcher, End, Send
from asyncnn.cluster.replicas import ClusterWork
from asyncnn.cluster.simulation import LEAST, OURS, ROBIN, ClusterScenario, Simulation
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.cluster_settings import DispatchSettings

MS = 10**6
UNAVAILABLE = ErrorStatus.DEVICE_UNAVAILABLE


def dispatcher_of(replicas: int, lanes: int = 1, **settings: Any) -> Dispatcher:
    dispatcher = Dispatcher(DispatchSettings(**settings), seed=1)
    for number in range(replicas):
        dispatcher.add(number, lanes)
        dispatcher.up(number, "m", 0)
    return dispatcher


def sent(actions: "Any") -> list[int]:
    return [each.work.number for each in actions if isinstance(each, Send)]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("is_safe", [False, True])
def test_each_run_ends_once_whatever_dies(seed: int, is_safe: bool) -> None:
    rng = random.Random(seed)
    scenario = ClusterScenario(
        nodes=rng.choice([1, 2, 7, 40]),
        load=rng.choice([0.3, 0.9, 2.0]),
        runs=150,
        deadline_ms=rng.choice([0.0, 30.0, 300.0]),
        service_ms=(1.0, 20.0),
        failure_s=rng.choice([0.0, 0.3]),
        restart_s=0.2,
        urgent=0.2,
        is_safe=is_safe,
        seed=seed,
    )
    simulation = Simulation(scenario)
    outcomes = simulation.run()
    ends = Counter({number: len(each) for number, each in simulation.ended.items()})
    assert len(ends) == scenario.runs
    assert set(ends.values()) == {1}
    assert sum(outcomes.statuses.values()) == scenario.runs
    if not is_safe:
        assert not outcomes.twice
    if not scenario.deadline_ms and not scenario.failure_s:
        assert outcomes.statuses == {"NONE": scenario.runs}
    for replica in simulation.dispatcher.replicas.values():
        assert len(replica.begun) <= 4


def test_safe_runs_are_lost_by_fewer_deaths_than_others() -> None:
    lost = []
    for is_safe in (False, True):
        scenario = ClusterScenario(nodes=5, runs=500, failure_s=0.5, is_safe=is_safe)
        found = Simulation(scenario).run()
        lost.append(found.statuses.get("DEVICE_UNAVAILABLE", 0))
    assert lost[1] == 0 < lost[0]


@pytest.mark.parametrize("load", [0.8, 1.3])
def test_more_runs_are_in_time_than_by_usual_policies(load: float) -> None:
    scenario = ClusterScenario(nodes=20, load=load, runs=1500)
    share = {p: Simulation(scenario, p).run().goodput for p in (OURS, LEAST, ROBIN)}
    assert share[OURS] > share[ROBIN]
    assert share[OURS] >= share[LEAST] - 0.01


def test_a_seed_gives_the_same_outcomes() -> None:
    scenario = ClusterScenario(nodes=9, runs=200, failure_s=1.0)
    assert Simulation(scenario).run() == Simulation(scenario).run()


@pytest.mark.parametrize(
    "given", [{"load": 0.0}, {"nodes": 0}, {"service_ms": ()}, {"service_ms": (0.0,)}]
)
def test_scenarios_that_make_no_sense_are_refused(given: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        ClusterScenario(**given)
    with pytest.raises(InvalidArgumentError, match="policy"):
        Simulation(ClusterScenario(), "best")


def test_higher_priorities_go_first_then_earlier_deadlines() -> None:
    dispatcher = dispatcher_of(1, window=1)
    dispatcher.submit(ClusterWork(0, "m", 2), 0)
    waiting = [
        ClusterWork(1, "m", 0, 1000 * MS),
        ClusterWork(2, "m", 1),
        ClusterWork(3, "m", 1, 900 * MS),
        ClusterWork(4, "m", 2),
        ClusterWork(5, "m", 1, 800 * MS),
    ]
    for work in waiting:
        assert not dispatcher.submit(work, 0)
    order, now, last = [], 0, 0
    while dispatcher.waiting:
        now += MS
        (last,) = sent(dispatcher.ended(last, now))
        order.append(last)
    assert order == [4, 5, 3, 2, 1]


def test_a_higher_priority_finds_room_where_a_lower_one_waits() -> None:
    dispatcher = dispatcher_of(1, window=1)
    assert sent(dispatcher.submit(ClusterWork(0, "m", 0), 0)) == [0]
    assert not dispatcher.submit(ClusterWork(1, "m", 0), 0)
    assert sent(dispatcher.submit(ClusterWork(2, "m", 2), 0)) == [2]


def test_a_run_goes_to_the_replica_that_ends_it_first() -> None:
    dispatcher = dispatcher_of(2)
    for number, took in enumerate([5, 50] * 5):
        dispatcher.lacks(1 - number % 2, "m", 0)  # so that the other one has it
        (action,) = dispatcher.submit(ClusterWork(number, "m"), number * 1000 * MS)
        assert isinstance(action, Send)
        dispatcher.ended(number, (number * 1000 + took) * MS)
        dispatcher.up(1 - number % 2, "m", 0)
    chosen = [dispatcher.submit(ClusterWork(n, "m"), 10**11) for n in (100, 101, 102)]
    places = [each[0].replica for each in chosen[:2]]  # type: ignore[union-attr]
    assert places == [0, 1]
    assert chosen[2][0] == Send(chosen[2][0].work, 0)  # it is behind one of 5 ms


def test_what_was_begun_is_told_lost_and_the_rest_goes_elsewhere() -> None:
    dispatcher = dispatcher_of(2, window=1)
    works = [ClusterWork(n, "m", is_safe=n == 1) for n in range(4)]
    actions: list[Action] = []
    for work in works:
        actions += dispatcher.submit(work, 0)
    on = {each.work.number: each.replica for each in actions if isinstance(each, Send)}
    assert set(on) == {0, 1}
    found = dispatcher.lost(on[0], 1)
    assert [(e.work.number, e.status) for e in found if isinstance(e, End)] == [
        (0, UNAVAILABLE)
    ]
    assert not dispatcher.lost(on[1], 2)  # which waits for a replica
    assert sent(dispatcher.up(on[0], "m", 3)) == [1]
    assert dispatcher.waiting == 2


def test_what_is_not_begun_is_sent_again_but_not_for_ever() -> None:
    dispatcher = dispatcher_of(1, max_tries=3)
    dispatcher.submit(ClusterWork(0, "m"), 0)
    assert sent(dispatcher.returned(0, 1)) == [0]
    assert sent(dispatcher.returned(0, 2)) == [0]
    (end,) = dispatcher.returned(0, 3)
    assert isinstance(end, End)
    assert end.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert not dispatcher.returned(0, 4)


def test_what_waits_ends_at_its_deadline_and_when_nobody_comes() -> None:
    dispatcher = Dispatcher(DispatchSettings(patience_ns=100 * MS), seed=1)
    dispatcher.known("m", 0)
    dispatcher.submit(ClusterWork(0, "m", deadline_ns=10 * MS), 0)
    dispatcher.submit(ClusterWork(1, "m"), 5 * MS)
    assert dispatcher.alarm_ns() == 10 * MS
    (late,) = dispatcher.expire(10 * MS)
    assert isinstance(late, End)
    assert late.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
    assert dispatcher.alarm_ns() == 105 * MS
    (vain,) = dispatcher.expire(105 * MS)
    assert isinstance(vain, End)
    assert vain.status is UNAVAILABLE
    assert dispatcher.alarm_ns() is None


def test_a_model_that_nobody_has_sets_no_alarm_for_runs_of_another() -> None:
    dispatcher = dispatcher_of(1, window=1, patience_ns=100 * MS)
    dispatcher.known("other", 0)
    for number in range(2):
        dispatcher.submit(ClusterWork(number, "m"), 0)
    assert dispatcher.alarm_ns() is None
    dispatcher.submit(ClusterWork(2, "other"), 50 * MS)
    assert dispatcher.alarm_ns() == 150 * MS
    assert [each.work.number for each in dispatcher.expire(150 * MS)] == [2]
    assert dispatcher.alarm_ns() is None


def test_what_could_not_end_in_time_is_not_begun() -> None:
    dispatcher = dispatcher_of(1)
    for number in range(20):
        dispatcher.submit(ClusterWork(number, "m"), number * 100 * MS)
        dispatcher.ended(number, (number * 100 + 50) * MS)
    now = 10**10
    (end,) = dispatcher.submit(ClusterWork(50, "m", deadline_ns=now + 40 * MS), now)
    assert isinstance(end, End)
    assert "could not be met" in end.reason
    assert sent(dispatcher.submit(ClusterWork(51, "m", deadline_ns=now + 60 * MS), now))


def test_a_model_that_nobody_has_keeps_no_other_waiting() -> None:
    dispatcher = dispatcher_of(1)
    dispatcher.known("other", 0)
    assert not dispatcher.submit(ClusterWork(0, "other"), 0)
    assert sent(dispatcher.submit(ClusterWork(1, "m"), 0)) == [1]
    assert sent(dispatcher.up(0, ["other"], 1)) == [0]
    dispatcher.forget("other")
    assert not dispatcher.is_ready("other")


def test_a_run_that_is_cancelled_while_it_waits_is_not_sent() -> None:
    dispatcher = dispatcher_of(1, window=1)
    dispatcher.submit(ClusterWork(0, "m"), 0)
    dispatcher.submit(ClusterWork(1, "m"), 0)
    assert dispatcher.cancel(1, 1) is None
    assert dispatcher.cancel(0, 1) == 0
    assert not sent(dispatcher.ended(0, 1))


def test_what_is_to_stop_keeps_others_away_only_if_it_does_not() -> None:
    dispatcher = dispatcher_of(1)
    for number in range(10):
        dispatcher.submit(ClusterWork(number, "m"), number * 100 * MS)
        dispatcher.ended(number, (number * 100 + 50) * MS)
    (replica,) = dispatcher.replicas.values()
    begun, cancelled = 2000 * MS, 2020 * MS
    assert sent(dispatcher.submit(ClusterWork(20, "m"), begun)) == [20]
    assert not dispatcher.submit(ClusterWork(21, "m"), begun + MS)
    assert dispatcher.cancel(21, begun + MS) is None
    assert dispatcher.cancel(20, cancelled) == 0
    assert replica.backlog_ns(1, cancelled) < MS
    assert replica.backlog_ns(1, cancelled + 100 * MS) >= 100 * MS
    assert sent(dispatcher.submit(ClusterWork(22, "m"), cancelled + MS)) == [22]
    dispatcher.ended(20, cancelled + 2 * MS)
    assert dispatcher.cost_ns(replica, "m") == pytest.approx(50 * MS)
