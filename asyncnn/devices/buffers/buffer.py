"""A device-managed buffer as its client has it."""

import logging
from functools import partial

from asyncnn.devices.buffers.copying import Copier
from asyncnn.devices.buffers.use import Known
from asyncnn.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
)
from asyncnn.hal.types import Dimensions, ErrorStatus, Memory
from asyncnn.hal.validate import validate_memory
from asyncnn.hal.validate.buffers import checked_contents
from asyncnn.hal.validate.wording import malformed_as_invalid

logger = logging.getLogger(__name__)


class ReferenceBuffer:
    """An `IBuffer`; the buffer goes with it, once no execution uses it."""

    def __init__(self, known: Known, copier: Copier) -> None:
        self._known = known
        self._managed = known.managed
        self._plan = known.plan
        self._copier = copier

    def cause_of_death(self) -> DeviceUnavailableError | None:
        """Return why its device takes no work any more; see `IMortal`."""
        return self._copier.cause_of_death()

    async def copy_to(self, destination: Memory) -> ErrorStatus:
        """Copy the contents; see `IBuffer.copy_to`."""
        try:
            self._copier.check_open()
            await self._copy_to(destination)
        except AsyncnnError as error:
            logger.info("copy from a buffer failed: %s", error)
            return error.status
        return ErrorStatus.NONE

    async def copy_from(self, source: Memory, dimensions: Dimensions) -> ErrorStatus:
        """Set the contents; see `IBuffer.copy_from`."""
        try:
            self._copier.check_open()
            await self._copy_from(source, dimensions)
        except AsyncnnError as error:
            logger.info("copy to a buffer failed: %s", error)
            return error.status
        return ErrorStatus.NONE

    async def _copy_to(self, destination: Memory) -> None:
        managed = self._managed
        _check_pool(destination)
        dimensions = managed.current
        if dimensions is None and self._plan.is_fixed:
            dimensions = self._plan.operand.dimensions
        if dimensions is not None:
            _check_size(destination, managed.size_bytes(dimensions))
        claimed = managed.begin_reading()
        await self._copier.empty(
            claimed.storage.reserve, destination, lambda _: managed.end_reading()
        )

    async def _copy_from(self, source: Memory, dimensions: Dimensions) -> None:
        managed = self._managed
        try:
            _check_pool(source)
            complete = checked_contents(self._plan, dimensions)
            _check_size(source, managed.size_bytes(complete))
        except InvalidArgumentError:
            managed.discard()  # as after any copy that fails
            raise
        claimed = managed.begin_writing()
        await self._copier.fill(
            claimed.storage.reserve, source, partial(self._filled, complete)
        )

    def _filled(self, dimensions: Dimensions, has_succeeded: bool) -> None:
        self._managed.end_writing(dimensions if has_succeeded else None)


def _check_pool(memory: Memory) -> None:
    with malformed_as_invalid("pool"):
        validate_memory(memory, rule="B2")


def _check_size(memory: Memory, expected: int) -> None:
    if memory.size != expected:
        raise InvalidArgumentError(
            f"the pool has {memory.size} bytes, the contents {expected} [B2]"
        )
