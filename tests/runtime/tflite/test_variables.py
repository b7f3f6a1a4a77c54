"""Resource variables become states, and hold in each step what they do in LiteRT."""

from typing import Any

import numpy as np
import pytest

from asyncnn.hal.types import OperandLifeTime
from asyncnn.memory.pools import from_buffer
from tests.runtime.tflite.cases import F32, I8, I32, boolean, const, f32, i32
from tests.runtime.tflite.files import G, Op, T, write
from tests.runtime.tflite.flow_files import (
    add,
    assign,
    call,
    constant,
    handle,
    if_,
    initial,
    less_than,
    named,
    names_of,
    once,
    read,
    while_,
)
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.layers import Reals
from tests.runtime.tflite.recurrent_cases import rnn
from tests.runtime.tflite.stepping import Steps, assert_steps_agree

STEPS = [([1, 2, 3],), ([0, 1, 0],), ([5, 5, 5],)]


def counting(*operators: Op, init: G | None = None, x: T, y: T) -> bytes:
    others = [initial(constant(10, 20, 30)) if init is None else init]
    return write([once(), *operators], [x], [y], *others)


def accumulator(init: G | None = None) -> bytes:
    """Return a file that adds what it is given to a total, which it returns."""
    resource, x, old, y = handle(), f32(3), f32(3), f32(3)
    operators = named(resource), read(resource, old), add(x, old, y)
    return counting(*operators, assign(resource, y), init=init, x=x, y=y)


class TestVariables:
    def test_a_variable_is_a_state_that_begins_as_it_is_initialised(self) -> None:
        steps = assert_steps_agree(accumulator(), STEPS)
        (state,) = steps.named.states
        assert state.info.name == "total"
        np.testing.assert_array_equal(state.first_value(), [10, 20, 30])
        np.testing.assert_array_equal(steps.states, [[16, 28, 38]])

    def test_a_read_before_an_assignment_gives_the_old_value(self) -> None:
        resource, x, old, new, y = handle(), f32(3), f32(3), f32(3), f32(3)
        file = counting(
            named(resource),
            read(resource, old),
            assign(resource, x),
            read(resource, new),
            Op("SUB", [new, old], [y], "SubOptions"),
            x=x,
            y=y,
        )
        assert_steps_agree(file, STEPS)

    def test_what_is_assigned_before_it_is_read_is_no_state(self) -> None:
        resource, x, y = handle(), f32(3), f32(3)
        operators = named(resource), assign(resource, x), read(resource, y)
        file = counting(*operators, x=x, y=y)
        steps = assert_steps_agree(file, STEPS)
        assert not steps.named.states

    def test_what_nothing_assigns_is_a_constant(self) -> None:
        resource, x, weights, y = handle(), f32(2, 4), f32(3, 4), f32(2, 3)
        values = T.constant(np.arange(12).reshape(3, 4), F32)
        file = counting(
            named(resource),
            read(resource, weights),
            Op("FULLY_CONNECTED", [x, weights, None], [y], "FullyConnectedOptions"),
            init=initial(values),
            x=x,
            y=y,
        )
        steps = assert_steps_agree(file, [(np.ones((2, 4)),)])
        assert not steps.named.states
        main = steps.named.model.main
        operand = main.operands[main.operations[0].inputs[1]]
        assert operand.lifetime == OperandLifeTime.CONSTANT_COPY

    def test_handles_of_one_name_and_container_are_one_variable(self) -> None:
        first, second, other = handle(), handle(), handle()
        x, old, mine, y = f32(3), f32(3), f32(3), f32(3)
        file = counting(
            named(first),
            named(second),
            named(other, container="mine"),
            read(first, old),
            assign(second, x),
            read(other, mine),
            add(old, mine, y),
            assign(other, y),
            init=G(
                [
                    named(a := handle()),
                    assign(a, constant(1, 2, 3)),
                    named(b := handle(), container="mine"),
                    assign(b, constant(4, 5, 6)),
                ],
                [],
                [],
            ),
            x=x,
            y=y,
        )
        steps = assert_steps_agree(file, STEPS)
        names = [state.info.name for state in steps.named.states]
        assert names == ["total", "total_2"]

    def test_quantised_and_int64_variables_keep_their_codes(self) -> None:
        resource, count = handle(), handle()
        scale: dict[str, Any] = {"scale": (0.5,), "zero_point": (-3,)}
        x, old = T(I8, (1, 2), **scale), T(I8, (1, 2), **scale)
        y = T(I8, (2, 2), **scale)
        many, more = T(np.int64, (1,)), T(np.int64, (1,))
        one, two = T.constant([1], np.int64), T.constant([2], np.int64)
        file = write(
            [
                once(),
                named(resource),
                read(resource, old),
                Op("CONCATENATION", [old, x], [y], "ConcatenationOptions"),
                assign(resource, x),
                named(count, "count"),
                read(count, many),
                add(many, one, more),
                assign(count, more),
            ],
            [x],
            [y, more],
            G(
                [
                    named(a := handle()),
                    assign(a, T.constant([[7, -8]], I8, **scale)),
                    named(b := handle(), "count"),
                    assign(b, two),
                ],
                [],
                [],
            ),
        )
        steps = assert_steps_agree(file, [([[1, 2]],), ([[3, 4]],), ([[5, 6]],)])
        assert [state.info.dtype for state in steps.named.states] == [I8, I32]

    def test_a_state_has_a_name_of_its_own(self) -> None:
        resource, x, old = handle(), T(F32, (3,), name="total"), f32(3)
        y = T(F32, (3,), name="total_2")
        operators = named(resource), read(resource, old), add(x, old, y)
        file = counting(*operators, assign(resource, y), x=x, y=y)
        (state,) = import_tflite(from_buffer(file)).states
        assert state.info.name == "total_3"


class TestFirstValues:
    def test_they_may_be_computed(self) -> None:
        shape, filled, doubled = const([3]), f32(3), f32(3)
        init = initial(
            doubled,
            "total",
            Op("FILL", [shape, const(1.5, F32)], [filled]),
            add(filled, filled, doubled),
        )
        steps = assert_steps_agree(accumulator(init), STEPS)
        (state,) = steps.named.states
        np.testing.assert_array_equal(state.first_value(), [3, 3, 3])

    def test_they_may_depend_on_each_other(self) -> None:
        a, b, value, more = handle(), handle(), f32(3), f32(3)
        init = G(
            [
                named(b, "one"),
                assign(b, constant(1, 1, 1)),
                read(b, value),
                add(value, constant(1, 2, 3), more),
                assign(b, more),
                named(a),
                read(b, again := f32(3)),
                assign(a, again),
            ],
            [],
            [],
        )
        steps = assert_steps_agree(accumulator(init), STEPS)
        np.testing.assert_array_equal(steps.named.states[0].first_value(), [2, 3, 4])

    def test_an_initialisation_may_call_and_be_called(self) -> None:
        resource, x, old, y = handle(), f32(3), f32(3), f32(3)
        file = write(
            [
                Op("CALL", [], [], "CallOptions", {"Subgraph": 1}),
                named(resource),
                read(resource, old),
                add(x, old, y),
                assign(resource, y),
            ],
            [x],
            [y],
            G([once(2), once(2)], [], []),
            G([Op("CALL", [], [], "CallOptions", {"Subgraph": 3})], [], []),
            initial(constant(1, 2, 3)),
        )
        (state,) = import_tflite(from_buffer(file)).states
        np.testing.assert_array_equal(state.first_value(), [1, 2, 3])


class TestVariablesInBodies:
    @pytest.mark.parametrize("passed", [False, True], ids=["by name", "as a value"])
    def test_a_branch_assigns_what_the_other_leaves(self, *, passed: bool) -> None:
        resource, yes, x, y, end = handle(), boolean(1), f32(3), f32(3), f32(3)

        def branch(*, assigns: bool) -> G:
            inner, a, old, z = handle(), f32(3), f32(3), f32(3)
            operators = [] if passed else [named(inner)]
            operators += [read(inner, old), add(a, old, z)]
            operators += [assign(inner, z)] if assigns else []
            return G(operators, [inner, a] if passed else [a], [z])

        given = [resource, x] if passed else [x]
        file = write(
            [once(3), named(resource), if_([yes, *given], [y]), read(resource, end)],
            [yes, x],
            [y, end],
            branch(assigns=True),
            branch(assigns=False),
            initial(constant(1, 2, 3)),
        )
        samples = [(flag, [1, 1, k]) for k, flag in enumerate((1, 0, 1, 1, 0))]
        assert_steps_agree(file, samples)

    def test_a_loop_reads_one_variable_and_assigns_another(self) -> None:
        i, n, total, step, end = i32(1), i32(1), handle(), handle(), f32(3)
        a, j, inner, other = i32(1), i32(1), handle(), handle()
        old, by, new = f32(3), f32(3), f32(3)
        body = G(
            [
                named(inner),
                named(other, "step"),
                read(inner, old),
                read(other, by),
                add(old, by, new),
                assign(inner, new),
                add(a, const([1]), j),
            ],
            [a],
            [j],
        )
        x = f32(3)
        file = write(
            [
                once(3),
                named(total),
                named(step, "step"),
                while_([i], [n]),
                read(total, end),
                assign(step, x),
            ],
            [i, x],
            [end],
            less_than(3),
            body,
            G(
                [
                    *initial(constant(0, 0, 0)).operators,
                    *initial(constant(1, 2, 3), "step").operators,
                ],
                [],
                [],
            ),
        )
        samples = [([k], [k, 1, 1]) for k in (0, 2, 3, 1)]
        steps = assert_steps_agree(file, samples)
        assert names_of(file)[0] == "WHILE"
        assert len(steps.named.states) == 2

    def test_a_branch_in_a_loop_assigns_a_variable(self) -> None:
        i, n, a, j, odd = i32(1), i32(1), i32(1), i32(1), boolean(1)
        inner, old, new, end = handle(), f32(3), f32(3), f32(3)
        body = G(
            [
                Op("EQUAL", [a, const([1])], [odd]),
                if_([odd], [], 3, 4),
                add(a, const([1]), j),
            ],
            [a],
            [j],
        )
        count = [named(inner), read(inner, old), add(old, constant(1, 2, 3), new)]
        file = write(
            [once(5), while_([i], [n]), named(total := handle()), read(total, end)],
            [i],
            [n, end],
            less_than(3),
            body,
            G([*count, assign(inner, new)], [], []),
            G([], [], []),
            initial(constant(0, 0, 0)),
        )
        steps, wanted = Steps(file), np.zeros(3)
        for begin in (0, 2, 1, 3):
            wanted = wanted + (np.array([1, 2, 3]) if begin < 2 else 0)
            np.testing.assert_array_equal(steps.step([begin])[1], wanted)

    def test_a_subgraph_that_is_called_has_the_callers_variables(self) -> None:
        resource, x, y, z, inner = handle(), f32(3), f32(3), f32(3), handle()
        a, old, new = f32(3), f32(3), f32(3)
        body = G(
            [named(inner), read(inner, old), add(a, old, new), assign(inner, new)],
            [a],
            [new],
        )
        file = write(
            [once(2), call([x], [y]), call([y], [z]), named(resource)],
            [x],
            [z],
            body,
            initial(constant(1, 2, 3)),
        )
        steps, total = Steps(file), np.array([1, 2, 3], F32)
        for (value,) in STEPS:
            (actual,) = steps.step(value)
            total = (value + total) * 2
            np.testing.assert_array_equal(actual, total)

    def test_a_layer_in_a_branch_keeps_its_state_while_the_other_runs(self) -> None:
        yes, x, y = boolean(1), f32(2, 4), f32(2, 5)
        layer = rnn(Reals(), (2,))
        a = layer.inputs[0]
        assert a is not None
        b, zeros = f32(2, 4), T.constant(np.zeros((2, 5)), F32)
        file = write(
            [if_([yes, x], [y])],
            [yes, x],
            [y],
            G([layer], [a], layer.outputs),
            G([Op("ADD", [zeros, zeros], [z := f32(2, 5)])], [b], [z]),
        )
        rng = np.random.default_rng(0)
        steps = Steps(file)
        alone = Steps(write([layer], [a], layer.outputs))
        for flag in (1, 1, 0, 1):
            value = rng.uniform(-1, 1, (2, 4)).astype(F32)
            (actual,) = steps.step(flag, value)
            (wanted,) = alone.step(value) if flag else [np.zeros((2, 5))]
            np.testing.assert_allclose(actual, wanted, 1e-6, 1e-6)
