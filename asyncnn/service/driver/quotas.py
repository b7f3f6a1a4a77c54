"""What processes and users may have of a driver in all, and who they are.

A `Quota` bounds the objects of a user: models, bursts, pools. A `Budget` bounds what
the driver itself can run out of, descriptors and mappings, and leaves some for others.
Neither counts what comes and goes, where a way out could be forgotten: it looks at what
each connection has when one wants more.

`Clients` are processes, known by the kernel's credentials of a connection and by when
the process started, since numbers of processes are used again. All connections of a
process are one client, with one share of the lanes; all clients of a uid are of one
user, and share its quotas.
"""

import asyncio
import os
import resource
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet, WeakValueDictionary

import msgspec

from asyncnn.hal.errors import (
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
    too_many,
)
from asyncnn.memory.limits import CommonBytes
from asyncnn.offload import SerialOffload
from asyncnn.qos import Client, User
from asyncnn.service.driver.turns import (
    MAX_DECODING,
    DecodingTurns,
    Readers,
    ReadingTurns,
)
from asyncnn.service.limits import (
    DescriptorReserve,
    ServiceLimits,
    UserLimits,
    least_limit,
)
from asyncnn.service.process import Peer, process_status

_RECOUNT_S = 0.1
"""Counting everybody's takes long where there are hundreds of connections."""


class Budget(msgspec.Struct, eq=False):
    """``most`` of ``what`` for all clients, and up to ``most_each`` for each process.

    ``limit`` names what bounds all of them, ``limit_each`` the setting for one.
    """

    what: str
    most: int
    limit: str
    most_each: int
    limit_each: str
    used: int = 0
    _holdings: "WeakSet[Holding]" = msgspec.field(default_factory=WeakSet)
    _counted_at: float = -_RECOUNT_S

    def holding(self, process: "ProcessUse", count: Callable[[], int]) -> "Holding":
        """Return what a connection has: as many as ``count`` says."""
        holding = Holding(self, process, count)
        self._holdings.add(holding)
        return holding

    def recount(self) -> None:
        """Learn what has been given back lately."""
        now = time.monotonic()
        if now - self._counted_at >= _RECOUNT_S:
            for holding in self._holdings:
                holding.update()
            self._counted_at = now


class ProcessUse(msgspec.Struct, eq=False):
    """How much of one budget all connections of a process have."""

    used: int = 0


class Holding(msgspec.Struct, eq=False, weakref=True):
    """What one connection has of a budget. Belongs to the event loop."""

    _budget: Budget
    _process: ProcessUse
    _count: Callable[[], int]
    _used: int = 0

    def update(self) -> None:
        """Count anew what the connection has."""
        self._set(self._count())

    def check_room(self, more: int) -> None:
        """Check that the connection may have ``more``, and count them until `update`.

        Others of the process may ask for as many before the next one.

        :raises ResourceExhaustedTransientError: if its process or the driver has not as
            many left.
        """
        self.update()
        refusal = self._refusal(more)
        if refusal is not None:
            self._budget.recount()
            refusal = self._refusal(more)
        if refusal is not None:
            raise refusal
        if self._count is not _nothing:
            self._set(self._used + more)

    def close(self) -> None:
        """Count nothing any more: the connection has ended."""
        self._count = _nothing
        self._set(0)

    def _set(self, used: int) -> None:
        more, self._used = used - self._used, used
        self._process.used += more
        self._budget.used += more

    def _refusal(self, more: int) -> ResourceExhaustedTransientError | None:
        budget, own = self._budget, self._process.used
        if own + more > budget.most_each:
            return too_many(budget.what, budget.limit_each, budget.most_each)
        left = budget.most - budget.used
        if own + more > left - more:
            return ResourceExhaustedTransientError(
                f"the client has {own} of the driver's {budget.most} {budget.what}, "
                f"and {max(left, 0)} are left for others: {budget.limit}"
            )
        return None


def _nothing() -> int:
    return 0


T = TypeVar("T")


class CountedTable(dict[int, T]):
    """What a connection has, by number; its quota has ``counted`` so many of these."""

    __slots__ = ("__weakref__", "counted")

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0


class Quota:
    """``most`` of ``what`` for a user in all, and ``most_each`` for each connection.

    ``limit`` is what `UserLimits` and `ServiceLimits` call these bounds. The tables of
    a connection are counted when it wants more, and all others only if there seem to be
    too many: a check takes as long beside hundreds of connections as beside one.
    Belongs to the event loop.
    """

    def __init__(
        self, what: str, user: str, most: int, most_each: int, limit: str
    ) -> None:
        self.most_each = most_each
        self._what = what
        self._user = user
        self._most = most
        self._limit = limit
        self._used = 0
        self._tables: WeakValueDictionary[int, CountedTable[Any]] = (
            WeakValueDictionary()
        )

    def table(self) -> CountedTable[T]:
        """Return a new table; what is in it counts for as long as it exists."""
        table: CountedTable[T] = CountedTable()
        self._tables[id(table)] = table
        return table

    def check(self, *tables: CountedTable[Any], more: int = 1) -> None:
        """Check that a connection may have ``more`` than is in its ``tables``.

        They count from now on: the tables of others may be checked before they are in.

        :raises ResourceExhaustedTransientError: if these would be too many.
        """
        own = 0
        for table in tables:
            size = len(table)
            own += size
            self._used += size - table.counted
            table.counted = size
        if own + more > self.most_each:
            raise too_many(self._what, f"ServiceLimits.{self._limit}", self.most_each)
        if self._used + more > self._most:
            self._count_all()
            if self._used + more > self._most:
                raise too_many(
                    f"{self._what} of {self._user}",
                    f"UserLimits.{self._limit}",
                    self._most,
                    hint="release some of them, in any process of this user",
                )
        self._used += more
        tables[0].counted += more

    def _count_all(self) -> None:
        self._used = 0  # what went with its table is counted until now
        for table in self._tables.values():
            table.counted = len(table)
            self._used += table.counted


class UserQuotas:
    """The quotas of the user ``uid``, beside the limits of each connection."""

    def __init__(self, uid: int, limits: UserLimits, each: ServiceLimits) -> None:
        def quota(limit: str, what: str) -> Quota:
            most, most_each = getattr(limits, limit), getattr(each, limit, 1)
            return Quota(what, f"uid {uid}", most, most_each, limit)

        self.prepared_models = quota("max_prepared_models", "prepared models")
        self.executions = quota("max_executions", "pending executions")
        self.fenced_executions = quota(
            "max_fenced_executions", "pending fenced executions"
        )
        self.bursts = quota("max_bursts", "open bursts")
        self.buffers = quota("max_buffers", "buffers")
        self.pools = quota("max_pools", "pools")
        self.region_processes = quota("max_region_processes", "processes for regions")
        self.pool_bytes = CommonBytes(
            limits.max_pool_bytes,
            f"bytes in pools of uid {uid}",
            "UserLimits.max_pool_bytes",
        )


OWN_DESCRIPTORS = 16
"""Left to the driver itself, besides those that are open at its start."""

_FOR_ONE_CLIENT = 20
"""Enough for it to open a burst and bring arrays, with as many left for others."""

FOR_ACCEPTING = 10
"""Of the reserve: connections that are refused, and files of answers."""

_MAX_MAP_COUNT = Path("/proc/sys/vm/max_map_count")
_USUAL_MAP_COUNT = 65530
_MAPPINGS_DIVISOR = 2
"""The other half of a process's mappings is for its heap, threads and libraries."""


class DriverResources:
    """The resources of a driver; belongs to the event loop.

    ``reserve`` has the descriptors to receive one message of a client with, to refuse
    a connection with, and to answer with.

    :raises ResourceExhaustedPersistentError: if the process may have too few.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        used = require_descriptors(limits)
        self.reserve = DescriptorReserve(_reserved(limits))
        self.descriptors = Budget(
            "descriptors",
            self.reserve.limit - used,
            "its limit of open files (ulimit -n)",
            limits.max_descriptors,
            "ServiceLimits.max_descriptors",
        )
        self.mappings = Budget(
            "mappings of memory",
            _max_map_count() // _MAPPINGS_DIVISOR,
            "vm.max_map_count",
            limits.max_mappings,
            "ServiceLimits.max_mappings",
        )
        self.readers = Readers()
        self._decoding = asyncio.Semaphore(MAX_DECODING)
        self._processes: WeakValueDictionary[int, ProcessResources] = (
            WeakValueDictionary()
        )
        # By process, as they outlive its clients for a while: a process may open one
        # connection after the other.
        self._reading: WeakValueDictionary[Peer, ReadingTurns] = WeakValueDictionary()

    def of_process(self, client: int, peer: Peer) -> "ProcessResources":
        """Return what the connections of a process share, by its client's number."""
        process = self._processes.get(client)
        if process is None:
            turns = self._reading.get(peer)
            if turns is None:
                turns = ReadingTurns(self.readers)
                if peer.pid:  # the kernel gives 0 for each that cannot be seen here
                    self._reading[peer] = turns
            process = ProcessResources(self, turns, self._decoding)
            self._processes[client] = process
        return process


class ProcessResources:
    """What the connections of one process share among them.

    ``descriptors`` and ``mappings`` return what a connection has of them: as many as
    the function that is given counts.
    """

    def __init__(
        self,
        driver: DriverResources,
        reading: ReadingTurns,
        decoding: asyncio.Semaphore,
    ) -> None:
        self.reserve = driver.reserve
        self.reading = reading
        self.decoding = DecodingTurns(decoding)
        self.validating = SerialOffload()
        self.descriptors = partial(driver.descriptors.holding, ProcessUse())
        self.mappings = partial(driver.mappings.holding, ProcessUse())


def require_descriptors(limits: ServiceLimits, coming: int = 0) -> int:
    """Return how many descriptors are the driver's own, with those that are ``coming``.

    :raises ResourceExhaustedPersistentError: if too few are left for a client.
    """
    try:
        is_open = len(os.listdir("/proc/self/fd"))
    except OSError:  # there is none to look with
        is_open = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    own = is_open + coming + OWN_DESCRIPTORS
    least = least_limit(own + _FOR_ONE_CLIENT, _reserved(limits))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < least:
        raise ResourceExhaustedPersistentError(
            f"a driver needs a limit of {least} open files, and has {most} (ulimit -Hn)"
        )
    return own


def _reserved(limits: ServiceLimits) -> int:
    return limits.max_fds_per_message + 1 + FOR_ACCEPTING


def _max_map_count() -> int:
    try:
        return int(_MAX_MAP_COUNT.read_text())
    except (OSError, ValueError):
        return _USUAL_MAP_COUNT


_STARTED = 19
"""Position in ``/proc/PID/stat`` of the time of start, counted after the name."""


class _Process(NamedTuple):
    peer: Peer
    started: int


class Clients:
    """The clients and users that there are, for as long as anything refers to them.

    A client is a process: the kernel's credentials of a connection say which, and the
    time when it started separates it from a later one of the same number. All of its
    connections share one part of the lanes. A user is a uid, with quotas of its own.

    ``weights`` are users', by uid; 1 unless given.

    :raises InvalidArgumentError: if a weight is not positive.
    """

    def __init__(
        self,
        limits: ServiceLimits,
        user_limits: UserLimits,
        weights: Mapping[int, float],
    ) -> None:
        self._limits = limits
        self._user_limits = user_limits
        self._weighted = {
            uid: self._new_user(uid, weight) for uid, weight in weights.items()
        }
        self._clients: WeakValueDictionary[_Process, Client] = WeakValueDictionary()
        self._users: WeakValueDictionary[int, User] = WeakValueDictionary()
        self._quotas: WeakValueDictionary[int, UserQuotas] = WeakValueDictionary()

    def has(self, peer: Peer) -> bool:
        """Return whether the process has a connection, or work of one that goes on."""
        return _Process(peer, started_at(peer.pid)) in self._clients

    def client_of(self, peer: Peer) -> Client:
        """Return the client that a connection belongs to."""
        process = _Process(peer, started_at(peer.pid))
        # The kernel gives 0 for a process that cannot be seen from here.
        client = self._clients.get(process) if peer.pid else None
        if client is None:
            client = self._clients[process] = Client(
                f"pid {peer.pid}",
                max_pending=self._limits.max_executions,
                limit="ServiceLimits.max_executions",
                user=self._user_of(peer.uid),
            )
        return client

    def quotas_of(self, peer: Peer) -> UserQuotas:
        """Return the quotas that all connections of its user share."""
        quotas = self._quotas.get(peer.uid)
        if quotas is None:
            quotas = UserQuotas(peer.uid, self._user_limits, self._limits)
            self._quotas[peer.uid] = quotas
        return quotas

    def _user_of(self, uid: int) -> User:
        user = self._weighted.get(uid) or self._users.get(uid)
        if user is None:
            user = self._users[uid] = self._new_user(uid)
        return user

    def _new_user(self, uid: int, weight: float = 1.0) -> User:
        most = self._user_limits.max_executions
        return User(
            f"uid {uid}",
            weight=weight,
            max_pending=most,
            limit="UserLimits.max_executions",
        )


def started_at(pid: int) -> int:
    """Return when a process started, in the kernel's ticks; 0 if it does not say."""
    return int((process_status(pid)[_STARTED:] or [b"0"])[0])
