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

from asyncnn.hal.errors import AsyncnnError as AsyncnnError
from asyncnn.hal.errors import BusyError as BusyError
from asyncnn.hal.errors import DeviceClosedError as DeviceClosedError
from asyncnn.hal.errors import DeviceUnavailableError as DeviceUnavailableError
from asyncnn.hal.errors import DriverDiedError as DriverDiedError
from asyncnn.hal.errors import ForkedError as ForkedError
from asyncnn.hal.errors import GeneralFailureError as GeneralFailureError
from asyncnn.hal.errors import InvalidArgumentError as InvalidArgumentError
from asyncnn.hal.errors import MissedDeadlineError as MissedDeadlineError
from asyncnn.hal.errors import (
    MissedDeadlinePersistentError as MissedDeadlinePersistentError,
)
from asyncnn.hal.errors import (
    MissedDeadlineTransientError as MissedDeadlineTransientError,
)
from asyncnn.hal.errors import NoDriverError as NoDriverError
from asyncnn.hal.errors import (
    OutputInsufficientSizeError as OutputInsufficientSizeError,
)
from asyncnn.hal.errors import ResourceExhaustedError as ResourceExhaustedError
from asyncnn.hal.errors import (
    ResourceExhaustedPersistentError as ResourceExhaustedPersistentError,
)
from asyncnn.hal.errors import (
    ResourceExhaustedTransientError as ResourceExhaustedTransientError,
)
from asyncnn.hal.errors import error_for as error_for
from asyncnn.hal.errors import failure_of as failure_of
from asyncnn.hal.interfaces import CallbackObject as CallbackObject
from asyncnn.hal.interfaces import IBuffer as IBuffer
from asyncnn.hal.interfaces import IBurstCallback as IBurstCallback
from asyncnn.hal.interfaces import IBurstContext as IBurstContext
from asyncnn.hal.interfaces import IDevice as IDevice
from asyncnn.hal.interfaces import IExecutionCallback as IExecutionCallback
from asyncnn.hal.interfaces import IFencedExecutionCallback as IFencedExecutionCallback
from asyncnn.hal.interfaces import IPreparedModel as IPreparedModel
from asyncnn.hal.interfaces import IPreparedModelCallback as IPreparedModelCallback
from asyncnn.hal.interfaces import ISavable as ISavable
from asyncnn.hal.interfaces import ISyncFence as ISyncFence
from asyncnn.hal.types import BYTE_SIZE_OF_CACHE_TOKEN as BYTE_SIZE_OF_CACHE_TOKEN
from asyncnn.hal.types import LOOP_TIMEOUT_DEFAULT_NS as LOOP_TIMEOUT_DEFAULT_NS
from asyncnn.hal.types import LOOP_TIMEOUT_MAXIMUM_NS as LOOP_TIMEOUT_MAXIMUM_NS
from asyncnn.hal.types import MAX_NUMBER_OF_CACHE_FILES as MAX_NUMBER_OF_CACHE_FILES
from asyncnn.hal.types import NO_TIMING as NO_TIMING
from asyncnn.hal.types import BufferDesc as BufferDesc
from asyncnn.hal.types import BufferRole as BufferRole
from asyncnn.hal.types import BufferToken as BufferToken
from asyncnn.hal.types import Capabilities as Capabilities
from asyncnn.hal.types import DataLocation as DataLocation
from asyncnn.hal.types import DeviceStatus as DeviceStatus
from asyncnn.hal.types import DeviceType as DeviceType
from asyncnn.hal.types import Dimensions as Dimensions
from asyncnn.hal.types import ErrorStatus as ErrorStatus
from asyncnn.hal.types import ExecutionPreference as ExecutionPreference
from asyncnn.hal.types import Extension as Extension
from asyncnn.hal.types import ExtensionNameAndPrefix as ExtensionNameAndPrefix
from asyncnn.hal.types import (
    ExtensionOperandTypeInformation as ExtensionOperandTypeInformation,
)
from asyncnn.hal.types import ExtraParams as ExtraParams
from asyncnn.hal.types import FusedActivationFunc as FusedActivationFunc
from asyncnn.hal.types import HalVersion as HalVersion
from asyncnn.hal.types import Handle as Handle
from asyncnn.hal.types import MeasureTiming as MeasureTiming
from asyncnn.hal.types import Memory as Memory
from asyncnn.hal.types import Model as Model
from asyncnn.hal.types import Operand as Operand
from asyncnn.hal.types import OperandLifeTime as OperandLifeTime
from asyncnn.hal.types import OperandPerformance as OperandPerformance
from asyncnn.hal.types import OperandType as OperandType
from asyncnn.hal.types import Operation as Operation
from asyncnn.hal.types import OperationType as OperationType
from asyncnn.hal.types import OutputShape as OutputShape
from asyncnn.hal.types import PerformanceInfo as PerformanceInfo
from asyncnn.hal.types import Priority as Priority
from asyncnn.hal.types import Request as Request
from asyncnn.hal.types import RequestArgument as RequestArgument
from asyncnn.hal.types import Subgraph as Subgraph
from asyncnn.hal.types import SymmPerChannelQuantParams as SymmPerChannelQuantParams
from asyncnn.hal.types import Timing as Timing
from asyncnn.lazy import exported as _exported

__all__ = _exported(__name__)

# An application that configures no logging sees nothing of ours on its standard error.
# Here, as all that logs imports the HAL, and printing the version does not.
logging.getLogger("asyncnn").addHandler(logging.NullHandler())
