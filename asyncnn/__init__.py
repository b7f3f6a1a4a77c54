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
    from asyncnn.devices import DeviceSettings
    from asyncnn.execution import Outputs
    from asyncnn.extensions import Extension
    from asyncnn.fenced_run import FencedRun
    from asyncnn.hal.errors import (
        AsyncnnError,
        BusyError,
        DeviceClosedError,
        DeviceUnavailableError,
        DriverDiedError,
        EngineUnavailableError,
        ExecutionFailedError,
        ForkedError,
        GeneralFailureError,
        InvalidArgumentError,
        MissedDeadlineError,
        MissedDeadlinePersistentError,
        MissedDeadlineTransientError,
        NoDriverError,
        OutputInsufficientSizeError,
        PreparationFailedError,
        ResourceExhaustedError,
        ResourceExhaustedPersistentError,
        ResourceExhaustedTransientError,
        WrongLoopError,
        WrongTypeError,
    )
    from asyncnn.hal.routes import Route
    from asyncnn.hal.types import (
        ErrorStatus,
        ExecutionPreference,
        OperandType,
        OperationType,
        Priority,
    )
    from asyncnn.memory.slabs import shared_array
    from asyncnn.runtime.buffers import DeviceBuffer
    from asyncnn.runtime.builder import ModelBuilder
    from asyncnn.runtime.burst import Burst
    from asyncnn.runtime.container import save
    from asyncnn.runtime.device import Device
    from asyncnn.runtime.explain import Explanation, explain
    from asyncnn.runtime.framework import FrameworkSettings
    from asyncnn.runtime.framework.device_registry import device_names
    from asyncnn.runtime.graph_builder import GraphBuilder
    from asyncnn.runtime.model import NamedModel, TensorInfo
    from asyncnn.runtime.model_cache import ModelCache
    from asyncnn.runtime.model_description import ModelMetadata, Signature
    from asyncnn.runtime.model_file import bundled_file, load, load_model
    from asyncnn.runtime.named_arrays import named_array, open_named_array
    from asyncnn.runtime.opening import Opening
    from asyncnn.runtime.opening_devices import connect, open_device, open_devices
    from asyncnn.runtime.prepared import PreparedModel
    from asyncnn.runtime.reusable import ReusableExecution
    from asyncnn.runtime.session import Session
    from asyncnn.runtime.signatures import SignatureRuns
    from asyncnn.runtime.unsupported import UnsupportedOperatorError
    from asyncnn.service import Supervision
else:
    __getattr__, __dir__ = _lazy_names(
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

__all__ = (
    "AsyncnnError",
    "Burst",
    "BusyError",
    "Device",
    "DeviceBuffer",
    "DeviceClosedError",
    "DeviceSettings",
    "DeviceUnavailableError",
    "DriverDiedError",
    "EngineUnavailableError",
    "ErrorStatus",
    "ExecutionFailedError",
    "ExecutionPreference",
    "Explanation",
    "Extension",
    "FencedRun",
    "ForkedError",
    "FrameworkSettings",
    "GeneralFailureError",
    "GraphBuilder",
    "InvalidArgumentError",
    "MissedDeadlineError",
    "MissedDeadlinePersistentError",
    "MissedDeadlineTransientError",
    "ModelBuilder",
    "ModelCache",
    "ModelMetadata",
    "NamedModel",
    "NoDriverError",
    "Opening",
    "OperandType",
    "OperationType",
    "OutputInsufficientSizeError",
    "Outputs",
    "PreparationFailedError",
    "PreparedModel",
    "Priority",
    "ResourceExhaustedError",
    "ResourceExhaustedPersistentError",
    "ResourceExhaustedTransientError",
    "ReusableExecution",
    "Route",
    "Session",
    "Signature",
    "SignatureRuns",
    "Supervision",
    "TensorInfo",
    "UnsupportedOperatorError",
    "WrongLoopError",
    "WrongTypeError",
    "__version__",
    "bundled_file",
    "connect",
    "device_names",
    "explain",
    "load",
    "load_model",
    "named_array",
    "open_device",
    "open_devices",
    "open_named_array",
    "save",
    "shared_array",
)
