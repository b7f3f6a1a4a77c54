"""What of HAL 1.1 differs from the canonical: data, and what drivers have.

Source: 1.1/types.hal and 1.1/IDevice.hal.
"""

from typing import Protocol

import msgspec

from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    Memory,
    Operation,
    PerformanceInfo,
)
from asyncnn.hal.versions import v1_0
from asyncnn.hal.versions.v1_0 import Operand


class Model(msgspec.Struct, frozen=True):
    """A single graph that may be computed in less than its full precision."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]
    operand_values: bytes = b""
    pools: tuple[Memory, ...] = ()
    relax_computation_float32_to_float16: bool = False


class Capabilities(msgspec.Struct, frozen=True):
    """Performance for two kinds of data, and for one with less precision."""

    float32_performance: PerformanceInfo
    quantized8_performance: PerformanceInfo
    relaxed_float32_to_float16_performance: PerformanceInfo


class IDevice(v1_0.IDevice, Protocol):
    """A driver of HAL 1.1; it has all of HAL 1.0 as well (1.1/IDevice.hal)."""

    def get_capabilities_1_1(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the performance for three kinds of data."""

    async def get_supported_operations_1_1(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation, whether it would run."""

    def prepare_model_1_1(
        self,
        model: Model,
        preference: ExecutionPreference,
        callback: v1_0.IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model."""
