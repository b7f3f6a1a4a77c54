"""Data and callbacks of HAL 1.2 where they differ from the canonical ones.

Source: 1.2/types.hal, 1.2/IPreparedModelCallback.hal and 1.2/IExecutionCallback.hal.
"""

from abc import ABC, abstractmethod
from typing import Any

import msgspec

from asyncnn.hal.interfaces import CallbackObject
from asyncnn.hal.types import (
    ErrorStatus,
    ExtensionNameAndPrefix,
    Memory,
    Operand,
    OperandPerformance,
    Operation,
    OutputShape,
    PerformanceInfo,
    Timing,
)


class Model(msgspec.Struct, frozen=True):
    """A single graph, whose operands may be an extension's."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]
    operand_values: bytes = b""
    pools: tuple[Memory, ...] = ()
    relax_computation_float32_to_float16: bool = False
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...] = ()


class Capabilities(msgspec.Struct, frozen=True):
    """Performance of a device by operand type, sorted by it; no control flow yet."""

    relaxed_float32_to_float16_performance_scalar: PerformanceInfo
    relaxed_float32_to_float16_performance_tensor: PerformanceInfo
    operand_performance: tuple[OperandPerformance, ...]


class IPreparedModelCallback(CallbackObject, ABC):
    """Receives the result of preparing a model through HAL 1.2."""

    __slots__ = ()

    @abstractmethod
    def notify_1_2(self, status: ErrorStatus, prepared_model: Any) -> None:
        """Receive a `VersionedPreparedModel` if ``status`` is NONE, otherwise None."""


class IExecutionCallback(CallbackObject, ABC):
    """Receives the result of an execution through HAL 1.2."""

    __slots__ = ()

    @abstractmethod
    def notify_1_2(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        """Receive the outcome; shapes are empty unless NONE or insufficient size."""
