"""The accelerated device: LiteRT computes the operations that it is fast at.

Which these are is decided when a model is prepared; the NumPy kernels of the reference
device compute the other operations of the same plan. Everything else, from priorities
to caches, is the reference device's.
"""

import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.engine_device import EngineDevice, loaded
from asyncnn.devices.private_files import state_folder
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.engine import Program
from asyncnn.engine.delegation import Delegate, Step
from asyncnn.extensions import Extensions
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from asyncnn.hal.routes import EngineShare
from asyncnn.hal.types import Model
from asyncnn.memory.pages import os_errors
from asyncnn.offload import offload_steps
from asyncnn.pacing import Steps

if TYPE_CHECKING:
    from asyncnn.devices.litert.engine import Engine

logger = logging.getLogger(__name__)

DEVICE_VARIABLE = "ASYNCNN_DEVICE"
"""Environment variable that names the device to open where no other name is given."""


def default_device_name(*, exact: bool = False) -> str:
    """Return the name of the device to open where none is given.

    It is what `DEVICE_VARIABLE` says; else empty, which stands for the fastest that
    works and is what `default_device` opens. What is compared with ``exact`` results
    is computed by ``reference`` then, whose rounding is stated.
    """
    return os.environ.get(DEVICE_VARIABLE) or ("reference" if exact else "")


async def usual_device_name() -> str:
    """Return the same, with the name of the fastest device in place of none."""
    return default_device_name() or await _fastest_device_name()


async def _fastest_device_name() -> str:
    """Return ``accelerated`` where its engine works, else ``reference``."""
    try:
        await loaded("LiteRT", _load_engine)
    except GeneralFailureError as error:
        logger.info("the reference device is used: %s", error)
        return "reference"
    except ResourceExhaustedError as error:
        # Which may be over in a moment, but the device was asked for now.
        logger.warning("the reference device is used this time: %s", error)
        return "reference"
    return "accelerated"


@asynccontextmanager
async def default_device(
    settings: DeviceSettings, name: str = ""
) -> AsyncIterator[ReferenceDevice]:
    """Open ``accelerated`` or ``reference``: the first where its engine works.

    :raises InvalidArgumentError: if ``name`` is neither of them, nor empty.
    :raises GeneralFailureError: if it names a device whose engine does not work here.
    """
    devices = {each.name.partition("-")[2]: each for each in _DEVICES}
    if name and name not in devices:
        named = f"{DEVICE_VARIABLE} names it; " if name == default_device_name() else ""
        raise InvalidArgumentError(
            f"there is no device {name!r} for a driver of one's own to publish",
            hint=f"{named}known: {', '.join(devices)}; asyncnn serve --device has more",
        )
    async with devices[name or await _fastest_device_name()](settings) as device:
        yield device


def _load_engine() -> "Engine":
    # A process that has no use for the engine does not import it.
    from asyncnn.devices.litert.engine import load_engine

    return load_engine()


class AcceleratedDevice(EngineDevice):
    """An `IDevice` for every operation that has a kernel. Use as a context manager.

    LiteRT computes the operations that `asyncnn.devices.litert` claims, kernels the
    others. Otherwise it is like `EngineDevice`. It says by which API LiteRT is called:
    ``c_api`` or, where that does not work, ``interpreter``.

    :raises EngineUnavailableError: on entering the context, if ``ai-edge-litert`` is
        missing or does not work here.
    :raises ResourceExhaustedError: on entering, if it cannot be loaded for want of
        memory, descriptors or threads.
    """

    name = "asyncnn-accelerated"

    def __init__(self, settings: DeviceSettings | None = None) -> None:
        super().__init__(settings)
        self._delegate: Delegate | None = None

    async def load_delegate(self) -> Delegate:
        """Load LiteRT, and return what gives it segments of plans.

        :raises EngineUnavailableError: if it does not work here.
        """
        engine = await loaded("LiteRT", _load_engine)
        with os_errors("LiteRT cannot be loaded"):
            from asyncnn.devices.litert.delegate import LiteRtDelegate
            from asyncnn.devices.litert.region_kernels import Regions

        self._engine = f"LiteRT {engine.version}, {engine.name}"
        given = self._settings.extensions
        self._extensions = Extensions((*given, Regions(engine).extension()))
        self._delegate = LiteRtDelegate(engine, _weights_folder(self._settings))
        return self._delegate

    async def engine_shares(self, model: Model) -> tuple[EngineShare, ...]:
        """Return what LiteRT computes, and what the kernels; see `IEngineShares`.

        Found out by preparing the model.

        :raises AsyncnnError: if it cannot be.
        """
        return await offload_steps(self._sharing(model))

    def _sharing(self, model: Model) -> Steps[tuple[EngineShare, ...]]:
        # What is prepared here ends here, too: freeing it takes as long as a trial.
        program = yield from Program.compiling(
            model, None, self._extensions, self._delegate
        )
        if program.declared_shapes is None:
            return ()
        steps = program.plan(program.declared_shapes).steps
        shares: list[EngineShare] = []
        for is_litert, group in groupby(steps, lambda step: bool(step.parts)):
            if is_litert:
                shares += map(_share, group)
            else:
                shares.append(_kernels_share(tuple(group)))
        return tuple(shares)


def _share(step: Step) -> EngineShare:
    positions = tuple(part.position for part in step.parts)
    return EngineShare("LiteRT", positions)


def _kernels_share(steps: Sequence[Step]) -> EngineShare:
    from asyncnn.devices.litert.claims import refusal

    positions = tuple(step.position for step in steps)
    reasons = tuple(
        refusal(step.operation) or "too short to be worth a call of LiteRT"
        for step in steps
    )
    return EngineShare("kernels", positions, reasons)


_DEVICES: tuple[type[ReferenceDevice], ...] = (AcceleratedDevice, ReferenceDevice)


def _weights_folder(settings: DeviceSettings) -> Path | None:
    if not settings.maps_cache_files:
        return None
    if settings.packed_weights_dir:
        return Path(settings.packed_weights_dir)
    try:
        return state_folder() / "packed-weights"
    except RuntimeError:  # there is no home
        return None
