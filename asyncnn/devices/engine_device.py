"""What devices have in common that have an engine: lanes, versions, capabilities."""

import os
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeVar

from asyncnn import __version__
from asyncnn.devices.device_settings import FOR_ENGINES, DeviceSettings
from asyncnn.devices.measured_capabilities import sped_up
from asyncnn.devices.reference import InProcessDevice
from asyncnn.engine import Program
from asyncnn.engine.delegation import Delegate, Step
from asyncnn.extensions import Extension
from asyncnn.extensions.regions import ENGINES
from asyncnn.hal.operands import ExtensionOperationType
from asyncnn.hal.routes import EngineShare
from asyncnn.hal.types import Capabilities, ErrorStatus, Model, PerformanceInfo
from asyncnn.input_files import in_one, offload_abandonable
from asyncnn.memory.pages import os_errors
from asyncnn.offload import offload_steps
from asyncnn.pacing import Steps

_FLOAT_SHARE, _INTEGER_SHARE = PerformanceInfo(0.3, 0.3), PerformanceInfo(0.1, 0.1)
"""Time for MobileNets and ResNets, divided by what the kernels take for them."""

T = TypeVar("T")


class EngineDevice(InProcessDevice):
    """An `InProcessDevice` with ``engines``: names and versions, by their extensions.

    Plans run on as many worker threads as there are CPUs for this process.
    """

    unused_settings: tuple[str, ...] = FOR_ENGINES[1:]

    def __init__(self, settings: DeviceSettings | None = None) -> None:
        super().__init__(settings)
        self.engines: dict[str, str] = {}
        self._delegate: Delegate | None = None
        self._float16_share = 1.0
        """What relaxed models take of the time of others, where the engine gains."""

    def _add(self, engine: str, extension: Extension) -> None:
        self.engines[extension.name] = engine
        if self._settings.isolated:
            extension.version += ", isolated"
        self._extensions = self._extensions.extended(extension)

    @property
    def usual_lanes(self) -> int:
        """One for each CPU that this process may use."""
        return len(os.sched_getaffinity(0))

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the reference device's, better by what the engine gains.

        That was measured by reference models, or else is what is usual. An engine that
        has regions alone gains nothing at the operations of the HAL.
        """
        status, capabilities = super().get_capabilities_1_3()
        if self._delegate is None:
            return status, capabilities
        floats, integers = self._shares()
        return status, sped_up(
            capabilities,
            floats or _FLOAT_SHARE,
            integers or _INTEGER_SHARE,
            self._float16_share,
        )

    @property
    def has_measured_capabilities(self) -> bool:
        """Whether its capabilities were measured, by models as well."""
        return super().has_measured_capabilities and None not in self._shares()

    def _shares(self) -> tuple[PerformanceInfo | None, PerformanceInfo | None]:
        if self._measured is None:
            return None, None
        share = self._measured.engine_share
        return share(quantized=False), share(quantized=True)

    async def engine_shares(self, model: Model) -> tuple[EngineShare, ...]:
        """Return what engines compute, and what the kernels; see `IEngineShares`.

        Found out by preparing the model.

        :raises AsyncnnError: if it cannot be.
        """
        return await offload_steps(self._sharing(model))

    def _sharing(self, model: Model) -> Steps[tuple[EngineShare, ...]]:
        # What is prepared here ends here, too: freeing it takes as long as a trial.
        given = model, None, self._extensions, self._delegate
        program = yield from Program(*given, is_built=False).building()
        if program.declared_shapes is None:
            return ()
        steps = program.plan(program.declared_shapes).steps
        shares: list[EngineShare] = []
        for engine, group in groupby(steps, _engine_of):
            if engine:
                positions = dict.fromkeys(map(_positions, group))  # parts have one
                shares += (EngineShare(engine, each) for each in positions)
            else:
                shares.append(self._kernels_share(tuple(group)))
        return tuple(shares)

    def _kernels_share(self, steps: Sequence[Step]) -> EngineShare:
        positions = tuple(step.position for step in steps)
        if self._delegate is None:
            reasons = ("an operation of the HAL",) * len(steps)
            return EngineShare("kernels", positions, reasons)
        from asyncnn.devices.litert.claims import refusal

        reasons = tuple(
            refusal(step.operation) or "too short to be worth a call of LiteRT"
            for step in steps
        )
        return EngineShare("kernels", positions, reasons)

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return the versions of asyncnn and of the engine, and how it is called."""
        return ErrorStatus.NONE, f"{__version__} ({'; '.join(self.engines.values())})"


def _engine_of(step: Step) -> str:
    """Return the name of the engine that computes a step; empty for kernels."""
    if step.parts:
        return "LiteRT"
    type_ = step.operation.type
    if not isinstance(type_, ExtensionOperationType):
        return ""
    return ENGINES[type_.extension][0] if type_.extension in ENGINES else ""


def _positions(step: Step) -> tuple[int, ...]:
    return tuple(part.position for part in step.parts) or (step.position,)


async def loaded(name: str, load: Callable[[], T]) -> T:
    """Load an engine on a thread, which takes a while.

    :raises ResourceExhaustedError: if memory, descriptors or threads have run out.
    """

    def loading() -> T:
        with os_errors(f"{name} cannot be loaded"):
            return load()

    return await offload_abandonable(f"loading {name}", in_one(loading))
