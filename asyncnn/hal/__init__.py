"""Floor 1: the Android Neural Networks HAL in data and rules.

Structures and enumerations carry the HAL's names and numbers, as in the
newest version: `asyncnn.hal.versions` says the same in older ones. Structures are
immutable records (`msgspec.Struct`); handles hold plain file descriptors. Durations
are nanoseconds, deadlines absolute nanoseconds of `time.monotonic_ns`.

A model that adds two vectors, and what the rules say of it:

>>> from asyncnn import hal
>>> from asyncnn.hal.validate import validate_model
>>> vector = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (4,))
>>> model = hal.Model(hal.Subgraph((vector,), (), (0,), (0,)))
>>> try:
...     validate_model(model)
... except hal.InvalidArgumentError as error:
...     error.status
<ErrorStatus.INVALID_ARGUMENT: 4>

============== =====================================================================
``types``      enumerations and structures (1.0 to 1.3/types.hal, and the AIDL's)
``interfaces`` `IDevice`, `IPreparedModel`, `IBuffer`, callbacks: protocols
``errors``     one exception for each status of the HAL
``operations`` signature and shape rule of every operation
``validate``   checks of models, requests and settings
``versions``   the HAL as callers of 1.0, 1.1 and 1.2 know it
============== =====================================================================

Imports nothing of asyncnn but itself; knows no threads, sockets or kernels.
"""

import logging

from asyncnn.hal.errors import (
    AsyncnnError,
    BusyError,
    DeviceClosedError,
    DeviceUnavailableError,
    DriverDiedError,
    ForkedError,
    GeneralFailureError,
    InvalidArgumentError,
    MissedDeadlineError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    NoDriverError,
    OutputInsufficientSizeError,
    ResourceExhaustedError,
    ResourceExhaustedPersistentError,
    ResourceExhaustedTransientError,
    error_for,
    failure_of,
)
from asyncnn.hal.interfaces import (
    CallbackObject,
    IBuffer,
    IBurstCallback,
    IBurstContext,
    IDevice,
    IExecutionCallback,
    IFencedExecutionCallback,
    IPreparedModel,
    IPreparedModelCallback,
    ISavable,
    ISyncFence,
)
from asyncnn.hal.types import (
    BYTE_SIZE_OF_CACHE_TOKEN,
    LOOP_TIMEOUT_DEFAULT_NS,
    LOOP_TIMEOUT_MAXIMUM_NS,
    MAX_NUMBER_OF_CACHE_FILES,
    NO_TIMING,
    BufferDesc,
    BufferRole,
    BufferToken,
    Capabilities,
    DataLocation,
    DeviceStatus,
    DeviceType,
    Dimensions,
    ErrorStatus,
    ExecutionPreference,
    Extension,
    ExtensionNameAndPrefix,
    ExtensionOperandTypeInformation,
    ExtraParams,
    FusedActivationFunc,
    HalVersion,
    Handle,
    MeasureTiming,
    Memory,
    Model,
    Operand,
    OperandLifeTime,
    OperandPerformance,
    OperandType,
    Operation,
    OperationType,
    OutputShape,
    PerformanceInfo,
    Priority,
    Request,
    RequestArgument,
    Subgraph,
    SymmPerChannelQuantParams,
    Timing,
)

__all__ = (
    "BYTE_SIZE_OF_CACHE_TOKEN",
    "LOOP_TIMEOUT_DEFAULT_NS",
    "LOOP_TIMEOUT_MAXIMUM_NS",
    "MAX_NUMBER_OF_CACHE_FILES",
    "NO_TIMING",
    "AsyncnnError",
    "BufferDesc",
    "BufferRole",
    "BufferToken",
    "BusyError",
    "CallbackObject",
    "Capabilities",
    "DataLocation",
    "DeviceClosedError",
    "DeviceStatus",
    "DeviceType",
    "DeviceUnavailableError",
    "Dimensions",
    "DriverDiedError",
    "ErrorStatus",
    "ExecutionPreference",
    "Extension",
    "ExtensionNameAndPrefix",
    "ExtensionOperandTypeInformation",
    "ExtraParams",
    "ForkedError",
    "FusedActivationFunc",
    "GeneralFailureError",
    "HalVersion",
    "Handle",
    "IBuffer",
    "IBurstCallback",
    "IBurstContext",
    "IDevice",
    "IExecutionCallback",
    "IFencedExecutionCallback",
    "IPreparedModel",
    "IPreparedModelCallback",
    "ISavable",
    "ISyncFence",
    "InvalidArgumentError",
    "MeasureTiming",
    "Memory",
    "MissedDeadlineError",
    "MissedDeadlinePersistentError",
    "MissedDeadlineTransientError",
    "Model",
    "NoDriverError",
    "Operand",
    "OperandLifeTime",
    "OperandPerformance",
    "OperandType",
    "Operation",
    "OperationType",
    "OutputInsufficientSizeError",
    "OutputShape",
    "PerformanceInfo",
    "Priority",
    "Request",
    "RequestArgument",
    "ResourceExhaustedError",
    "ResourceExhaustedPersistentError",
    "ResourceExhaustedTransientError",
    "Subgraph",
    "SymmPerChannelQuantParams",
    "Timing",
    "error_for",
    "failure_of",
)

# An application that configures no logging sees nothing of ours on its standard error.
# Here, as all that logs imports the HAL, and printing the version does not.
logging.getLogger("asyncnn").addHandler(logging.NullHandler())
