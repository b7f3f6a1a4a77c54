"""Values of extensions in subgraphs that IF runs."""

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings
from asyncnn.extensions import numbered
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import open_device
from tests.extensions.vendor import (
    COMPLEX,
    COMPLEX_SCALAR,
    DECLARED_ONLY,
    SCALE,
    vendor,
)

INPUT, OUTPUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT


def reference_to(subgraph: int) -> Operand:
    return Operand(
        OperandType.SUBGRAPH,
        number_of_consumers=1,
        lifetime=OperandLifeTime.SUBGRAPH,
        location=DataLocation(offset=subgraph),
    )


def scaling(factor_at: int, operation: int = SCALE) -> Subgraph:
    """``y = x * factor``, which lies at ``factor_at`` of the operand values."""
    x = Operand(COMPLEX, (0,), 1, lifetime=INPUT)
    factor = Operand(
        COMPLEX_SCALAR,
        number_of_consumers=1,
        lifetime=OperandLifeTime.CONSTANT_COPY,
        location=DataLocation(0, factor_at, 8),
    )
    y = Operand(COMPLEX, (0,), lifetime=OUTPUT)
    return Subgraph((x, factor, y), (Operation(operation, (0, 1), (2,)),), (0,), (2,))


def choosing(*branches: Subgraph) -> Model:
    """``y = x * 2j if condition else x * 3``."""
    operands = (
        Operand(OperandType.TENSOR_BOOL8, (1,), 1, lifetime=INPUT),
        reference_to(0),
        reference_to(1),
        Operand(COMPLEX, (0,), 1, lifetime=INPUT),
        Operand(COMPLEX, (0,), lifetime=OUTPUT),
    )
    choice = Operation(OperationType.IF, (0, 1, 2, 3), (4,))
    return Model(
        Subgraph(operands, (choice,), (0, 3), (4,)),
        branches,
        np.array([2j, 3], np.complex64).tobytes(),
    )


@pytest.fixture
def settings() -> DeviceSettings:
    return DeviceSettings(extensions=(vendor,))


@pytest.mark.parametrize(("condition", "factor"), [(True, 2j), (False, 3)])
async def test_branches_work_on_values_of_an_extension(
    settings: DeviceSettings, *, condition: bool, factor: complex
) -> None:
    model = choosing(scaling(0), scaling(8))
    x: Array = np.array([1, 1j], np.complex64)
    async with open_device(settings=settings) as device:
        named = NamedModel.of(model, ["condition", "x"], ["y"])
        prepared = await device.prepare(named)
        outputs = await prepared.run([np.array([condition]), x])
    assert outputs["y"].tolist() == (factor * x).tolist()


async def test_a_branch_that_breaks_a_rule_of_an_extension_is_not_supported(
    settings: DeviceSettings,
) -> None:
    broken = scaling(0, DECLARED_ONLY)  # which takes one input only
    model = numbered(choosing(broken, scaling(8)))
    async with open_device(settings=settings) as device:
        answer = await device.hal.get_supported_operations_1_3(model)
    assert answer == (ErrorStatus.NONE, (False,))
