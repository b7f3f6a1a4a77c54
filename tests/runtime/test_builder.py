"""Building models operand by operand."""

from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import (
    FusedActivationFunc,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.validate import validate_model
from asyncnn.memory.pools import from_buffer, map_file, view
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel, TensorInfo
from tests.runtime.tflite.stepping import Steps

FLOATS = OperandType.TENSOR_FLOAT32


def constant_bytes(named: NamedModel, index: int) -> bytes:
    operand = named.model.main.operands[index]
    location = operand.location
    if operand.lifetime == OperandLifeTime.CONSTANT_COPY:
        data = memoryview(named.model.operand_values)
    else:
        data = view(named.model.pools[location.pool_index])
    return bytes(data[location.offset : location.offset + location.length])


BOOLEANS = OperandType.TENSOR_BOOL8


def conditional() -> NamedModel:
    """Return ``x + table if condition else x * table``, a large constant in both."""
    builder = ModelBuilder()
    condition = builder.input("condition", BOOLEANS, (1,))
    x = builder.input("x", FLOATS, (50,))
    table = np.arange(50, dtype=np.float32)
    bodies = []
    for type_ in (OperationType.ADD, OperationType.MUL):
        body = builder.body()
        inner = [body.input("x", FLOATS, (50,)), body.constant(table)]
        inner.append(body.scalar(FusedActivationFunc.NONE))
        body.output(body.operation(type_, inner, Operand(FLOATS, (50,))), "y")
        bodies.append(builder.subgraph(body))
    y = builder.operation(
        OperationType.IF, [condition, *bodies, x], Operand(FLOATS, (50,))
    )
    builder.output(y, "y")
    return builder.build()


class TestBodies:
    def test_a_model_with_branches_is_valid_and_runs_them(self) -> None:
        named = conditional()
        validate_model(named.model)
        values = np.full(50, 2, np.float32)
        steps = Steps(named)
        (added,) = steps.step([True], values)
        (multiplied,) = steps.step([False], values)
        np.testing.assert_array_equal(added, np.arange(50) + 2)
        np.testing.assert_array_equal(multiplied, np.arange(50) * 2)

    def test_constants_of_all_graphs_lie_together(self) -> None:
        named = conditional()
        (pool,) = named.model.pools
        offsets = [
            operand.location.offset
            for body in named.model.referenced
            for operand in body.operands
            if operand.lifetime == OperandLifeTime.CONSTANT_REFERENCE
        ]
        assert offsets == [0, 256]
        assert pool.size == 256 + 200

    def test_a_body_may_be_run_in_several_places(self) -> None:
        builder = ModelBuilder()
        body = builder.body()
        first, again = builder.subgraph(body), builder.subgraph(body)
        numbers = [builder.operand(index).location.offset for index in (first, again)]
        assert numbers == [0, 0]
        assert len(builder.build().model.referenced) == 1

    def test_only_bodies_of_the_same_model_can_be_run(self) -> None:
        builder = ModelBuilder()
        for graph in (ModelBuilder().body(), builder):
            with pytest.raises(InvalidArgumentError, match="not a body of this model"):
                builder.subgraph(graph)

    def test_bodies_have_bodies(self) -> None:
        builder = ModelBuilder()
        outer = builder.body()
        inner = outer.body()
        builder.subgraph(outer)
        outer.subgraph(inner)
        outer_graph, inner_graph = builder.build().model.referenced
        assert len(outer_graph.operands) == 1
        assert not inner_graph.operands


class TestGraph:
    def test_a_whole_model_is_valid(self) -> None:
        builder = ModelBuilder(relaxed=True)
        x = builder.input("x", FLOATS, (1, 40))
        weights = builder.constant(np.eye(40, dtype=np.float32))
        bias = builder.constant(np.zeros(40, np.float32))
        activation = builder.scalar(FusedActivationFunc.RELU)
        inputs = [x, weights, bias, activation]
        y = builder.operation(
            OperationType.FULLY_CONNECTED, inputs, Operand(FLOATS, (1, 40))
        )
        builder.output(y, "y")
        named = builder.build()
        validate_model(named.model)
        assert named.inputs == (TensorInfo("x", FLOATS, (1, 40)),)
        assert named.outputs == (TensorInfo("y", FLOATS, (1, 40)),)
        assert named.model.main.operations == (
            Operation(OperationType.FULLY_CONNECTED, (0, 1, 2, 3), (4,)),
        )
        assert named.model.relax_computation_float32_to_float16

    def test_every_use_as_an_input_counts_as_a_consumer(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", FLOATS, (2,))
        none = builder.scalar(0)
        y = builder.operation(OperationType.ADD, [x, x, none], Operand(FLOATS, (2,)))
        z = builder.operation(OperationType.MUL, [x, y, none], Operand(FLOATS, (2,)))
        builder.output(z, "z")
        operands = builder.build().model.main.operands
        assert [operand.number_of_consumers for operand in operands] == [3, 2, 1, 0]

    def test_lifetimes_follow_from_the_role(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", FLOATS, (2,))
        builder.omitted(FLOATS)
        hidden = builder.temporary(FLOATS, (2,))
        builder.operation(OperationType.ABS, [x], hidden)
        y = builder.operation(OperationType.ABS, [hidden], Operand(FLOATS, (2,)))
        builder.output(y, "y")
        assert [
            operand.lifetime for operand in builder.build().model.main.operands
        ] == [
            OperandLifeTime.SUBGRAPH_INPUT,
            OperandLifeTime.NO_VALUE,
            OperandLifeTime.TEMPORARY_VARIABLE,
            OperandLifeTime.SUBGRAPH_OUTPUT,
        ]

    def test_several_outputs_come_back_as_a_tuple(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", FLOATS, (4,))
        halves = builder.operation(
            OperationType.SPLIT,
            [x, builder.scalar(0), builder.scalar(2)],
            [Operand(FLOATS, (2,)), Operand(FLOATS, (2,))],
        )
        for name, half in zip("ab", reversed(halves), strict=True):
            builder.output(half, name)
        assert halves == (3, 4)
        assert builder.build().model.main.output_indexes == (4, 3)

    def test_an_output_is_described_by_type_and_quantisation_only(self) -> None:
        builder = ModelBuilder()
        x = builder.input(
            "x", OperandType.TENSOR_QUANT8_ASYMM, (2,), scale=0.5, zero_point=3
        )
        y = builder.operation(OperationType.RELU, [x], builder.operand(x))
        builder.output(y, "y")
        named = builder.build()
        assert named.outputs == (
            TensorInfo("y", OperandType.TENSOR_QUANT8_ASYMM, (2,), 0.5, 3),
        )
        assert named.inputs[0].dtype == np.uint8

    @pytest.mark.parametrize("index", [-1, 1])
    def test_an_operation_on_an_unknown_operand_is_refused(self, index: int) -> None:
        builder = ModelBuilder()
        builder.input("x", FLOATS, (2,))
        with pytest.raises(InvalidArgumentError, match=f"operand {index}"):
            builder.operation(OperationType.ABS, [index], Operand(FLOATS))
        with pytest.raises(InvalidArgumentError, match=f"operand {index}"):
            builder.operation(OperationType.ABS, [0], index)

    def test_an_input_cannot_be_an_output(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", FLOATS, (2,))
        with pytest.raises(InvalidArgumentError, match="SUBGRAPH_INPUT"):
            builder.output(x, "y")

    def test_an_output_cannot_be_declared_twice(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", FLOATS, (2,))
        y = builder.operation(OperationType.ABS, [x], Operand(FLOATS, (2,)))
        builder.output(y, "y")
        with pytest.raises(InvalidArgumentError, match="SUBGRAPH_OUTPUT"):
            builder.output(y, "z")

    def test_equal_names_are_refused(self) -> None:
        builder = ModelBuilder()
        builder.input("x", FLOATS, (2,))
        builder.input("x", FLOATS, (2,))
        with pytest.raises(InvalidArgumentError, match="not unique"):
            builder.build()


class TestConstants:
    @pytest.mark.parametrize(
        ("dtype", "type_"),
        [
            (np.float32, OperandType.TENSOR_FLOAT32),
            (np.float16, OperandType.TENSOR_FLOAT16),
            (np.int32, OperandType.TENSOR_INT32),
            (np.bool_, OperandType.TENSOR_BOOL8),
        ],
    )
    @pytest.mark.parametrize("count", [1, 7, 1000])
    def test_the_type_follows_from_the_dtype(
        self, dtype: type, type_: OperandType, count: int
    ) -> None:
        builder = ModelBuilder()
        array = np.arange(count).astype(dtype)
        index = builder.constant(array)
        named = builder.build()
        operand = named.model.main.operands[index]
        assert (operand.type, operand.dimensions) == (type_, (count,))
        assert constant_bytes(named, index) == array.tobytes()

    def test_quantisation_is_kept(self) -> None:
        builder = ModelBuilder()
        quant = SymmPerChannelQuantParams((0.5, 0.25), 0)
        per_channel = builder.constant(
            np.ones((2, 3), np.int8),
            OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL,
            channel_quant=quant,
        )
        whole = builder.constant(
            np.ones((2, 3), np.uint8),
            OperandType.TENSOR_QUANT8_ASYMM,
            scale=0.5,
            zero_point=9,
        )
        assert builder.operand(per_channel).extra_params == quant
        assert builder.operand(whole).scale == 0.5
        assert builder.operand(whole).zero_point == 9

    @pytest.mark.parametrize(
        ("size", "lifetime"),
        [
            (128, OperandLifeTime.CONSTANT_COPY),
            (129, OperandLifeTime.CONSTANT_REFERENCE),
        ],
    )
    def test_constants_above_128_bytes_lie_in_a_pool(
        self, size: int, lifetime: OperandLifeTime
    ) -> None:
        builder = ModelBuilder()
        index = builder.constant(np.ones(size, np.bool_))
        assert builder.operand(index).lifetime == lifetime

    def test_large_constants_share_one_aligned_pool(self) -> None:
        builder = ModelBuilder()
        arrays = [np.full(100 + k, k, np.int32) for k in range(5)]
        indexes = [builder.constant(array) for array in arrays]
        named = builder.build()
        assert len(named.model.pools) == 1
        for index, array in zip(indexes, arrays, strict=True):
            assert named.model.main.operands[index].location.offset % 64 == 0
            assert constant_bytes(named, index) == array.tobytes()

    def test_a_copied_constant_does_not_follow_its_array(self) -> None:
        builder = ModelBuilder()
        array = np.zeros(100, np.int32)
        index = builder.constant(array)
        array[:] = 1
        assert not any(constant_bytes(builder.build(), index))

    def test_an_array_becomes_a_pool_itself_on_demand(self) -> None:
        builder = ModelBuilder()
        array = np.zeros(100, np.int32)
        builder.constant(array, copy=False)
        (pool,) = builder.build().model.pools
        assert np.shares_memory(np.frombuffer(view(pool), np.int32), array)

    def test_an_array_that_views_a_known_pool_stays_there(self, tmp_path: Path) -> None:
        path = tmp_path / "weights"
        path.write_bytes(np.arange(1000, dtype=np.int32).tobytes())
        pool = map_file(path)
        builder = ModelBuilder()
        builder.add_pool(pool)
        index = builder.constant(np.frombuffer(view(pool), np.int32)[100:300])
        assert builder.build().model.pools == (pool,)
        assert builder.operand(index).location.offset == 400
        assert builder.operand(index).location.length == 800

    def test_a_known_pool_joins_the_model_only_if_it_is_used(self) -> None:
        builder = ModelBuilder()
        builder.add_pool(from_buffer(np.zeros(1000, np.int32)))
        builder.constant(np.zeros(100, np.int32))
        (pool,) = builder.build().model.pools
        assert pool.size == 400

    def test_a_scattered_array_is_stored_in_order(self) -> None:
        builder = ModelBuilder()
        array = np.arange(400, dtype=np.int32).reshape(20, 20).T
        index = builder.constant(array, copy=False)
        assert constant_bytes(builder.build(), index) == array.tobytes()

    def test_building_twice_gives_the_same_constants(self) -> None:
        builder = ModelBuilder()
        array = np.arange(100, dtype=np.int32)
        index = builder.constant(array)
        first = builder.build()
        later = builder.constant(array + 1)
        assert constant_bytes(first, index) == array.tobytes()
        assert constant_bytes(builder.build(), later) == (array + 1).tobytes()

    @pytest.mark.parametrize(
        ("array", "type_"),
        [
            (np.zeros(3, np.int64), None),
            (np.zeros(3, np.uint8), None),
            (np.zeros(3, ">f4"), None),
            (np.zeros(3, np.float32), OperandType.TENSOR_INT32),
            (np.zeros(3, np.float32), OperandType.FLOAT32),
            (np.zeros((), np.float32), None),
            (np.zeros((2, 0), np.float32), None),
        ],
    )
    def test_data_without_a_hal_form_is_refused(
        self, array: np.ndarray, type_: OperandType | None
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            ModelBuilder().constant(array, type_)


class TestScalars:
    @pytest.mark.parametrize(
        ("value", "type_", "data"),
        [
            (True, OperandType.BOOL, b"\1"),
            (-2, OperandType.INT32, b"\xfe\xff\xff\xff"),
            (1.0, OperandType.FLOAT32, b"\0\0\x80\x3f"),
            (FusedActivationFunc.RELU6, OperandType.INT32, b"\3\0\0\0"),
            (np.float32(1), OperandType.FLOAT32, b"\0\0\x80\x3f"),
            (np.int64(7), OperandType.INT32, b"\7\0\0\0"),
            (np.bool_(False), OperandType.BOOL, b"\0"),
        ],
    )
    def test_the_type_follows_from_the_value(
        self, value: float, type_: OperandType, data: bytes
    ) -> None:
        builder = ModelBuilder()
        index = builder.scalar(value)
        assert builder.operand(index).type == type_
        assert constant_bytes(builder.build(), index) == data

    def test_equal_scalars_of_a_graph_are_one_operand(self) -> None:
        builder = ModelBuilder()
        first = builder.scalar(0)
        assert builder.scalar(0) == first
        others = (False, 0.0, -0.0, 1)
        indexes = {first, *(builder.scalar(other) for other in others)}
        assert len(indexes) == 1 + len(others)
        assert builder.body().scalar(0) == 0

    def test_the_type_can_be_given(self) -> None:
        builder = ModelBuilder()
        index = builder.scalar(1, OperandType.FLOAT16)
        assert constant_bytes(builder.build(), index) == b"\0\x3c"

    @pytest.mark.parametrize(
        ("value", "type_"),
        [
            (2**31, OperandType.INT32),
            (-1, OperandType.UINT32),
            (1.5, OperandType.INT32),
            (float("nan"), OperandType.INT32),
            (2, OperandType.BOOL),
            (1, OperandType.TENSOR_INT32),
            (1, OperandType.OEM),
        ],
    )
    def test_a_value_that_does_not_fit_is_refused(
        self, value: float, type_: OperandType
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            ModelBuilder().scalar(value, type_)
