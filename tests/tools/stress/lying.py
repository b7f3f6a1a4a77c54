"""A device as another package brings it, whose sums are wrong now and then."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType
from asyncnn.kernels import arithmetic
from asyncnn.kernels.kernel import Prepare, PreparedKernel
from asyncnn.runtime.framework.device_registry import ENTRY_POINTS
from tests.extensions.installing import install

NAME = "lying"
MOST = 1
"""Sums are right as long as the first element of the first summand is not larger."""


@asynccontextmanager
async def opened(settings: DeviceSettings) -> AsyncIterator[ReferenceDevice]:
    """Open the device."""
    with pytest.MonkeyPatch.context() as patch:
        kernels, add = arithmetic.KERNELS, OperationType.ADD
        patch.setitem(kernels, add, _wrong(kernels[add]))
        async with ReferenceDevice(settings) as device:
            yield device


def _wrong(prepare: Prepare) -> Prepare:
    def instead(operation: BoundOperation) -> PreparedKernel:
        kernel = prepare(operation)

        def instantiate(scratch: Any) -> Any:
            run = kernel(scratch)

            def add(inputs: Any, outputs: Any) -> None:
                run(inputs, outputs)
                outputs[0].flat[0] += inputs[0].flat[0] > MOST

            return add

        return instantiate

    return instead


def install_lying(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make it known to this process and those that it starts."""
    install(patch, folder, f"{__name__}:opened", NAME, ENTRY_POINTS)
