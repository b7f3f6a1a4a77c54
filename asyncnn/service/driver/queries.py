"""What one client asks about models and about the device, on the driver's side."""

from collections.abc import Callable

from msgspec.structs import replace

from asyncnn.devices.statistics import DeviceStatistics, IMeasured
from asyncnn.errors import (
    AsyncnnError,
    GeneralFailureError,
    too_many,
)
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import ErrorStatus, Memory, Model
from asyncnn.hal.validate import validate_model
from asyncnn.offload import SerialOffload
from asyncnn.service import wire
from asyncnn.service.driver.announced import AnnouncedPools, are_mapped
from asyncnn.service.driver.failures import explained
from asyncnn.service.driver.tasks import OwnedTasks
from asyncnn.service.limits import ServiceLimits, is_large


class Queries:
    """Answers a client, whose number is ``seen_by`` if it may know of itself only.

    Belongs to the event loop. ``validating`` is the thread that checks the client's
    large models.
    """

    def __init__(
        self,
        device: IDevice,
        pools: AnnouncedPools,
        tasks: OwnedTasks,
        validating: SerialOffload,
        limits: ServiceLimits,
        send: Callable[[wire.ToClient], None],
        seen_by: int | None,
    ) -> None:
        self._device = device
        self._pools = pools
        self._tasks = tasks
        self._validating = validating
        self._limits = limits
        self._send = send
        self._seen_by = seen_by
        self._large = 0

    def decline(self, call: int, error: AsyncnnError) -> None:
        """Tell that the driver has no room for a model that is asked about."""
        self._send(wire.SupportedOperations(call, error.status, ()))

    def supported_operations(self, message: wire.GetSupportedOperations[Model]) -> None:
        """Tell which operations of a model would run."""
        try:
            self._tasks.check_room()
            # Each holds a model of any size.
            large = is_large(message.model)
            if large and self._large >= self._limits.max_preparing:
                raise too_many(
                    "queries about large models",
                    "ServiceLimits.max_preparing",
                    self._limits.max_preparing,
                )
            pools = self._pools.find(message.pools)
        except AsyncnnError as error:
            status = explained(error).status
            self._send(wire.SupportedOperations(message.call, status, ()))
            return
        self._large += large
        self._tasks.start(self._supported_operations(message, pools, large))

    def statistics(self, call: int) -> None:
        """Tell what the device does."""
        try:
            self._tasks.check_room()
        except AsyncnnError as error:
            self._send(wire.Statistics(call, explained(error).status, None))
            return
        self._tasks.start(self._statistics(call))

    async def _supported_operations(
        self,
        message: wire.GetSupportedOperations[Model],
        pools: tuple[Memory, ...],
        large: bool,
    ) -> None:
        supported: tuple[bool, ...] = ()
        try:
            if not are_mapped(pools):
                pools = await self._pools.copied(pools)
            model = replace(message.model, pools=pools)
            if large:
                await self._validating(validate_model, model)
            status, supported = await self._device.get_supported_operations_1_3(model)
        except Exception as error:
            status = explained(error).status
        finally:
            self._large -= large
        self._send(wire.SupportedOperations(message.call, status, supported))

    async def _statistics(self, call: int) -> None:
        try:
            statistics = await self._measured()
            answer = wire.Statistics(call, ErrorStatus.NONE, statistics)
        except Exception as error:
            answer = wire.Statistics(call, explained(error).status, None)
        self._send(answer)

    async def _measured(self) -> DeviceStatistics:
        """Return what the client may know.

        :raises GeneralFailureError: if the device keeps no statistics.
        """
        if not isinstance(self._device, IMeasured):
            raise GeneralFailureError("the device keeps no statistics")
        statistics = await self._device.get_statistics()
        if self._seen_by is None:
            return statistics
        return statistics.seen_by(self._seen_by)
