import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.engine import PlanExecution, Program, plan_execution
from asyncnn.hal.errors import MissedDeadlineTransientError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    DataLocation,
    Dimensions,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    Operation,
    OperationType,
    Subgraph,
)
from asyncnn.hal.validate import validate_model
from asyncnn.pacing import Pause

F32, I32, B8 = (
    OperandType.TENSOR_FLOAT32,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_BOOL8,
)
IN, OUT = OperandLifeTime.SUBGRAPH_INPUT, OperandLifeTime.SUBGRAPH_OUTPUT
COPY = OperandLifeTime.CONSTANT_COPY

VALUES = np.array([0, 1], np.int32).tobytes()
"""The fused activation NONE at offset 0, the int32 constant 1 at offset 4."""


def operand(
    type_: int, lifetime: int, dimensions: Dimensions = (), consumers: int = 0
) -> Operand:
    return Operand(type_, dimensions, consumers, lifetime=lifetime)


def none() -> Operand:
    return Operand(
        OperandType.INT32,
        number_of_consumers=1,
        lifetime=COPY,
        location=DataLocation(0, 0, 4),
    )


def one() -> Operand:
    return Operand(I32, (1,), 1, lifetime=COPY, location=DataLocation(0, 4, 4))


def subgraph(number: int) -> Operand:
    return Operand(
        OperandType.SUBGRAPH,
        number_of_consumers=1,
        lifetime=OperandLifeTime.SUBGRAPH,
        location=DataLocation(0, number, 0),
    )


def binary(operation: OperationType, dimensions: Dimensions) -> Subgraph:
    """``out = x OPERATION x``."""
    return Subgraph(
        (operand(F32, IN, dimensions, 2), none(), operand(F32, OUT, dimensions)),
        (Operation(operation, (0, 0, 1), (2,)),),
        (0,),
        (2,),
    )


def if_model(dimensions: Dimensions) -> Model:
    """``out = x + x if condition else x * x``."""
    main = Subgraph(
        (
            operand(B8, IN, (1,), 1),
            subgraph(0),
            subgraph(1),
            operand(F32, IN, dimensions, 1),
            operand(F32, OUT, dimensions),
        ),
        (Operation(OperationType.IF, (0, 1, 2, 3), (4,)),),
        (0, 3),
        (4,),
    )
    add, mul = OperationType.ADD, OperationType.MUL
    branches = (binary(add, dimensions), binary(mul, dimensions))
    return Model(main, branches, VALUES)


def while_model(dimensions: Dimensions, *, endless: bool = False) -> Model:
    """``while i < n: i, x = i + 1, x + x`` over (i, x, n); gives i and x."""
    condition = Subgraph(
        (
            operand(I32, IN, (1,), 1),
            operand(F32, IN, dimensions),
            operand(I32, IN, (1,), 1),
            operand(B8, OUT, (1,)),
        ),
        (
            Operation(
                OperationType.GREATER_EQUAL if endless else OperationType.LESS,
                (0, 2),
                (3,),
            ),
        ),
        (0, 1, 2),
        (3,),
    )
    activation = Operand(
        OperandType.INT32,
        number_of_consumers=2,
        lifetime=COPY,
        location=DataLocation(0, 0, 4),
    )
    body = Subgraph(
        (
            operand(I32, IN, (1,), 1),
            operand(F32, IN, dimensions, 2),
            operand(I32, IN, (1,)),
            one(),
            activation,
            operand(I32, OUT, (1,)),
            operand(F32, OUT, dimensions),
        ),
        (
            Operation(OperationType.ADD, (0, 3, 4), (5,)),
            Operation(OperationType.ADD, (1, 1, 4), (6,)),
        ),
        (0, 1, 2),
        (5, 6),
    )
    main = Subgraph(
        (
            subgraph(0),
            subgraph(1),
            operand(I32, IN, (1,), 1),
            operand(F32, IN, dimensions, 1),
            operand(I32, IN, (1,), 1),
            operand(I32, OUT, (1,)),
            operand(F32, OUT, dimensions),
        ),
        (Operation(OperationType.WHILE, (0, 1, 2, 3, 4), (5, 6)),),
        (2, 3, 4),
        (5, 6),
    )
    return Model(main, (condition, body), VALUES)


def launch(
    model: Model, *inputs: Array, loop_timeout_ns: int | None = None
) -> PlanExecution:
    validate_model(model)
    program = Program(model)
    plan = program.plan(tuple(x.shape for x in inputs))
    outputs = [None] * len(plan.outputs)
    return PlanExecution(
        program, plan, inputs, outputs, loop_timeout_ns=loop_timeout_ns
    )


def scalar(value: int) -> Array:
    return np.array([value], np.int32)


X = np.array([1, -2, 3], np.float32)


class TestIf:
    @pytest.mark.parametrize("condition", [True, False])
    def test_runs_the_branch_that_the_condition_chooses(self, condition: bool) -> None:
        execution = launch(if_model((3,)), np.array([condition]), X)
        assert execution.advance()
        np.testing.assert_array_equal(
            execution.outputs[0], X + X if condition else X * X
        )

    def test_the_steps_behind_it_follow(self) -> None:
        model, between = if_model((3,)), OperandLifeTime.TEMPORARY_VARIABLE
        *operands, result = model.main.operands
        operands += [operand(F32, between, (3,), 2), none(), result]
        twice = Operation(OperationType.ADD, (4, 4, 5), (6,))
        main = Subgraph((*operands,), (*model.main.operations, twice), (0, 3), (6,))
        execution = launch(replace(model, main=main), np.array([True]), X)
        assert execution.advance()
        np.testing.assert_array_equal(execution.outputs[0], 4 * X)


class TestWhile:
    @pytest.mark.parametrize("rounds", [0, 1, 2, 3, 10])
    def test_runs_the_body_while_the_condition_holds(self, rounds: int) -> None:
        execution = launch(while_model((3,)), scalar(0), X, scalar(rounds))
        assert execution.advance()
        count, doubled = execution.outputs
        assert count == rounds
        np.testing.assert_array_equal(doubled, X * 2**rounds)
        np.testing.assert_array_equal(X, [1, -2, 3])  # inputs are left alone

    def test_state_is_carried_in_two_sets_of_arrays(self) -> None:
        model = while_model((1000,))
        program = Program(model)
        x = np.zeros(1000, np.float32)
        inputs = (scalar(0), x, scalar(50))
        plan = program.plan(tuple(i.shape for i in inputs))
        execution = PlanExecution(program, plan, inputs, [None, None])
        seen: set[int] = set()

        class Spy(Pause):
            @property
            def requested(self) -> bool:  # type: ignore[override]
                slots = execution._bound_plans[-1].slots
                if len(slots) == 7 and slots[6] is not None:
                    seen.add(slots[6].ctypes.data)
                return False

        assert execution.advance(Spy())
        # The main frame's own output beside the loop's two.
        assert len(seen) <= 3

    def test_pauses_inside_the_body(self) -> None:
        execution = launch(while_model((3,)), scalar(0), X, scalar(5))

        class Every(Pause):
            turn = 0

            @property
            def requested(self) -> bool:  # type: ignore[override]
                self.turn += 1
                return self.turn % 2 == 0

        pause, pauses = Every(), 0
        while not execution.advance(pause):
            pauses += 1
        assert pauses > 5
        np.testing.assert_array_equal(execution.outputs[1], X * 32)

    def test_a_loop_without_end_runs_into_its_timeout(self) -> None:
        model = while_model((3,), endless=True)
        execution = launch(
            model, scalar(1), X * 0, scalar(0), loop_timeout_ns=1_000_000
        )
        with pytest.raises(MissedDeadlineTransientError, match="WHILE"):
            execution.advance()

    def test_no_time_at_all_fails_at_the_first_true_condition(self) -> None:
        done = launch(while_model((3,)), scalar(0), X, scalar(0), loop_timeout_ns=0)
        assert done.advance()
        endless = launch(while_model((3,)), scalar(0), X, scalar(1), loop_timeout_ns=0)
        with pytest.raises(MissedDeadlineTransientError):
            endless.advance()

    def test_no_timeout_is_longer_than_the_longest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert plan_execution.LOOP_TIMEOUT_MAXIMUM_NS == 15 * 10**9
        monkeypatch.setattr(plan_execution, "LOOP_TIMEOUT_MAXIMUM_NS", 1_000_000)
        model, hours = while_model((3,), endless=True), 10**16
        execution = launch(model, scalar(1), X * 0, scalar(0), loop_timeout_ns=hours)
        with pytest.raises(MissedDeadlineTransientError, match=r"its 0\.001 s"):
            execution.advance()
