"""What of HAL 1.0 differs from the canonical: data, callbacks, and what drivers have.

Source: 1.0/types.hal, 1.0/IDevice.hal, 1.0/IPreparedModel.hal, and its callbacks.
"""

from abc import ABC, abstractmethod
from typing import Any, Protocol

import msgspec

from asyncnn.hal.interfaces import CallbackObject
from asyncnn.hal.types import (
    DataLocation,
    DeviceStatus,
    Dimensions,
    ErrorStatus,
    Memory,
    Operation,
    PerformanceInfo,
    RequestArgument,
)


class Operand(msgspec.Struct, frozen=True):
    """One value of a graph; there are no extra parameters yet."""

    type: int
    dimensions: Dimensions = ()
    number_of_consumers: int = 0
    scale: float = 0.0
    zero_point: int = 0
    lifetime: int = 0
    location: DataLocation = DataLocation()


class Model(msgspec.Struct, frozen=True):
    """A single graph with its constants."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]
    operand_values: bytes = b""
    pools: tuple[Memory, ...] = ()


class Request(msgspec.Struct, frozen=True):
    """Arguments of one execution; all pools are memory. Unchanged until 1.2."""

    inputs: tuple[RequestArgument, ...]
    outputs: tuple[RequestArgument, ...]
    pools: tuple[Memory, ...]


class Capabilities(msgspec.Struct, frozen=True):
    """Performance for the two kinds of data that there were."""

    float32_performance: PerformanceInfo
    quantized8_performance: PerformanceInfo


class IPreparedModelCallback(CallbackObject, ABC):
    """Receives the result of preparing a model, up to HAL 1.1."""

    __slots__ = ()

    @abstractmethod
    def notify(self, status: ErrorStatus, prepared_model: Any) -> None:
        """Receive an `IPreparedModel` if ``status`` is NONE, otherwise None."""


class IExecutionCallback(CallbackObject, ABC):
    """Receives the status of an execution, up to HAL 1.1."""

    __slots__ = ()

    @abstractmethod
    def notify(self, status: ErrorStatus) -> None:
        """Receive the outcome."""


class IPreparedModel(Protocol):
    """A prepared model of a driver of HAL 1.0 or 1.1 (1.0/IPreparedModel.hal)."""

    def execute(
        self, request: Request, callback: IExecutionCallback | None
    ) -> ErrorStatus:
        """Launch an execution; the callback is notified of its status, exactly once."""


class IDevice(Protocol):
    """A driver of HAL 1.0 (1.0/IDevice.hal)."""

    def get_status(self) -> DeviceStatus:
        """Return whether the device can take work."""

    def get_capabilities(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the performance for two kinds of data."""

    async def get_supported_operations(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation, whether it would run."""

    def prepare_model(
        self, model: Model, callback: IPreparedModelCallback | None
    ) -> ErrorStatus:
        """Launch the preparation of a model for fast single answers."""
