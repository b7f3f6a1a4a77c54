"""Runs the reference workloads on a device and as plain NumPy, by turns."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Self, TypeAlias

import msgspec

from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ModelTime,
    ReferenceWorkload,
    Surroundings,
)
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.types import OperandType, PerformanceInfo
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, ENERGY, measure
from asyncnn.tools.capabilities.by_models import (
    MeasuredByModel,
    measured_models,
    rounded,
)
from asyncnn.tools.capabilities.few_operations import (
    booleans,
    boxes,
    choices,
    integers,
    loop,
    symmetric,
    symmetric_16_bit,
    symmetric_per_channel,
)
from asyncnn.tools.capabilities.network import network
from asyncnn.tools.capabilities.workload import Workload

Subject: TypeAlias = Workload | MeasuredByModel

Progress: TypeAlias = Callable[[Sequence[Subject]], Iterable[Subject]]

_DEVICE, _CPU = "device", "cpu"
_BATCH_US = 20_000.0


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
        integers(),
        booleans(),
        *(network(ReferenceWorkload[type_.name], type_) for type_ in codes),
        symmetric(),
        symmetric_per_channel(),
        symmetric_16_bit(),
        boxes(),
        choices(),
        loop(),
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
