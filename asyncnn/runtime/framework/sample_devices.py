"""Devices that support a part of what the reference device does, at other costs.

They compute with the reference kernels, and only declare to be faster or slower, so
that a framework has something to choose between: in tests, and to see what it does.
``asyncnn run MODEL --device framework:sample-float-fast,sample-quant --explain`` shows
a choice.

`hal_1_0`, `hal_1_1` and `hal_1_2` are the reference device as a driver that has the
calls of an older version alone.

Source: the HAL's sample drivers (float-fast, float-slow, quant, minimal and all).
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, ClassVar, cast

from asyncnn.callbacks import IPreparedModelCallback
from asyncnn.devices.device_settings import DeviceSettings
from asyncnn.devices.reference import ReferenceDevice
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operands import bodies_of, is_tensor
from asyncnn.hal.performance import uniform_performance, with_performance
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.types import (
    Capabilities,
    ErrorStatus,
    HalVersion,
    Model,
    OperandType,
    Operation,
    OperationType,
    PerformanceInfo,
    Subgraph,
)
from asyncnn.hal.versions import VersionedDevice, v1_0, v1_1, v1_2
from asyncnn.runtime.framework.older_drivers import OlderDriver

logger = logging.getLogger(__name__)

_FLOATS = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_QUANTISED = (OperandType.TENSOR_QUANT8_ASYMM, OperandType.TENSOR_QUANT8_ASYMM_SIGNED)


class SampleDevice(ReferenceDevice):
    """A device for operations whose main tensor is of ``types``; all if there are none.

    If there are ``operations``, it is for those only. Operations of ``types`` cost what
    ``figures`` says, and others what ``others`` does, relative to the CPU.
    """

    name = "asyncnn-sample"
    types: ClassVar[tuple[OperandType, ...]] = ()
    operations: ClassVar[frozenset[OperationType]] = frozenset()
    figures: ClassVar[PerformanceInfo] = PerformanceInfo(1.0, 1.0)
    others: ClassVar[PerformanceInfo] = PerformanceInfo(1.0, 1.0)

    def get_capabilities_1_3(self) -> tuple[ErrorStatus, Capabilities]:
        """Return what the sample declares."""
        table = uniform_performance(self.others)
        for type_ in self.types:
            table = with_performance(table, type_, self.figures)
        floats = self.figures if _FLOATS[0] in self.types else self.others
        return ErrorStatus.NONE, Capabilities(
            floats, floats, table, self.others, self.others
        )

    async def _supported(self, model: Model) -> tuple[bool, ...]:
        supports, main = await super()._supported(model), model.main
        return tuple(
            can and self.takes(model, main, operation)
            for can, operation in zip(supports, main.operations, strict=False)
        )

    def _prepare(
        self, asked: PrepareArguments, callback: IPreparedModelCallback
    ) -> ErrorStatus:
        model, main = asked.model, asked.model.main
        if not all(self.takes(model, main, operation) for operation in main.operations):
            raise GeneralFailureError(
                f"{self.name} does not support all operations of the model: "
                "asyncnn.explain says which"
            )
        return super()._prepare(asked, callback)

    def takes(self, model: Model, subgraph: Subgraph, operation: Operation) -> bool:
        """Return whether an operation and all within it are of the sample's kind."""
        return self._takes(model, subgraph, operation, set())

    def _takes(
        self, model: Model, subgraph: Subgraph, operation: Operation, seen: set[int]
    ) -> bool:
        if operation.type in (OperationType.IF, OperationType.WHILE):
            for number in bodies_of(operation, subgraph.operands):
                if number in seen:
                    continue
                seen.add(number)
                inner = model.referenced[number]
                for each in inner.operations:
                    if not self._takes(model, inner, each, seen):
                        return False
            return not self.operations
        if self.operations and operation.type not in self.operations:
            return False
        if not self.types:
            return True
        tensors = [subgraph.operands[index].type for index in operation.inputs]
        main = next((type_ for type_ in tensors if is_tensor(type_)), None)
        return main in self.types


class FloatFast(SampleDevice):
    """Floats, in less time and for more power than the CPU."""

    name = "asyncnn-sample-float-fast"
    types = _FLOATS
    figures = PerformanceInfo(0.8, 1.2)


class FloatSlow(SampleDevice):
    """Floats, in more time and for less power than the CPU."""

    name = "asyncnn-sample-float-slow"
    types = _FLOATS
    figures = PerformanceInfo(1.3, 0.7)


class Quant(SampleDevice):
    """Quantised tensors, in little time; all else would take very long."""

    name = "asyncnn-sample-quant"
    types = _QUANTISED
    figures = PerformanceInfo(0.5, 0.5)
    others = PerformanceInfo(50.0, 2.0)


class Minimal(SampleDevice):
    """Three operations on floats, very fast."""

    name = "asyncnn-sample-minimal"
    types = _FLOATS
    operations = frozenset(
        {OperationType.ADD, OperationType.CONCATENATION, OperationType.CONV_2D}
    )
    figures = PerformanceInfo(0.4, 0.5)


class Everything(SampleDevice):
    """All operations, slightly slower than the CPU."""

    name = "asyncnn-sample-all"
    figures = others = PerformanceInfo(1.1, 1.1)


_INTERFACES: dict[HalVersion, type] = {
    HalVersion.V1_0: v1_0.IDevice,
    HalVersion.V1_1: v1_1.IDevice,
    HalVersion.V1_2: v1_2.IDevice,
}


class _OfVersion:
    """Has the calls of ``version``, and no other, of a device."""

    def __init__(self, device: VersionedDevice, version: HalVersion) -> None:
        self._device = device
        self._interface = _INTERFACES[version]

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self._interface, name):
            raise AttributeError(f"a driver of that version has no {name}")
        return getattr(self._device, name)


@asynccontextmanager
async def _older(
    version: HalVersion, settings: DeviceSettings
) -> AsyncIterator[OlderDriver]:
    async with ReferenceDevice(settings) as device:
        driver = cast("v1_0.IDevice", _OfVersion(VersionedDevice(device), version))
        async with OlderDriver(driver, settings) as adapted:
            yield adapted


hal_1_0 = partial(_older, HalVersion.V1_0)
hal_1_1 = partial(_older, HalVersion.V1_1)
hal_1_2 = partial(_older, HalVersion.V1_2)
