import asyncio
import gc
import time
import weakref

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import IExecutionCallback, PreparedModelFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.extensions.regions import region_of
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    Memory,
    Operand,
    OperationType,
    OutputShape,
    Request,
    RequestArgument,
    Timing,
)
from asyncnn.memory.pools import from_buffer, view
from asyncnn.memory.shared import allocate
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.devices.conftest import Caller
from tests.memory.foreign import sent
from tests.networks import F32, FOREVER, addition, chain, counting_up
from tests.preparing import launch_preparation
from tests.waits import until

NO, YES = MeasureTiming.NO, MeasureTiming.YES


async def prepare(device: IDevice, model: NamedModel) -> IPreparedModel:
    callback = PreparedModelFuture()
    status = launch_preparation(device, model.model, callback)
    assert status is ErrorStatus.NONE
    return await callback


def request_for(
    inputs: list[np.ndarray],
    outputs: list[np.ndarray],
    *,
    dimensions: tuple[int, ...] = (),
    length: int | None = None,
) -> Request:
    pools = tuple(from_buffer(array) for array in [*inputs, *outputs])

    def argument(index: int, size: int, given: tuple[int, ...]) -> RequestArgument:
        return RequestArgument(False, DataLocation(index, 0, size), given)

    return Request(
        tuple(argument(i, a.nbytes, dimensions) for i, a in enumerate(inputs)),
        tuple(
            argument(len(inputs) + i, a.nbytes if length is None else length, ())
            for i, a in enumerate(outputs)
        ),
        pools,
    )


X = np.array([1, 2, 3, 4], np.float32)
Y = np.array([10, 20, 30, 40], np.float32)


async def test_results_are_written_into_the_request(
    device: IDevice, execute: Caller
) -> None:
    prepared = await prepare(device, addition(4))
    for _ in range(8):  # some on the lane, some inline
        z = np.empty(4, np.float32)
        result = await execute(prepared, request_for([X, Y], [z]))
        assert result.status is ErrorStatus.NONE
        assert result.timing == NO_TIMING
        np.testing.assert_array_equal(z, X + Y)


async def test_arguments_lie_anywhere_in_a_pool(
    device: IDevice, execute: Caller
) -> None:
    prepared = await prepare(device, addition(4))
    pool = bytearray(64)
    pool[1:17] = X.tobytes()
    pool[17:33] = Y.tobytes()
    places = [RequestArgument(False, DataLocation(0, at, 16)) for at in (1, 17, 33)]
    request = Request(tuple(places[:2]), (places[2],), (from_buffer(pool),))
    result = await execute(prepared, request)
    assert result.status is ErrorStatus.NONE
    np.testing.assert_array_equal(np.frombuffer(pool, np.float32, 4, 33), X + Y)
    assert pool[0] == 0
    assert not any(pool[49:])


async def test_timing_is_reported_if_asked_for(
    device: IDevice, execute: Caller
) -> None:
    prepared = await prepare(device, chain(5, 64, 64))
    x = np.zeros((64, 64), np.float32)
    request = request_for([x], [np.empty_like(x)])
    timing = (await execute(prepared, request, YES)).timing
    assert 0 < timing.time_on_device <= timing.time_in_driver < UINT64_MAX


async def test_unknown_dimensions_come_with_the_request(
    device: IDevice, execute: Caller
) -> None:
    prepared = await prepare(device, addition(0, 2))
    for rows in (3, 1, 5, 3):
        x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        z = np.empty_like(x)
        result = await execute(prepared, request_for([x, x], [z], dimensions=x.shape))
        assert result.output_shapes == (OutputShape((rows, 2), True),)
        np.testing.assert_array_equal(z, 2 * x)


@pytest.mark.parametrize("open_axis", [False, True])
async def test_a_short_output_is_insufficient_and_its_shape_is_reported(
    device: IDevice, execute: Caller, open_axis: bool
) -> None:
    prepared = await prepare(device, addition(0 if open_axis else 2, 2))
    x = np.ones((2, 2), np.float32)
    request = request_for(
        [x, x], [np.empty(4, np.float32)], dimensions=(2, 2), length=15
    )
    result = await execute(prepared, request, YES)
    assert result.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
    assert result.output_shapes == (OutputShape((2, 2), False),)
    assert result.timing == NO_TIMING


async def test_beside_a_short_output_all_others_have_their_shapes(
    device: IDevice, execute: Caller
) -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (0, 2))
    for name in ("short", "y", "z"):
        result = Operand(F32, (0, 2))
        builder.output(builder.operation(OperationType.FLOOR, [x], result), name)
    prepared = await prepare(device, builder.build())
    pool = from_buffer(bytearray(128))
    place = [(0, 24), (24, 23), (48, 24), (72, 40)]
    x_argument, *others = (
        RequestArgument(False, DataLocation(0, *each), (3, 2) if not each[0] else ())
        for each in place
    )
    result = await execute(prepared, Request((x_argument,), tuple(others), (pool,)))
    assert result.status is ErrorStatus.OUTPUT_INSUFFICIENT_SIZE
    assert result.output_shapes == (
        OutputShape((3, 2), False),
        OutputShape((3, 2), True),
        OutputShape((3, 2), True),
    )


@pytest.mark.parametrize("at", [0, 8, 32], ids=["in place", "across", "on an output"])
async def test_outputs_over_other_arguments_write_nothing_else(
    device: IDevice, execute: Caller, at: int
) -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (4,))
    for name in ("y", "z"):
        result = Operand(F32, (4,))
        builder.output(builder.operation(OperationType.FLOOR, [x], result), name)
    prepared = await prepare(device, builder.build())
    pool = bytearray(b"\xaa" * 64)
    pool[:16] = X.tobytes()
    x_argument, y, z = (
        RequestArgument(False, DataLocation(0, offset, 16)) for offset in (0, 32, at)
    )
    request = Request((x_argument,), (y, z), (from_buffer(pool),))
    result = await execute(prepared, request)
    assert result.status in (ErrorStatus.NONE, ErrorStatus.INVALID_ARGUMENT)
    written = {*range(16), *range(32, 48), *range(at, at + 16)}
    assert all(pool[place] == 0xAA for place in range(64) if place not in written)


async def test_constants_stay_when_the_client_lets_go_of_them(
    device: IDevice, execute: Caller
) -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (64,))
    weights = np.arange(64, dtype=np.float32)
    inputs = [x, builder.constant(weights), builder.scalar(0)]
    z = builder.operation(OperationType.ADD, inputs, Operand(F32, (64,)))
    builder.output(z, "z")
    named = builder.build()
    (large,) = named.model.pools
    pool = allocate(large.size)
    view(pool)[:] = view(large)
    model = replace(named.model, pools=(sent(pool),))
    prepared = await prepare(device, NamedModel(model, named.inputs, named.outputs))
    del pool, model, large, named, builder, inputs, x, z
    gc.collect()
    z = np.empty(64, np.float32)
    result = await execute(prepared, request_for([weights], [z]))
    assert result.status is ErrorStatus.NONE
    np.testing.assert_array_equal(z, 2 * weights)


async def test_an_output_longer_than_needed_is_accepted(
    device: IDevice, execute: Caller
) -> None:
    prepared = await prepare(device, addition(4))
    z = np.zeros(8, np.float32)
    result = await execute(prepared, request_for([X, Y], [z]))
    assert result.status is ErrorStatus.NONE
    np.testing.assert_array_equal(z, [11, 22, 33, 44, 0, 0, 0, 0])


async def test_a_read_only_pool_cannot_take_an_output(
    device: IDevice, execute: Caller
) -> None:
    prepared = await prepare(device, addition(4))
    z = np.zeros(4, np.float32)
    z.flags.writeable = False
    result = await execute(prepared, request_for([X, Y], [z]))
    assert result.status is ErrorStatus.INVALID_ARGUMENT
    assert not z.any()


class Recorder(IExecutionCallback):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[ErrorStatus, tuple[OutputShape, ...], Timing]] = []
        self.told = asyncio.Event()

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self.seen.append((status, output_shapes, timing))
        self.told.set()


class TestLaunch:
    async def test_a_null_callback_is_refused_without_notification(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        request = request_for([X, Y], [np.empty(4, np.float32)])
        status = prepared.execute_1_3(request, NO, None, None, None)
        assert status is ErrorStatus.INVALID_ARGUMENT

    @pytest.mark.parametrize("measure", [NO, YES])
    async def test_a_malformed_request_has_notified_when_the_call_returns(
        self, device: IDevice, measure: MeasureTiming
    ) -> None:
        prepared = await prepare(device, addition(4))
        callback = Recorder()
        request = request_for([X], [np.empty(4, np.float32)])
        status = prepared.execute_1_3(request, measure, None, None, callback)
        assert status is ErrorStatus.INVALID_ARGUMENT
        assert callback.seen == [(ErrorStatus.INVALID_ARGUMENT, (), NO_TIMING)]
        assert "inputs" in callback.reason

    async def test_a_measure_that_is_no_enumerator_is_invalid(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        callback = Recorder()
        request = request_for([X, Y], [np.empty(4, np.float32)])
        status = prepared.execute_1_3(request, 7, None, None, callback)  # type: ignore[arg-type]
        assert status is ErrorStatus.INVALID_ARGUMENT
        assert len(callback.seen) == 1

    async def test_success_is_notified_after_the_call_and_once(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        for _ in range(6):
            callback = Recorder()
            request = request_for([X, Y], [np.empty(4, np.float32)])
            status = prepared.execute_1_3(request, NO, None, None, callback)
            assert status is ErrorStatus.NONE
            assert not callback.seen
            await asyncio.wait_for(callback.told.wait(), 20)
            await asyncio.sleep(0.002)
            assert [status for status, _, _ in callback.seen] == [ErrorStatus.NONE]


class TestDeadline:
    async def test_a_passed_deadline_is_an_outcome_not_a_launch_error(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, addition(4))
        callback = Recorder()
        request = request_for([X, Y], [np.empty(4, np.float32)])
        now = time.monotonic_ns()
        status = prepared.execute_1_3(request, YES, now, None, callback)
        assert status is ErrorStatus.NONE
        await asyncio.wait_for(callback.told.wait(), 20)
        assert callback.seen == [
            (ErrorStatus.MISSED_DEADLINE_PERSISTENT, (), NO_TIMING)
        ]

    @pytest.mark.parametrize("deadline", [2**63 - 1, UINT64_MAX])
    async def test_the_far_future_is_no_deadline(
        self, device: IDevice, execute: Caller, deadline: int
    ) -> None:
        prepared = await prepare(device, addition(4))
        z = np.empty(4, np.float32)
        result = await execute(prepared, request_for([X, Y], [z]), deadline=deadline)
        assert result.status is ErrorStatus.NONE

    async def test_a_deadline_during_the_run_aborts_at_the_next_operation(
        self, device: IDevice, execute: Caller
    ) -> None:
        prepared = await prepare(device, counting_up())
        soon = time.monotonic_ns() + 1_000_000
        request = request_for([FOREVER], [np.empty_like(FOREVER)])
        result = await execute(prepared, request, YES, soon)
        # On a busy machine it may have passed before the request reached the driver.
        assert result.status in (
            ErrorStatus.MISSED_DEADLINE_TRANSIENT,
            ErrorStatus.MISSED_DEADLINE_PERSISTENT,
        )
        assert result.output_shapes == ()
        assert result.timing == NO_TIMING

    async def test_a_loop_without_end_ends_at_its_timeout(
        self, device: IDevice, execute: Caller
    ) -> None:
        named = counting_up()
        if region_of(named.model) is not None:
            pytest.skip("there is no WHILE: loops of a region are its engine's")
        prepared = await prepare(device, named)
        request = request_for([FOREVER], [np.empty_like(FOREVER)])
        result = await execute(prepared, request, YES, loop_timeout=1_000_000)
        assert result.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
        assert result.output_shapes == ()
        assert result.timing == NO_TIMING


async def test_a_pool_that_cannot_be_mapped_is_a_failure(
    device: IDevice, execute: Caller
) -> None:
    prepared = await prepare(device, addition(4))
    good = request_for([X, Y], [np.empty(4, np.float32)])
    broken = Request(
        good.inputs, good.outputs, (Memory("hardware_buffer_blob", 16), *good.pools[1:])
    )
    result = await execute(prepared, broken)
    assert result.status in (ErrorStatus.INVALID_ARGUMENT, ErrorStatus.GENERAL_FAILURE)


async def test_an_unaligned_input_gives_the_very_same_result(
    device: IDevice, execute: Caller
) -> None:
    builder = ModelBuilder()
    x = builder.input("x", F32, (4, 32))
    weights = np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32)
    y = builder.operation(
        OperationType.FULLY_CONNECTED,
        [
            x,
            builder.constant(weights),
            builder.constant(np.zeros(16, np.float32)),
            builder.scalar(0),
        ],
        Operand(F32, (4, 16)),
    )
    builder.output(y, "y")
    prepared = await prepare(device, builder.build())
    data = np.random.default_rng(1).normal(size=(4, 32)).astype(np.float32)
    results = []
    for offset in (0, 1):
        pool = bytearray(data.nbytes + 1)
        pool[offset : offset + data.nbytes] = data.tobytes()
        result = np.empty((4, 16), np.float32)
        request = Request(
            (RequestArgument(False, DataLocation(0, offset, data.nbytes)),),
            (RequestArgument(False, DataLocation(1, 0, result.nbytes)),),
            (from_buffer(pool), from_buffer(result)),
        )
        assert (await execute(prepared, request)).status is ErrorStatus.NONE
        results.append(result)
    np.testing.assert_array_equal(*results)


async def test_an_aborted_execution_lets_go_of_its_pools_at_once() -> None:
    async with ReferenceDevice(DeviceSettings(inline_below_us=0)) as device:
        prepared = await prepare(device, counting_up())
        request = request_for([FOREVER], [np.empty_like(FOREVER)])
        pools = [weakref.ref(pool) for pool in request.pools]
        callback = Recorder()
        gc.collect()
        gc.disable()
        try:
            prepared.execute_1_3(request, NO, None, None, callback)
            await asyncio.sleep(0.005)
            callback.die()
            await asyncio.wait_for(callback.told.wait(), 20)
            assert callback.seen[0][0] is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            del request
            await until(lambda: [pool() for pool in pools] == [None, None])
        finally:
            gc.enable()
