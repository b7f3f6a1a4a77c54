"""What ``asyncnn bench service`` measures: executions in a driver process."""

from collections.abc import Sequence

import numpy as np

from asyncnn.callbacks import ExecutionFuture, ExecutionResult
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    Operand,
    OperandType,
    OperationType,
    OutputShape,
)
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import wire
from asyncnn.tools.bench.addition import LENGTH, addition_request, tiny_addition
from asyncnn.tools.bench.echoes import Exchange
from asyncnn.tools.bench.rounds import Call
from asyncnn.tools.bench.service.peers import IMAGE_SHAPE, RESULT_SHAPE


def cutting_model() -> NamedModel:
    """Return the model that takes an image and cuts 1001 numbers out of it."""
    builder = ModelBuilder()
    kind = OperandType.TENSOR_FLOAT32
    image = builder.input("image", kind, IMAGE_SHAPE)
    begin = builder.constant(np.zeros(len(IMAGE_SHAPE), np.int32))
    size = builder.constant(np.array(RESULT_SHAPE, np.int32))
    result = builder.operation(
        OperationType.SLICE, [image, begin, size], Operand(kind, RESULT_SHAPE)
    )
    builder.output(result, "result")
    return builder.build()


async def execute_call(device: Device) -> Call:
    """Return the execution of a ready request whose arrays are shared, at the HAL."""
    prepared = await device.prepare(tiny_addition())
    request = addition_request(prepared)

    async def call() -> ExecutionResult:
        callback = ExecutionFuture()
        prepared.hal.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        return await callback

    return call


async def run_call(device: Device) -> Call:
    """Return the run of the same model on arrays of this process, copied both ways."""
    prepared = await device.prepare(tiny_addition())
    inputs = np.arange(2 * LENGTH, dtype=np.float32).reshape(2, LENGTH)
    x, y = inputs
    return lambda: prepared.run([x, y])


async def image_call(device: Device, image: Array, *, in_place: bool) -> Call:
    """Return the run of `cutting_model`, ``in_place`` on shared arrays or by copies."""
    prepared = await device.prepare(cutting_model())
    if not in_place:
        return lambda: _result(prepared, [image], None)
    shared, result = shared_array(IMAGE_SHAPE), shared_array(RESULT_SHAPE)
    shared[:] = image
    return lambda: _result(prepared, [shared], result)


async def _result(
    prepared: PreparedModel, inputs: Sequence[Array], out: Array | None
) -> Array:
    outputs = await prepared.run(inputs, out=out)
    return outputs["result"]


def exchanged_bytes() -> Exchange:
    """Return how many bytes such an execution sends and receives over the socket."""
    # Numbers of an ordinary size; the first few take a byte less.
    execute = wire.ExecuteBound(
        execution=1000,
        bound=1,
        measure=MeasureTiming.NO,
        deadline=None,
        loop_timeout=None,
    )
    shapes = (OutputShape((LENGTH,), True),)
    executed = wire.Executed(1000, ErrorStatus.NONE, shapes, NO_TIMING, "")
    kind_bytes = 1
    return Exchange(
        kind_bytes + len(wire.encode(execute)), kind_bytes + len(wire.encode(executed))
    )
