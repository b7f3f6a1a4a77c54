"""Runs a model that no device but the CPU could run alone, on two devices."""

import asyncio

import numpy as np

import asyncnn
from asyncnn.hal.types import Operand, OperandType, OperationType

SHAPE = (512, 512)


def model():
    """Return EXP(NEG(FLOOR(SQRT(ABS(x))))); FLOOR is none of the device's."""
    floats = Operand(OperandType.TENSOR_FLOAT32, SHAPE)
    builder = asyncnn.ModelBuilder()
    value = builder.input("x", floats.type, SHAPE)
    for operation in ("ABS", "SQRT", "FLOOR", "NEG", "EXP"):
        value = builder.operation(OperationType[operation], [value], floats)
    builder.output(value, "y")
    return builder.build()


async def main():
    """Run it, check the result, and print which device has computed what."""
    x = np.random.default_rng(1).normal(0, 9, SHAPE).astype(np.float32)
    async with asyncnn.open_devices("unary") as device:
        prepared = await device.prepare(model())
        outputs = await prepared.run({"x": x})
    expected = np.exp(-np.floor(np.sqrt(np.abs(x))))
    np.testing.assert_allclose(outputs["y"], expected, rtol=1e-6)
    for step in outputs.route.steps:
        print(step)


asyncio.run(main())
