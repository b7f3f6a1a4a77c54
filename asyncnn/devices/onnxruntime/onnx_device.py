"""The device that runs graphs of ONNX as they are, by ONNX Runtime."""

from typing import TYPE_CHECKING

from asyncnn.devices.engine_device import EngineDevice, loaded
from asyncnn.engine.delegation import Delegate
from asyncnn.extensions import Extension
from asyncnn.extensions.regions import ONNX, region_extension
from asyncnn.hal.errors import EngineUnavailableError
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.kernels.kernel import InterruptibleRun, PreparedKernel

if TYPE_CHECKING:
    from asyncnn.devices.onnxruntime.loading import LoadedOnnxRuntime


class OnnxRuntimeDevice(EngineDevice):
    """An `IDevice` with the extension ``org.asyncnn.onnx``. Use as a context manager.

    ONNX Runtime computes regions, kernels the operations of the HAL. Otherwise it is
    like `EngineDevice`.

    :raises EngineUnavailableError: on entering the context, if ``onnxruntime`` is
        missing or does not work here.
    :raises ResourceExhaustedError: on entering, if it cannot be loaded for want of
        memory, descriptors or threads.
    """

    name = "asyncnn-onnxruntime"

    async def load_delegate(self) -> Delegate | None:
        """Load ONNX Runtime, which has the kernels of regions; see `ReferenceDevice`.

        :raises EngineUnavailableError: if it does not work here.
        """
        engine = await loaded("ONNX Runtime", load_onnx_runtime)
        self._add(f"ONNX Runtime {engine.version}", onnx_extension(engine.version))
        return None


def load_onnx_runtime() -> "LoadedOnnxRuntime":
    """Return ONNX Runtime; see `asyncnn.devices.onnxruntime.loading`.

    :raises EngineUnavailableError: if it is not there, or does not work here.
    """
    # A process that has no use for the engine does not import it.
    from asyncnn.devices.onnxruntime import loading

    return loading.load_onnx_runtime()


def found_onnx_runtime() -> str:
    """Return the version of ONNX Runtime that is installed; empty for none."""
    from asyncnn.devices.onnxruntime import found

    try:
        return found()[1]
    except EngineUnavailableError:
        return ""


def onnx_extension(version: str) -> Extension:
    """Return the extension; its first kernel loads ONNX Runtime of that version."""

    def prepare(operation: BoundOperation) -> PreparedKernel:
        return load_onnx_runtime().regions.prepare(operation)

    def compute(operation: BoundOperation) -> InterruptibleRun:
        return load_onnx_runtime().regions.compute(operation)

    def shapes(operation: BoundOperation) -> tuple[Shape | None, ...]:
        return load_onnx_runtime().regions.shapes(operation)

    return region_extension(
        ONNX, version=version, shape=shapes, prepare=prepare, compute=compute
    )
