"""What a device reports of itself: statistics for operators, its status for clients.

The records are frozen: one snapshot of all numbers. `StatusListeners` are called when
the device may have become busy or free, and read the status then.
"""

import asyncio
import os
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, Self, runtime_checkable

import msgspec
from msgspec.structs import replace

from asyncnn.hal.types import DeviceStatus, ErrorStatus, Priority
from asyncnn.qos import WorkStatistics
from asyncnn.qos.accounting import in_all

_STATM = Path("/proc/self/statm")

_STATUS_DELAY_S = 0.02
"""Delay of a report: the queue of a busy device fills and empties all the time."""


class ModelStatistics(msgspec.Struct, frozen=True):
    """One prepared model. ``number`` counts a device's models from 1.

    ``client`` is the number of the client that it was prepared for. ``idle_bytes`` of
    memory are kept for its next executions. ``batching`` says how many may run as one,
    or why none do; nothing where the device's settings do not ask for that.
    """

    number: int
    client: int
    operations: int
    priority: Priority
    executions: WorkStatistics
    idle_bytes: int
    batching: str = ""


class ClientStatistics(msgspec.Struct, frozen=True):
    """The executions of one client; names need not be unique, numbers are.

    ``buffer_bytes`` are of its device-managed buffers.
    """

    number: int
    name: str
    weight: float
    executions: WorkStatistics
    buffer_bytes: int


class FallbackCount(msgspec.Struct, frozen=True):
    """How often the CPU computed ``instead_of`` a device, which ended with ``status``.

    Counted are partitions of executions, and preparations.
    """

    instead_of: str
    status: ErrorStatus
    count: int


class DeviceStatistics(msgspec.Struct, frozen=True):
    """A device, the models that are still referred to, and the clients that exist.

    ``threads`` counts its worker threads at the moment. ``resident_bytes`` is what its
    whole process has in memory. A device that is made of several counts what these have
    done, in all, and its ``fallbacks``.
    """

    device: str
    threads: int
    resident_bytes: int
    preparations: WorkStatistics
    executions: WorkStatistics
    models: tuple[ModelStatistics, ...]
    clients: tuple[ClientStatistics, ...]
    fallbacks: tuple[FallbackCount, ...] = ()

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the device-managed buffers of these clients."""
        return sum(client.buffer_bytes for client in self.clients)

    def seen_by(self, client: int) -> "DeviceStatistics":
        """Return what the client of that number may know if it must not know others."""
        return replace(
            self,
            models=tuple(model for model in self.models if model.client == client),
            clients=tuple(each for each in self.clients if each.number == client),
        )

    @classmethod
    def of_several(
        cls,
        device: str,
        parts: Sequence["DeviceStatistics"],
        fallbacks: tuple[FallbackCount, ...],
    ) -> Self:
        """Return what a device that is made of ``parts`` has done."""
        return cls(
            device=device,
            threads=sum(part.threads for part in parts),
            resident_bytes=resident_bytes(),
            preparations=in_all([part.preparations for part in parts]),
            executions=in_all([part.executions for part in parts]),
            models=(),
            clients=(),
            fallbacks=fallbacks,
        )


@runtime_checkable
class IMeasured(Protocol):
    """A device that has statistics. Not in the HAL."""

    async def get_statistics(self) -> DeviceStatistics:
        """Return the statistics since the device was opened.

        :raises DeviceUnavailableError: if it is closed, or its driver is gone.
        """
        ...


class StatusListeners:
    """Notifies listeners of the status of a device when it may have changed.

    ``status`` returns the present status. Belongs to the event loop.
    """

    def __init__(self, status: Callable[[], DeviceStatus]) -> None:
        self._status = status
        self._listeners: dict[object, Callable[[DeviceStatus], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, listener: Callable[[DeviceStatus], None]) -> Callable[[], None]:
        """Have ``listener`` called until the function that is returned is.

        The status that it is given may be the same as before.
        """
        key = object()
        self._listeners[key] = listener

        def remove() -> None:
            self._listeners.pop(key, None)

        return remove

    def notify_soon(self) -> None:
        """Notify all of the status soon: it may have changed."""
        if self._timer is None and self._listeners:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(_STATUS_DELAY_S, self._notify)

    def close(self) -> None:
        """Drop all listeners and the report that is due."""
        self._listeners.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _notify(self) -> None:
        self._timer = None
        status = self._status()
        for listener in tuple(self._listeners.values()):
            listener(status)


def resident_bytes() -> int:
    """Return the bytes of this process that are in memory.

    Where no descriptor is left to ask by, the most that ever were.
    """
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
