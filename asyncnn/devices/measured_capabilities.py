"""The reference device's capabilities: measured, kept in a file, reported as the HAL's.

The HAL's figures are ratios to "the CPU". This device runs on the CPU, so all are 1
unless they were measured on this machine, as `asyncnn.tools.capabilities` does. What
was measured is kept in a file that devices read when they are made, and holds until
the library or what is below it changes: the CPU, the BLAS, NumPy (`Surroundings`). The
HAL has answers stay the same until the machine is booted again: what was measured since
then is in force from the next boot on, and until then what was before it.

Source: HAL 1.0/types.hal (PerformanceInfo) and 1.3/types.hal (Capabilities).
"""

import contextlib
import logging
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from pathlib import Path
from statistics import geometric_mean
from typing import Annotated, Self, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace
from threadpoolctl import threadpool_info  # type: ignore[import-untyped]

from asyncnn import __version__
from asyncnn.devices.private_files import (
    read_private,
    state_folder,
    using,
    write_private,
)
from asyncnn.hal.errors import GeneralFailureError, ResourceExhaustedTransientError
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.types import (
    Capabilities,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)
from asyncnn.input_files import in_one, offload_abandonable, patience

logger = logging.getLogger(__name__)

_MOST_BYTES = 2**14
_UNUSABLE = (OSError, RuntimeError, msgspec.DecodeError, ValueError)

_SAME_AS_CPU = 1.0

_REPRESENTATIVES = {
    OperandType.FLOAT32: OperandType.TENSOR_FLOAT32,
    OperandType.INT32: OperandType.TENSOR_INT32,
    OperandType.UINT32: OperandType.TENSOR_INT32,
    OperandType.BOOL: OperandType.TENSOR_BOOL8,
    OperandType.FLOAT16: OperandType.TENSOR_FLOAT16,
    OperandType.OEM: OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_OEM_BYTE: OperandType.TENSOR_QUANT8_ASYMM,
}
"""Types that are no operation's first operand, and those whose figures they get.

HAL 1.0 and 1.1 have one figure for the OEM types and quantised ones.
"""


class ReferenceWorkload(StrEnum):
    """A workload with a figure of its own; most are named after a type of operand."""

    TENSOR_FLOAT32 = "TENSOR_FLOAT32"
    RELAXED_FLOAT32 = "RELAXED_FLOAT32"
    TENSOR_FLOAT16 = "TENSOR_FLOAT16"
    TENSOR_INT32 = "TENSOR_INT32"
    TENSOR_BOOL8 = "TENSOR_BOOL8"
    TENSOR_QUANT8_ASYMM = "TENSOR_QUANT8_ASYMM"
    TENSOR_QUANT8_ASYMM_SIGNED = "TENSOR_QUANT8_ASYMM_SIGNED"
    TENSOR_QUANT8_SYMM = "TENSOR_QUANT8_SYMM"
    TENSOR_QUANT8_SYMM_PER_CHANNEL = "TENSOR_QUANT8_SYMM_PER_CHANNEL"
    TENSOR_QUANT16_SYMM = "TENSOR_QUANT16_SYMM"
    TENSOR_QUANT16_ASYMM = "TENSOR_QUANT16_ASYMM"
    IF = "IF"
    WHILE = "WHILE"


Ratio: TypeAlias = Annotated[float, msgspec.Meta(ge=1e-3, le=1e3)]
"""Beyond these bounds something else than the device was measured."""

ExecTimes: TypeAlias = dict[ReferenceWorkload, Ratio]
"""The device's time for each workload, divided by the CPU's."""

FLOAT16_GAINS = 0.9
"""Relaxed models are computed as float16 where that takes less than so many times."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Distinguishes this boot of the machine from all others."""


class ModelTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The accelerated device's time for a model, divided by the reference device's.

    ``power`` is its energy likewise, None where that was not measured. ``float16`` is
    the accelerated device's time where float32 is computed as that, divided by its time
    without; None for quantised models, and where it cannot do that.
    """

    time: Ratio
    quantized: bool
    power: Ratio | None = None
    float16: Ratio | None = None


class Blas(msgspec.Struct, frozen=True):
    """The BLAS that NumPy calls. ``core_type`` is OPENBLAS_CORETYPE, empty if unset."""

    name: str
    version: str
    architecture: str
    core_type: str

    def __str__(self) -> str:
        core_type = f", OPENBLAS_CORETYPE={self.core_type}" if self.core_type else ""
        return f"{self.name} {self.version} ({self.architecture}{core_type})"


class Surroundings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The versions and the CPU that a measurement holds for."""

    asyncnn: str
    numpy: str
    blas: str
    cpu: str

    @classmethod
    @cache
    def present(cls) -> Self:
        """Return the versions and the CPU of this process."""
        return cls(__version__, np.__version__, str(blas_in_use()), cpu_name())

    def __str__(self) -> str:
        return f"asyncnn {self.asyncnn}, NumPy {self.numpy}, {self.blas}, {self.cpu}"


class CapabilityMeasurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of all reference workloads, relative to the CPU's.

    ``model_times`` are by the names of reference models; there are none where those
    were not measured. ``power_usages`` are the energies of workloads, those that were
    measured. ``boot`` is the one that it was made in, empty if unknown, and ``before``
    is what was in force then.

    :raises ValueError: if one is missing, or ``measured_at`` has no time zone.
    """

    exec_times: ExecTimes
    surroundings: Surroundings
    measured_at: datetime
    model_times: dict[str, ModelTime] = {}
    power_usages: ExecTimes = {}
    boot: str = ""
    before: "CapabilityMeasurement | None" = None

    @classmethod
    def now(
        cls,
        exec_times: ExecTimes,
        model_times: Mapping[str, ModelTime] | None = None,
        power_usages: ExecTimes | None = None,
    ) -> Self:
        """Return a measurement of this moment in this process."""
        moment = datetime.now(UTC).replace(microsecond=0)
        return cls(
            exec_times,
            Surroundings.present(),
            moment,
            dict(model_times or {}),
            power_usages or {},
            present_boot(),
        )

    @property
    def is_in_force(self) -> bool:
        """Whether devices report it: it was made before this boot."""
        return not self.boot or self.boot != present_boot()

    def in_force(self) -> "CapabilityMeasurement | None":
        """Return what devices of this boot report: this, or what was before it."""
        if self.is_in_force:
            return self
        before = self.before
        is_ours = before is not None and before.surroundings == Surroundings.present()
        return before if is_ours else None

    def engine_share(self, *, quantized: bool) -> PerformanceInfo | None:
        """Return geometric means over float or quantised models, None without any."""
        found = [m for m in self.model_times.values() if m.quantized is quantized]
        if not found:
            return None
        return PerformanceInfo(
            geometric_mean([each.time for each in found]),
            geometric_mean([each.power or each.time for each in found]),
        )

    @property
    def float16_share(self) -> float | None:
        """The geometric mean of what models take as float16, None without any."""
        times = self.model_times.values()
        found = [each.float16 for each in times if each.float16 is not None]
        return geometric_mean(found) if found else None

    def __post_init__(self) -> None:
        missing = [name for name in ReferenceWorkload if name not in self.exec_times]
        if missing:
            raise ValueError(f"nothing is said of {', '.join(missing)}")
        if self.measured_at.tzinfo is None:
            raise ValueError("the time of the measurement has no time zone")


def known_measurement(path: str = "") -> CapabilityMeasurement | None:
    """Return what was measured and is in force, None if nothing is.

    A file that cannot be used is named in the log.
    """
    try:
        measurement = load_measurement(path)
        return None if measurement is None else measurement.in_force()
    except GeneralFailureError as error:
        logger.warning("%s", error)
        return None


async def measurement_at_opening(path: str = "") -> CapabilityMeasurement | None:
    """Return `known_measurement`, None if the folder of its file does not answer."""
    try:
        what = using(_path(path).parent)
        reading = in_one(known_measurement, path)
        return await offload_abandonable(what, reading, deadline=patience(what))
    except (*_UNUSABLE, ResourceExhaustedTransientError) as error:
        logger.warning("measured capabilities are not used: %s", error)
        return None


def known_capabilities(measurement: CapabilityMeasurement | None) -> Capabilities:
    """Return the capabilities that were measured, or else the CPU's."""
    if measurement is None:
        return reference_capabilities()
    return capabilities_of(measurement.exec_times, measurement.power_usages)


def sped_up(
    capabilities: Capabilities,
    floats: PerformanceInfo,
    integers: PerformanceInfo,
    relaxed: float = 1.0,
) -> Capabilities:
    """Return ``capabilities`` with times and energy of tensors multiplied.

    ``floats`` are the factors of float tensors, ``integers`` of quantised ones,
    ``relaxed`` is what relaxed floats have beside that.
    """
    half = PerformanceInfo(relaxed, relaxed)
    same = PerformanceInfo(_SAME_AS_CPU, _SAME_AS_CPU)

    def scaled(info: PerformanceInfo, by: PerformanceInfo) -> PerformanceInfo:
        return PerformanceInfo(
            info.exec_time * by.exec_time, info.power_usage * by.power_usage
        )

    def factor_of(type_: OperandType) -> PerformanceInfo:
        if type_ in QUANT8_TYPES:
            return integers
        is_float = type_ in (OperandType.TENSOR_FLOAT32, OperandType.TENSOR_FLOAT16)
        return floats if is_float else same

    scalar = capabilities.relaxed_float32_to_float16_performance_scalar
    tensor = scaled(capabilities.relaxed_float32_to_float16_performance_tensor, floats)
    return replace(
        capabilities,
        relaxed_float32_to_float16_performance_scalar=scaled(scalar, half),
        relaxed_float32_to_float16_performance_tensor=scaled(tensor, half),
        operand_performance=tuple(
            OperandPerformance(entry.type, scaled(entry.info, factor_of(entry.type)))
            for entry in capabilities.operand_performance
        ),
    )


def load_measurement(path: str = "") -> CapabilityMeasurement | None:
    """Return what was measured here last, in force or not; None if nothing ever was.

    :raises GeneralFailureError: if the file cannot be used, and why.
    """
    try:
        file = _path(path)
        content = read_private(file, _MOST_BYTES)
        measurement = msgspec.json.decode(content, type=CapabilityMeasurement)
    except FileNotFoundError:
        return None
    except _UNUSABLE as error:
        raise GeneralFailureError(
            f"measured capabilities are not used: {error}"
        ) from error
    if measurement.surroundings != Surroundings.present():
        raise GeneralFailureError(
            f"capabilities measured with {measurement.surroundings} are not used",
            hint="measure again: asyncnn capabilities --measure",
        )
    return measurement


def store_measurement(measurement: CapabilityMeasurement, path: str = "") -> Path:
    """Keep a measurement for devices that are opened from the next boot on.

    Return its path. What is in force goes on to be, until then.

    :raises GeneralFailureError: if the file cannot be written, or could not be used.
    """
    before = None
    with contextlib.suppress(GeneralFailureError):
        found = load_measurement(path)
        if found is not None and not measurement.is_in_force:
            before = found.in_force()
    if before is not None:
        before = replace(before, before=None)
    measurement = replace(measurement, before=before)
    content = msgspec.json.format(msgspec.json.encode(measurement))
    try:
        msgspec.json.decode(content, type=CapabilityMeasurement)
        file = _path(path)
        write_private(file, content + b"\n")
    except _UNUSABLE as error:
        raise GeneralFailureError(
            f"measured capabilities are not kept: {error}"
        ) from error
    return file


def default_path() -> Path:
    """Return where the file lies if `DeviceSettings.capabilities_file` is empty.

    :raises RuntimeError: if there is no home.
    """
    return state_folder() / "capabilities.json"


def capabilities_of(
    exec_times: Mapping[ReferenceWorkload, float],
    power_usages: Mapping[ReferenceWorkload, float] | None = None,
) -> Capabilities:
    """Return the capabilities of a device with these times for all workloads.

    It computes on the CPU: the energy goes with the time where it was not measured.
    """
    powers = power_usages or {}
    infos = {
        workload: PerformanceInfo(time, powers.get(workload, time))
        for workload, time in exec_times.items()
    }
    relaxed = infos[ReferenceWorkload.RELAXED_FLOAT32]
    every_type = uniform_performance(PerformanceInfo(_SAME_AS_CPU, _SAME_AS_CPU))
    return Capabilities(
        relaxed_float32_to_float16_performance_scalar=relaxed,
        relaxed_float32_to_float16_performance_tensor=relaxed,
        operand_performance=tuple(
            OperandPerformance(entry.type, infos[ReferenceWorkload[name]])
            for entry in every_type
            for name in [_REPRESENTATIVES.get(entry.type, entry.type).name]
        ),
        if_performance=infos[ReferenceWorkload.IF],
        while_performance=infos[ReferenceWorkload.WHILE],
    )


@cache
def reference_capabilities() -> Capabilities:
    """Return capabilities equal to the CPU's, as long as nothing was measured."""
    return capabilities_of(dict.fromkeys(ReferenceWorkload, _SAME_AS_CPU))


def blas_in_use() -> Blas:
    """Describe the BLAS that this process has loaded, "unknown" if there is none."""
    found: dict[str, str] = next(
        (i for i in threadpool_info() if i["user_api"] == "blas"), {}
    )
    return Blas(
        name=found.get("internal_api", "unknown"),
        version=found.get("version") or "unknown",
        architecture=found.get("architecture", "unknown"),
        core_type=os.environ.get("OPENBLAS_CORETYPE", ""),
    )


def cpu_name() -> str:
    """Return the model name of the CPU, or its architecture where there is none."""
    return _cpu_info("model name") or platform.processor() or platform.machine()


def cpu_features() -> str:
    """Return the instruction sets of the CPU as the system names them, or nothing."""
    return _cpu_info("flags") or _cpu_info("Features")


@cache
def _cpu_info(wanted: str) -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            key, _, value = line.partition(":")
            if key.strip() == wanted:
                return value.strip()
    return ""


def present_boot() -> str:
    """Return what identifies this boot of the machine, empty if unknown."""
    try:
        return BOOT_ID.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _path(given: str) -> Path:
    return Path(given) if given else default_path()
