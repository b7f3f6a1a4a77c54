"""What applications write, for type checkers: they find no fault and precise types.

`tests/typing/test_typical_uses.py` has them look at it, and runs it.
"""

import asyncio
from typing import Any, assert_type

import numpy as np
from numpy.typing import NDArray

import asyncnn
from asyncnn.execution import RunTiming
from asyncnn.pipeline import FrameResult, Pipeline, Stage

MODEL = asyncnn.bundled_file("digits_float.asyncnn")
IMAGE = np.zeros((1, 8, 8, 1), np.float32)


async def run(device: asyncnn.Device, model: asyncnn.NamedModel) -> None:
    prepared = await device.prepare(model, priority=asyncnn.Priority.HIGH, timeout=30)
    assert_type(prepared, asyncnn.PreparedModel)
    outputs = await prepared.run(IMAGE, timeout=1, measure=True)
    assert_type(outputs, asyncnn.Outputs)
    assert_type(outputs["probabilities"], NDArray[Any])
    assert_type(outputs[0], NDArray[Any])
    assert_type(outputs.timing, RunTiming | None)
    assert_type(outputs.route, asyncnn.Route | None)
    if outputs.timing is not None:
        assert_type(outputs.timing.on_device_ns, int | None)
    await prepared.run({"image": IMAGE}, path="sync")
    await prepared.run([IMAGE.tolist()], out=[None])
    info = prepared.inputs[0]
    assert_type(info, asyncnn.TensorInfo)
    assert_type(info.dtype, np.dtype[Any])
    if isinstance(info.type, asyncnn.OperandType):
        print(info.type.name.lower())


async def other_ways(prepared: asyncnn.PreparedModel) -> None:
    async with prepared.burst() as burst:
        assert_type(burst, asyncnn.Burst)
        burst.input(0)[...] = IMAGE
        assert_type(burst.output("probabilities"), NDArray[Any])
        assert_type(await burst.run_in_place(timeout=1), asyncnn.Outputs)
    awaited = await prepared.burst(spins=False)
    assert_type(awaited, asyncnn.Burst)
    await awaited.aclose()
    first = prepared.run_fenced(IMAGE, out=[asyncnn.shared_array((1, 10))])
    assert_type(first, asyncnn.FencedRun)
    second = prepared.run_fenced([IMAGE], wait_for=[first], duration=1)
    assert_type(await second, asyncnn.Outputs)
    reusable = prepared.reusable(path="async")
    assert_type(reusable, asyncnn.ReusableExecution)
    reusable.input("image")[...] = 1
    assert_type(await reusable.run(), asyncnn.Outputs)


async def sessions(device: asyncnn.Device) -> None:
    builder = asyncnn.ModelBuilder()
    floats = asyncnn.OperandType.TENSOR_FLOAT32
    x, total = builder.input("x", floats, (2,)), builder.state("total", floats, (2,))
    added, none = builder.temporary(floats, (2,)), builder.scalar(0)
    builder.operation(asyncnn.OperationType.ADD, [x, total, none], added)
    y = builder.temporary(floats, (2,))
    builder.operation(asyncnn.OperationType.FLOOR, [added], y)
    builder.output(y, "y")
    builder.next_state(total, added)
    prepared = await device.prepare(builder.build())
    async with prepared.session(state={"total": np.ones(2, np.float32)}) as session:
        assert_type(session, asyncnn.Session)
        assert_type(await session.run([[1, 2]]), asyncnn.Outputs)
        assert_type(await session.state(), dict[str, NDArray[Any]])
        async with session.copy() as copy:
            assert_type(copy, asyncnn.Session)
    async with Pipeline(Stage("add", prepared, keeps_state=True)) as pipeline:
        await pipeline.put([[1, 2]])
        pipeline.finish()
        async for result in pipeline:
            assert_type(result, FrameResult)
            assert_type(result["y"], NDArray[Any])


async def errors(device: asyncnn.Device, model: asyncnn.NamedModel) -> str:
    try:
        await (await device.prepare(model)).run(IMAGE, timeout=0)
    except asyncnn.MissedDeadlineError as error:
        assert_type(error.hint, str)
        late: TimeoutError = error
        return str(late)
    except asyncnn.InvalidArgumentError as error:
        wrong: ValueError = error
        return str(wrong)
    except asyncnn.AsyncnnError as error:
        assert_type(error.status, asyncnn.ErrorStatus)
        return error.message
    return "it was in time"


def arrays() -> None:
    assert_type(asyncnn.shared_array(4), NDArray[np.float32])
    assert_type(asyncnn.shared_array((1, 2), np.float32), NDArray[np.float32])
    assert_type(asyncnn.shared_array((1, 2), np.uint8), NDArray[np.uint8])
    assert_type(asyncnn.shared_array(3, np.dtype(np.int8)), NDArray[np.int8])
    assert_type(asyncnn.shared_array(3, "float16", isolated=True), NDArray[Any])


async def main() -> None:
    arrays()
    model = await asyncnn.load_model(MODEL, timeout=10)
    assert_type(model, asyncnn.NamedModel)
    assert_type(asyncnn.load(MODEL.read_bytes()), asyncnn.NamedModel)
    assert_type(asyncnn.open_device(), asyncnn.Opening[asyncnn.Device])
    device = await asyncnn.open_device("reference", settings=asyncnn.DeviceSettings())
    assert_type(device, asyncnn.Device)
    await run(device, model)
    await other_ways(await device.prepare(model))
    await sessions(device)
    print(await errors(device, model))
    await device.aclose()
    async with asyncnn.connect(supervised=True) as remote:
        assert_type(remote, asyncnn.Device)
        await run(remote, model)
        async with asyncnn.open_devices(remote, partition=1) as several:
            assert_type(several, asyncnn.Device)
            print(several.name, several.type.name)


if __name__ == "__main__":
    asyncio.run(main())
