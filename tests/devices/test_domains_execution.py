"""Device-managed buffers in executions: rows ME1 to ME7, failures, and company."""

import asyncio
import gc
from itertools import pairwise

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.fences import SyncFence
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    BufferToken,
    ErrorStatus,
    MeasureTiming,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from tests.devices.domains import (
    F32,
    FAILURE,
    INVALID,
    KINDS,
    NONE,
    PATHS,
    Q8,
    SHAPE,
    Argument,
    Buffer,
    Given,
    Kind,
    additions,
    allocated,
    convolutions,
    convolved,
    execute,
    request,
    role,
)
from tests.devices.fencing import Launched
from tests.devices.test_execution import prepare
from tests.networks import addition, chain, picking

ZERO = np.array(0, np.int32)


@pytest.fixture(params=PATHS)
def path(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=KINDS, ids=lambda kind: kind.type.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


async def both_ways(device: IDevice, prepared: IPreparedModel) -> Buffer:
    """A buffer for the first input and the first output."""
    return await allocated(device, [prepared], [role()], [role()])


class TestRules:
    @pytest.mark.parametrize("token", [0, 100])
    async def test_an_unknown_token_is_refused(
        self, device: IDevice, kind: Kind, path: str, token: int
    ) -> None:
        prepared = await prepare(device, convolutions(kind))
        x, pool = kind.data(1), BufferToken(token)
        assert await execute(path, prepared, [pool], [x.copy()]) is INVALID
        assert await execute(path, prepared, [x], [pool]) is INVALID

    async def test_an_unknown_token_is_refused_even_if_nothing_uses_it(
        self, device: IDevice, path: str
    ) -> None:
        prepared = await prepare(device, addition(4))
        x = np.ones(4, np.float32)
        asked = request([x, x], [x.copy()])
        asked = type(asked)(
            asked.inputs, asked.outputs, (*asked.pools, BufferToken(100))
        )
        status, _, _ = await prepared.execute_synchronously_1_3(
            asked, MeasureTiming.NO, None, None
        )
        assert status is INVALID

    async def test_a_buffer_of_another_model_is_refused(
        self, device: IDevice, kind: Kind, path: str
    ) -> None:
        model = convolutions(kind)
        prepared, other = await prepare(device, model), await prepare(device, model)
        buffer, x = await both_ways(device, prepared), kind.data(1)
        assert await buffer.fill(x) is NONE
        assert await execute(path, other, [buffer], [x.copy()]) is INVALID
        assert await execute(path, other, [x], [buffer]) is INVALID

    async def test_a_buffer_of_another_argument_is_refused(
        self, device: IDevice, kind: Kind, path: str
    ) -> None:
        prepared = await prepare(device, convolutions(kind, 2))
        buffer, x = await both_ways(device, prepared), kind.data(1)
        assert await buffer.fill(x) is NONE
        y = [x.copy(), x.copy()]
        assert await execute(path, prepared, [x, buffer], y) is INVALID
        assert await execute(path, prepared, [x, x], [y[0], buffer]) is INVALID

    async def test_a_buffer_of_another_direction_is_refused(
        self, device: IDevice, kind: Kind, path: str
    ) -> None:
        prepared, x = await prepare(device, convolutions(kind)), kind.data(1)
        source = await allocated(device, [prepared], inputs=[role()])
        target = await allocated(device, [prepared], outputs=[role()])
        assert await execute(path, prepared, [x], [source]) is INVALID
        assert await execute(path, prepared, [x], [target]) is NONE
        assert await execute(path, prepared, [target], [x.copy()]) is INVALID

    async def test_a_buffer_is_uninitialised_until_it_was_an_output(
        self, device: IDevice, kind: Kind, path: str
    ) -> None:
        prepared, x = await prepare(device, convolutions(kind)), kind.data(1)
        buffer, y = await both_ways(device, prepared), np.zeros_like(x)
        assert await execute(path, prepared, [buffer], [y]) is FAILURE
        assert await execute(path, prepared, [x], [buffer]) is NONE
        assert await execute(path, prepared, [buffer], [y]) is NONE
        np.testing.assert_array_equal(y, convolved(convolved(x)))
        np.testing.assert_array_equal(await buffer.contents(x), convolved(x))

    async def test_an_output_shares_its_buffer_with_nothing(
        self, device: IDevice, kind: Kind, path: str
    ) -> None:
        prepared = await prepare(device, convolutions(kind, 2))
        roles = [role(index=0), role(index=1)]
        buffer = await allocated(device, [prepared], roles, roles)
        x = kind.data(1)
        y = [x.copy(), x.copy()]
        assert await buffer.fill(x) is NONE
        assert await execute(path, prepared, [buffer, x], [buffer, y[1]]) is INVALID
        assert await execute(path, prepared, [x, x], [buffer, buffer]) is INVALID
        assert await buffer.fill(x) is NONE
        assert await execute(path, prepared, [buffer, buffer], y) is NONE
        np.testing.assert_array_equal(y, [convolved(x)] * 2)

    @pytest.mark.parametrize("path", ["async", "sync"])
    async def test_dimensions_are_those_of_the_buffer(
        self, device: IDevice, kind: Kind, path: str
    ) -> None:
        wide = (2, *SHAPE[1:])
        prepared = await prepare(device, additions(kind, (0, *SHAPE[1:])))
        buffer = await allocated(device, [prepared], [role()], [role()], SHAPE)
        x, both = kind.data(1), kind.data(2, wide)
        assert await buffer.fill(x) is NONE

        async def run(inputs: list[Given], output: Given) -> ErrorStatus:
            return await execute(path, prepared, [*inputs, ZERO], [output])

        given = Argument(both, wide)
        assert await run([Argument(buffer, wide), given], given) is INVALID
        assert await run([given, given], Argument(buffer, wide)) is INVALID
        assert await run([given, given], buffer) is FAILURE
        assert await buffer.read(x.nbytes) is FAILURE  # as it failed as an output

    @pytest.mark.parametrize("where", [(4, 0), (0, 4)])
    async def test_a_buffer_is_used_as_a_whole(
        self, device: IDevice, path: str, where: tuple[int, int]
    ) -> None:
        prepared = await prepare(device, chain(1, 4))
        buffer = await both_ways(device, prepared)
        asked = request([np.ones(4, np.float32)], [buffer])
        output = asked.outputs[0]
        location = type(output.location)(output.location.pool_index, *where)
        broken = type(output)(False, location)
        status, _, _ = await prepared.execute_synchronously_1_3(
            type(asked)(asked.inputs, (broken,), asked.pools),
            MeasureTiming.NO,
            None,
            None,
        )
        assert status is INVALID


async def test_scalars_come_out_of_buffers(device: IDevice, path: str) -> None:
    prepared, x = await prepare(device, additions(F32)), F32.data(1)
    relu1 = await allocated(device, [prepared], [role(index=2)])
    assert await relu1.fill(np.array(2, np.int32)) is NONE
    z = np.zeros_like(x)
    assert await execute(path, prepared, [x, x, relu1], [z]) is NONE
    np.testing.assert_array_equal(z, np.clip(2 * x, -1, 1))


async def test_state_goes_from_buffer_to_buffer(device: IDevice, path: str) -> None:
    prepared = await prepare(device, chain(1, 4))
    now, following = [await both_ways(device, prepared) for _ in range(2)]
    x = np.zeros(4, np.float32)
    assert await now.fill(x) is NONE
    for _ in range(50):
        assert await execute(path, prepared, [now], [following]) is NONE
        now, following = following, now
    np.testing.assert_array_equal(await now.contents(x), x + 50)


async def test_two_models_share_a_buffer(device: IDevice, path: str) -> None:
    first = await prepare(device, convolutions(Q8))
    second = await prepare(device, additions(Q8))
    x, z = Q8.data(1), np.zeros_like(Q8.data(1))
    buffer = await allocated(device, [first, second], [role(1)], [role(0)])
    assert await execute(path, first, [x], [buffer]) is NONE
    assert await execute(path, second, [buffer, x, ZERO], [z]) is NONE
    np.testing.assert_array_equal(z, convolved(x) + x)


class TestOpenShapes:
    @pytest.mark.parametrize("path", ["async", "sync"])
    async def test_an_output_brings_its_shape_along(
        self, device: IDevice, path: str
    ) -> None:
        prepared = await prepare(device, additions(F32, (0, *SHAPE[1:])))
        buffer = await both_ways(device, prepared)
        for count in (1, 3, 2):
            x = F32.data(count, (count, *SHAPE[1:]))
            given, z = Argument(x, x.shape), np.zeros_like(x)
            inputs = [given, given, ZERO]
            assert await execute(path, prepared, inputs, [buffer]) is NONE
            np.testing.assert_array_equal(await buffer.contents(x), 2 * x)
            inputs = [buffer, given, ZERO]
            assert await execute(path, prepared, inputs, [z]) is NONE
            np.testing.assert_array_equal(z, 3 * x)

    @pytest.mark.parametrize("path", ["async", "sync"])
    async def test_an_unknown_rank_is_that_of_the_contents(
        self, device: IDevice, path: str
    ) -> None:
        prepared = await prepare(device, addition())
        buffer = await both_ways(device, prepared)
        for shape in ((4,), (2, 3)):
            x = F32.data(1, shape)
            given = Argument(x, shape)
            assert await execute(path, prepared, [given, given], [buffer]) is NONE
            z = np.zeros_like(x)
            assert await execute(path, prepared, [buffer, given], [z]) is NONE
            np.testing.assert_array_equal(z, 3 * x)

    @pytest.mark.parametrize("path", ["async", "sync"])
    async def test_a_shape_that_only_execution_shows_is_taken(
        self, device: IDevice, path: str
    ) -> None:
        prepared = await prepare(device, ranges())
        buffer = await allocated(device, [prepared], outputs=[role()])
        for count in (3, 0, 7):
            end = np.array([count], np.int32)
            assert await execute(path, prepared, [end], [buffer]) is NONE
            expected = np.zeros(count, np.float32)
            np.testing.assert_array_equal(await buffer.contents(expected), expected)

    async def test_memory_that_is_not_to_be_had_fails_the_execution(self) -> None:
        async with ReferenceDevice(DeviceSettings(max_buffer_bytes=100)) as device:
            prepared = await prepare(device, addition(0))
            buffer = await both_ways(device, prepared)
            statuses = []
            for count in (25, 26):
                given = Argument(np.ones(count, np.float32), (count,))
                inputs = [given, given]
                statuses.append(await execute("sync", prepared, inputs, [buffer]))
            exhausted = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
            assert statuses == [NONE, exhausted]


def ranges() -> NamedModel:
    """Zeros, as many as the only element of the input says."""
    builder = ModelBuilder()
    shape = builder.input("shape", OperandType.TENSOR_INT32, (1,))
    zeros = builder.operation(
        OperationType.FILL,
        [shape, builder.scalar(0.0)],
        Operand(OperandType.TENSOR_FLOAT32, (0,)),
    )
    builder.output(zeros, "zeros")
    return builder.build()


class TestFailures:
    async def test_a_failed_execution_leaves_its_output_uninitialised(
        self, device: IDevice, path: str
    ) -> None:
        prepared = await prepare(device, picking(4))
        buffer = await allocated(device, [prepared], outputs=[role()])
        x, index = np.arange(4, dtype=np.float32), np.arange(4, dtype=np.int32)
        assert await execute(path, prepared, [x, index], [buffer]) is NONE
        assert await buffer.read(x.nbytes) is NONE
        assert await execute(path, prepared, [x, index + 1], [buffer]) is FAILURE
        assert await buffer.read(x.nbytes) is FAILURE
        assert await execute(path, prepared, [x, index], [buffer]) is NONE
        np.testing.assert_array_equal(await buffer.contents(x), x)

    async def test_a_failed_execution_leaves_its_inputs_alone(
        self, device: IDevice, path: str
    ) -> None:
        prepared = await prepare(device, picking(4))
        buffer = await allocated(device, [prepared], inputs=[role()])
        x, index = np.arange(4, dtype=np.float32), np.full(4, 4, np.int32)
        assert await buffer.fill(x) is NONE
        assert await execute(path, prepared, [buffer, index], [x.copy()]) is FAILURE
        np.testing.assert_array_equal(await buffer.contents(x), x)

    async def test_what_is_refused_touches_no_buffer(
        self, device: IDevice, path: str
    ) -> None:
        prepared = await prepare(device, addition(4))
        x = np.ones(4, np.float32)
        target = await allocated(device, [prepared], outputs=[role()])
        empty = await allocated(device, [prepared], inputs=[role()])
        assert await execute(path, prepared, [x, x], [target]) is NONE
        assert await execute(path, prepared, [x], [target]) is INVALID
        if "fenced" not in path:  # which begins before it fails
            assert await execute(path, prepared, [empty, x], [target]) is FAILURE
        np.testing.assert_array_equal(await target.contents(x), 2 * x)

    async def test_a_cancelled_execution_gives_its_buffers_up(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, chain(2, 4))
        source, target = [await both_ways(device, prepared) for _ in range(2)]
        x = np.ones(4, np.float32)
        assert await source.fill(x) is NONE
        asked = request([source], [target])
        for _ in range(20):
            future = ExecutionFuture()
            prepared.execute_1_3(asked, MeasureTiming.NO, None, None, future)
            future.die()
            await future
        assert await execute("sync", prepared, [source], [target]) is NONE
        np.testing.assert_array_equal(await target.contents(x), x + 2)


class TestFences:
    async def test_a_chain_hands_its_buffer_on(self, device: IDevice) -> None:
        prepared = await prepare(device, chain(1, 4))
        buffers = [await both_ways(device, prepared) for _ in range(8)]
        gate, source = SyncFence.pair()
        x = np.ones(4, np.float32)
        runs = [Launched(prepared, request([x], [buffers[0]]), [gate])]
        for before, after in pairwise(buffers):
            fence = runs[-1].fence
            runs.append(Launched(prepared, request([before], [after]), [fence]))
        source.signal()
        assert await runs[-1].end() is NONE
        np.testing.assert_array_equal(await buffers[-1].contents(x), x + 8)

    async def test_buffers_are_free_while_fences_are_waited_for(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, chain(1, 4))
        buffer = await both_ways(device, prepared)
        x, z = np.ones(4, np.float32), np.zeros(4, np.float32)
        gate, source = SyncFence.pair()
        run = Launched(prepared, request([buffer], [z]), [gate])
        assert await buffer.fill(x) is NONE
        source.signal()
        assert await run.end() is NONE
        np.testing.assert_array_equal(await buffer.contents(x), x)

    async def test_an_execution_that_never_begins_leaves_its_output_uninitialised(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, chain(1, 4))
        buffer, x = await both_ways(device, prepared), np.ones(4, np.float32)
        assert await buffer.fill(x) is NONE
        gate, source = SyncFence.pair()
        run = Launched(prepared, request([x], [buffer]), [gate])
        assert await buffer.read(x.nbytes) is NONE  # and the driver has the launch
        source.fail(FAILURE, "no more")
        assert await run.end() is FAILURE
        assert await buffer.read(x.nbytes) is FAILURE


class TestCompany:
    async def test_many_executions_read_a_buffer_at_a_time(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, chain(3, 4))
        buffer, x = await both_ways(device, prepared), np.ones(4, np.float32)
        assert await buffer.fill(x) is NONE
        outputs = [np.zeros(4, np.float32) for _ in range(20)]
        statuses = await asyncio.gather(
            *[execute("async", prepared, [buffer], [z]) for z in outputs]
        )
        assert statuses == [NONE] * 20
        np.testing.assert_array_equal(outputs, [x + 3] * 20)

    async def test_writers_in_each_others_way_fail_or_succeed_and_all_end(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, chain(3, 4))
        buffer, x = await both_ways(device, prepared), np.ones(4, np.float32)
        assert await buffer.fill(x) is NONE

        async def use(number: int) -> ErrorStatus:
            match number % 4:
                case 0:
                    return await execute("async", prepared, [buffer], [x.copy()])
                case 1:
                    return await execute("fenced", prepared, [x], [buffer])
                case 2:
                    return await buffer.read(x.nbytes)
                case _:
                    return await execute("sync", prepared, [x], [buffer])

        async with asyncio.timeout(10):
            statuses = await asyncio.gather(*[use(number) for number in range(200)])
        assert set(statuses) <= {NONE, FAILURE}
        assert await execute("sync", prepared, [x], [buffer]) is NONE
        np.testing.assert_array_equal(await buffer.contents(x), x + 3)

    async def test_a_lane_keeps_a_buffer_until_it_is_done(self) -> None:
        async with ReferenceDevice(DeviceSettings(inline_below_us=0)) as device:
            prepared = await prepare(device, chain(3, 4))
            buffer, x = await both_ways(device, prepared), np.ones(4, np.float32)
            assert await buffer.fill(x) is NONE
            future = ExecutionFuture()
            asked = request([buffer], [x.copy()])
            prepared.execute_1_3(asked, MeasureTiming.NO, None, None, future)
            assert await buffer.fill(x) is FAILURE
            assert await buffer.read(x.nbytes) is NONE
            assert (await future).status is NONE
            assert await buffer.fill(x) is NONE

    async def test_an_execution_keeps_a_buffer_that_its_client_let_go_of(
        self, device: IDevice
    ) -> None:
        prepared = await prepare(device, chain(3, 4))
        buffer, x = await both_ways(device, prepared), np.ones(4, np.float32)
        assert await buffer.fill(x) is NONE
        z, future = np.zeros_like(x), ExecutionFuture()
        asked = request([buffer], [z])
        prepared.execute_1_3(asked, MeasureTiming.NO, None, None, future)
        del buffer
        gc.collect()
        assert (await future).status is NONE
        np.testing.assert_array_equal(z, x + 3)
