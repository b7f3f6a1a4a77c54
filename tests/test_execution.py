"""Executions: what is bound to arrays runs on these, all else as it always did."""

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.callbacks import ExecutionFuture, IExecutionCallback
from asyncnn.devices.prepared import InProcessPreparedModel
from asyncnn.execution import Execution, IInProcess, reusable
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    ExecutionOptions,
    FusedActivationFunc,
    MeasureTiming,
    Operand,
    OperandType,
    OperationType,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.networks import addition, counting_up

X = np.arange(4, dtype=np.float32)
UNMEASURED = (MeasureTiming.NO, None, None)


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
        "other", [None, object(), 3.0, aligned_apart(), X[:3], np.zeros(4, np.int32)]
    )
    async def test_is_of_nothing_else(self, other: object) -> None:
        assert await self.bound(addition(4), X, other, X.copy()) is None

    async def test_takes_no_loops_and_no_booleans(self) -> None:
        start = np.zeros(1, np.float32)
        assert await self.bound(counting_up(), start, start.copy()) is None
        truth = np.zeros(4, np.bool_)
        assert await self.bound(not_all(), truth, truth.copy()) is None


class TestReusing:
    """What is checked and bound once, and executed again and again."""

    @pytest.fixture
    async def device(self, device_name: str) -> AsyncIterator[asyncnn.Device]:
        async with asyncnn.open_device(device_name) as device:
            yield device

    def request(self, *arrays: np.ndarray, dimensions: tuple[int, ...] = ()) -> Request:
        pools = tuple(map(from_buffer, arrays))
        arguments = [
            RequestArgument(False, DataLocation(index, 0, array.nbytes), dimensions)
            for index, array in enumerate(arrays)
        ]
        return Request(tuple(arguments[:-1]), tuple(arguments[-1:]), pools)

    async def run(self, prepared: object, request: Request, way: str) -> ErrorStatus:
        assert isinstance(prepared, InProcessPreparedModel)
        if way == "fenced":
            launched = prepared.execute_fenced(request, (), *UNMEASURED, None)
            status, fence, outcome = launched
            if outcome is None:
                return status
            if fence is not None:
                await fence
            return outcome.get_execution_info()[0]
        callback = ExecutionFuture()
        if way == "threadsafe":
            done = asyncio.get_running_loop().create_future()
            told = Told(done)
            await asyncio.to_thread(
                prepared.execute_threadsafe, request, *UNMEASURED, told
            )
            return await done
        if way == "launch":
            return (await prepared.launch(request, ExecutionOptions())).status
        prepared.execute_1_3(request, *UNMEASURED, callback)
        return (await callback).status

    WAYS = ("callback", "launch", "fenced", "threadsafe")

    @pytest.mark.parametrize("way", WAYS)
    async def test_reads_what_lies_there_each_time(
        self, device: asyncnn.Device, way: str
    ) -> None:
        hal = (await device.prepare(addition(4))).hal
        x, y, z = X.copy(), X.copy(), np.zeros_like(X)
        execution = reusable(hal, self.request(x, y, z))
        assert isinstance(execution, Execution)
        assert execution.arrays is not None
        for step in range(4):
            x[:] = X + step
            assert await self.run(hal, execution, way) is ErrorStatus.NONE
            np.testing.assert_array_equal(z, 2 * X + step)

    @pytest.mark.parametrize("way", WAYS)
    async def test_of_another_model_is_a_request_as_any(
        self, device: asyncnn.Device, way: str
    ) -> None:
        added = (await device.prepare(addition(4))).hal
        doubled = (await device.prepare(multiplication(4))).hal
        x, y, z = X.copy(), X + 1, np.zeros_like(X)
        execution = reusable(added, self.request(x, y, z))
        for _ in range(2):
            assert await self.run(doubled, execution, way) is ErrorStatus.NONE
            np.testing.assert_array_equal(z, X * (X + 1))
            assert await self.run(added, execution, way) is ErrorStatus.NONE
            np.testing.assert_array_equal(z, 2 * X + 1)

    async def test_of_what_breaks_a_rule_is_refused(
        self, device: asyncnn.Device
    ) -> None:
        hal = (await device.prepare(addition(4))).hal
        for wrong in (self.request(X, X), self.request(X, X[:2], X.copy())):
            with pytest.raises(InvalidArgumentError):
                reusable(hal, wrong)

    async def test_with_open_shapes_is_run_as_it_is(
        self, device: asyncnn.Device
    ) -> None:
        hal = (await device.prepare(addition(0))).hal
        z = np.zeros_like(X)
        execution = reusable(hal, self.request(X, X, z, dimensions=(4,)))
        for way in ("callback", "launch", "threadsafe"):
            z[:] = 0
            assert await self.run(hal, execution, way) is ErrorStatus.NONE
            np.testing.assert_array_equal(z, 2 * X)

    async def test_with_open_outputs_is_not_run_fenced(
        self, device: asyncnn.Device
    ) -> None:
        hal = (await device.prepare(addition(0))).hal
        asked = self.request(X, X, X.copy(), dimensions=(4,))
        outputs = (RequestArgument(False, asked.outputs[0].location, ()),)
        execution = reusable(hal, replace(asked, outputs=outputs))
        assert await self.run(hal, execution, "fenced") is ErrorStatus.INVALID_ARGUMENT
        assert await self.run(hal, execution, "callback") is ErrorStatus.NONE

    async def test_packets_of_two_requests_take_turns(
        self, device: asyncnn.Device
    ) -> None:
        prepared = await device.prepare(addition(4))
        async with prepared.burst() as burst:
            executions = burst.reusable(), burst.reusable()
            for step in range(6):
                execution = executions[step % 2]
                for which in range(2):
                    execution.input(which)[:] = X + step
                outputs = await execution.run()
                np.testing.assert_array_equal(outputs["z"], 2 * (X + step))


class Told(IExecutionCallback):
    """Sets a future on its loop."""

    def __init__(self, done: "asyncio.Future[ErrorStatus]") -> None:
        super().__init__()
        self._done = done

    def notify_1_3(self, status: ErrorStatus, *_: object) -> None:
        self._done.get_loop().call_soon_threadsafe(self._done.set_result, status)


def multiplication(*dimensions: int) -> NamedModel:
    builder = ModelBuilder()
    kind = Operand(OperandType.TENSOR_FLOAT32, dimensions)
    x = builder.input("x", kind.type, dimensions)
    y = builder.input("y", kind.type, dimensions)
    none = builder.scalar(FusedActivationFunc.NONE)
    builder.output(builder.operation(OperationType.MUL, [x, y, none], kind), "z")
    return builder.build()
