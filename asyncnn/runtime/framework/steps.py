"""The partitions of a prepared model, each on its device, and on the CPU if need be.

`Step` is one partition; `OnCpu` prepares what falls back, when that is needed first.
"""

import asyncio

from asyncnn.callbacks import PreparedModelFuture
from asyncnn.devices.cache_files import CacheArguments
from asyncnn.hal.errors import AsyncnnError, failure_of
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.routes import RouteStep
from asyncnn.runtime.framework.fallback import Member
from asyncnn.runtime.model_cache import PrepareArguments, prepare

_NO_CACHE = CacheArguments()


class OnCpu:
    """A model on the CPU, prepared when it is needed, and once."""

    def __init__(self, cpu: Member, arguments: PrepareArguments) -> None:
        self._cpu = cpu
        self._arguments = arguments
        self._task: asyncio.Task[IPreparedModel] | None = None
        self.prepared: IPreparedModel | None = None

    async def prepare(self) -> IPreparedModel:
        """Prepare the model, or wait until it is.

        :raises AsyncnnError: if it cannot be.
        """
        if self.prepared is not None:
            return self.prepared
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._prepare())
            self._task.add_done_callback(_look)
        return await asyncio.shield(self._task)

    async def _prepare(self) -> IPreparedModel:
        self.prepared = await prepared_on(self._cpu, self._arguments)
        return self.prepared

    def close(self) -> None:
        """Stop preparing."""
        if self._task is not None:
            self._task.cancel()


def _look(task: "asyncio.Task[IPreparedModel]") -> None:
    if not task.cancelled():
        task.exception()


class Step:
    """All or a part of a model, prepared on the device of ``member``.

    ``usual`` is how it goes as a rule. ``outputs`` has, for each of its outputs, which
    of the model's that is, and -1 for others. ``cpu`` is the same on the CPU.
    ``took_ns`` is for how long the latest execution was on the device.
    """

    def __init__(
        self,
        member: Member,
        prepared: IPreparedModel,
        usual: RouteStep,
        outputs: tuple[int, ...],
        cpu: OnCpu,
    ) -> None:
        self.member = member
        self.prepared = prepared
        self.usual = usual
        self.outputs = outputs
        self.cpu = cpu
        self.took_ns = 0

    @property
    def on_cpu(self) -> IPreparedModel | None:
        """The partition on the CPU, if it was prepared."""
        return self.prepared if self.member.is_cpu else self.cpu.prepared

    async def prepare_on_cpu(self) -> IPreparedModel:
        """Prepare the partition on the CPU, or wait until it is.

        :raises AsyncnnError: if the CPU cannot compute it.
        """
        return self.prepared if self.member.is_cpu else await self.cpu.prepare()


async def prepared_on(
    member: Member,
    arguments: PrepareArguments,
    cache: CacheArguments = _NO_CACHE,
) -> IPreparedModel:
    """Prepare a model on a device, which saves it in its ``cache`` files, if any.

    :raises AsyncnnError: if that fails, whatever the device has raised.
    """
    files = cache.model_cache, cache.data_cache
    try:
        return await prepare(member.hal, arguments, files, cache.token)
    except AsyncnnError:
        raise
    except Exception as error:
        raise failure_of(error) from error


async def loaded_by(
    member: Member, deadline: int | None, cache: CacheArguments
) -> IPreparedModel:
    """Have a device prepare a model from its cache.

    :raises AsyncnnError: if that fails, whatever the device has raised.
    """
    callback = PreparedModelFuture()
    try:
        member.hal.prepare_model_from_cache_1_3(deadline, *cache, callback)
    except Exception as error:
        raise failure_of(error) from error
    return await callback
