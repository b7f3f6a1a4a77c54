"""What was measured, on what, and when."""

from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Self, TypeAlias

import msgspec
import numpy as np

from asyncnn._version import __version__
from asyncnn.devices.machine import blas_in_use, cpu_name


class ReferenceWorkload(StrEnum):
    """What has a figure of its own; most are named after the type of operand."""

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


class Surroundings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a measurement holds for: these versions on this CPU."""

    asyncnn: str
    numpy: str
    blas: str
    cpu: str

    @classmethod
    @cache
    def present(cls) -> Self:
        """Return those of this process."""
        return cls(__version__, np.__version__, str(blas_in_use()), cpu_name())

    def __str__(self) -> str:
        return f"asyncnn {self.asyncnn}, NumPy {self.numpy}, {self.blas}, {self.cpu}"


class Measurement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Times of all reference workloads, relative to the CPU's.

    :raises ValueError: if one is missing, or ``measured_at`` has no time zone.
    """

    exec_times: ExecTimes
    surroundings: Surroundings
    measured_at: datetime

    @classmethod
    def now(cls, exec_times: ExecTimes) -> Self:
        """Return what has just been measured in this process."""
        moment = datetime.now(UTC).replace(microsecond=0)
        return cls(exec_times, Surroundings.present(), moment)

    def __post_init__(self) -> None:
        missing = [name for name in ReferenceWorkload if name not in self.exec_times]
        if missing:
            raise ValueError(f"nothing is said of {', '.join(missing)}")
        if self.measured_at.tzinfo is None:
            raise ValueError("the time of the measurement has no time zone")
