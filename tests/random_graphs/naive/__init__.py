"""Every operation once more, in plain NumPy and float64.

The formulas follow the HAL's documentation, one element or window at a time, and share
nothing with the kernels.
"""

from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import OperationType
from tests.random_graphs.naive import (
    blocks,
    elementwise,
    moving,
    reducing,
    resizing,
    windows,
)
from tests.random_graphs.naive.expected import Expected, stored
from tests.random_graphs.naive.moving import Formula

FORMULAS: dict[OperationType, Formula] = {
    **elementwise.FORMULAS,
    **moving.FORMULAS,
    **reducing.FORMULAS,
    **windows.FORMULAS,
    **resizing.FORMULAS,
    **blocks.FORMULAS,
}


def evaluate(operation: BoundOperation) -> list[Expected]:
    """Return what each output of ``operation`` should be, all inputs known."""
    expected = FORMULAS[operation.type](operation)
    return expected if isinstance(expected, list) else [expected]


def evaluate_stored(operation: BoundOperation) -> list[Array]:
    """Return the expected outputs as they are stored."""
    pairs = zip(evaluate(operation), operation.outputs, strict=True)
    return [stored(expected, operand) for expected, operand in pairs]
