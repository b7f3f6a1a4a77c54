"""What each client gets of a simulated lane beside others that take all they can."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle

import msgspec
import numpy as np

from asyncnn.hal.types import Priority
from asyncnn.qos.virtual_time import Policy
from asyncnn.qos.work import Client, User
from tests.qos.simulation import SimulatedJob, Simulation, _Lane

WINDOW_NS = 200_000_000


class Load(msgspec.Struct, frozen=True):
    """What one client keeps pending: so many jobs on each of its connections."""

    client: Client
    priorities: Sequence[Priority]
    models: Sequence[str]
    connections: int = 1
    depth: int = 2

    def jobs(self) -> Iterator[SimulatedJob]:
        """Yield its jobs, one after another, for ever."""
        kinds = zip(cycle(self.models), cycle(self.priorities), strict=False)
        for model, priority in kinds:
            yield SimulatedJob(model, priority, self.client)


def shares_of(clients: Sequence[Client]) -> dict[Client, float]:
    """Return the part of lane time that is due to each of those that compete."""
    users = {client.user for client in clients}
    of_users = sum(user.weight for user in users)
    in_user: defaultdict[User, float] = defaultdict(float)
    for client in clients:
        in_user[client.user] += client.weight
    return {
        client: client.user.weight / of_users * client.weight / in_user[client.user]
        for client in clients
    }


class _Record:
    """Lane time that a client has had while it had work without a break."""

    def __init__(self) -> None:
        self.times_ns: list[int] = []
        self.served_ns: list[int] = []

    def note(self, now_ns: int, served_ns: int) -> None:
        self.times_ns.append(now_ns)
        self.served_ns.append(served_ns)

    def least_ns(self) -> float:
        """Return the least lane time in any window; it may begin or end anywhere."""
        times, served = np.array(self.times_ns), np.array(self.served_ns)
        starts = np.concatenate((times, times - WINDOW_NS))
        starts = starts[(starts >= times[0]) & (starts <= times[-1] - WINDOW_NS)]
        if not len(starts):
            return np.inf
        before = np.interp(starts, times, served)
        after = np.interp(starts + WINDOW_NS, times, served)
        return float((after - before).min())


class FloodedSimulation(Simulation):
    """One lane, and loads of which each job that ends is followed by another."""

    def __init__(self, policy: Policy, loads: Sequence[Load], requests: int) -> None:
        super().__init__(policy, max_waiting=requests)
        self._left = requests
        self._loads = loads
        self._following = {load.client: load.jobs() for load in loads}
        self._records: dict[Client, _Record] = {}
        self._unfinished: Counter[Client] = Counter()
        self._least_ns: dict[Client, float] = {}
        self.most_waited_ns: Counter[Client] = Counter()

    def flood(self, others: Iterable[tuple[int, SimulatedJob]] = ()) -> None:
        """Simulate all loads, and arrivals of other clients meanwhile."""
        for load in self._loads:
            for _ in range(load.connections * load.depth):
                self._follow(load.client)
        self.run(others)

    def least_shares(self) -> Mapping[Client, float]:
        """Return what each client had at least of its share in any window.

        Its share is that among all clients of which there was work at any time.
        """
        shares = shares_of(list(self.served_ns))
        return {
            client: least_ns / (shares[client] * WINDOW_NS)
            for client, least_ns in self._least_ns.items()
        }

    def _follow(self, client: Client) -> None:
        if self._left:
            self._left -= 1
            self._arrive(next(self._following[client]))

    def _arrive(self, job: SimulatedJob) -> None:
        client = job.client
        if not self._unfinished[client] and client not in self._records:
            self._records[client] = _Record()
            self._records[client].note(self.now_ns, self.served_ns[client])
        self._unfinished[client] += 1
        super()._arrive(job)

    def _take(self, lane: _Lane) -> None:
        super()._take(lane)
        job = lane.job
        if job is not None:
            self._records[job.client].note(self.now_ns, self.served_ns[job.client])
            if job.begun_ns == self.now_ns:
                waited_ns = self.now_ns - job.added_ns
                most_ns = max(self.most_waited_ns[job.client], waited_ns)
                self.most_waited_ns[job.client] = most_ns

    def _stop(self, lane: _Lane) -> None:
        job = lane.job
        assert job is not None
        client = job.client
        record = self._records[client]
        before_ns = self.served_ns[client]
        served_ns = before_ns + self.now_ns - lane.started_ns
        record.note(self.now_ns, served_ns)
        super()._stop(lane)
        if not job.has_ended:
            return
        self._unfinished[client] -= 1
        if client in self._following:
            self._follow(client)
        if not self._unfinished[client]:
            least_ns = min(record.least_ns(), self._least_ns.get(client, np.inf))
            self._least_ns[client] = least_ns
            del self._records[client]
