"""Dispatch among simulated nodes, under a virtual clock: what a cluster would do.

The `Dispatcher` is the one that serves real clusters. Nodes take what they are sent in
order of priority, then of arrival; they are of different speed, some runs take much
longer than others, nodes die and come back. One seed gives the same arrivals and
service times to every policy.
"""

import random
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from asyncnn.cluster.dispatch import Action, Dispatcher, Send, power_of_two
from asyncnn.cluster.replicas import ClusterWork, Replica
from asyncnn.hal.errors import InvalidArgumentError, check_least, require_known
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.cluster_settings import DispatchSettings

_MODEL = 0
_AT_ONCE = 10**6
"""A window for policies that leave waiting to the nodes."""

OURS, LEAST, ROBIN, ORACLE = "asyncnn", "least-loaded", "round-robin", "oracle"
POLICIES = (OURS, LEAST, ROBIN, ORACLE)


class ClusterScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster and what is asked of it; times are milliseconds.

    ``load`` is the share of what all nodes could compute that is asked for, in ``runs``
    that arrive at random. One takes one of ``service_ms`` on a node of usual speed.
    Speeds differ by ``skew``, the standard deviation of their logarithm. A run is a
    straggler with the probability ``stragglers``, and takes ``straggling`` times as
    long. A node dies every ``failure_s`` seconds on average, if that is not 0, and is
    back after ``restart_s``. A message takes ``latency_ms``.

    :raises InvalidArgumentError: if a number is below its least.
    """

    nodes: int = 100
    load: float = 0.8
    runs: int = 10_000
    service_ms: tuple[float, ...] = (20.0,)
    deadline_ms: float = 200.0
    skew: float = 0.2
    stragglers: float = 0.01
    straggling: float = 10.0
    failure_s: float = 0.0
    restart_s: float = 2.0
    latency_ms: float = 0.5
    urgent: float = 0.0
    is_safe: bool = False
    seed: int = 1

    def __post_init__(self) -> None:
        check_least(self, 1, "nodes", "runs")
        check_least(self, 0, "load", "skew", "stragglers", "straggling", "failure_s")
        check_least(self, 0, "restart_s", "latency_ms", "deadline_ms", "urgent")
        if not self.load or not self.service_ms or min(self.service_ms) <= 0:
            raise InvalidArgumentError("load and service times are above 0")


class Outcomes(msgspec.Struct, frozen=True):
    """How the runs of a scenario have ended, by ``policy``.

    ``p50_ms`` and ``p99_ms`` are of those with a result; ``goodput`` is the share of
    all that had one in time, ``twice`` counts what more than one node has begun.
    """

    policy: str
    nodes: int
    load: float
    p50_ms: float
    p99_ms: float
    goodput: float
    statuses: dict[str, int]
    twice: int


class _SimulatedNode:
    """A node of one lane, and what it has been sent."""

    def __init__(self, number: int, slowness: float) -> None:
        self.number = number
        self.slowness = slowness
        self.life = 0
        self.is_up = True
        self.running: int | None = None
        self.queue: list[tuple[int, int, ClusterWork]] = []


class Simulation:
    """One policy in one scenario; `run` gives the outcomes.

    ``works`` has when each run arrives, ``costs_ns`` how long it takes on a node of
    usual speed. ``ended`` has how and when each run ended, in nanoseconds, as often as
    it was reported.
    """

    def __init__(self, scenario: ClusterScenario, policy: str = OURS) -> None:
        require_known("policy", policy, POLICIES)
        self.scenario = scenario
        self.policy = policy
        rng = random.Random(scenario.seed)
        self.nodes = [
            _SimulatedNode(number, float(np.exp(rng.gauss(0, scenario.skew))))
            for number in range(scenario.nodes)
        ]
        self._slowness = np.array([node.slowness for node in self.nodes])
        self._free_ns: NDArray[np.float64] = np.zeros(scenario.nodes)
        self.works, self.costs_ns = self._arrivals(rng)
        self._failures = random.Random(scenario.seed + 1)
        self.ended: dict[int, list[tuple[ErrorStatus, int]]] = {}
        self.begun: dict[int, int] = {}
        self._events: list[tuple[int, int, Callable[..., Any], tuple[Any, ...]]] = []
        self._order = 0
        self.now_ns = 0
        self._turn = 0
        self._left = len(self.works)
        usual = policy == OURS
        own = {LEAST: self._least_loaded, ROBIN: self._round_robin}
        choosers = {OURS: power_of_two, ORACLE: self._oracle, **own}
        self.dispatcher = Dispatcher(
            DispatchSettings(
                window=4 if usual else _AT_ONCE, max_waiting=_AT_ONCE, drops_late=usual
            ),
            seed=scenario.seed,
            choose=choosers[policy],
        )

    def run(self) -> Outcomes:
        """Simulate until every run has ended."""
        dispatcher = self.dispatcher
        dispatcher.known(_MODEL, 0)
        for node in self.nodes:
            dispatcher.add(node.number)
            dispatcher.up(node.number, (_MODEL,), 0)
            self._wear(node)
        for at_ns, work in self.works:
            self._at(at_ns, self._arrive, work)
        while self._events and self._left:
            self.now_ns, _, call, args = heappop(self._events)
            call(*args)
            alarm = dispatcher.alarm_ns() if dispatcher.waiting else None
            if alarm is not None and not (self._events and self._events[0][0] <= alarm):
                self._at(max(alarm, self.now_ns), self._expire)
        return self.outcomes()

    def outcomes(self) -> Outcomes:
        """Return what has become of the runs that have ended."""
        arrived = {work.number: (at, work.deadline_ns) for at, work in self.works}
        taken_ms, in_time, statuses = [], 0, dict[str, int]()
        for number, ends in self.ended.items():
            status, at_ns = ends[0]
            statuses[status.name] = statuses.get(status.name, 0) + 1
            begun_ns, deadline = arrived[number]
            if status is ErrorStatus.NONE:
                taken_ms.append((at_ns - begun_ns) / 1e6)
                in_time += deadline is None or at_ns <= deadline
        asked = self.scenario
        p50, p99 = np.percentile(taken_ms or [0.0], (50, 99))
        return Outcomes(
            self.policy,
            asked.nodes,
            asked.load,
            float(p50),
            float(p99),
            in_time / asked.runs,
            statuses,
            sum(count > 1 for count in self.begun.values()),
        )

    def _arrivals(
        self, rng: random.Random
    ) -> tuple[list[tuple[int, ClusterWork]], dict[int, float]]:
        asked = self.scenario
        mean_ms = sum(asked.service_ms) / len(asked.service_ms)
        mean_ms *= 1 + asked.stragglers * (asked.straggling - 1)
        # A node of twice the time computes half as much.
        capacity = sum(1 / node.slowness for node in self.nodes) / mean_ms
        now, found, costs = 0.0, [], {}
        for number in range(asked.runs):
            now += rng.expovariate(asked.load * capacity)
            cost = rng.choice(asked.service_ms)
            if rng.random() < asked.stragglers:
                cost *= asked.straggling
            priority = 2 if rng.random() < asked.urgent else 1
            at_ns = int(now * 1e6)
            deadline = (
                at_ns + int(asked.deadline_ms * 1e6) if asked.deadline_ms else None
            )
            work = ClusterWork(number, _MODEL, priority, deadline, asked.is_safe)
            costs[number] = cost * 1e6
            found.append((at_ns, work))
        return found, costs

    def _at(self, at_ns: int, call: Callable[..., Any], *args: Any) -> None:
        self._order += 1
        heappush(self._events, (at_ns, self._order, call, args))

    def _later(self, delay_ms: float, call: Callable[..., Any], *args: Any) -> None:
        self._at(self.now_ns + int(delay_ms * 1e6), call, *args)

    def _arrive(self, work: ClusterWork) -> None:
        self._act(self.dispatcher.submit(work, self.now_ns))

    def _expire(self) -> None:
        self._act(self.dispatcher.expire(self.now_ns))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                node = self.nodes[action.replica]
                args = node, node.life, action.work
                self._later(self.scenario.latency_ms, self._received, *args)
            else:
                self._note_end(action.work.number, action.status)

    def _note_end(self, number: int, status: ErrorStatus) -> None:
        self.ended.setdefault(number, []).append((status, self.now_ns))
        self._left -= 1

    def _received(self, node: _SimulatedNode, life: int, work: ClusterWork) -> None:
        if life == node.life and node.is_up:
            self._order += 1
            heappush(node.queue, (-work.priority, self._order, work))
            self._begin(node)

    def _begin(self, node: _SimulatedNode) -> None:
        while node.running is None and node.queue:
            work = heappop(node.queue)[2]
            deadline = work.deadline_ns
            if deadline is not None and deadline <= self.now_ns:
                late = ErrorStatus.MISSED_DEADLINE_TRANSIENT
                self._reply(node, work, late)
                continue
            node.running = work.number
            self.begun[work.number] = self.begun.get(work.number, 0) + 1
            cost_ns = int(self.costs_ns[work.number] * node.slowness)
            self._at(self.now_ns + cost_ns, self._finish, node, node.life, work)

    def _finish(self, node: _SimulatedNode, life: int, work: ClusterWork) -> None:
        if life == node.life:
            node.running = None
            self._reply(node, work, ErrorStatus.NONE)
            self._begin(node)

    def _reply(
        self, node: _SimulatedNode, work: ClusterWork, status: ErrorStatus
    ) -> None:
        args = node, node.life, work, status
        self._later(self.scenario.latency_ms, self._answer, *args)

    def _answer(
        self, node: _SimulatedNode, life: int, work: ClusterWork, status: ErrorStatus
    ) -> None:
        if life == node.life:
            self._note_end(work.number, status)
            self._act(self.dispatcher.ended(work.number, self.now_ns))

    def _wear(self, node: _SimulatedNode) -> None:
        if self.scenario.failure_s:
            after_s = self._failures.expovariate(1 / self.scenario.failure_s)
            self._later(after_s * 1e3, self._fail, node)

    def _fail(self, node: _SimulatedNode) -> None:
        node.life += 1
        node.is_up, node.running, node.queue = False, None, []
        self._free_ns[node.number] = np.inf
        self._act(self.dispatcher.lost(node.number, self.now_ns))
        self._later(self.scenario.restart_s * 1e3, self._return, node)

    def _return(self, node: _SimulatedNode) -> None:
        node.is_up = True
        self._free_ns[node.number] = self.now_ns
        self._act(self.dispatcher.up(node.number, (_MODEL,), self.now_ns))
        self._wear(node)

    def _least_loaded(
        self, dispatcher: Dispatcher, work: ClusterWork, _: int
    ) -> Replica | None:
        members = dispatcher.open[work.priority].members
        return min(members, key=lambda each: len(each.begun), default=None)

    def _round_robin(
        self, dispatcher: Dispatcher, work: ClusterWork, _: int
    ) -> Replica | None:
        members = dispatcher.open[work.priority].members
        self._turn += 1
        return members[self._turn % len(members)] if members else None

    def _oracle(
        self, dispatcher: Dispatcher, work: ClusterWork, now_ns: int
    ) -> Replica | None:
        """Choose by what each run is going to take, on whichever node."""
        if not dispatcher.open[work.priority].members:
            return None
        begin_ns = np.maximum(self._free_ns, now_ns)
        ends_ns = begin_ns + self.costs_ns[work.number] * self._slowness
        best = int(ends_ns.argmin())
        self._free_ns[best] = ends_ns[best]
        return dispatcher.replicas[best]
