"""Measures devices by turns: by workloads beside NumPy, by models beside the reference.

The models are those by which the HAL's documentation recommends to measure
capabilities. What the engine of the accelerated device gains is measured by them beside
the reference device, which computes whatever no other device does.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Self, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.accelerated import load_litert
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ModelTime,
    ReferenceWorkload,
    Surroundings,
)
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.types import OperandType, PerformanceInfo
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.tools.bench.environment import PeerMissingError
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, ENERGY, measure
from asyncnn.tools.capabilities import few_operations
from asyncnn.tools.capabilities.network import Workload, network
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


Subject: TypeAlias = Workload | MeasuredByModel

Progress: TypeAlias = Callable[[Sequence[Subject]], Iterable[Subject]]

_DEVICE, _CPU = "device", "cpu"


class CapabilitiesReport(msgspec.Struct, frozen=True):
    """Times relative to the CPU, and where they come from, as JSON has them.

    Nothing was measured if ``measured_at`` is None; ``ignored`` says why if there is a
    file that is not used. What was measured since this machine was booted is in force
    from the next boot on.
    """

    exec_times: dict[ReferenceWorkload, float]
    measured_at: datetime | None = None
    surroundings: Surroundings | None = None
    ignored: str = ""
    model_times: dict[str, ModelTime] = {}
    power_usages: dict[ReferenceWorkload, float] = {}
    is_in_force: bool = False

    @classmethod
    def of(cls, measurement: CapabilityMeasurement | None, ignored: str = "") -> Self:
        """Return the report of a measurement, or that the device is like the CPU."""
        if measurement is None:
            return cls(dict.fromkeys(ReferenceWorkload, 1.0), ignored=ignored)
        return cls(
            measurement.exec_times,
            measurement.measured_at,
            measurement.surroundings,
            model_times=measurement.model_times,
            power_usages=measurement.power_usages,
            is_in_force=measurement.is_in_force,
        )


def workloads() -> tuple[Workload, ...]:
    """Return all reference workloads."""
    f32, f16 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16
    codes = sorted(QUANT8_TYPES)
    return (
        network(ReferenceWorkload.TENSOR_FLOAT32, f32),
        network(ReferenceWorkload.RELAXED_FLOAT32, f32, relaxed=True),
        network(ReferenceWorkload.TENSOR_FLOAT16, f16),
        few_operations.integers(),
        few_operations.booleans(),
        *(network(ReferenceWorkload[type_.name], type_) for type_ in codes),
        few_operations.symmetric(),
        few_operations.symmetric_per_channel(),
        few_operations.symmetric_16_bit(),
        few_operations.boxes(),
        few_operations.choices(),
        few_operations.loop(),
    )


async def measure_capabilities(
    *,
    rounds: int = DEFAULT_ROUNDS,
    models: bool = True,
    progress: Progress = iter,
    socket: Path | None = None,
) -> CapabilityMeasurement:
    """Measure the devices in this process, which takes some seconds.

    The reference device and plain NumPy take turns on the event loop's thread, which
    nothing else should keep busy meanwhile. Each ratio is the median over the rounds.

    :param models: measure the accelerated device beside the reference device by the
        reference models, too, where LiteRT is installed.
    :param progress: iterates over the workloads, and the models.
    :param socket: measure the driver that serves it, in place of both.
    :raises NoDriverError: if there is none.
    :raises AsyncnnError: if the device cannot run one.
    """
    by_models = measured_models(needs_engine=socket is None) if models else ()
    subjects: list[Subject] = [*workloads(), *by_models]
    exec_times: dict[ReferenceWorkload, float] = {}
    power_usages: dict[ReferenceWorkload, float] = {}
    model_times: dict[str, ModelTime] = {}
    async with AsyncExitStack() as stack:
        opening = open_device("reference", settings=OWN_PROCESS)
        device = reference = await stack.enter_async_context(opening)
        chosen: Device | None = None
        if socket is not None:
            device = chosen = await stack.enter_async_context(connect(socket))
        for subject in progress(subjects):
            if isinstance(subject, Workload):
                info = await _performance(device, subject, rounds)
                exec_times[subject.name] = info.exec_time
                # What a driver has of the processors, this process cannot know.
                if chosen is None:
                    power_usages[subject.name] = info.power_usage
            else:
                found = await subject.time(reference, rounds, chosen)
                model_times[subject.name] = found
    return CapabilityMeasurement.now(exec_times, model_times, power_usages)


async def _performance(
    device: Device, workload: Workload, rounds: int
) -> PerformanceInfo:
    prepared = await device.prepare(workload.model)
    runs: dict[str, Callable[[], object]] = {
        _DEVICE: partial(prepared.run, workload.inputs),
        _CPU: partial(workload.plain, *workload.inputs),
    }
    figures = await measure(runs, rounds=rounds, batch_us=_BATCH_US, energy=True)
    return PerformanceInfo(
        *(
            rounded(figures[_DEVICE + what].ratio_to(figures[_CPU + what]))
            for what in ("", ENERGY)
        )
    )
