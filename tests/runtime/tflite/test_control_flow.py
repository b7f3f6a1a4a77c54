"""IF, WHILE and CALL of TFLite files run as in LiteRT, or are refused by name."""

from typing import Any

import numpy as np
import pytest
from flatbuffers import flexbuffers

from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.runtime.tflite.cases import F32, boolean, const, f32, i32
from tests.runtime.tflite.files import G, Op, T, write
from tests.runtime.tflite.flow_files import (
    call,
    if_,
    less_than,
    names_of,
    unary,
    while_,
)
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.stepping import Steps, assert_steps_agree


def binary(name: str, *shape: int) -> G:
    x, y, z = f32(*shape), f32(*shape), f32(*shape)
    return G([Op(name, [x, y], [z])], [x, y], [z], name.lower())


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, shape).astype(F32)


class TestIf:
    @pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
    def test_the_condition_chooses_the_branch(self, shape: tuple[int, ...]) -> None:
        condition, x, y = T(np.bool_, shape), f32(2, 3), f32(2, 3)
        file = write(
            [if_([condition, x], [y])], [condition, x], [y], unary("NEG"), unary("EXP")
        )
        assert_steps_agree(file, [(True, floats(2, 3)), (False, floats(2, 3))])
        assert names_of(file)[-1] == "IF"

    def test_a_branch_may_hand_on_an_input(self) -> None:
        condition, x, y = boolean(1), f32(2, 3), f32(2, 3)
        same = f32(2, 3)
        file = write(
            [if_([condition, x], [y])],
            [condition, x],
            [y],
            unary("NEG"),
            G([], [same], [same]),
        )
        assert_steps_agree(file, [(True, floats(2, 3)), (False, floats(2, 3))])

    def test_a_branch_may_return_one_value_twice_or_a_constant(self) -> None:
        condition, x, outputs = boolean(1), f32(3), [f32(3), f32(3)]
        twice = unary("NEG", (3,))
        fixed = T.constant([1, 2, 3], F32)
        given = f32(3)
        file = write(
            [if_([condition, x], outputs)],
            [condition, x],
            outputs,
            G(twice.operators, twice.inputs, [*twice.outputs, *twice.outputs]),
            G([], [given], [given, fixed]),
        )
        # LiteRT hands on one of two outputs that are one tensor.
        steps, x_value = Steps(file), floats(3)
        np.testing.assert_array_equal(steps.step(True, x_value), [-x_value] * 2)
        np.testing.assert_array_equal(steps.step(False, x_value), [x_value, [1, 2, 3]])

    def test_constants_become_constants_of_the_branches(self) -> None:
        condition, x = boolean(1), f32(2, 3)
        weights = T.constant(floats(4, 3), F32)
        branches = []
        for name in ("FULLY_CONNECTED", "BATCH_MATMUL"):
            a, w, z = f32(2, 3), f32(4, 3), f32(2, 4)
            if name == "FULLY_CONNECTED":
                operators = [Op(name, [a, w, None], [z], "FullyConnectedOptions")]
            else:
                fields = {"AdjY": True}
                operators = [Op(name, [a, w], [z], "BatchMatMulOptions", fields)]
            branches.append(G(operators, [a, w], [z]))
        y = f32(2, 4)
        file = write(
            [if_([condition, x, weights], [y])], [condition, x], [y], *branches
        )
        model = import_tflite(from_buffer(file)).model
        assert [len(graph.input_indexes) for graph in model.referenced] == [1, 1]
        assert_steps_agree(file, [(True, floats(2, 3)), (False, floats(2, 3))])

    def test_a_constant_that_sets_a_shape_reaches_the_branch(self) -> None:
        condition, x, y = boolean(1), f32(2, 3), f32(4, 3)
        paddings, repeats = const([[1, 1], [0, 0]]), const([2, 1])
        a, r, p = f32(2, 3), i32(2), i32(2, 2)
        z = f32(4, 3)
        branches = [
            G([Op("TILE", [a, r], [z])], [a, r, p], [z]),
            G([Op("PAD", [a, p], [z])], [a, r, p], [z]),
        ]
        file = write(
            [if_([condition, x, repeats, paddings], [y])],
            [condition, x],
            [y],
            *branches,
        )
        assert_steps_agree(file, [(True, floats(2, 3)), (False, floats(2, 3))])

    def test_a_constant_condition_leaves_one_branch(self) -> None:
        x, y = f32(2, 3), f32(2, 3)
        for value, name in ((True, "NEG"), (False, "EXP")):
            condition = T.constant([value], np.bool_)
            branches = unary("NEG"), unary("EXP")
            file = write([if_([condition, x], [y])], [x], [y], *branches)
            assert names_of(file) == [name]

    def test_branches_nest(self) -> None:
        outer, inner, x, y = boolean(1), boolean(1), f32(3), f32(3)
        c, a, z = boolean(1), f32(3), f32(3)
        c2, a2 = boolean(1), f32(3)
        file = write(
            [if_([outer, inner, x], [y])],
            [outer, inner, x],
            [y],
            G([if_([c, a], [z], 3, 4)], [c, a], [z]),
            G([], [c2, a2], [a2]),
            unary("NEG", (3,)),
            unary("EXP", (3,)),
        )
        choices = [(a, b) for a in (True, False) for b in (True, False)]
        assert_steps_agree(file, [(*choice, floats(3)) for choice in choices])

    def test_a_shape_that_the_branches_leave_open_is_the_runs(self) -> None:
        condition, x, y = boolean(1), f32(2, 3), f32(2, 3)
        a, z = f32(2, 3), f32(4, 3)
        longer = G([Op("TILE", [a, const([2, 1])], [z])], [a], [z])
        file = write(
            [if_([condition, x], [y])], [condition, x], [y], longer, unary("NEG")
        )
        named = import_tflite(from_buffer(file))
        assert named.outputs[0].dimensions == (0, 3)
        assert_steps_agree(file, [(True, floats(2, 3)), (False, floats(2, 3))])

    def test_what_reads_an_open_shape_is_refused(self) -> None:
        condition, x, y, end = boolean(1), f32(2, 3), f32(2, 3), f32(2, 3)
        a, z = f32(2, 3), f32(4, 3)
        longer = G([Op("TILE", [a, const([2, 1])], [z])], [a], [z])
        file = write(
            [if_([condition, x], [y]), Op("ABS", [y], [end])],
            [condition, x],
            [end],
            longer,
            unary("NEG"),
        )
        with pytest.raises(UnsupportedOperatorError, match=r"ABS.*leave open"):
            import_tflite(from_buffer(file))

    def test_a_branch_takes_the_shape_that_it_is_given(self) -> None:
        condition, x, y = boolean(1), f32(2, 3), f32(2, 3)
        vague = G([], [a := f32(1)], [a])
        file = write([if_([condition, x], [y])], [condition, x], [y], vague, vague)
        assert_steps_agree(file, [(True, floats(2, 3))])


class TestWhile:
    def test_a_loop_runs_until_its_condition_fails(self) -> None:
        i, x, n, y = i32(1), f32(3), i32(1), f32(3)
        a, b, j, z = i32(1), f32(3), i32(1), f32(3)
        body = G(
            [
                Op("ADD", [a, const([1])], [j], "AddOptions"),
                Op("ADD", [b, b], [z], "AddOptions"),
            ],
            [a, b],
            [j, z],
        )
        file = write(
            [while_([i, x], [n, y])], [i, x], [n, y], less_than(5, f32(3)), body
        )
        samples: list[tuple[Any, ...]] = [([k], floats(3)) for k in (0, 4, 5, 9)]
        assert_steps_agree(file, samples)
        assert names_of(file) == ["WHILE"]

    def test_what_a_loop_hands_on_is_no_output_of_its_body(self) -> None:
        i, x, w, n, y, v = i32(1), f32(2, 3), f32(2, 3), i32(1), f32(2, 3), f32(2, 3)
        weights = T.constant(floats(2, 3), F32)
        a, b, c, d, j, z = i32(1), f32(2, 3), f32(2, 3), f32(2, 3), i32(1), f32(2, 3)
        total = f32(2, 3)
        body = G(
            [
                Op("ADD", [a, const([1])], [j], "AddOptions"),
                Op("MUL", [b, d], [total], "MulOptions"),
                Op("ADD", [total, c], [z], "AddOptions"),
            ],
            [a, b, c, d],
            [j, z, c, d],
        )
        u = f32(2, 3)
        file = write(
            [while_([i, x, w, weights], [n, y, v, u])],
            [i, x, w],
            [n, y, v, u],
            less_than(3, f32(2, 3), f32(2, 3), f32(2, 3)),
            body,
        )
        model = import_tflite(from_buffer(file)).model
        test, step = model.referenced
        assert (len(step.input_indexes), len(step.output_indexes)) == (3, 2)
        assert len(test.input_indexes) == 3
        assert_steps_agree(file, [([0], floats(2, 3), floats(2, 3, seed=1))])

    def test_loops_nest_and_begin_with_constants(self) -> None:
        x, y = f32(3), f32(3)
        i, n = const([0]), i32(1)
        a, b, j, z = i32(1), f32(3), i32(1), f32(3)
        inner = while_([const([0]), b], [i32(1), z], 3, 4)
        outer = G(
            [inner, Op("ADD", [a, const([1])], [j], "AddOptions")], [a, b], [j, z]
        )
        c, d, k, e = i32(1), f32(3), i32(1), f32(3)
        add = G(
            [
                Op("ADD", [c, const([1])], [k], "AddOptions"),
                Op("ADD", [d, const([1], F32)], [e], "AddOptions"),
            ],
            [c, d],
            [k, e],
        )
        file = write(
            [while_([i, x], [n, y])],
            [x],
            [y],
            less_than(3, f32(3)),
            outer,
            less_than(2, f32(3)),
            add,
        )
        assert_steps_agree(file, [(floats(3),)])

    def test_a_loop_may_swap_values_and_set_them_to_constants(self) -> None:
        i, x, y, w = i32(1), f32(3), f32(3), f32(3)
        outputs = [i32(1), f32(3), f32(3), f32(3)]
        a, b, c, d, j = i32(1), f32(3), f32(3), f32(3), i32(1)
        body = G(
            [Op("ADD", [a, const([1])], [j], "AddOptions")],
            [a, b, c, d],
            [j, c, b, T.constant([7, 8, 9], F32)],
        )
        file = write(
            [while_([i, x, y, w], outputs)],
            [i, x, y, w],
            outputs,
            less_than(3, f32(3), f32(3), f32(3)),
            body,
        )
        # LiteRT copies values that change places over each other: it is not asked.
        steps, values = Steps(file), [floats(3, seed=k) for k in range(3)]
        for begin, swapped in ((0, True), (1, False), (3, False)):
            _, first, second, third = steps.step([begin], *values)
            one, other = values[:2][::-1] if swapped else values[:2]
            np.testing.assert_array_equal([first, second], [one, other])
            wanted = values[2] if begin == 3 else [7, 8, 9]
            np.testing.assert_array_equal(third, wanted)

    def test_an_int64_counter_is_an_int32_one(self) -> None:
        def wide(*shape: int) -> T:
            return T(np.int64, shape)

        i, n, a, j, k, yes = wide(1), wide(1), wide(1), wide(1), wide(1), boolean(1)
        one, limit = T.constant([1], np.int64), T.constant([4], np.int64)
        file = write(
            [while_([i], [n])],
            [i],
            [n],
            G([Op("LESS", [k, limit], [yes])], [k], [yes]),
            G([Op("ADD", [a, one], [j], "AddOptions")], [a], [j]),
        )
        assert_steps_agree(file, [([0],), ([7],)])


class TestCall:
    def test_a_subgraph_runs_in_place(self) -> None:
        x, hidden, y = f32(2, 3), f32(2, 3), f32(2, 3)
        file = write([call([x], [hidden]), call([hidden], [y])], [x], [y], unary("NEG"))
        assert names_of(file) == ["NEG", "NEG"]

    def test_calls_nest_and_hand_on(self) -> None:
        x, y, same = f32(2, 3), f32(2, 3), f32(2, 3)
        a, b, z = f32(2, 3), f32(2, 3), f32(2, 3)
        file = write(
            [call([x], [y, same])],
            [x],
            [y, same],
            G([call([a], [b], 2), call([b], [z], 2)], [a], [z, a]),
            unary("EXP"),
        )
        assert names_of(file) == ["EXP", "EXP", "RESHAPE"]

    def test_a_composite_is_what_it_decomposes_into(self) -> None:
        x, y, a, z = f32(2, 3), f32(2, 3), f32(2, 3), f32(2, 3)
        options = "StableHLOCompositeOptions"
        fields = {
            "DecompositionSubgraphIndex": 1,
            "Name": "odml.double",
            "CompositeAttributes": bytes(flexbuffers.Dumps({})),
        }
        file = write(
            [Op("STABLEHLO_COMPOSITE", [x], [y], options, fields)],
            [x],
            [y],
            G([Op("ADD", [a, a], [z], "AddOptions")], [a], [z]),
        )
        assert names_of(file) == ["ADD"]
        assert_steps_agree(file, [(floats(2, 3),)])
