"""Measures what the engine of the accelerated device gains, by reference models.

The models are those by which the HAL's documentation recommends to measure
capabilities. What they are measured beside is the reference device, which computes
whatever no other device does.
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import cycle

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.accelerated import load_litert
from asyncnn.devices.measured_capabilities import ModelTime
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.bench.rounds import ENERGY, measure
from asyncnn.tools.other_runtimes import litert_version
from asyncnn.tools.reference_models import REFERENCE_MODELS, ReferenceModel

_ACCELERATED, _MEASURED, _REFERENCE = "accelerated", "measured", "reference"
_FLOAT16, _AS_FLOAT16 = "float16", replace(OWN_PROCESS, relaxed_as_float16=True)
_BATCH_US = 20_000.0
_MOST_ROUNDS = 5
_DIGITS = 3


class MeasuredByModel(msgspec.Struct, frozen=True):
    """A reference model by name."""

    name: str
    model: ReferenceModel

    async def time(
        self, reference: Device, rounds: int, device: Device | None = None
    ) -> ModelTime:
        """Return a device's time for it, relative to the reference device's.

        The accelerated one's, if none is given, with float32 computed as float16 too.
        They take turns; the figure is the median over at most five rounds. State goes
        on from run to run.

        :raises AsyncnnError: if a device cannot run it.
        """
        named = load(self.model.make())
        is_elsewhere = device is not None
        async with AsyncExitStack() as stack:
            others: dict[str, Device] = {}
            if device is None:
                opened = open_device(_ACCELERATED, settings=OWN_PROCESS)
                device = await stack.enter_async_context(opened)
                if not self.model.quantized and load_litert().computes_float16:
                    opened = open_device(_ACCELERATED, settings=_AS_FLOAT16)
                    others[_FLOAT16] = await stack.enter_async_context(opened)
            others |= {_MEASURED: device, _REFERENCE: reference}
            relaxed = replace(
                named,
                model=replace(named.model, relax_computation_float32_to_float16=True),
            )
            runs = {
                name: await self._runner(
                    stack, each, relaxed if name == _FLOAT16 else named
                )
                for name, each in others.items()
            }
            figures = await measure(
                runs, rounds=min(rounds, _MOST_ROUNDS), batch_us=_BATCH_US, energy=True
            )
        time, power = (
            rounded(figures[_MEASURED + what].ratio_to(figures[_REFERENCE + what]))
            for what in ("", ENERGY)
        )
        half = figures.get(_FLOAT16)
        return ModelTime(
            time,
            self.model.quantized,
            # What a driver has of the processors, this process cannot know.
            None if is_elsewhere else power,
            rounded(half.ratio_to(figures[_MEASURED])) if half else None,
        )

    async def _runner(
        self, stack: AsyncExitStack, device: Device, named: NamedModel
    ) -> Callable[[], Awaitable[object]]:
        prepared = await device.prepare(named)
        (info,) = named.inputs
        inputs = self.model.inputs(info.dimensions, seed=0, sequences=1)
        feeds = cycle([{info.name: np.ascontiguousarray(each)} for each in inputs])
        if not named.states:
            return lambda: prepared.run(next(feeds))
        session = await stack.enter_async_context(prepared.session())
        return lambda: session.run(next(feeds))


def rounded(ratio: float) -> float:
    """Return a ratio to three digits, within what a file of measurements may hold."""
    return float(f"{min(max(ratio, 1e-3), 1e3):.{_DIGITS}g}")


def measured_models(*, needs_engine: bool = True) -> list[MeasuredByModel]:
    """Return the reference models, none where LiteRT is missing but needed."""
    from asyncnn.devices.litert.engine import load_engine

    try:
        if needs_engine:
            litert_version()
            load_engine()
    except (GeneralFailureError, PeerMissingError):
        return []
    return [MeasuredByModel(*each) for each in REFERENCE_MODELS.items()]
