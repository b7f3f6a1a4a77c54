"""What of HAL 1.2 differs from the canonical: data, callbacks, and what drivers have.

Source: 1.2/types.hal, 1.2/IDevice.hal, 1.2/IPreparedModel.hal, and its callbacks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from asyncnn.hal.interfaces import CallbackObject, IBurstCallback, IBurstContext
from asyncnn.hal.types import (
    DeviceType,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    ExtensionNameAndPrefix,
    Handle,
    MeasureTiming,
    Memory,
    Operand,
    OperandPerformance,
    Operation,
    OutputShapes,
    PerformanceInfo,
    Timing,
)
from asyncnn.hal.versions import v1_0, v1_1


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
        """Receive an `IPreparedModel` if ``status`` is NONE, otherwise None."""


class IExecutionCallback(CallbackObject, ABC):
    """Receives the result of an execution through HAL 1.2."""

    __slots__ = ()

    @abstractmethod
    def notify_1_2(
        self, status: ErrorStatus, output_shapes: OutputShapes, timing: Timing
    ) -> None:
        """Receive the outcome; shapes are empty unless NONE or insufficient size."""


class IPreparedModel(v1_0.IPreparedModel, Protocol):
    """A prepared model of a driver of HAL 1.2 (1.2/IPreparedModel.hal)."""

    def execute_1_2(
        self,
        request: v1_0.Request,
        measure: MeasureTiming,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution; the callback is notified of its end, exactly once."""

    async def execute_synchronously(
        self, request: v1_0.Request, measure: MeasureTiming
    ) -> tuple[ErrorStatus, OutputShapes, Timing]:
        """Execute and return status, output shapes and timing."""

    async def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Tie two Fast Message Queues to this model for a series of executions."""


class IDevice(v1_1.IDevice, Protocol):
    """A driver of HAL 1.2; it has all of HAL 1.0 and 1.1 as well (1.2/IDevice.hal)."""

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return a non-empty string, unique to this version of the driver."""

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return the kind of hardware."""

    def get_capabilities_1_2(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the performance by operand type."""

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return the extensions that are supported in full."""

    async def get_supported_operations_1_2(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation, whether it would run."""

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return how many model and data cache files a model needs; 0 and 0: none."""

    def prepare_model_1_2(
        self,
        model: Model,
        preference: ExecutionPreference,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model, and maybe write it to cache files."""

    def prepare_model_from_cache(
        self,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model from its cache files."""
