"""The partitions of a prepared model, each on its device, and on the CPU if need be.

`DeviceStep` is one partition; `OnCpu` prepares what falls back, when that is needed
first. `Partitioned` is what executions have of the model, and `Host` what ends them.
"""

import asyncio
from typing import Protocol

import msgspec

from asyncnn.burst.server import OpenBursts
from asyncnn.callbacks import launched_preparation
from asyncnn.devices.device_buffers import Buffers
from asyncnn.fenced_run import BasePreparedModel
from asyncnn.hal.errors import AsyncnnError, failure_of
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.operands import is_scalar
from asyncnn.hal.refusals import LoadArguments, PrepareArguments
from asyncnn.hal.routes import RouteStep
from asyncnn.hal.types import ErrorStatus, OutputShape
from asyncnn.runtime.framework import Fallback, FrameworkSettings
from asyncnn.runtime.framework.fallback import FINAL, Member
from asyncnn.runtime.framework.partition import DevicePlan
from asyncnn.runtime.framework.spaces import Reservation, Spaces
from asyncnn.runtime.framework.submodels import SubModels
from asyncnn.runtime.model_cache import prepare


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
            self._task.add_done_callback(lambda t: t.cancelled() or t.exception())
        return await asyncio.shield(self._task)

    async def _prepare(self) -> IPreparedModel:
        self.prepared = await prepared_on(self._cpu, self._arguments)
        return self.prepared

    def close(self) -> None:
        """Stop preparing."""
        if self._task is not None:
            self._task.cancel()


class DeviceStep(msgspec.Struct, eq=False):
    """All or a part of a model, prepared on the device of ``member``.

    ``usual`` is how it goes as a rule. ``outputs`` has, for each of its outputs, which
    of the model's that is, and -1 for others. ``cpu`` is the same on the CPU.
    ``took_ns`` is for how long the latest execution was on the device.
    """

    member: Member
    prepared: IPreparedModel
    usual: RouteStep
    outputs: tuple[int, ...]
    cpu: OnCpu
    took_ns: int = 0

    @property
    def on_cpu(self) -> IPreparedModel | None:
        """The partition on the CPU, if it was prepared."""
        return self.prepared if self.member.is_cpu else self.cpu.prepared

    async def prepare_on_cpu(self) -> IPreparedModel:
        """Prepare the partition on the CPU, or wait until it is.

        :raises AsyncnnError: if the CPU cannot compute it.
        """
        return self.prepared if self.member.is_cpu else await self.cpu.prepare()


class PreparedSteps(msgspec.Struct, frozen=True, eq=False):
    """All partitions of a model, prepared. ``submodels`` is None if there is one.

    Some tensors between them may have a ``reservation`` in memory of a device.
    """

    arguments: PrepareArguments
    plan: DevicePlan
    submodels: SubModels | None
    steps: tuple[DeviceStep, ...]
    whole: DeviceStep
    reservation: Reservation | None = None


class IClosable(Protocol):
    """What the framework ends when it is closed."""

    def close(self) -> None:
        """End at once."""
        ...


class ActiveExecutions:
    """The executions of a device that are ``active``, and what it serves them with."""

    def __init__(self, buffers: Buffers, bursts: OpenBursts) -> None:
        self.buffers = buffers
        self.bursts = bursts
        self.active: set[IClosable] = set()
        self._waiting: asyncio.Future[None] | None = None

    def ended(self, active: IClosable) -> None:
        """Note that an execution has ended, and that no device works for it."""
        self.active.discard(active)
        if self._waiting is not None and not self.active and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait_idle(self, most_s: float | None = None) -> None:
        """Wait until nothing is executed, but no longer; nothing more is launched."""
        if self.active:
            if self._waiting is None:
                self._waiting = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._waiting}, timeout=most_s)


class Host(ActiveExecutions):
    """What prepared models have of their framework: what ends with it.

    ``is_closed`` is set once it is closed.
    """

    def __init__(
        self, buffers: Buffers, bursts: OpenBursts, settings: FrameworkSettings
    ) -> None:
        super().__init__(buffers, bursts)
        self.max_intermediate_bytes = settings.max_intermediate_bytes
        self.chains_drivers = settings.chains_drivers
        self.is_closed = False


class Partitioned(BasePreparedModel):
    """What executions have of a model; ``whole`` is all of it as one partition.

    ``declared`` is what the model says of its outputs. Without ``spaces`` there is one
    partition, which takes requests as they are: ``direct``, whose device's ``health``
    is the first's.
    """

    def __init__(self, prepared: PreparedSteps, fallback: Fallback, host: Host) -> None:
        main = prepared.arguments.model.main
        self.steps = prepared.steps
        self.whole = prepared.whole
        self.fallback = fallback
        self.host = host
        self.spaces: Spaces | None = None
        if prepared.submodels is not None:
            most = host.max_intermediate_bytes
            self.spaces = Spaces(prepared.submodels, most, prepared.reservation)
        self.operands = [main.operands[index] for index in main.output_indexes]
        self.declared = tuple(
            OutputShape(() if is_scalar(o.type) else o.dimensions, True)
            for o in self.operands
        )
        self.direct = self.steps[0].prepared if len(self.steps) == 1 else None
        self.health = self.steps[0].member.health

    def recovers_from(self, status: ErrorStatus) -> bool:
        """Return whether the CPU is to be tried after a device ended so."""
        return (
            self.fallback is not Fallback.FORBID
            and status not in FINAL
            and not self.host.is_closed
        )

    def was_closed_over(self, status: ErrorStatus) -> bool:
        """Return whether a device ended so as the framework, being closed, stopped it.

        To it, an execution is one that was cancelled.
        """
        stopped = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        return self.host.is_closed and status is stopped


async def prepared_on(
    member: Member, asked: PrepareArguments | LoadArguments
) -> IPreparedModel:
    """Have a device prepare a model, or load it; one is saved in its cache, if any.

    :raises AsyncnnError: if that fails, whatever the device has raised.
    """
    try:
        if isinstance(asked, PrepareArguments):
            return await prepare(member.hal, asked)
        return await launched_preparation(member.hal, asked)
    except AsyncnnError:
        raise
    except Exception as error:
        raise failure_of(error) from error
