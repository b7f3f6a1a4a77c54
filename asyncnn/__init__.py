"""An asyncio-native driver for the Android Neural Networks HAL.

From the outside in:

=============  =====================================================================
``cluster``    replicas of a device on a cluster as one
``pipeline``   streams of frames through stages of models
``metrics``    numbers of a driver for Prometheus
``oip``        models for clients of the Open Inference Protocol
``web``        middleware for web applications
``runtime``    what applications use: `open_device`, `load_model`, arrays
``service``    a driver in a process of its own, and the way to it
``devices``    implementations of the HAL's `IDevice`
``burst``      series of executions through queues
``engine``     a model becomes a plan, a plan is executed step by step
``qos``        who runs next, and where
``kernels``    the arithmetic of every operation, in NumPy
``extensions`` operations and types that the HAL does not have
``memory``     pools, slabs and frames in memory that processes share
``fmq``        queues in memory that two processes share
``fences``     what executions wait for: `asyncnn.fences.SyncFence`
``hal``        the HAL itself: types, interfaces, operation table, validation
=============  =====================================================================

>>> async with asyncnn.open_device() as device:
...     model = await asyncnn.load_model("model.tflite")
...     prepared = await device.prepare(model)
...     outputs = await prepared.run({"image": image})
"""

from asyncnn.lazy import lazy_names as _lazy_names

__version__ = "0.2.0"

TYPE_CHECKING = False  # importing it takes as long as printing the version does
if TYPE_CHECKING:
    from asyncnn.devices import DeviceSettings as DeviceSettings
    from asyncnn.execution import Outputs as Outputs
    from asyncnn.extensions import Extension as Extension
    from asyncnn.fenced_run import FencedRun as FencedRun
    from asyncnn.hal.errors import AsyncnnError as AsyncnnError
    from asyncnn.hal.errors import BusyError as BusyError
    from asyncnn.hal.errors import DeviceClosedError as DeviceClosedError
    from asyncnn.hal.errors import DeviceUnavailableError as DeviceUnavailableError
    from asyncnn.hal.errors import DriverDiedError as DriverDiedError
    from asyncnn.hal.errors import EngineUnavailableError as EngineUnavailableError
    from asyncnn.hal.errors import ExecutionFailedError as ExecutionFailedError
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
    from asyncnn.hal.errors import PreparationFailedError as PreparationFailedError
    from asyncnn.hal.errors import ResourceExhaustedError as ResourceExhaustedError
    from asyncnn.hal.errors import (
        ResourceExhaustedPersistentError as ResourceExhaustedPersistentError,
    )
    from asyncnn.hal.errors import (
        ResourceExhaustedTransientError as ResourceExhaustedTransientError,
    )
    from asyncnn.hal.errors import WrongLoopError as WrongLoopError
    from asyncnn.hal.errors import WrongTypeError as WrongTypeError
    from asyncnn.hal.routes import Route as Route
    from asyncnn.hal.types import ErrorStatus as ErrorStatus
    from asyncnn.hal.types import ExecutionPreference as ExecutionPreference
    from asyncnn.hal.types import OperandType as OperandType
    from asyncnn.hal.types import OperationType as OperationType
    from asyncnn.hal.types import Priority as Priority
    from asyncnn.memory.slabs import shared_array as shared_array
    from asyncnn.runtime.buffers import DeviceBuffer as DeviceBuffer
    from asyncnn.runtime.builder import ModelBuilder as ModelBuilder
    from asyncnn.runtime.burst import Burst as Burst
    from asyncnn.runtime.container import save as save
    from asyncnn.runtime.device import Device as Device
    from asyncnn.runtime.explain import Explanation as Explanation
    from asyncnn.runtime.explain import explain as explain
    from asyncnn.runtime.framework import FrameworkSettings as FrameworkSettings
    from asyncnn.runtime.framework.device_registry import device_names as device_names
    from asyncnn.runtime.graph_builder import GraphBuilder as GraphBuilder
    from asyncnn.runtime.model import NamedModel as NamedModel
    from asyncnn.runtime.model import TensorInfo as TensorInfo
    from asyncnn.runtime.model_cache import ModelCache as ModelCache
    from asyncnn.runtime.model_description import ModelMetadata as ModelMetadata
    from asyncnn.runtime.model_description import Signature as Signature
    from asyncnn.runtime.model_file import bundled_file as bundled_file
    from asyncnn.runtime.model_file import load as load
    from asyncnn.runtime.model_file import load_model as load_model
    from asyncnn.runtime.named_arrays import named_array as named_array
    from asyncnn.runtime.named_arrays import open_named_array as open_named_array
    from asyncnn.runtime.opening import Opening as Opening
    from asyncnn.runtime.opening_devices import connect as connect
    from asyncnn.runtime.opening_devices import open_device as open_device
    from asyncnn.runtime.opening_devices import open_devices as open_devices
    from asyncnn.runtime.prepared import PreparedModel as PreparedModel
    from asyncnn.runtime.reusable import ReusableExecution as ReusableExecution
    from asyncnn.runtime.session import Session as Session
    from asyncnn.runtime.signatures import SignatureRuns as SignatureRuns
    from asyncnn.runtime.unsupported import (
        UnsupportedOperatorError as UnsupportedOperatorError,
    )
    from asyncnn.service import Supervision as Supervision
else:
    __getattr__, __dir__, __all__ = _lazy_names(
        __name__,
        {
            "asyncnn.devices": "DeviceSettings",
            "asyncnn.extensions": "Extension",
            "asyncnn.execution": "Outputs",
            "asyncnn.fenced_run": "FencedRun",
            "asyncnn.hal.errors": "AsyncnnError BusyError DeviceClosedError "
            "DeviceUnavailableError DriverDiedError EngineUnavailableError "
            "ExecutionFailedError ForkedError "
            "GeneralFailureError InvalidArgumentError MissedDeadlineError "
            "MissedDeadlinePersistentError MissedDeadlineTransientError NoDriverError "
            "OutputInsufficientSizeError PreparationFailedError ResourceExhaustedError "
            "ResourceExhaustedPersistentError ResourceExhaustedTransientError "
            "WrongLoopError WrongTypeError",
            "asyncnn.hal.routes": "Route",
            "asyncnn.hal.types": "ErrorStatus ExecutionPreference OperandType "
            "OperationType Priority",
            "asyncnn.memory.slabs": "shared_array",
            "asyncnn.runtime.buffers": "DeviceBuffer",
            "asyncnn.runtime.builder": "ModelBuilder",
            "asyncnn.runtime.burst": "Burst",
            "asyncnn.runtime.device": "Device",
            "asyncnn.runtime.explain": "Explanation explain",
            "asyncnn.runtime.framework": "FrameworkSettings",
            "asyncnn.runtime.framework.device_registry": "device_names",
            "asyncnn.runtime.graph_builder": "GraphBuilder",
            "asyncnn.runtime.model": "NamedModel TensorInfo",
            "asyncnn.runtime.model_cache": "ModelCache",
            "asyncnn.runtime.model_description": "ModelMetadata Signature",
            "asyncnn.runtime.container": "save",
            "asyncnn.runtime.model_file": "bundled_file load load_model",
            "asyncnn.runtime.named_arrays": "named_array open_named_array",
            "asyncnn.runtime.opening": "Opening",
            "asyncnn.runtime.opening_devices": "connect open_device open_devices",
            "asyncnn.runtime.prepared": "PreparedModel",
            "asyncnn.runtime.reusable": "ReusableExecution",
            "asyncnn.runtime.unsupported": "UnsupportedOperatorError",
            "asyncnn.runtime.session": "Session",
            "asyncnn.runtime.signatures": "SignatureRuns",
            "asyncnn.service": "Supervision",
        },
        "burst cluster devices engine extensions fences fmq hal kernels memory metrics "
        "oip pipeline qos runtime service tracing web",
    )
    __all__ = tuple(sorted((*__all__, "__version__")))
