"""Tensors that stay in the driver, as applications use them."""

import numpy as np
import pytest

import asyncnn
from asyncnn import Device, DeviceBuffer, NamedModel, OperandType, OperationType
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import FusedActivationFunc, Operand
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.prepared import PreparedModel
from tests.networks import F32, addition, chain
from tests.places import PLACES, device_at

X = np.array([1, 2, 3, 4], np.float32)


device = device_at(*PLACES)


def accumulating() -> NamedModel:
    """``total = h + x`` and ``y = 2 total``, both [4]; ``total`` is the next ``h``."""
    builder = ModelBuilder()
    x, h = builder.input("x", F32, (4,)), builder.input("h", F32, (4,))
    none = builder.scalar(FusedActivationFunc.NONE)
    shape = Operand(OperandType.TENSOR_FLOAT32, (4,))
    total = builder.operation(OperationType.ADD, [h, x, none], shape)
    y = builder.operation(OperationType.ADD, [total, total, none], shape)
    builder.output(y, "y")
    builder.output(total, "total")
    return builder.build()


async def two_states(
    device: Device, prepared: PreparedModel
) -> tuple[DeviceBuffer, DeviceBuffer]:
    now, following = [
        await device.buffer_for(prepared.output("total"), prepared.input("h"))
        for _ in range(2)
    ]
    await now.write(np.zeros(4, np.float32))
    return now, following


@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
async def test_state_stays_in_the_driver(device: Device, path: str) -> None:
    prepared = await device.prepare(accumulating())
    now, following = await two_states(device, prepared)
    for step in range(1, 20):
        outputs = await prepared.run(
            {"x": X, "h": now},
            out={"y": None, "total": following},
            path=path,  # type: ignore[arg-type]
        )
        assert list(outputs) == ["y"]
        np.testing.assert_array_equal(outputs["y"], 2 * step * X)
        now, following = following, now
    np.testing.assert_array_equal(await now.read(), 19 * X)


async def test_fenced_runs_hand_state_on(device: Device) -> None:
    prepared = await device.prepare(accumulating())
    now, following = await two_states(device, prepared)
    calls = [
        prepared.reusable([X, a], out={"y": None, "total": b})
        for a, b in ((now, following), (following, now))
    ]
    run = calls[0].run_fenced()
    for step in range(1, 20):
        run = calls[step % 2].run_fenced([run])
    outputs = await run
    assert list(outputs) == ["y"]
    np.testing.assert_array_equal(outputs["y"], 2 * 20 * X)


async def test_buffers_tie_models_together(device: Device) -> None:
    first, second = [await device.prepare(chain(n, 4)) for n in (1, 2)]
    between = await device.buffer_for(first.output(), second.input())
    await first.run([X], out=[between])
    outputs = await second.run([between])
    np.testing.assert_array_equal(outputs["z"], X + 3)


async def test_a_buffer_holds_what_was_written(device: Device) -> None:
    prepared = await device.prepare(chain(1, 4))
    buffer = await device.buffer_for(prepared.input("x"))
    for contents in (X, X[::-1], np.tile(X, 2)[::2]):
        await buffer.write(contents)
        np.testing.assert_array_equal(await buffer.read(), contents)


async def test_a_buffer_without_contents_cannot_be_read(device: Device) -> None:
    prepared = await device.prepare(chain(1, 4))
    buffer = await device.buffer_for(prepared.input())
    with pytest.raises(GeneralFailureError, match="it holds nothing yet"):
        await buffer.read()
    with pytest.raises(GeneralFailureError):
        await prepared.run([buffer])


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (X.astype(np.int32), "holds float32, not int32"),
        (X[:2], r"writing \[2\] to the buffer: axis 0 is 4"),
        (X[None], "rank 1 of .* differs from rank 2"),
    ],
)
async def test_contents_have_the_type_and_shape_of_the_buffer(
    device: Device, wrong: np.ndarray, told: str
) -> None:
    prepared = await device.prepare(chain(1, 4))
    buffer = await device.buffer_for(prepared.input())
    with pytest.raises(InvalidArgumentError, match=told):
        await buffer.write(wrong)


async def test_an_open_shape_is_that_of_the_contents(device: Device) -> None:
    prepared = await device.prepare(addition(0))
    buffer = await device.buffer_for(prepared.input("x"), prepared.output("z"))
    assert repr(buffer) == "<DeviceBuffer float32 [0]>"
    for count in (2, 4):
        await prepared.run([X[:count], X[:count]], out=[buffer])
        np.testing.assert_array_equal(await buffer.read((count,)), 2 * X[:count])
        outputs = await prepared.run([buffer, X[:count]])
        np.testing.assert_array_equal(outputs["z"], 3 * X[:count])
    with pytest.raises(InvalidArgumentError, match="say which shape"):
        await buffer.read()
    with pytest.raises(InvalidArgumentError):
        await buffer.read((3,))


async def test_dimensions_may_be_fixed_when_allocating(device: Device) -> None:
    prepared = await device.prepare(addition(0))
    buffer = await device.buffer_for(prepared.input("x"), dimensions=(4,))
    assert buffer.dimensions == (4,)
    await buffer.write(X)
    with pytest.raises(InvalidArgumentError):
        await buffer.write(X[:2])


async def test_what_does_not_go_together_has_no_buffer(device: Device) -> None:
    prepared = [await device.prepare(addition(n)) for n in (2, 4)]
    told = "for x, z: z: axis 0 is 2 in .* but 4"
    with pytest.raises(InvalidArgumentError, match=told):
        await device.buffer_for(prepared[0].input("x"), prepared[1].output("z"))
    with pytest.raises(InvalidArgumentError, match="is for inputs and outputs"):
        await device.buffer_for()
    async with asyncnn.open_device() as other:
        with pytest.raises(InvalidArgumentError, match="x is of another device"):
            await other.buffer_for(prepared[0].input("x"))


async def test_a_buffer_is_for_its_slots_only(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    buffer = await device.buffer_for(prepared.input("x"))
    await buffer.write(X)
    with pytest.raises(InvalidArgumentError):
        await prepared.run({"x": X, "y": buffer})
    with pytest.raises(InvalidArgumentError):
        await prepared.run({"x": X, "y": X}, out=[buffer])
    with pytest.raises(InvalidArgumentError, match="there is no input 'q'"):
        prepared.input("q")
    with pytest.raises(InvalidArgumentError, match="there is no output 1"):
        prepared.output(1)


async def test_bursts_take_no_buffers(device: Device) -> None:
    prepared = await device.prepare(chain(1, 4))
    buffer = await device.buffer_for(prepared.input())
    async with prepared.burst() as burst:
        with pytest.raises(InvalidArgumentError):
            await burst.run([buffer])  # type: ignore[list-item]


async def test_outputs_of_unknown_size_go_beside_buffers(device: Device) -> None:
    prepared = await device.prepare(addition(0))
    buffer = await device.buffer_for(prepared.input("x"))
    x = np.arange(5000, dtype=np.float32)
    await buffer.write(x)
    outputs = await prepared.run([buffer, x], out=[None])
    np.testing.assert_array_equal(outputs["z"], 2 * x)
