"""A discrete-event simulation around the `RunQueue` that production uses.

Lanes are simulated: a job is a list of operations, of recorded durations, and stops at
the first boundary at which it is asked to, as an execution does. Every decision is
checked against what the policy promises.
"""

import heapq
import json
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import accumulate, count
from pathlib import Path

from asyncnn.hal.types import Priority
from asyncnn.qos.run_queue import Policy, RunQueue
from asyncnn.qos.work import Client, QueueEntry

_TIMES = json.loads((Path(__file__).parent / "service_times.json").read_bytes())

MODELS_NS: dict[str, tuple[int, ...]] = {
    name: tuple(round(us * 1000) for us in operations)
    for name, operations in _TIMES.items()
}
"""Durations of each operation of trained models, measured on the reference device."""

LONGEST_OPERATION_NS = max(map(max, MODELS_NS.values()))


class SimulatedJob(QueueEntry):
    """An execution of a model that has come to operation ``position``."""

    __slots__ = (
        "begun_ns",
        "boundaries",
        "has_ended",
        "inverted_ns",
        "number",
        "position",
    )

    def __init__(
        self,
        model: str,
        priority: Priority,
        client: Client,
        deadline_ns: int | None = None,
        min_runtime_ns: int = 0,
    ) -> None:
        super().__init__(priority, deadline_ns, client, min_runtime_ns)
        self.boundaries = _boundaries(MODELS_NS[model])
        self.position = 0
        self.begun_ns: int | None = None
        self.has_ended = False


_BOUNDARIES: dict[tuple[int, ...], tuple[int, ...]] = {}


def _boundaries(operations_ns: tuple[int, ...]) -> tuple[int, ...]:
    if operations_ns not in _BOUNDARIES:
        _BOUNDARIES[operations_ns] = (0, *accumulate(operations_ns))
    return _BOUNDARIES[operations_ns]


class _Lane:
    """A simulated lane; a stop that was planned before ``plan`` changed is void."""

    __slots__ = ("job", "plan", "started_ns", "stops_at")

    def __init__(self) -> None:
        self.job: SimulatedJob | None = None
        self.plan = 0
        self.started_ns = 0
        self.stops_at = 0


class Simulation:
    """Runs arrivals ``(time_ns, job)`` in order of time, to the last job's end.

    ``max_waiting`` bounds the queue: what arrives beyond is refused, and counted.
    """

    def __init__(
        self, policy: Policy, *, lanes: int = 1, max_waiting: int = 4096
    ) -> None:
        self.policy = policy
        self.run_queue: RunQueue[SimulatedJob] = RunQueue(policy, lanes)
        self.max_waiting = max_waiting
        self.now_ns = 0
        self.arrived = self.refused = self.missed = self.starved_slices = self.stops = 0
        self.ended = self.late = 0
        self.served_ns: Counter[Client] = Counter()
        self.worst_inversion_ns = 0
        self.worst_starvation_ns = 0
        self.out_of_order = 0
        self._lanes = [_Lane() for _ in range(lanes)]
        self._events: list[tuple[int, int, _Lane, int]] = []
        self._serial = count()
        # Of each client, by priority: time in which a lower one had a lane, but for
        # starved slices, and lane time that higher ones had since it last had some.
        self._inverted_ns: defaultdict[Client, list[int]] = defaultdict(_by_priority)
        self._passed_over_ns: defaultdict[Client, list[int]] = defaultdict(_by_priority)
        self._pending: Counter[tuple[Priority, Client]] = Counter()
        self._last_begun: dict[tuple[Priority, Client], SimulatedJob] = {}

    def run(self, arrivals: Iterable[tuple[int, SimulatedJob]]) -> None:
        """Simulate until all that arrived has ended."""
        for time_ns, job in arrivals:
            self._run_until(time_ns)
            self._arrive(job)
        self._run_until(None)
        assert self.run_queue.waiting == 0
        assert not self.run_queue.running

    def _run_until(self, time_ns: int | None) -> None:
        events = self._events
        while events and (time_ns is None or events[0][0] <= time_ns):
            at_ns, _, lane, plan = heapq.heappop(events)
            if plan == lane.plan:
                self._pass_time(at_ns)
                self._stop(lane)
        if time_ns is not None:
            self._pass_time(time_ns)

    def _pass_time(self, now_ns: int) -> None:
        elapsed = now_ns - self.now_ns
        if elapsed:
            lowest: dict[Client, int] = {}
            for job in self.run_queue.running:
                if not job.was_starved:
                    least = lowest.get(job.client, job.priority)
                    lowest[job.client] = min(least, job.priority)
            for client, least in lowest.items():
                for priority in range(least + 1, len(Priority)):
                    self._inverted_ns[client][priority] += elapsed
        self.now_ns = now_ns

    def _arrive(self, job: SimulatedJob) -> None:
        self.arrived += 1
        if self.run_queue.waiting >= self.max_waiting:
            self.refused += 1
            return
        job.number = self.arrived
        job.inverted_ns = self._inverted_ns[job.client][job.priority]
        self._count(job, 1)
        to_stop = self.run_queue.add(job, self.now_ns)
        if to_stop is not None:
            self.stops += 1
            lane = next(lane for lane in self._lanes if lane.job is to_stop)
            self._plan(lane, self.now_ns)
            return
        for lane in self._lanes:
            if lane.job is None:
                self._take(lane)
                return

    def _plan(self, lane: _Lane, from_ns: int | None) -> None:
        """Let the lane stop at the first boundary from then on, or at the end."""
        job = lane.job
        assert job is not None
        boundaries = job.boundaries
        origin = lane.started_ns - boundaries[job.position]
        end = len(boundaries) - 1
        if from_ns is not None:
            stop = bisect_left(boundaries, from_ns - origin, job.position + 1, end)
            end = min(stop, end)
        lane.plan = next(self._serial)
        lane.stops_at = end
        event = (origin + boundaries[end], lane.plan, lane, lane.plan)
        heapq.heappush(self._events, event)

    def _take(self, lane: _Lane) -> None:
        job = self.run_queue.take(self.now_ns)
        for missed in self.run_queue.missed:
            self.missed += 1
            self._count(missed, -1)
        self.run_queue.missed.clear()
        lane.job = job
        if job is None:
            return
        lane.started_ns = self.now_ns
        self._check(job)
        self._plan(lane, job.review_ns)

    def _stop(self, lane: _Lane) -> None:
        job = lane.job
        assert job is not None
        lane_ns = self.now_ns - lane.started_ns
        self.served_ns[job.client] += lane_ns
        passed_over_ns = self._passed_over_ns[job.client]
        passed_over_ns[job.priority] = 0
        for priority in range(job.priority):
            if self._pending[Priority(priority), job.client]:
                passed_over_ns[priority] += lane_ns
        job.position = lane.stops_at
        if job.position == len(job.boundaries) - 1:
            self.run_queue.end(job, self.now_ns)
            assert not job.has_ended
            job.has_ended = True
            self.ended += 1
            self._count(job, -1)
            self.late += job.deadline_ns is not None and self.now_ns >= job.deadline_ns
        else:
            self.run_queue.give_back(job, self.now_ns)
        self._take(lane)

    def _count(self, job: SimulatedJob, more: int) -> None:
        key = job.priority, job.client
        self._pending[key] += more
        if not self._pending[key]:
            self._passed_over_ns[job.client][job.priority] = 0

    def _check(self, job: SimulatedJob) -> None:
        """Check that no other job should run instead."""
        passed_over_ns = self._passed_over_ns[job.client][job.priority]
        self.worst_starvation_ns = max(self.worst_starvation_ns, passed_over_ns)
        self.starved_slices += job.was_starved
        if job.begun_ns is None:
            self._check_beginning(job)

    def _check_beginning(self, job: SimulatedJob) -> None:
        job.begun_ns = self.now_ns
        if not job.was_starved:
            inversion = self._inverted_ns[job.client][job.priority] - job.inverted_ns
            self.worst_inversion_ns = max(self.worst_inversion_ns, inversion)
        key = (job.priority, job.client)
        before = self._last_begun.get(key)
        if before is not None and before.begun_ns is not None:
            was_waiting = job.added_ns < before.begun_ns
            if was_waiting and _order(job) < _order(before):
                self.out_of_order += 1
        self._last_begun[key] = job


def _by_priority() -> list[int]:
    return [0 for _ in Priority]


def _order(job: SimulatedJob) -> tuple[int, int]:
    return job.due_ns, job.number
