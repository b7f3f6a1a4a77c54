"""Floor 4: implementations of the HAL's `IDevice`, their settings and statistics.

`ReferenceDevice`
    runs every operation with the NumPy kernels; `InProcessDevice` is what it has in
    common with devices that have an engine
`DeviceSettings`
    its limits and trade-offs; `OWN_PROCESS` are for a process that does nothing
    else, such as a driver
`DeviceStatistics`
    what it does and has done: one frozen record with one of `ModelStatistics` for each
    model, and one of `ClientStatistics` for each client

Applications open a device with `asyncnn.open_device`, which takes the settings and
gives the statistics, as below. `IMeasured` is the protocol of devices that keep
statistics, remote ones included.

A device has threads that compute, one that plans and one that prepares. What is short
runs on the event loop that entered its context, where all callbacks fire as well; its
methods are called on that loop only. Leaving the context ends what is pending with
DEVICE_UNAVAILABLE and waits until what computes comes to the next boundary between two
operations, for ``stuck_after_s`` at most. In a forked child every call fails with
`ForkedError`. The memory of a request is read and written in place, and kept until the
execution has ended.

Settings carry their units in their names: ``_us``, ``_s``, ``_bytes``. So do
statistics, and latencies are nanoseconds. Nothing of the process is changed unless a
setting asks for it, but for the threads of BLAS while a device computes.

`DeviceSettings` raises `InvalidArgumentError` for a value out of range. Calls report
what is wrong as a status: INVALID_ARGUMENT for a model or request that breaks a rule,
GENERAL_FAILURE where an operation has no kernel, RESOURCE_EXHAUSTED_TRANSIENT beyond a
limit. `asyncnn.open_device` raises the exceptions that stand for these.

>>> import asyncio
>>> import numpy as np
>>> from asyncnn import ModelBuilder, OperandType, OperationType, hal, open_device
>>> from asyncnn.devices import DeviceSettings
>>> builder = ModelBuilder()
>>> x = builder.input("x", OperandType.TENSOR_FLOAT32, (2,))
>>> y = hal.Operand(OperandType.TENSOR_FLOAT32, (2,))
>>> builder.output(builder.operation(OperationType.SQRT, [x], y), "y")
>>> async def main():
...     settings = DeviceSettings(max_pending=16, idle_after_s=0.5)
...     async with open_device(settings=settings) as device:
...         model = await device.prepare(builder.build())
...         outputs = await model.run({"x": np.float32([4, 9])})
...         statistics = await device.statistics()
...         return outputs["y"].tolist(), statistics.executions.ended
>>> asyncio.run(main())
([2.0, 3.0], 1)
"""

from typing import TYPE_CHECKING

from asyncnn.lazy import lazy_names

if TYPE_CHECKING:
    from asyncnn.devices.device_settings import OWN_PROCESS as OWN_PROCESS
    from asyncnn.devices.device_settings import DeviceSettings as DeviceSettings
    from asyncnn.devices.reference import InProcessDevice as InProcessDevice
    from asyncnn.devices.reference import ReferenceDevice as ReferenceDevice
    from asyncnn.devices.statistics import ClientStatistics as ClientStatistics
    from asyncnn.devices.statistics import DeviceStatistics as DeviceStatistics
    from asyncnn.devices.statistics import IMeasured as IMeasured
    from asyncnn.devices.statistics import ModelStatistics as ModelStatistics
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "asyncnn.devices.reference": "InProcessDevice ReferenceDevice",
            "asyncnn.devices.device_settings": "OWN_PROCESS DeviceSettings",
            "asyncnn.devices.statistics": "ClientStatistics DeviceStatistics "
            "IMeasured ModelStatistics",
        },
    )
