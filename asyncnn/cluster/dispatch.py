"""Dispatch: which replica runs what, and when. Pure: it is given the time, and answers.

Each call returns what is to be done, in order: `Send` or `End`. Nothing here waits,
sends, or reads a clock, so that an event loop, a test and a simulation use it alike.

What is sent counts as begun, as nobody can know of a replica that has died. So few
runs are sent ahead, and the others wait here, where they can go anywhere: a replica
has at most ``window`` runs of a priority and above, and one of a higher priority finds
room beside them. Among waiting ones, higher priorities come first, then earlier
deadlines.
"""

import random
from collections.abc import Callable, Hashable, Iterable, Sequence
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from asyncnn.cluster.replicas import ClusterWork, ModelPace, Open, Replica
from asyncnn.deadlines import PASSED
from asyncnn.hal.errors import counted
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.cluster_settings import DispatchSettings

_NEVER = 2**63
_PRIORITIES = 3

_LOOKED_AT = 16
"""Replicas that are compared if neither of two ends in time."""

_SEEN = 8
"""Runs of a model from which on it is known how long one takes at least."""

_RELENTING = 0.98
"""What is left of that with each run that is given up for it: it may be outdated."""

COULD_NOT = "the deadline could not be met any more"
MAY_HAVE_RUN = (
    "the replica was lost, and may have run it "
    "(ClusterSettings(idempotent=True) has such runs repeated)"
)


class Send(NamedTuple):
    """Have ``replica`` run it."""

    work: ClusterWork
    replica: int


class End(NamedTuple):
    """Report that it has ended so; it is not run any more."""

    work: ClusterWork
    status: ErrorStatus
    reason: str


Action: TypeAlias = Send | End


Choose: TypeAlias = "Callable[[Dispatcher, ClusterWork, int], Replica | None]"
"""Returns which of the replicas with room is to run it now; None if none has it."""


class Dispatcher:
    """Orders runs and gives them to replicas. Times are given, and never go back."""

    def __init__(
        self,
        settings: DispatchSettings | None = None,
        *,
        seed: int | None = None,
        choose: "Choose | None" = None,
    ) -> None:
        self.settings = settings or DispatchSettings()
        self.replicas: dict[int, Replica] = {}
        self._choose: Choose = choose or power_of_two
        rng = random.Random(seed)
        self.idle = [Open(rng) for _ in range(_PRIORITIES)]
        self.open = [Open(rng) for _ in range(_PRIORITIES)]
        self._sent: dict[int, Replica] = {}
        self._waiting: dict[int, ClusterWork] = {}
        # By model, as one that nobody has ready keeps no other waiting.
        self._queues: dict[Hashable, list[_QueueEntry]] = {}
        self._expiring: list[tuple[int, int]] = []
        self._paces: dict[Hashable, ModelPace] = {}
        self._bare_ns: dict[Hashable, int] = {}

    @property
    def waiting(self) -> int:
        """Number of runs that were not sent, or have come back."""
        return len(self._waiting)

    def waited_ns(self, now_ns: int) -> int:
        """Return how long the run has waited that has done so for longest."""
        queued = (work.queued_ns for work in self._waiting.values())
        return now_ns - next(queued, now_ns)

    def add(self, number: int, lanes: int = 1) -> Replica:
        """Add a replica, which is not up yet."""
        replica = self.replicas[number] = Replica(number, lanes)
        return replica

    def known(self, model: Hashable, now_ns: int) -> None:
        """Learn of a model; what asks for it waits until a replica has it ready."""
        self._bare_ns.setdefault(model, now_ns)

    def forget(self, model: Hashable) -> None:
        """Forget a model, for which nothing is asked any more."""
        for replica in self.replicas.values():
            replica.ready.discard(model)
            replica.paces.pop(model, None)
        self._paces.pop(model, None)
        self._bare_ns.pop(model, None)

    def is_ready(self, model: Hashable) -> bool:
        """Return whether a replica that is up has the model ready."""
        return any(r.is_up and model in r.ready for r in self.replicas.values())

    def up(
        self, number: int, models: Iterable[Hashable], now_ns: int
    ) -> Sequence[Action]:
        """Note that a replica takes runs of ``models``, beside those it has had."""
        replica = self.replicas[number]
        replica.is_up = True
        replica.ready.update(models)
        for model in replica.ready:
            self._bare_ns.pop(model, None)
        self._note(replica)
        return self._pump(now_ns)

    def lost(self, number: int, now_ns: int) -> Sequence[Action]:
        """Note that a replica is gone, with its models: what it has begun may be done.

        What is safe to run twice goes elsewhere; all else ends with DEVICE_UNAVAILABLE.
        """
        replica = self.replicas[number]
        replica.is_up = False
        lost, gone = [each.work for each in replica.begun.values()], replica.ready
        replica.begun, replica.ready, replica.paces = {}, set(), {}
        self._note(replica)
        for model in gone:
            if not self.is_ready(model):
                self._bare_ns.setdefault(model, now_ns)
        actions: list[Action] = []
        for work in lost:
            del self._sent[work.number]
            if work.is_safe:
                actions += self._again(work, now_ns)
            else:
                actions.append(End(work, ErrorStatus.DEVICE_UNAVAILABLE, MAY_HAVE_RUN))
        return [*actions, *self._pump(now_ns)]

    def lacks(self, number: int, model: Hashable, now_ns: int) -> bool:
        """Note that a replica has a model no more; return whether that is new."""
        ready = self.replicas[number].ready
        if model not in ready:
            return False
        ready.remove(model)
        if not self.is_ready(model):
            self._bare_ns.setdefault(model, now_ns)
        return True

    def submit(self, work: ClusterWork, now_ns: int) -> Sequence[Action]:
        """Take a run: it is sent, waits, or is refused as too many wait."""
        most = self.settings.max_waiting
        if len(self._waiting) >= most:
            reason = f"{counted(most, 'run')} wait for the cluster already"
            return [End(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, reason)]
        if not self._waiting:  # nothing is before it
            sent = self._placed(work, now_ns)
            if sent is not None:
                return (sent,)
        self._queue(work, now_ns)
        return self._pump(now_ns)

    def ended(self, number: int, now_ns: int) -> Sequence[Action]:
        """Note that a run was answered, whatever the answer is."""
        replica = self._sent.pop(number, None)
        if replica is None:
            return ()
        work = replica.begun[number].work
        took_ns = replica.end(number, now_ns)
        if took_ns is not None:
            self._learn(replica, work.model, took_ns)
        self._note(replica)
        return self._pump(now_ns)

    def returned(self, number: int, now_ns: int) -> Sequence[Action]:
        """Note that a replica has not begun a run: it is sent once more."""
        replica = self._sent.pop(number, None)
        if replica is None:
            return ()
        work = replica.begun[number].work
        replica.end(number, now_ns)
        self._note(replica)
        return [*self._again(work, now_ns), *self._pump(now_ns)]

    def cancel(self, number: int, now_ns: int) -> int | None:
        """Forget a run that waits; return the replica of one that was sent.

        That one keeps its place until it has ended, which is expected to be soon.
        """
        self._waiting.pop(number, None)
        replica = self._sent.get(number)
        if replica is None:
            return None
        replica.leave(number, now_ns)
        return replica.number

    def place(self, number: int) -> int | None:
        """Return the replica that a run was sent to, and has not come back from."""
        replica = self._sent.get(number)
        return None if replica is None else replica.number

    def expire(self, now_ns: int) -> Sequence[Action]:
        """End what waits and is too late by now, or for what nobody has ready."""
        actions: list[Action] = []
        while self._expiring and self._expiring[0][0] <= now_ns:
            _, number = heappop(self._expiring)
            work = self._waiting.pop(number, None)
            if work is not None:
                actions.append(_late(work, PASSED))
        for at_ns, work in self._in_vain():
            if at_ns <= now_ns:
                del self._waiting[work.number]
                reason = "no replica has had the model ready for long"
                actions.append(End(work, ErrorStatus.DEVICE_UNAVAILABLE, reason))
        return actions

    def alarm_ns(self) -> int | None:
        """Return when `expire` is to be called next; None if nothing may expire."""
        while self._expiring and self._expiring[0][1] not in self._waiting:
            heappop(self._expiring)
        times = [self._expiring[0][0]] if self._expiring else []
        times += [at_ns for at_ns, _ in self._in_vain()]
        return min(times, default=None)

    def cost_ns(self, replica: Replica, model: Hashable) -> float:
        """Return how long a run is expected to take there; 0 if nothing is known."""
        pace = replica.paces.get(model) or self._paces.get(model)
        return 0.0 if pace is None else pace.mean_ns

    def finish_ns(self, replica: Replica, work: ClusterWork, now_ns: int) -> float:
        """Return in how many nanoseconds ``replica`` is expected to end it."""
        backlog = replica.backlog_ns(work.priority, now_ns)
        return backlog + self.cost_ns(replica, work.model)

    def _in_vain(self) -> list[tuple[int, ClusterWork]]:
        """Return what waits for a model that nobody has ready, and until when."""
        bare, patience_ns = self._bare_ns, self.settings.patience_ns
        asked = [w for w in self._waiting.values() if w.model in bare] if bare else []
        return [(max(bare[w.model], w.queued_ns) + patience_ns, w) for w in asked]

    def _again(self, work: ClusterWork, now_ns: int) -> Sequence[Action]:
        if work.sent >= self.settings.max_tries:
            reason = f"it was sent {work.sent} times in vain"
            return [End(work, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT, reason)]
        self._queue(work, now_ns)
        return ()

    def _queue(self, work: ClusterWork, now_ns: int) -> None:
        work.queued_ns = now_ns
        self._waiting[work.number] = work
        deadline = _NEVER if work.deadline_ns is None else work.deadline_ns
        queue = self._queues.setdefault(work.model, [])
        heappush(queue, _QueueEntry(-work.priority, deadline, work.number))
        if work.deadline_ns is not None:
            heappush(self._expiring, (deadline, work.number))

    def _pump(self, now_ns: int) -> Sequence[Action]:
        """Send what waits, the most urgent first, as far as there is room."""
        if not self._waiting:
            self._queues.clear()
            return ()
        actions: list[Action] = []
        blocked: set[Hashable] = set()
        while True:
            heads = [
                (queue[0], key)
                for key, queue in self._queues.items()
                if key not in blocked and self._has_head(queue)
            ]
            if not heads:
                break
            entry, key = min(heads, key=lambda each: each[0])
            work = self._waiting[entry.number]
            if not self.open[work.priority].members:
                break  # lower priorities have no more room than this one
            action = self._placed(work, now_ns)
            if action is None:
                blocked.add(key)
                continue
            heappop(self._queues[key])
            del self._waiting[work.number]
            actions.append(action)
        for key in [key for key, queue in self._queues.items() if not queue]:
            del self._queues[key]
        return actions

    def _has_head(self, queue: "list[_QueueEntry]") -> bool:
        """Drop what does not wait any more; return whether any is left."""
        while queue and queue[0].number not in self._waiting:
            heappop(queue)
        return bool(queue)

    def _placed(self, work: ClusterWork, now_ns: int) -> Action | None:
        """Send a run if a replica has room for it, or say that it is too late."""
        deadline_ns = work.deadline_ns
        if deadline_ns is not None and deadline_ns <= now_ns:
            return _late(work, PASSED)
        replica = self._choose(self, work, now_ns)
        if replica is None:
            return None
        pace = replica.paces.get(work.model)
        if deadline_ns is not None and pace and self.settings.drops_late:
            left_ns = deadline_ns - now_ns - replica.backlog_ns(work.priority, now_ns)
            # Where others wait, the place is for one that is likely to be in time.
            has_others = len(self._waiting) > 1
            needed_ns = pace.mean_ns if has_others else pace.least_ns
            if pace.count >= _SEEN and left_ns < needed_ns:
                pace.least_ns *= _RELENTING
                return _late(work, COULD_NOT)
        work.sent += 1
        replica.begin(work, self.cost_ns(replica, work.model), now_ns)
        self._sent[work.number] = replica
        self._note(replica)
        return Send(work, replica.number)

    def _note(self, replica: Replica) -> None:
        lanes, window = replica.lanes, self.settings.window * replica.lanes
        has = [each.work.priority for each in replica.begun.values()]
        count = 0 if replica.is_up else window
        for priority in reversed(range(_PRIORITIES)):
            count += has.count(priority)
            self.idle[priority].put(replica, replica.is_up and count < lanes)
            self.open[priority].put(replica, count < window)

    def _learn(self, replica: Replica, model: Hashable, took_ns: int) -> None:
        for paces in (replica.paces, self._paces):
            if model in paces:
                paces[model].learn(took_ns)
            else:
                paces[model] = ModelPace(took_ns, took_ns)


class _QueueEntry(NamedTuple):
    """What waits, in the order of its turn."""

    urgency: int
    deadline_ns: int
    number: int


def power_of_two(
    dispatcher: Dispatcher, work: ClusterWork, now_ns: int
) -> Replica | None:
    """Choose of two the one that is expected to end first.

    They are idle, if any is, or soon will be. If neither is expected to end in time,
    more idle ones are compared.
    """

    def finish(replica: Replica) -> tuple[float, int]:
        expected = dispatcher.finish_ns(replica, work, now_ns)
        return expected, len(replica.begun)

    priority, ahead_ns = work.priority, dispatcher.settings.ahead_ns
    found = dispatcher.idle[priority].drawn(2, work.model)
    if not found:
        # Who is sent ahead waits there, whatever happens here.
        drawn = dispatcher.open[priority].drawn(_LOOKED_AT, work.model)
        found = [e for e in drawn if e.backlog_ns(priority, now_ns) <= ahead_ns][:2]
    if not found:
        return None
    best = min(found, key=finish)
    deadline_ns = work.deadline_ns
    if deadline_ns is not None and now_ns + finish(best)[0] > deadline_ns:
        more = dispatcher.idle[priority].drawn(_LOOKED_AT, work.model)
        return min([best, *more], key=finish)
    return best


def _late(work: ClusterWork, reason: str) -> End:
    return End(work, ErrorStatus.MISSED_DEADLINE_TRANSIENT, reason)
