"""The policy as a state machine: every decision at a given time."""

import gc
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    precondition,
    rule,
)

from asyncnn.hal.types import Priority
from asyncnn.qos.run_queue import Policy, RunQueue
from asyncnn.qos.work import Client, JobState, QueueEntry, User

LOW, MEDIUM, HIGH = Priority
POLICY = Policy(
    starvation_limit_ns=1000, starved_slice_ns=50, horizon_ns=10_000, slice_ns=100
)
ALICE, BOB = Client("alice"), Client("bob", weight=3.0)
CAROL = Client("carol", user=User("another user"))
CLIENTS = [ALICE, BOB, CAROL]


def run_queue(lanes: int = 1) -> RunQueue[QueueEntry]:
    return RunQueue(POLICY, lanes)


def add(
    to: RunQueue[QueueEntry],
    priority: Priority = MEDIUM,
    now_ns: int = 0,
    deadline_ns: int | None = None,
    client: Client = ALICE,
    min_runtime_ns: int = 0,
) -> QueueEntry:
    job = QueueEntry(priority, deadline_ns, client, min_runtime_ns)
    to.add(job, now_ns)
    return job


class TestPriorities:
    def test_the_higher_priority_goes_first_whatever_the_deadlines(self) -> None:
        r = run_queue()
        low, medium = add(r, LOW, deadline_ns=1), add(r, MEDIUM, deadline_ns=100)
        high = add(r, HIGH)
        taken = []
        for _ in range(3):
            taken.append(job := r.take(0))
            assert job is not None
            r.end(job, 0)
        assert taken == [high, medium, low]
        assert r.take(0) is None

    @pytest.mark.parametrize(
        ("running", "arriving", "stops"),
        [(a, b, b > a) for a in Priority for b in Priority],
    )
    def test_only_a_higher_priority_takes_the_lane(
        self, running: Priority, arriving: Priority, stops: bool
    ) -> None:
        r = run_queue()
        first = add(r, running)
        assert r.take(0) is first
        to_stop = r.add(QueueEntry(arriving, None, ALICE), 1)
        # A lower one makes the running job stop too, to learn of its review time.
        assert (to_stop is first) == (arriving != running)
        if to_stop is first:
            r.give_back(first, 2)
            assert (r.take(2) is not first) == stops

    def test_the_suspended_job_is_resumed_before_others_of_its_priority(self) -> None:
        r = run_queue()
        begun = add(r, LOW)
        assert r.take(0) is begun
        add(r, LOW, deadline_ns=500)
        high = add(r, HIGH)
        r.give_back(begun, 1)
        assert r.take(1) is high
        r.end(high, 2)
        assert r.take(2) is begun

    def test_each_higher_arrival_stops_another_lane(self) -> None:
        r = run_queue(lanes=2)
        first, second = add(r, LOW), add(r, LOW)
        assert {r.take(0), r.take(0)} == {first, second}
        stopped = {
            r.add(QueueEntry(HIGH, None, ALICE), 1),
            r.add(QueueEntry(HIGH, None, ALICE), 1),
        }
        assert stopped == {first, second}
        assert r.add(QueueEntry(HIGH, None, ALICE), 1) is None


class TestAging:
    def test_a_starved_priority_gets_a_turn(self) -> None:
        r = run_queue()
        low, high = add(r, LOW), add(r, HIGH)
        assert r.take(999) is high
        assert high.review_ns == 1000
        r.give_back(high, 1000)
        assert r.take(1000) is low
        assert low.review_ns == 1050

    def test_a_turn_is_kept_against_what_arrives(self) -> None:
        r = run_queue()
        low, high = add(r, LOW), add(r, HIGH)
        assert r.take(1000) is low
        assert r.add(QueueEntry(HIGH, None, ALICE), 1049) is None
        r.give_back(low, 1050)
        assert r.take(1050) is high
        assert high.review_ns == 2050

    def test_after_its_time_a_turn_is_not_kept(self) -> None:
        r = run_queue()
        low = add(r, LOW)
        add(r, HIGH)
        assert r.take(1000) is low
        assert r.add(QueueEntry(HIGH, None, ALICE), 1051) is low

    def test_the_longest_starved_goes_first(self) -> None:
        r = run_queue()
        medium, low, high = add(r, MEDIUM, 0), add(r, LOW, 1), add(r, HIGH, 2)
        assert r.take(2000) is medium
        r.give_back(medium, 2050)
        assert r.take(2050) is low
        r.give_back(low, 2100)
        assert r.take(2100) is high

    def test_a_priority_that_is_served_is_not_starved(self) -> None:
        r = run_queue()
        first = add(r, LOW, 0)
        add(r, LOW, 0)
        r.take(0)
        r.end(first, 5000)
        high = add(r, HIGH, 5000)
        assert r.take(5999) is high

    def test_without_lower_work_nothing_is_reviewed(self) -> None:
        r = run_queue()
        high = add(r, HIGH)
        r.take(0)
        assert high.review_ns is None


class TestDeadlines:
    def test_undated_work_is_due_a_horizon_after_its_arrival(self) -> None:
        r = run_queue()
        undated = add(r, now_ns=0)
        later = add(r, now_ns=0, deadline_ns=20_000)
        earlier = add(r, now_ns=1, deadline_ns=9_999)
        for expected in (earlier, undated, later):
            assert r.take(2) is expected
            r.end(expected, 2)

    @pytest.mark.parametrize(("now_ns", "begins"), [(69, True), (70, False)])
    def test_what_cannot_end_in_time_is_not_begun(
        self, now_ns: int, begins: bool
    ) -> None:
        r = run_queue()
        job = add(r, deadline_ns=100, min_runtime_ns=30)
        assert r.take(now_ns) is (job if begins else None)
        assert list(r.missed) == ([] if begins else [job])

    def test_what_has_begun_goes_on(self) -> None:
        r = run_queue()
        job = add(r, deadline_ns=100, min_runtime_ns=30)
        r.take(0)
        r.give_back(job, 90)
        assert r.take(90) is job


class TestShares:
    def share_of_bob(self, r: RunQueue[QueueEntry], slices: int) -> float:
        now = had = 0
        for client in (ALICE, BOB):
            for _ in range(slices):
                add(r, now_ns=0, client=client)
        for _ in range(slices):
            job = r.take(now)
            assert job is not None
            now += 10
            had += job.client is BOB
            r.end(job, now)
        return had / slices

    def test_clients_get_time_by_weight(self) -> None:
        assert self.share_of_bob(run_queue(), 400) == pytest.approx(0.75, abs=0.03)

    @pytest.mark.parametrize(
        ("used_ns", "share"), [(None, 1 / 2), (9, 4 / 7), (6, 2 / 3), (0, 4 / 5)]
    )
    def test_who_waits_for_a_processor_is_charged_for_what_it_had(
        self, used_ns: int | None, share: float
    ) -> None:
        """A quarter of lane time is charged at least."""
        r = run_queue()
        now = had = 0
        for client in (ALICE, CAROL):
            for _ in range(400):
                add(r, client=client)
        for number in range(400):
            job = r.take(now)
            assert job is not None
            if number % 7 == 0:  # it is charged beforehand when others come
                add(r, now_ns=now + 4, client=Client("new", user=CAROL.user))
            now += 12
            had += job.client is ALICE
            r.end(job, now, used_ns if job.client is ALICE else None)
        assert had / 400 == pytest.approx(share, abs=0.03)

    def test_lane_time_may_count_several_times(self) -> None:
        r = run_queue()
        had = Counter[Client]()
        for _ in range(100):
            add(r, client=CAROL)
            add(r, client=ALICE).cost = 4.0
        for now in range(0, 1000, 10):
            job = r.take(now)
            assert job is not None
            had[job.client] += 1
            r.end(job, now + 10)
        assert had[CAROL] == pytest.approx(80, abs=2)

    def test_time_that_was_not_used_is_no_claim(self) -> None:
        r = run_queue()
        alone = add(r, client=ALICE)
        r.take(0)
        r.end(alone, 1_000_000)
        assert self.share_of_bob(r, 400) == pytest.approx(0.75, abs=0.03)

    def test_users_share_before_their_clients_do(self) -> None:
        r = run_queue()
        had = Counter[Client]()
        clients = [Client("one"), Client("of many"), Client("processes"), CAROL]
        for client in clients:
            for _ in range(200):
                add(r, client=client)
        for now in range(0, 200 * 10, 10):
            job = r.take(now)
            assert job is not None
            had[job.client] += 10
            r.end(job, now + 10)
        assert had[CAROL] == pytest.approx(1000, abs=20)
        for client in clients[:3]:
            assert had[client] == pytest.approx(1000 / 3, abs=20)

    def test_priorities_do_not_count_across_clients(self) -> None:
        r = run_queue()
        for _ in range(10):
            add(r, HIGH, client=ALICE)
            add(r, LOW, client=CAROL)
        taken = []
        for now in range(0, 100, 10):
            job = r.take(now)
            assert job is not None
            taken.append(job.client)
            r.end(job, now + 10)
        assert Counter(taken) == {ALICE: 5, CAROL: 5}

    def test_accounts_go_with_their_clients(self) -> None:
        r = run_queue()
        client = Client("passing")
        job = add(r, client=client)
        r.take(0)
        r.end(job, 1)
        del client, job
        gc.collect()
        assert len(r._accounts) == 0


class TestTakingLanesFromOthers:
    @pytest.mark.parametrize("running", Priority)
    @pytest.mark.parametrize("arriving", Priority)
    @pytest.mark.parametrize("newcomer", [BOB, CAROL])
    def test_who_was_away_does_at_the_next_boundary(
        self, running: Priority, arriving: Priority, newcomer: Client
    ) -> None:
        r = run_queue()
        long = add(r, running)
        add(r, HIGH)
        r.take(0)
        job = QueueEntry(arriving, None, newcomer)
        to_stop = r.add(job, 5000)
        assert to_stop is not None
        r.give_back(to_stop, 5001)
        assert r.take(5001) is job
        assert long.client is ALICE

    def test_who_has_had_more_than_the_others_does_not(self) -> None:
        r = run_queue()
        greedy = add(r, client=BOB)
        r.take(0)
        add(r, client=ALICE)
        r.end(greedy, 900)
        running = r.take(900)
        assert running is not None
        returned = QueueEntry(HIGH, None, BOB)
        # The running one stops to learn when it is reviewed, and goes on.
        assert r.add(returned, 910) is running
        r.give_back(running, 911)
        assert r.take(911) is running
        assert running.review_ns == 1011

    def test_who_was_away_does_not_if_its_user_has_had_more(self) -> None:
        r = run_queue()
        long = add(r, client=ALICE)
        r.take(0)
        other = add(r, client=CAROL)
        r.give_back(long, 100)
        assert r.take(100) is other
        late = QueueEntry(HIGH, None, Client("late", user=ALICE.user))
        assert r.add(late, 110) is None
        r.give_back(other, 201)
        assert r.take(201) is late

    def test_a_lane_is_kept_for_a_slice_while_others_wait(self) -> None:
        r = run_queue()
        first, other = add(r, client=CAROL), add(r, client=ALICE)
        assert r.take(0) is other
        assert other.review_ns == POLICY.slice_ns
        # More work of one that waits already is no reason to stop earlier.
        urgent = QueueEntry(HIGH, None, CAROL)
        assert r.add(urgent, 50) is None
        r.give_back(other, 100)
        assert r.take(100) is urgent
        r.end(urgent, 120)
        assert r.take(120) is first

    def test_a_client_cannot_keep_a_lane_by_a_turn(self) -> None:
        r = run_queue()
        low = add(r, LOW)
        add(r, HIGH)
        assert r.take(1000) is low
        assert low.was_starved
        assert r.add(QueueEntry(LOW, None, CAROL), 1001) is low

    def test_who_is_furthest_ahead_makes_way(self) -> None:
        r = run_queue(lanes=2)
        light, heavy = add(r, client=BOB), add(r, client=ALICE)
        assert {r.take(0), r.take(0)} == {light, heavy}
        assert r.add(QueueEntry(LOW, None, Client("late")), 500) is heavy

    def test_time_slices_end_before_turns_and_aging(self) -> None:
        r = run_queue()
        add(r, client=CAROL)
        add(r, LOW)
        high = add(r, HIGH)
        assert r.take(0) is high
        assert high.review_ns == POLICY.slice_ns


class NumberedJob(QueueEntry):
    """A job that can be put in order, the same in every run."""

    __slots__ = ("number",)

    number: int


class Driven(RuleBasedStateMachine):
    """Lanes and arrivals in any order; what must hold in every state."""

    running = Bundle("running")

    def __init__(self) -> None:
        super().__init__()
        self.run_queue = RunQueue[NumberedJob](POLICY, 2)
        self.now = self.arrivals = 0
        self.waiting: set[NumberedJob] = set()
        self.suspended: set[NumberedJob] = set()
        self.on_lanes: set[NumberedJob] = set()
        self.left: set[NumberedJob] = set()

    @rule(ns=st.integers(0, 700))
    def time_passes(self, ns: int) -> None:
        self.now += ns

    @rule(
        priority=st.sampled_from(Priority),
        budget=st.none() | st.integers(1, 3000),
        client=st.sampled_from(CLIENTS),
    )
    def arrives(self, priority: Priority, budget: int | None, client: Client) -> None:
        deadline = None if budget is None else self.now + budget
        job = NumberedJob(priority, deadline, client)
        self.arrivals += 1
        job.number = self.arrivals
        to_stop = self.run_queue.add(job, self.now)
        self.waiting.add(job)
        assert to_stop is None or to_stop in self.on_lanes

    @property
    def lanes(self) -> int:
        return len(self.on_lanes | self.left)

    @precondition(lambda self: self.lanes < self.run_queue.most_lanes)
    @rule(target=running)
    def a_lane_takes(self) -> NumberedJob | None:
        job = self.run_queue.take(self.now)
        missed = set(self.run_queue.missed)
        self.run_queue.missed.clear()
        assert missed <= self.waiting
        assert all((m.deadline_ns or 0) <= self.now for m in missed)
        self.waiting -= missed
        if job is None:
            assert not self.waiting | self.suspended
            return None
        candidates = self.waiting | self.suspended
        assert job in candidates
        account = job.account
        for other in (candidate.account for candidate in candidates):
            assert account.user.virtual_ns <= other.user.virtual_ns
            if other.user is account.user:
                assert account.virtual_ns <= other.virtual_ns
        mine = {c for c in candidates if c.account is account}
        if not job.was_starved:
            assert job.priority == max(c.priority for c in mine)
        begun = {c for c in self.suspended & mine if c.priority == job.priority}
        assert job in begun or not begun
        self.waiting.discard(job)
        self.suspended.discard(job)
        self.on_lanes.add(job)
        return job

    @rule(job=consumes(running), ends=st.booleans())
    def a_lane_stops(self, job: NumberedJob | None, ends: bool) -> None:
        if job is None:
            return
        self.on_lanes.discard(job)
        if ends or job in self.left:
            self.run_queue.end(job, self.now)
            self.left.discard(job)
        else:
            self.run_queue.give_back(job, self.now)
            self.suspended.add(job)

    @precondition(lambda self: self.on_lanes)
    @rule(data=st.data())
    def is_left(self, data: st.DataObject) -> None:
        pool = sorted(self.on_lanes, key=lambda job: job.number)
        job = data.draw(st.sampled_from(pool))
        assert self.run_queue.set_aside(job)
        self.on_lanes.discard(job)
        self.left.add(job)

    @precondition(lambda self: self.left)
    @rule(data=st.data())
    def has_its_lane_again(self, data: st.DataObject) -> None:
        pool = sorted(self.left, key=lambda job: job.number)
        job = data.draw(st.sampled_from(pool))
        if self.run_queue.resettle(job):
            self.left.discard(job)
            self.on_lanes.add(job)

    @precondition(lambda self: self.waiting | self.suspended)
    @rule(data=st.data())
    def is_discarded(self, data: st.DataObject) -> None:
        pool = sorted(self.waiting | self.suspended, key=lambda job: job.number)
        job = data.draw(st.sampled_from(pool))
        assert self.run_queue.discard(job)
        assert not self.run_queue.discard(job)
        self.waiting.discard(job)
        self.suspended.discard(job)

    @invariant()
    def counts_agree(self) -> None:
        assert set(self.run_queue.running) == self.on_lanes
        assert self.run_queue.waiting == len(self.waiting | self.suspended)
        assert self.run_queue.room == self.run_queue.most_lanes - self.lanes
        everything = self.waiting | self.suspended | self.on_lanes | self.left
        for client in CLIENTS:
            mine = sum(job.client is client for job in everything)
            assert self.run_queue.account(client).pending == mine

    @invariant()
    def few_jobs_hold_memory(self) -> None:
        begun = Counter((job.client, job.priority) for job in self.suspended)
        assert all(count <= 2 for count in begun.values())

    @invariant()
    def states_agree(self) -> None:
        for jobs, state in (
            (self.waiting, JobState.WAITING),
            (self.suspended, JobState.SUSPENDED),
            (self.on_lanes | self.left, JobState.RUNNING),
        ):
            assert {job.state for job in jobs} <= {state}


TestDriven = pytest.mark.unrecorded(Driven.TestCase)
TestDriven.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
