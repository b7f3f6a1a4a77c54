"""The device that runs graphs of ONNX as they are, by ONNX Runtime."""

from itertools import groupby

from asyncnn.devices.engine_device import EngineDevice, loaded
from asyncnn.engine.delegation import Delegate
from asyncnn.extensions import Extensions
from asyncnn.extensions.regions import ONNX, region_extension
from asyncnn.hal.operands import ExtensionOperationType
from asyncnn.hal.routes import EngineShare
from asyncnn.hal.types import Model, Operation


class OnnxRuntimeDevice(EngineDevice):
    """An `IDevice` with the extension ``org.asyncnn.onnx``. Use as a context manager.

    ONNX Runtime computes regions, kernels the operations of the HAL. Otherwise it is
    like `AcceleratedDevice`.

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
        # A process that has no use for the engine does not import it.
        from asyncnn.devices.onnxruntime.loading import load_onnx_runtime

        engine = await loaded("ONNX Runtime", load_onnx_runtime)
        self._engine = f"ONNX Runtime {engine.version}"
        extension = region_extension(
            ONNX,
            version=engine.version,
            prepare=engine.regions.prepare,
            compute=engine.regions.compute,
        )
        self._extensions = Extensions((*self._settings.extensions, extension))
        return None

    async def engine_shares(self, model: Model) -> tuple[EngineShare, ...]:
        """Return which regions and which other operations there are.

        See `IEngineShares`.
        """
        shares: list[EngineShare] = []
        operations = enumerate(self._extensions.resolved(model).main.operations)
        for is_region, group in groupby(operations, lambda each: _is_region(each[1])):
            positions = tuple(position for position, _ in group)
            if is_region:
                shares.append(EngineShare("ONNX Runtime", positions))
            else:
                reasons = ("an operation of the HAL",) * len(positions)
                shares.append(EngineShare("kernels", positions, reasons))
        return tuple(shares)


def _is_region(operation: Operation) -> bool:
    type_ = operation.type
    return isinstance(type_, ExtensionOperationType) and type_.extension == ONNX
