"""Devices in process and remote, and frames of four floats."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import numpy as np

from asyncnn.hal.types import FusedActivationFunc, Operand, OperationType
from asyncnn.pipeline import FrameResult
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.networks import F32
from tests.places import WAYS, device_at


def running_sum() -> NamedModel:
    """``total = before + x`` and ``y = total * 10``, of four floats."""
    builder = ModelBuilder()
    x, before = builder.input("x", F32, (4,)), builder.input("before", F32, (4,))
    none = builder.scalar(FusedActivationFunc.NONE)
    total = builder.operation(OperationType.ADD, [before, x, none], Operand(F32, (4,)))
    ten = builder.constant(np.full(1, 10, np.float32))
    y = builder.operation(OperationType.MUL, [total, ten, none], Operand(F32, (4,)))
    builder.output(y, "y")
    builder.output(total, "total")
    return builder.build()


device = device_at(*WAYS)


def frames(count: int) -> Iterator[dict[str, np.ndarray]]:
    for number in range(count):
        yield {"x": np.full(4, number, np.float32)}


async def slow_frames(count: int) -> AsyncIterator[dict[str, np.ndarray]]:
    for frame in frames(count):
        await asyncio.sleep(0)
        yield frame


async def collected(results: AsyncIterator[FrameResult]) -> list[FrameResult]:
    return [result async for result in results]


def values(results: list[FrameResult], name: str = "z") -> list[float]:
    return [float(result[name][0]) for result in results]
