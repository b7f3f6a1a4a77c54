"""Models that a framework divides: floats first, then quantised, then floats."""

from collections.abc import Sequence

import numpy as np

import asyncnn
from asyncnn import NamedModel, hal
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.runtime.framework import FrameworkSettings

FLOATS = OperandType.TENSOR_FLOAT32
BYTES = OperandType.TENSOR_QUANT8_ASYMM
SHAPE = (4, 6)

WHEREVER_BETTER = FrameworkSettings(moving_weight=0, pause_s=0.05)
"""Has models divided, however small they are."""

DEVICES = ("sample-float-fast", "sample-quant")


def mixed(shape: Sequence[int] = SHAPE, open_axis: int | None = None) -> NamedModel:
    """Return ABS, SQRT; QUANTIZE, RELU6, DEQUANTIZE; NEG; with two outputs.

    For `DEVICES` these are three partitions: sample-float-fast has the first and the
    last. With an ``open_axis``, the model does not say how long that is.
    """
    declared = tuple(0 if k == open_axis else n for k, n in enumerate(shape))
    real = hal.Operand(FLOATS, declared)
    stored = hal.Operand(BYTES, declared, scale=0.05, zero_point=3)
    builder = asyncnn.ModelBuilder()
    x = builder.input("x", FLOATS, declared)
    positive = builder.operation(OperationType.ABS, [x], real)
    root = builder.operation(OperationType.SQRT, [positive], real)
    small = builder.operation(OperationType.QUANTIZE, [root], stored)
    cut = builder.operation(OperationType.RELU6, [small], stored)
    wide = builder.operation(OperationType.DEQUANTIZE, [cut], real)
    builder.output(builder.operation(OperationType.NEG, [wide], real), "y")
    builder.output(root, "root")
    return builder.build()


def inputs(shape: Sequence[int] = SHAPE, seed: int = 0) -> dict[str, np.ndarray]:
    x = np.random.default_rng(seed).normal(0, 9, shape).astype(np.float32)
    return {"x": x}


async def expected(
    given: dict[str, np.ndarray], model: NamedModel | None = None
) -> dict[str, np.ndarray]:
    """Return what the reference device computes."""
    async with asyncnn.open_device() as device:
        prepared = await device.prepare(model or mixed())
        return dict(await prepared.run(given))


def assert_same(outputs: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert outputs.keys() == wanted.keys()
    for name, array in outputs.items():
        np.testing.assert_array_equal(array, wanted[name], name)
