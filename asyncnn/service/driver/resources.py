"""What the clients of a driver share, and what of it each process may take."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from asyncnn.service.descriptors import DescriptorReserve
from asyncnn.service.driver.budget import Account, Budget, Owner
from asyncnn.service.driver.turns import (
    MAX_DECODING,
    DecodingTurns,
    Readers,
    ReadingTurns,
)
from asyncnn.service.limits import ServiceLimits

OWN_DESCRIPTORS = 16
"""Left to the driver itself, besides those that are open at its start."""

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
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self.reserve = DescriptorReserve(limits.max_fds_per_message + 1 + FOR_ACCEPTING)
        used = len(os.listdir("/proc/self/fd")) + OWN_DESCRIPTORS
        self.descriptors = Budget(
            "descriptors",
            max(self.reserve.limit - used, 0),
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

    def of_process(self, client: int) -> "ProcessResources":
        """Return what the connections of a process share, by its client's number."""
        process = self._processes.get(client)
        if process is None:
            process = self._processes[client] = ProcessResources(self, self._decoding)
        return process


class ProcessResources:
    """What the connections of one process share among them."""

    def __init__(self, driver: DriverResources, decoding: asyncio.Semaphore) -> None:
        self.reserve = driver.reserve
        self.reading = ReadingTurns(driver.readers)
        self.decoding = DecodingTurns(decoding)
        self._driver = driver
        self._descriptors = Owner()
        self._mappings = Owner()

    def descriptors(self, count: Callable[[], int]) -> Account:
        """Return the account of a connection that has as many as ``count`` says."""
        return self._driver.descriptors.account(self._descriptors, count)

    def mappings(self, count: Callable[[], int]) -> Account:
        """Return the account of a connection; likewise."""
        return self._driver.mappings.account(self._mappings, count)


def _max_map_count() -> int:
    try:
        return int(_MAX_MAP_COUNT.read_text())
    except (OSError, ValueError):
        return _USUAL_MAP_COUNT
