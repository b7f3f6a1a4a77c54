"""Settings of a device that is made of replicas on a cluster."""

from collections.abc import Mapping
from typing import Any

import msgspec

from asyncnn.hal.errors import InvalidArgumentError, check_least

CLUSTER = "ray://"
"""What the addresses of clusters begin with, which are names of devices as well."""


class DispatchSettings(msgspec.Struct, frozen=True):
    """How many runs are sent ahead, wait, and are tried again.

    ``window`` bounds the runs of a priority and above that a replica has, for each lane
    that it computes on; more than it has lanes are sent as long as it is expected to be
    busy with them for ``ahead_ns`` at most. More than ``max_waiting`` are refused. What
    is not begun for a replica's reason is sent ``max_tries`` times, what is safe as
    well. What no replica has ready for ``patience_ns`` fails. With ``drops_late``, what
    could not end in time is not begun, and, where others wait, what is not likely to.
    """

    window: int = 4
    ahead_ns: int = 10 * 10**6
    max_waiting: int = 16_384
    max_tries: int = 4
    patience_ns: int = 30 * 10**9
    drops_late: bool = True


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas there are, where, and what they may do twice.

    Each of ``replicas`` is an actor of Ray that asks for ``cpus`` and ``resources`` of
    its node, which is what Ray's autoscaler goes by, and computes ``lanes`` runs at a
    time, as far as dispatch knows. All are to be there ``open_timeout`` seconds after
    the device is opened, however long it takes to connect.

    With more ``most_replicas``, there are more while runs wait for ``grow_after``
    seconds, and fewer again where that many were not needed for ``shrink_after``.

    With ``idempotent``, what a replica has begun before it was lost is run once more
    elsewhere, rather than ended with DEVICE_UNAVAILABLE. A replica that answers nobody
    for ``hang_after`` seconds while it has work is killed, and comes back as one that
    has died. ``dispatch`` bounds what is sent ahead and what waits.

    :raises InvalidArgumentError: if a number is below its least.
    """

    replicas: int = 1
    most_replicas: int | None = None
    grow_after: float = 1.0
    shrink_after: float = 60.0
    cpus: float = 1.0
    resources: Mapping[str, float] = {}
    lanes: int = 1
    idempotent: bool = False
    open_timeout: float = 120.0
    hang_after: float = 10.0
    dispatch: DispatchSettings = DispatchSettings()

    def __post_init__(self) -> None:
        check_least(self, 1, "replicas", "lanes")
        check_least(self, 0, "cpus", "open_timeout")
        check_least(self, 1e-3, "hang_after", "grow_after", "shrink_after")
        if self.most < self.replicas:
            raise InvalidArgumentError(
                f"ClusterSettings.most_replicas is {self.most_replicas}, and "
                f"replicas {self.replicas}"
            )
        check_least(self.dispatch, 1, "window", "max_waiting", "max_tries")
        check_least(self.dispatch, 0, "ahead_ns", "patience_ns")

    @property
    def most(self) -> int:
        """How many replicas there may be."""
        return self.replicas if self.most_replicas is None else self.most_replicas


def cluster_options(
    name: str | None, replicas: object, device: object
) -> dict[str, Any]:
    """Return what a cluster is given beside its address.

    :raises InvalidArgumentError: if ``name`` is no address of one, and that is given.
    """
    given = {"replicas": replicas, "device": device}
    found = {what: each for what, each in given.items() if each is not None}
    if found and not (isinstance(name, str) and name.startswith(CLUSTER)):
        raise InvalidArgumentError(
            f"{' and '.join(found)} are of a device on a cluster",
            hint=f"open {CLUSTER}auto, say",
        )
    return found
