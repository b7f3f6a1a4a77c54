"""The HAL's interfaces as protocols; every device and transport implements them.

Method names are the HAL's in snake_case with their version suffix, so that a reader of
the ``.hal`` files finds them. Each call returns at once; what takes time is reported to
a callback from the event loop. `IPreparedModel.execute_synchronously_1_3` is awaited
instead.

Deadlines are absolute nanoseconds of the steady clock (``time.monotonic_ns``),
durations nanoseconds; None is "none given".
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from asyncnn.callbacks import (
    IBurstCallback,
    IExecutionCallback,
    IFencedExecutionCallback,
    IPreparedModelCallback,
)
from asyncnn.hal.types import (
    BufferDesc,
    BufferRole,
    Capabilities,
    DeviceStatus,
    DeviceType,
    Dimensions,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    Handle,
    MeasureTiming,
    Memory,
    Model,
    OutputShape,
    Priority,
    Request,
    Timing,
)


class IBuffer(Protocol):
    """A buffer that the device manages (1.3/IBuffer.hal)."""

    def copy_to(self, destination: Memory) -> ErrorStatus:
        """Copy the contents; GENERAL_FAILURE while uninitialised."""
        ...

    def copy_from(self, source: Memory, dimensions: Dimensions) -> ErrorStatus:
        """Set the contents and, where they were left open, the dimensions."""
        ...


class IBurstContext(Protocol):
    """Lifetime of a burst, kept by the client (1.2/IBurstContext.hal)."""

    def free_memory(self, slot: int) -> None:
        """Forget the memory of ``slot``; unknown slots are ignored."""
        ...


class IPreparedModel(Protocol):
    """A model ready for execution (1.3/IPreparedModel.hal)."""

    def execute_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        callback: IExecutionCallback | None,
    ) -> ErrorStatus:
        """Launch an execution whose end ``callback`` is told, exactly once.

        A launch error has notified the callback already. A null callback is
        INVALID_ARGUMENT.
        """
        ...

    async def execute_synchronously_1_3(
        self,
        request: Request,
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
    ) -> tuple[ErrorStatus, tuple[OutputShape, ...], Timing]:
        """Execute and return status, output shapes and timing."""
        ...

    def execute_fenced(
        self,
        request: Request,
        wait_for: Sequence[Handle],
        measure: MeasureTiming,
        deadline: int | None,
        loop_timeout_duration: int | None,
        duration: int | None,
    ) -> tuple[ErrorStatus, Handle, IFencedExecutionCallback | None]:
        """Launch an execution that starts when every fence has signalled."""
        ...

    def configure_execution_burst(
        self,
        callback: IBurstCallback | None,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Tie two Fast Message Queues to this model for a series of executions."""
        ...


@runtime_checkable
class IDevice(Protocol):
    """A driver (1.3/IDevice.hal). Queries answer the same until it is closed."""

    def get_status(self) -> DeviceStatus:
        """Return whether the device can take work."""
        ...

    def get_version_string(self) -> tuple[ErrorStatus, str]:
        """Return a non-empty string, unique to this version of the driver."""
        ...

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return the kind of hardware."""
        ...

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return the performance of the device relative to the CPU."""
        ...

    def get_supported_extensions(self) -> tuple[ErrorStatus, tuple[Extension, ...]]:
        """Return the extensions that are supported in full."""
        ...

    async def get_supported_operations_1_3(
        self, model: Model
    ) -> tuple[ErrorStatus, tuple[bool, ...]]:
        """Return, for each operation of the main subgraph, whether it would run.

        INVALID_ARGUMENT and nothing if the model is malformed. Awaited, because the
        driver may have to be asked.
        """
        ...

    def get_number_of_cache_files_needed(self) -> tuple[ErrorStatus, int, int]:
        """Return how many model and data cache files a model needs; 0 and 0: none."""
        ...

    def prepare_model_1_3(
        self,
        model: Model,
        preference: ExecutionPreference,
        priority: Priority,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of ``model``; ``callback`` gets the result."""
        ...

    def prepare_model_from_cache_1_3(
        self,
        deadline: int | None,
        model_cache: Sequence[Handle],
        data_cache: Sequence[Handle],
        token: bytes,
        callback: IPreparedModelCallback | None,
    ) -> ErrorStatus:
        """Launch the preparation of a model from its cache files."""
        ...

    def allocate(
        self,
        desc: BufferDesc,
        prepared_models: Sequence[IPreparedModel | None],
        input_roles: Sequence[BufferRole],
        output_roles: Sequence[BufferRole],
    ) -> tuple[ErrorStatus, IBuffer | None, int]:
        """Allocate a device-managed buffer and return it with its token."""
        ...
