"""The bursts of a device, on the driver's side."""

import logging
from collections.abc import Collection

from asyncnn.burst.datums import DATUM_BYTES
from asyncnn.burst.server import BurstServer
from asyncnn.callbacks import IBurstCallback
from asyncnn.errors import (
    AsyncnnError,
    DeviceClosedError,
    InvalidArgumentError,
    too_many,
)
from asyncnn.fmq import MessageQueue
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import ErrorStatus, Handle
from asyncnn.sparse_log import SparseLogger

logger = logging.getLogger(__name__)

MIN_QUEUE_LENGTH = 2
"""Datums of the shortest packet of all: that of a failure."""

MAX_QUEUE_LENGTH = 4096
"""Datums of a packet at most: it is taken apart on the event loop."""


class OpenBursts:
    """Opens the bursts of a device and closes those that are left with it."""

    def __init__(self, max_bursts: int) -> None:
        self._max_bursts = max_bursts
        self._servers: set[BurstServer] = set()
        self._is_closed = False
        # One for all bursts: clients may open as many as they like, one by one.
        self._log = SparseLogger(logger)

    def __len__(self) -> int:
        return len(self._servers)

    def configure(
        self,
        prepared: IPreparedModel,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Serve a burst; see `IPreparedModel.configure_execution_burst`.

        The handles' descriptors are duplicated.
        """
        try:
            server = self._open(prepared, callback, request_channel, result_channel)
        except AsyncnnError as error:
            self._log.log(
                logging.INFO, "burst refused: %s: %s", error.status.name, error
            )
            return error.status, None
        return ErrorStatus.NONE, server

    def rest(self, models: Collection[IPreparedModel]) -> None:
        """Let go of the memories of the bursts of ``models``, which are idle."""
        for server in self._servers:
            if server.prepared in models:
                server.rest()

    def close(self) -> None:
        """End all bursts; no more are taken."""
        self._is_closed = True
        for server in tuple(self._servers):
            server.die()

    def _open(
        self,
        prepared: IPreparedModel,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> BurstServer:
        if callback is None:
            raise InvalidArgumentError("a burst without a callback")
        if self._is_closed:
            raise DeviceClosedError("the device is closed")
        if len(self._servers) >= self._max_bursts:
            raise too_many(
                "open bursts",
                "DeviceSettings.max_bursts",
                self._max_bursts,
                hint="close some of them first",
            )
        requests = _opened(request_channel)
        try:
            results = _opened(result_channel)
        except BaseException:
            requests.close()
            raise
        server = BurstServer(
            prepared, callback, requests, results, self._servers.discard, self._log
        )
        self._servers.add(server)
        return server


def _opened(channel: Handle) -> MessageQueue:
    """Open a queue of datums.

    :raises InvalidArgumentError: if it is malformed or not one that bursts use.
    :raises AsyncnnError: if it cannot be opened here.
    """
    queue = MessageQueue.open(channel)
    if (
        queue.quantum != DATUM_BYTES
        or not MIN_QUEUE_LENGTH <= queue.count <= MAX_QUEUE_LENGTH
    ):
        queue.close()
        raise InvalidArgumentError(
            f"a queue of {queue.count} elements of {queue.quantum} bytes; bursts need "
            f"{MIN_QUEUE_LENGTH} to {MAX_QUEUE_LENGTH} of {DATUM_BYTES}"
        )
    return queue
