"""The bursts of a device: opened by its models, closed with it.

Source: HAL 1.2/IPreparedModel.hal (configureExecutionBurst).
"""

import contextlib
import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from asyncnn.callbacks import IBurstCallback
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    InvalidArgumentError,
    too_many,
)
from asyncnn.hal.interfaces import IBurstContext, IPreparedModel
from asyncnn.hal.types import ErrorStatus, Handle
from asyncnn.logs import SparseLogger

if TYPE_CHECKING:
    from asyncnn.burst.server import BurstServer

logger = logging.getLogger(__name__)


class OpenBursts:
    """Opens the bursts of a device, and closes with it those that are left."""

    def __init__(self, max_bursts: int) -> None:
        self._max_bursts = max_bursts
        self._servers: set[BurstServer] = set()
        self._is_closed = False
        # Shared by all bursts: opening many in turn gives a client no more log lines.
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
        # A driver starts sooner without queues; it imports them soon after.
        from asyncnn.burst.server import BurstServer, open_channel

        try:
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
            with contextlib.ExitStack() as queues:
                requests = queues.enter_context(open_channel(request_channel))
                results = queues.enter_context(open_channel(result_channel))
                queues.pop_all()
        except AsyncnnError as error:
            self._log.log(
                logging.INFO, "burst refused: %s: %s", error.status.name, error
            )
            return error.status, None
        server = BurstServer(
            prepared, callback, requests, results, self._servers.discard, self._log
        )
        self._servers.add(server)
        return ErrorStatus.NONE, server

    def rest(self, models: Collection[IPreparedModel]) -> None:
        """Forget the memories of the bursts of ``models``, which are idle."""
        for server in self._servers:
            if server.prepared in models:
                server.rest()

    def close(self) -> None:
        """End all bursts; no more are taken."""
        self._is_closed = True
        # Of a copy: each that dies leaves the set.
        for server in tuple(self._servers):
            server.die()
