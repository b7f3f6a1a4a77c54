"""Which jobs run as one batch: deadlines, order and shares, in seeded trials."""

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from asyncnn.hal.types import Priority
from asyncnn.qos import Client, Policy, User
from asyncnn.qos.batches import gathered
from asyncnn.qos.run_queue import RunQueue
from asyncnn.qos.work import CARRIED, OUTSIDE, WAITING, QueueEntry

US, MS = 1_000, 1_000_000
MEDIUM = Priority.MEDIUM


class Costs:
    """A model whose runs have so much in common that batches pay."""

    def __init__(self, common_us: int = 40, each_us: int = 10) -> None:
        self.common_us, self.each_us = common_us, each_us

    def cost_ns(self, size: int) -> int:
        return (self.common_us + size * self.each_us) * US

    def sizes(self, most_ns: int) -> Sequence[int]:
        return [size for size in (2, 4, 8) if self.cost_ns(size) <= most_ns]

    def batch(self, members: Sequence["Job"]) -> "Job":
        batch = Job(self, members[0].client, members[0].priority)
        batch.members = members
        return batch


class Job(QueueEntry):
    """A run of a model that is batched if it is one of `Costs`."""

    goes_in_batches = True

    def __init__(
        self,
        model: Costs | int,
        client: Client,
        priority: Priority = MEDIUM,
        deadline_ns: int | None = None,
    ) -> None:
        super().__init__(priority, deadline_ns, client)
        self.model = model

    def batching(self) -> Any:
        return self.model if isinstance(self.model, Costs) else None

    @property
    def takes_ns(self) -> int:
        if isinstance(self.model, int):
            return self.model * US
        return self.model.cost_ns(len(self.members) or 1)


def queue_of(jobs: Iterable[Job]) -> RunQueue[Job]:
    queue: RunQueue[Job] = RunQueue(Policy())
    for job in jobs:
        queue.add(job, 0)
    return queue


def ends_of(jobs: Sequence[Job], *, is_batched: bool) -> dict[int, int]:
    """Return when each job of a number has ended, on one lane; not what was missed."""
    queue, now_ns, ends = queue_of(jobs), 0, {}
    numbers = {id(job): number for number, job in enumerate(jobs)}
    while (job := queue.take(now_ns)) is not None:
        if is_batched:
            job = gathered(queue, job, now_ns)
        now_ns += job.takes_ns
        queue.end(job, now_ns)
        ends.update((numbers[id(each)], now_ns) for each in job.members or (job,))
    return ends


def due_jobs(seed: int) -> list[Job]:
    """Return runs of two models that are batched and one that is not, of one client."""
    chance = random.Random(seed)
    client, models = Client("c"), (Costs(), Costs(20, 30), 90)
    return [
        Job(
            chance.choice(models),
            client,
            chance.choice((Priority.MEDIUM, Priority.HIGH)),
            chance.choice((None, chance.randrange(50, 4000) * US)),
        )
        for _ in range(chance.randrange(2, 40))
    ]


def is_met(job: Job, end_ns: int | None) -> bool:
    return end_ns is not None and end_ns <= (job.deadline_ns or end_ns)


def test_deadlines_that_hold_one_by_one_hold_in_batches() -> None:
    compared = earlier = 0
    for seed in range(400):
        singly = ends_of(due_jobs(seed), is_batched=False)
        jobs = due_jobs(seed)
        if not all(is_met(job, singly.get(n)) for n, job in enumerate(jobs)):
            continue
        batched = ends_of(jobs, is_batched=True)
        late = [n for n, job in enumerate(jobs) if not is_met(job, batched.get(n))]
        assert not late, f"seed {seed}: jobs {late}"
        # Who runs alone begins no later, and all are done earlier.
        assert max(batched.values()) <= max(singly.values())
        compared += 1
        earlier += max(batched.values()) < max(singly.values())
    assert compared > 50 < earlier


def competing(seed: int) -> tuple[RunQueue[Job], list[Job]]:
    """Return a queue of clients that have had unlike shares, and what waits in it."""
    chance, model, foreign = random.Random(seed), Costs(), 90
    users = [User(f"u{n}", weight=chance.choice((1, 2))) for n in range(2)]
    clients = [
        Client(f"c{n}", weight=chance.choice((1, 3)), user=chance.choice(users))
        for n in range(6)
    ]

    def made(count: int) -> list[Job]:
        return [
            Job(
                model if chance.random() < 0.92 else foreign,
                chance.choice(clients),
                chance.choice((*[MEDIUM] * 9, Priority.HIGH)),
                chance.randrange(100, 3000) * US,
            )
            for _ in range(count)
        ]

    jobs = made(30)
    queue, now_ns = queue_of(jobs), 0
    for _ in range(8):
        job = queue.take(now_ns)
        assert job is not None
        queue.end(job, now_ns, chance.randrange(10, 200) * US)
    return queue, jobs


def test_members_are_those_whose_turns_come_next() -> None:
    sizes = set()
    for seed in range(300):
        queue, jobs = competing(seed)
        leader = queue.take(0)
        assert leader is not None
        batch = gathered(queue, leader, 0)
        members = [jobs.index(member) for member in batch.members]
        sizes.add(len(members))
        ends_ns = batch.takes_ns
        assert all(is_met(job, ends_ns) for job in batch.members)
        assert ends_ns <= queue.policy.slice_ns
        # The same without batches, where each has what a run takes.
        twin, others = competing(seed)
        turns: list[int] = []
        while len(turns) < len(members):
            job = twin.take(0)
            assert job is not None
            twin.end(job, 0, job.takes_ns)
            turns.append(others.index(job))
        assert turns == members, f"seed {seed}"
    assert sizes >= {0, 2, 4, 8}


def test_what_finds_an_idle_lane_runs_alone_and_at_once() -> None:
    queue: RunQueue[Job] = RunQueue(Policy(), lanes=2)
    model, client = Costs(), Client("c")
    first, second = Job(model, client), Job(model, client)
    for job in first, second:
        queue.add(job, 0, begins=True)
        assert job in queue.running


def test_a_batch_is_paid_for_by_its_members_clients() -> None:
    model = Costs()
    clients = [Client("one"), Client("two", weight=2.0)]
    jobs = [Job(model, clients[n % 4 == 3]) for n in range(8)]
    queue = queue_of(jobs)
    leader = queue.take(0)
    assert leader is not None
    batch = gathered(queue, leader, 0)
    assert len(batch.members) == 8
    queue.end(batch, 800 * US)
    one, two = (queue.account(client).virtual_ns for client in clients)
    assert one == pytest.approx(600 * US)
    assert two == pytest.approx(200 * US / 2)
    assert queue.pending == queue.waiting == 0
    assert {job.state for job in jobs} == {OUTSIDE}


def test_a_member_leaves_and_the_others_go_on() -> None:
    client = Client("c")
    model = Costs()
    jobs = [Job(model, client) for _ in range(4)]
    queue = queue_of(jobs)
    leader = queue.take(0)
    assert leader is not None
    batch = gathered(queue, leader, 0)
    assert {job.state for job in jobs} == {CARRIED}
    assert queue.discard(jobs[0])
    assert not queue.discard(jobs[0])
    assert (queue.pending, jobs[1].state) == (4, CARRIED)
    queue.give_back(batch, 10)
    assert queue.take(20) is batch
    queue.end(batch, 100)
    assert queue.pending == 0


def test_another_client_s_job_without_a_deadline_is_passed_over_once() -> None:
    model, clients = Costs(), [Client(f"c{number}") for number in range(4)]
    jobs = [Job(model, client) for client in clients]
    other = Job(90, Client("other"))
    queue = queue_of([other, *jobs])
    leader = queue.take(0)
    assert leader is not None
    batch = gathered(queue, leader, 0)
    assert {*batch.members} == {*jobs}
    queue.end(batch, batch.takes_ns)
    assert queue.take(batch.takes_ns) is other


@pytest.mark.parametrize(
    ("priority", "deadline_ns"), [(Priority.HIGH, None), (MEDIUM, 10 * US)]
)
def test_nothing_more_urgent_waits_for_a_batch(
    priority: Priority, deadline_ns: int | None
) -> None:
    model, client = Costs(), Client("c")
    jobs = [Job(model, client) for _ in range(8)]
    queue = queue_of(jobs[:1])
    leader = queue.take(0)
    assert leader is not None
    for job in jobs[1:4]:
        queue.add(job, 0)
    urgent = Job(90, client, priority, deadline_ns)
    queue.add(urgent, 0)
    assert gathered(queue, leader, 0) is leader
    assert {job.state for job in jobs[1:4]} == {WAITING}
    queue.end(leader, 1)
    assert queue.take(1) is urgent


def test_a_batch_makes_way_for_higher_priorities_of_all_its_clients() -> None:
    model, clients = Costs(), [Client("one"), Client("two")]
    queue = queue_of([Job(model, client) for client in clients])
    leader = queue.take(0)
    assert leader is not None
    batch = gathered(queue, leader, 0)
    assert len(batch.members) == 2
    for client in clients:
        batch.is_stopping = False
        assert queue.add(Job(90, client, Priority.HIGH), 10) is batch
