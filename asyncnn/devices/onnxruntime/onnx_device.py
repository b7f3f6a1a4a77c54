"""The device that runs graphs of ONNX as they are, by ONNX Runtime."""

from functools import partial
from typing import TYPE_CHECKING, Self

from msgspec.structs import replace

from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.engine_device import EngineDevice, loaded
from asyncnn.devices.onnxruntime.providers import ExecutionProvider
from asyncnn.engine.delegation import Delegate
from asyncnn.extensions import Extension
from asyncnn.extensions.regions import ONNX, region_extension
from asyncnn.hal.errors import EngineUnavailableError
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.types import DeviceType, ErrorStatus
from asyncnn.kernels.kernel import EngineKernel, PreparedKernel

if TYPE_CHECKING:
    from asyncnn.devices.onnxruntime.loading import LoadedOnnxRuntime
    from asyncnn.devices.onnxruntime.session_graphs import OnnxRegions


class OnnxRuntimeDevice(EngineDevice):
    """An `IDevice` with the extension ``org.asyncnn.onnx``. Use as a context manager.

    ONNX Runtime computes regions, on the CPU or on a ``provider``, kernels the
    operations of the HAL. Otherwise it is like `EngineDevice`.

    :raises EngineUnavailableError: on entering the context, if ``onnxruntime`` is
        missing or does not work here, or the provider.
    :raises ResourceExhaustedError: on entering, if it cannot be loaded for want of
        memory, descriptors or threads.
    """

    name = "asyncnn-onnxruntime"

    def __init__(
        self,
        settings: DeviceSettings | None = None,
        *,
        provider: ExecutionProvider | None = None,
    ) -> None:
        self._provider = provider
        if provider is not None:
            self.name = f"{self.name}-{provider.name}"
            # Threads of the CPU would share what the provider leaves to it, and have
            # the graph on the provider once more.
            settings = replace(settings or DeviceSettings(), most_threads=1)
        super().__init__(settings)

    @classmethod
    def on_provider(cls, settings: DeviceSettings, *, provider: str) -> Self:
        """Return the device on the provider of a name, with the usual options."""
        return cls(settings, provider=ExecutionProvider.usual(provider))

    def get_type(self) -> tuple[ErrorStatus, DeviceType]:
        """Return CPU, or what the provider is."""
        if self._provider is None:
            return super().get_type()
        return ErrorStatus.NONE, self._provider.type

    async def load_delegate(self) -> Delegate | None:
        """Load ONNX Runtime, which has the kernels of regions; see `InProcessDevice`.

        :raises EngineUnavailableError: if it does not work here.
        """
        provider = self._provider
        engine = await loaded("ONNX Runtime", partial(load_onnx_runtime, provider))
        # It is a part of what caches are for.
        version = engine.version if provider is None else f"{engine.version} {provider}"
        self._add(f"ONNX Runtime {version}", onnx_extension(version, provider))
        return None


def load_onnx_runtime(provider: ExecutionProvider | None = None) -> "LoadedOnnxRuntime":
    """Return ONNX Runtime; see `asyncnn.devices.onnxruntime.loading`.

    :raises EngineUnavailableError: if it is not there, or does not work here.
    """
    # A process that has no use for the engine does not import it.
    from asyncnn.devices.onnxruntime import loading

    return loading.load_onnx_runtime(provider)


def found_onnx_runtime() -> str:
    """Return the version of ONNX Runtime that is installed; empty for none."""
    from asyncnn.devices.onnxruntime import found

    try:
        return found()[1]
    except EngineUnavailableError:
        return ""


def onnx_extension(
    version: str, provider: ExecutionProvider | None = None
) -> Extension:
    """Return the extension; its first kernel loads ONNX Runtime of that version."""

    def regions() -> "OnnxRegions":
        return load_onnx_runtime(provider).regions[provider]

    def prepare(operation: BoundOperation) -> PreparedKernel:
        return regions().prepare(operation)

    def prepare_open(operation: BoundOperation) -> EngineKernel:
        return regions().prepare_open(operation)

    def shapes(operation: BoundOperation) -> tuple[Shape | None, ...]:
        return regions().shapes(operation)

    return region_extension(
        ONNX, version=version, shape=shapes, prepare=prepare, prepare_open=prepare_open
    )
