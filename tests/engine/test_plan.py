import errno

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.plan import Plan, Port
from asyncnn.hal.errors import GeneralFailureError, ResourceExhaustedTransientError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.kernels import registry
from asyncnn.runtime.builder import ModelBuilder
from tests.networks import F32, addition, chain

ADD, MUL, RELU = OperationType.ADD, OperationType.MUL, OperationType.RELU


def main_plan(program: Program) -> Plan:
    assert program.declared_shapes is not None
    return program.plan(program.declared_shapes)


def run(program: Program, *inputs: Array | None) -> list[Array]:
    shapes = tuple(None if x is None else x.shape for x in inputs)
    plan = program.plan(shapes)
    execution = PlanExecution(program, plan, inputs, [None] * len(plan.outputs))
    assert execution.advance()
    return execution.outputs


class TestConstants:
    def test_operations_on_constants_alone_are_computed_once(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (4,))
        none = builder.scalar(0)
        two = builder.constant(np.full(4, 2, np.float32))
        four = builder.operation(ADD, [two, two, none], Operand(F32, (4,)))
        eight = builder.operation(ADD, [four, four, none], Operand(F32, (4,)))
        y = builder.operation(MUL, [x, eight, none], Operand(F32, (4,)))
        builder.output(y, "y")
        program = Program(builder.build().model)
        assert [s.operation.type for s in main_plan(program).steps] == [MUL]
        (result,) = run(program, np.arange(4, dtype=np.float32))
        np.testing.assert_array_equal(result, [0, 8, 16, 24])

    def test_a_constant_result_that_is_an_output_is_still_written(self) -> None:
        builder = ModelBuilder()
        builder.input("unused", F32, (1,))
        one = builder.constant(np.ones(4, np.float32))
        y = builder.operation(ADD, [one, one, builder.scalar(0)], Operand(F32, (4,)))
        builder.output(y, "y")
        program = Program(builder.build().model)
        (result,) = run(program, np.zeros(1, np.float32))
        np.testing.assert_array_equal(result, [2, 2, 2, 2])

    def test_results_that_few_bytes_tell_of_are_not_all_kept(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (1,))
        count, none = 12 << 20, builder.scalar(0)  # 48 MiB
        large = Operand(F32, (count,))
        length = builder.constant(np.array([count], np.int32))
        none_reduced = builder.scalar(False, OperandType.BOOL)
        total, axis = x, builder.constant(np.zeros(1, np.int32))
        for number in range(3):
            each = builder.scalar(float(number))
            filled = builder.operation(OperationType.FILL, [length, each], large)
            most = builder.operation(
                OperationType.REDUCE_MAX,
                [filled, axis, none_reduced],
                Operand(F32, (1,)),
            )
            total = builder.operation(ADD, [total, most, none], Operand(F32, (1,)))
        builder.output(total, "y")
        program = Program(builder.build().model)
        plan = main_plan(program)
        kept = sum(array.nbytes for array in plan.constants.values())
        assert kept < 64 << 20
        (result,) = run(program, np.ones(1, np.float32))
        np.testing.assert_array_equal(result, [4])

    def test_constants_are_views_of_the_pool(self) -> None:
        builder = ModelBuilder()
        weights = np.arange(1000, dtype=np.float32)
        x = builder.input("x", F32, (1000,))
        constant = builder.constant(weights, copy=False)
        y = builder.operation(
            ADD, [x, constant, builder.scalar(0)], Operand(F32, (1000,))
        )
        builder.output(y, "y")
        plan = main_plan(Program(builder.build().model))
        assert np.shares_memory(plan.constants[constant], weights)
        assert not plan.constants[constant].flags.writeable


class TestDeadOperations:
    def test_what_reaches_no_output_is_dropped(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (4,))
        dead = builder.operation(RELU, [x], Operand(F32, (4,)))
        builder.operation(RELU, [dead], Operand(F32, (4,)))
        y = builder.operation(ADD, [x, x, builder.scalar(0)], Operand(F32, (4,)))
        builder.output(y, "y")
        plan = main_plan(Program(builder.build().model))
        assert [step.operation.type for step in plan.steps] == [ADD]


class TestArena:
    def test_a_long_chain_needs_two_buffers(self) -> None:
        plan = main_plan(Program(chain(50, 256).model))
        assert plan.arena.size_bytes == 2 * 1024

    def test_a_workspace_is_used_again(self) -> None:
        program = Program(chain(5, 16).model)
        x = np.zeros(16, np.float32)
        run(program, x)
        first = program.acquire(main_plan(program))
        program.release(first)
        run(program, x)
        assert program.acquire(main_plan(program)) is first

    def test_executions_that_overlap_have_workspaces_of_their_own(self) -> None:
        program = Program(chain(5, 16).model)
        plan = main_plan(program)
        assert program.acquire(plan) is not program.acquire(plan)

    def test_trimming_gives_idle_workspaces_back(self) -> None:
        program = Program(chain(5, 1024).model)
        run(program, np.zeros(1024, np.float32))
        assert program.trim() >= 2 * 4096
        assert program.trim() == 0


class TestShapes:
    def test_each_set_of_input_shapes_has_a_plan(self) -> None:
        program = Program(addition(0, 2).model)
        assert program.declared_shapes is None
        for rows in (1, 5, 1):
            x = np.ones((rows, 2), np.float32)
            (result,) = run(program, x, x)
            assert result.shape == (rows, 2)
        shapes = ((5, 2), (5, 2))
        assert program.plan(shapes) is program.plan(shapes)

    def test_the_number_of_plans_is_bounded(self) -> None:
        program = Program(addition(0).model)
        first = program.plan(((1,), (1,)))
        for length in range(2, 40):
            program.plan(((length,), (length,)))
        assert program.plan(((1,), (1,))) is not first

    def test_plans_of_other_subgraphs_do_not_displace_that_of_the_main_one(
        self,
    ) -> None:
        referenced = (addition(0).model.main,)
        program = Program(replace(addition(4).model, referenced=referenced))
        workspace = program.acquire(main_plan(program))
        program.release(workspace)
        for length in range(1, 40):
            program.plan(((length,), (length,)), 0)
        assert program.acquire(main_plan(program)) is workspace

    def test_shapes_that_do_not_fit_the_operation_are_a_failure(self) -> None:
        program = Program(addition(0, 0).model)
        with pytest.raises(GeneralFailureError):
            program.plan(((2, 3), (4, 3)))

    def test_a_result_that_contradicts_the_model_is_a_failure(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (4,))
        y = builder.operation(RELU, [x], Operand(F32, (5,)))
        builder.output(y, "y")
        with pytest.raises(GeneralFailureError, match=r"RELU gives shape \[4\]"):
            Program(builder.build().model)


class TestLateSteps:
    def test_a_shape_that_comes_with_the_request_is_taken(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (6,))
        shape = builder.input("shape", OperandType.TENSOR_INT32, (2,))
        flat = builder.operation(
            OperationType.RESHAPE, [x, shape], Operand(F32, (0, 0))
        )
        y = builder.operation(RELU, [flat], Operand(F32, (0, 0)))
        builder.output(y, "y")
        program = Program(builder.build().model)
        data = np.arange(-3, 3, dtype=np.float32)
        for rows, columns in ((2, 3), (3, 2), (1, -1)):
            (result,) = run(program, data, np.array([rows, columns], np.int32))
            np.testing.assert_array_equal(
                result, np.maximum(data, 0).reshape(rows, columns)
            )

    def test_weights_that_come_with_the_request_are_taken(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (1, 3))
        weights = builder.input("weights", F32, (2, 3))
        bias = builder.constant(np.ones(2, np.float32))
        y = builder.operation(
            OperationType.FULLY_CONNECTED,
            [x, weights, bias, builder.scalar(0)],
            Operand(F32, (1, 2)),
        )
        builder.output(y, "y")
        program = Program(builder.build().model)
        data = np.array([[1, 2, 3]], np.float32)
        for factor in (1, 10):
            kernel = factor * np.arange(6, dtype=np.float32).reshape(2, 3)
            (result,) = run(program, data, kernel)
            np.testing.assert_allclose(result, data @ kernel.T + 1)

    def test_an_illegal_value_is_a_failure(self) -> None:
        builder = ModelBuilder()
        x = builder.input("x", F32, (6,))
        shape = builder.input("shape", OperandType.TENSOR_INT32, (2,))
        y = builder.operation(OperationType.RESHAPE, [x, shape], Operand(F32, (0, 0)))
        builder.output(y, "y")
        program = Program(builder.build().model)
        with pytest.raises(GeneralFailureError):
            run(program, np.zeros(6, np.float32), np.array([4, 4], np.int32))


def test_random_numbers_are_drawn_anew_in_every_execution() -> None:
    builder = ModelBuilder()
    builder.input("unused", F32, (1,))
    logits = builder.constant(np.zeros((1, 1000), np.float32))
    seeds = builder.constant(np.zeros(2, np.int32))
    drawn = builder.operation(
        OperationType.RANDOM_MULTINOMIAL,
        [logits, builder.scalar(20), seeds],
        Operand(OperandType.TENSOR_INT32, (1, 20)),
    )
    y = builder.operation(
        OperationType.CAST, [drawn], Operand(OperandType.TENSOR_FLOAT32, (1, 20))
    )
    builder.output(y, "y")
    program = Program(builder.build().model)
    first, second = (run(program, np.zeros(1, np.float32))[0] for _ in range(2))
    assert (first != second).any()


def test_without_descriptors_to_import_a_kernel_with_a_model_is_refused_for_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(name: str) -> object:
        raise OSError(errno.EMFILE, "no descriptor", name)

    with monkeypatch.context() as patch:
        patch.setattr(registry, "import_module", fail)
        with pytest.raises(ResourceExhaustedTransientError, match="ADD"):
            Program(addition(4).model)
    Program(addition(4).model)


def test_a_port_whose_shape_only_execution_shows_takes_no_room() -> None:
    operand = Operand(OperandType.TENSOR_FLOAT32, (0,))
    for shape, count in ((None, 0), ((), 1), ((2, 3), 6)):
        port = Port.of(7, operand, shape)
        assert (port.count, port.size_bytes) == (count, 4 * count)
