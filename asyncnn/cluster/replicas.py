"""Replicas: what each has begun, how long that is to take, who has room; how many.

A replica more is an actor more, which asks Ray for its place: where there is none, that
has Ray's autoscaler add a node, and remove one that is empty.
"""

import random
from collections import deque
from collections.abc import Collection, Hashable, Sequence

import msgspec

from asyncnn.runtime.cluster_settings import ClusterSettings

_GAIN = 0.2
"""Weight of the latest of the times that are averaged."""

_LOOKS = 4
"""How often within ``grow_after`` it is looked how many there are to be."""

_RISING = 0.05
"""Weight of the latest one in the least of them, if it is above that."""


class ClusterWork(msgspec.Struct, eq=False):
    """A run of ``model``, wherever that is prepared.

    One that ``is_safe`` may be run twice. Times are nanoseconds of one steady clock.
    """

    number: int
    model: Hashable
    priority: int = 1
    deadline_ns: int | None = None
    is_safe: bool = False
    sent: int = 0
    queued_ns: int = 0


class ModelPace(msgspec.Struct, eq=False):
    """How long runs of a model have lately taken, about and at least."""

    mean_ns: float
    least_ns: float
    count: int = 1

    def learn(self, took_ns: int) -> None:
        """Take one more into account."""
        self.mean_ns += _GAIN * (took_ns - self.mean_ns)
        rise = _RISING * (took_ns - self.least_ns)
        self.least_ns = min(self.least_ns + rise, took_ns)
        self.count += 1


class _Begun(msgspec.Struct, eq=False):
    """What was sent; ``began_ns`` is when a lane was free for it, if known.

    Of what ``is_left``, as nobody waits for it, that is since when it is to stop.
    """

    work: ClusterWork
    cost_ns: float
    began_ns: int | None
    is_left: bool = False


class Replica(msgspec.Struct, eq=False):
    """What is known of a replica, which computes ``lanes`` runs at a time."""

    number: int
    lanes: int
    is_up: bool = False
    ready: set[Hashable] = msgspec.field(default_factory=set)
    begun: dict[int, _Begun] = msgspec.field(default_factory=dict)
    paces: dict[Hashable, ModelPace] = msgspec.field(default_factory=dict)

    def backlog_ns(self, priority: int, now_ns: int) -> float:
        """Return how long what comes first is expected to keep its lanes.

        What has taken longer than expected is expected to take that much longer.
        """
        total = 0.0
        for each in self.begun.values():
            if each.work.priority >= priority:
                spent = 0 if each.began_ns is None else now_ns - each.began_ns
                total += abs(each.cost_ns - spent)
        return total / self.lanes

    def begin(self, work: ClusterWork, cost_ns: float, now_ns: int) -> None:
        """Note that it was sent."""
        running = sum([each.began_ns is not None for each in self.begun.values()])
        at_ns = now_ns if running < self.lanes else None
        self.begun[work.number] = _Begun(work, cost_ns, at_ns)

    def leave(self, number: int, now_ns: int) -> None:
        """Note that it is to stop."""
        left = self.begun[number]
        left.is_left, left.cost_ns = True, 0.0
        if left.began_ns is not None:
            left.began_ns = now_ns

    def end(self, number: int, now_ns: int) -> int | None:
        """Forget what has ended; return how long it took, if that is known.

        The next one has its lane.
        """
        ended = self.begun.pop(number)
        waiting = [each for each in self.begun.values() if each.began_ns is None]
        if ended.began_ns is None:
            return None
        if waiting:
            first = max(waiting, key=lambda each: each.work.priority)
            first.began_ns = now_ns
        return None if ended.is_left else now_ns - ended.began_ns


class Open:
    """A set of replicas, of which some can be drawn."""

    def __init__(self, rng: random.Random) -> None:
        self.members: list[Replica] = []
        self._places: dict[int, int] = {}
        self.rng = rng

    def put(self, replica: Replica, is_open: bool) -> None:
        """Add or remove it."""
        place = self._places.get(replica.number)
        if is_open and place is None:
            self._places[replica.number] = len(self.members)
            self.members.append(replica)
        elif not is_open and place is not None:
            last = self.members.pop()
            del self._places[replica.number]
            if last is not replica:
                self.members[place] = last
                self._places[last.number] = place

    def drawn(self, count: int, model: Hashable) -> Sequence[Replica]:
        """Return so many replicas with ``model`` ready at random, or all there are."""
        members = self.members
        if len(members) > count:
            found = [r for r in self.rng.sample(members, count) if model in r.ready]
            if len(found) == count:
                return found
        ready = [each for each in members if model in each.ready]
        return self.rng.sample(ready, min(count, len(ready)))


class Scaling:
    """Says how many replicas there are to be, each ``period_s`` seconds."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.period_s = settings.grow_after / _LOOKS
        self._settings = settings
        looks = int(settings.shrink_after / self.period_s) + 1
        self._needed: deque[int] = deque(maxlen=looks)

    def wanted(
        self, replicas: Collection[Replica], waiting: int, waited_ns: int
    ) -> int:
        """Return how many, where runs wait, of which one has waited for so long.

        There are at most twice as many at a time, none are added while others have not
        come up, and none removed before it has been seen how many are needed.
        """
        settings, count = self._settings, len(replicas)
        runs = waiting + sum(len(each.begun) for each in replicas)
        needed = -(-runs // settings.lanes)
        self._needed.append(needed)
        are_up = all(each.is_up for each in replicas)
        if are_up and waited_ns >= settings.grow_after * 1e9:
            return max(count, min(needed, 2 * count, settings.most))
        if len(self._needed) < (self._needed.maxlen or 0):
            return count
        return min(count, max(settings.replicas, *self._needed))
