"""Executions: what is bound to arrays runs on these, all else as it always did."""

import numpy as np
import pytest

import asyncnn
from asyncnn.execution import Execution, IInProcess
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.networks import addition, counting_up

X = np.arange(4, dtype=np.float32)


def aligned_apart() -> np.ndarray:
    """Return X where no float begins at a multiple of its size."""
    memory = np.empty(X.nbytes + 1, np.uint8)[1:]
    array = memory.view(np.float32)
    array[:] = X
    assert not array.flags.aligned
    return array


def flags_of(array: np.ndarray) -> tuple[bool, ...]:
    return array.flags.writeable, array.flags.aligned, array.flags.c_contiguous


def read_only() -> np.ndarray:
    array = X.copy()
    array.setflags(write=False)
    return array


INPUTS = {
    "plain": X.copy,
    "read-only": read_only,
    "unaligned": aligned_apart,
    "a view": lambda: np.stack([X, X])[1],
    "every second": lambda: np.repeat(X, 2)[::2],
    "shared": lambda: asyncnn.shared_array(X.shape, X.dtype),
    "a subclass": lambda: X.copy().view(np.recarray),
}


@pytest.fixture(params=["reference", "accelerated"])
def device_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
@pytest.mark.parametrize("kind", INPUTS)
async def test_any_memory_is_read_and_left_as_it_was(
    kind: str, path: str, device_name: str
) -> None:
    x = INPUTS[kind]()
    if kind == "shared":
        x[:] = X
    before = x.copy(), flags_of(x)
    async with asyncnn.open_device(device_name) as device:
        prepared = await device.prepare(addition(4))
        for _ in range(3):
            out = await prepared.run({"x": x, "y": X}, path=path)  # type: ignore[arg-type]
            np.testing.assert_array_equal(out["z"], 2 * X)
            assert out["z"].flags.writeable
    np.testing.assert_array_equal(x, before[0])
    assert flags_of(x) == before[1]


async def test_new_arrays_are_used_each_time(device_name: str) -> None:
    async with asyncnn.open_device(device_name) as device:
        prepared = await device.prepare(addition(4))
        first = await prepared.run([X, X])
        second = await prepared.run([X + 1, X])
    np.testing.assert_array_equal(first["z"], 2 * X)
    np.testing.assert_array_equal(second["z"], 2 * X + 1)


async def test_the_same_array_may_be_two_inputs(device_name: str) -> None:
    async with asyncnn.open_device(device_name) as device:
        prepared = await device.prepare(addition(4))
        x = X.copy()
        await prepared.run([x, x])
        np.testing.assert_array_equal((await prepared.run([x, x]))["z"], 2 * X)


def not_all() -> NamedModel:
    builder = ModelBuilder()
    x = builder.input("x", OperandType.TENSOR_BOOL8, (4,))
    truth = Operand(OperandType.TENSOR_BOOL8, (4,))
    builder.output(builder.operation(OperationType.LOGICAL_NOT, [x], truth), "z")
    return builder.build()


async def test_bytes_of_booleans_may_be_anything(device_name: str) -> None:
    odd = np.array([0, 1, 2, 255], np.uint8).view(np.bool_)
    async with asyncnn.open_device(device_name) as device:
        prepared = await device.prepare(not_all())
        for _ in range(3):
            z = (await prepared.run([odd]))["z"].view(np.uint8)
            assert z.tolist() == [1, 0, 0, 0]


class TestBinding:
    """What a device of this process binds, and what it does not."""

    async def bound(self, model: NamedModel, *tensors: object) -> object:
        async with asyncnn.open_device("reference") as device:
            prepared = await device.prepare(model)
            assert isinstance(prepared.hal, IInProcess)
            return prepared.hal.bind(tensors)

    async def test_is_of_arrays(self) -> None:
        x, z = X.copy(), X.copy()
        bound = await self.bound(addition(4), x, x, z)
        assert isinstance(bound, Execution)
        assert [array is x for array in bound.arrays] == [True, True, False]

    @pytest.mark.parametrize(
        "other",
        [None, object(), 3.0, aligned_apart(), X[:3], np.zeros(4, np.int32)],
    )
    async def test_is_of_nothing_else(self, other: object) -> None:
        assert await self.bound(addition(4), X, other, X.copy()) is None

    async def test_takes_no_loops_and_no_booleans(self) -> None:
        start = np.zeros(1, np.float32)
        assert await self.bound(counting_up(), start, start.copy()) is None
        truth = np.zeros(4, np.bool_)
        assert await self.bound(not_all(), truth, truth.copy()) is None
