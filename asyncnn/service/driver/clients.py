"""Whose work the connections of a driver bring: clients are processes, of users.

A process is told by the kernel's credentials of the connection and by when it started,
since numbers of processes are used again. All of its connections are one client, with
one share of the lanes; all clients of a uid are of one user, and share its quotas.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

from asyncnn.qos import Client, User
from asyncnn.service.driver.quotas import UserQuotas
from asyncnn.service.limits import ServiceLimits, UserLimits
from asyncnn.service.process import Peer

_STARTED = 19
"""Position in ``/proc/PID/stat`` of the time of start, counted after the name."""


class _Process(NamedTuple):
    peer: Peer
    started: int


class Clients:
    """The clients and users that there are, for as long as anything refers to them.

    ``weights`` are those of users, by uid; 1 unless given.

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
        """Tell whether the process has a connection, or work of one that goes on."""
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
    """Return when a process started, in the kernel's ticks; 0 if it does not tell."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    # The name, in brackets, may contain anything.
    return int(status[status.rindex(b")") + 1 :].split()[_STARTED])
