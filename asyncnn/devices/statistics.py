"""Frozen records of what a device does, for operators."""

import os
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec
from msgspec.structs import replace

from asyncnn.hal.types import Priority
from asyncnn.qos import WorkStatistics

_STATM = Path("/proc/self/statm")


class ModelStatistics(msgspec.Struct, frozen=True):
    """One prepared model. ``number`` counts a device's models from 1.

    It was prepared for the client of number ``client``. ``idle_bytes`` are kept for its
    next executions.
    """

    number: int
    client: int
    operations: int
    priority: Priority
    executions: WorkStatistics
    idle_bytes: int


class ClientStatistics(msgspec.Struct, frozen=True):
    """The executions of one client; names need not be unique, numbers are.

    ``buffer_bytes`` are those of its device-managed buffers.
    """

    number: int
    name: str
    weight: float
    executions: WorkStatistics
    buffer_bytes: int


class DeviceStatistics(msgspec.Struct, frozen=True):
    """A device, the models that are still referred to, and the clients that exist.

    ``threads`` counts its worker threads at the moment. ``resident_bytes`` is what its
    whole process has in memory.
    """

    device: str
    threads: int
    resident_bytes: int
    preparations: WorkStatistics
    executions: WorkStatistics
    models: tuple[ModelStatistics, ...]
    clients: tuple[ClientStatistics, ...]

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the device-managed buffers of these clients."""
        return sum(client.buffer_bytes for client in self.clients)

    def seen_by(self, client: int) -> "DeviceStatistics":
        """Return what a client may know that must not know of others."""
        return replace(
            self,
            models=tuple(model for model in self.models if model.client == client),
            clients=tuple(each for each in self.clients if each.number == client),
        )


@runtime_checkable
class IMeasured(Protocol):
    """A device that tells what it does. Not in the HAL."""

    async def get_statistics(self) -> DeviceStatistics:
        """Return what it does and has done since it was opened.

        :raises DeviceUnavailableError: if it is closed, or its driver is gone.
        """
        ...


def resident_bytes() -> int:
    """Return what this process has in memory."""
    pages = int(_STATM.read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
