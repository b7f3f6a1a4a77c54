"""Control flow that the HAL cannot say, or that contradicts itself."""

import numpy as np
import pytest

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import UnsupportedOperatorError
from asyncnn.runtime.tflite.subgraphs import MAX_DEPTH
from tests.runtime.tflite.cases import boolean, const, f32, i32
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


def binary(name: str, *shape: int) -> G:
    x, y, z = f32(*shape), f32(*shape), f32(*shape)
    return G([Op(name, [x, y], [z])], [x, y], [z], name.lower())


def loop_of(before: T, after: T, body: list[Op], inner: T) -> bytes:
    i, n, a, j = i32(1), i32(1), i32(1), i32(1)
    step = G([*body, Op("ADD", [a, const([1])], [j])], [a, inner], [j, after])
    output = T(before.dtype, before.shape, scale=before.scale)
    return write(
        [while_([i, before], [n, output])],
        [i, before],
        [n],
        less_than(3, T(before.dtype, before.shape, scale=before.scale)),
        step,
    )


def grown() -> bytes:
    x, a, z = f32(2, 3), f32(2, 3), f32(4, 3)
    return loop_of(x, z, [Op("TILE", [a, const([2, 1])], [z])], a)


def requantised() -> bytes:
    x, a = T(np.int8, (3,), scale=(0.5,)), T(np.int8, (3,), scale=(0.5,))
    z = T(np.int8, (3,), scale=(0.25,))
    return loop_of(x, z, [Op("QUANTIZE", [a], [z])], a)


def chain(length: int, end: int | None = None) -> bytes:
    """Return subgraphs of which each calls the next; the last one calls ``end``."""
    graphs = []
    for number in range(length):
        x, y = f32(1), f32(1)
        following = number + 1 if number + 1 < length else end
        operator = (
            Op("ABS", [x], [y]) if following is None else call([x], [y], following)
        )
        graphs.append(G([operator], [x], [y], f"g{number}"))
    main, *others = graphs
    return write(main.operators, main.inputs, main.outputs, *others)


def doubling(length: int) -> bytes:
    """Return subgraphs of which each calls the next twice."""
    graphs = []
    for number in range(length):
        x, hidden, y = f32(1), f32(1), f32(1)
        if number + 1 < length:
            operators = [
                call([x], [hidden], number + 1),
                call([hidden], [y], number + 1),
            ]
        else:
            operators = [Op("ABS", [x], [y])]
        graphs.append(G(operators, [x], [y]))
    main, *others = graphs
    return write(main.operators, main.inputs, main.outputs, *others)


def branch(then: G, other: G, *inputs: T) -> bytes:
    condition = boolean(1)
    output = f32(2, 3)
    return write(
        [if_([condition, *inputs], [output])],
        [condition, *inputs],
        [output],
        then,
        other,
    )


def int8(scale: float) -> G:
    x = f32(2, 3)
    y = T(np.int8, (2, 3), scale=(scale,))
    return G([Op("QUANTIZE", [x], [y])], [x], [y])


def with_condition(condition: T) -> bytes:
    x, y = f32(2, 3), f32(2, 3)
    graphs = unary("NEG"), unary("EXP")
    return write([if_([condition, x], [y])], [condition, x], [y], *graphs)


def fixed_loop() -> bytes:
    i, n, a = i32(1), i32(1), i32(1)
    return write([while_([i], [n])], [i], [n], less_than(3), G([], [a], [a]))


UNSUPPORTED = {
    "a loop that grows": (
        grown(),
        r"changes the shape of .* from \[2, 3\] to \[4, 3\]",
    ),
    "a loop that requantises": (requantised(), "type or quantisation"),
    "a loop that does nothing": (fixed_loop(), "changes nothing"),
    "a subgraph that calls itself": (chain(2, 1), r"subgraph 1 \('g1'\) runs itself"),
    "a cycle": (chain(3, 0), r"subgraph 0 \('main'\) runs itself"),
    "deep calls": (chain(MAX_DEPTH + 1), f"more than {MAX_DEPTH} subgraphs"),
    "many calls": (doubling(MAX_DEPTH), "counted wherever it is called"),
    "branches of two scales": (
        branch(int8(0.5), int8(0.25), f32(2, 3)),
        "different types, quantisations",
    ),
    "branches of two ranks": (
        branch(
            unary("NEG"),
            G([Op("RESHAPE", [x := f32(2, 3), const([6])], [y := f32(6)])], [x], [y]),
            f32(2, 3),
        ),
        "ranks",
    ),
    "another type inside": (
        branch(unary("NEG"), G([], [x := i32(2, 3)], [x]), f32(2, 3)),
        "value of another type",
    ),
    "an operator inside that is unknown": (
        branch(unary("NEG"), unary("Twist"), f32(2, 3)),
        r"^operator 0 \(CUSTOM Twist\) of subgraph 2 \('twist'\)",
    ),
}

CONTRADICTIONS = {
    "no such subgraph": (chain(1, 7), "subgraph 7 of 1"),
    "a negative subgraph": (
        write([while_([x := i32(1)], [y := i32(1)], -1, 0)], [x], [y]),
        "subgraph -1 of 1",
    ),
    "inputs of a branch": (
        branch(unary("NEG"), binary("ADD", 2, 3), f32(2, 3)),
        "2 inputs and 1 outputs, not 1 and 1",
    ),
    "outputs of a loop": (
        write(
            [while_([x := i32(1)], [i32(1), y := i32(1)])],
            [x],
            [y],
            less_than(1),
            G([], [a := i32(1)], [a]),
        ),
        "1 values with 2 outputs",
    ),
    "a condition of two": (with_condition(boolean(2)), "not one boolean"),
    "a condition of integers": (with_condition(i32(1)), "not one boolean"),
    "an input twice": (
        branch(unary("NEG"), G([], [x := f32(2, 3), x], [x]), f32(2, 3), f32(2, 3)),
        "1 inputs|twice",
    ),
    "an output that nothing computes": (
        branch(unary("NEG"), G([], [f32(2, 3)], [f32(2, 3)]), f32(2, 3)),
        "never computed",
    ),
}


@pytest.mark.parametrize(("file", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_the_hal_cannot_say_is_refused_by_name(file: bytes, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_tflite(from_buffer(file))


@pytest.mark.parametrize(
    ("file", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS
)
def test_subgraphs_that_contradict_each_other_are_refused(
    file: bytes, reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        import_tflite(from_buffer(file))


def test_a_subgraph_that_nothing_runs_may_be_anything() -> None:
    x, y = f32(2, 3), f32(2, 3)
    file = write([Op("NEG", [x], [y])], [x], [y], unary("Twist"))
    assert names_of(file) == ["NEG"]


@pytest.mark.parametrize("word", [-1, 2**31 - 1, 3])
def test_any_word_of_a_file_with_loops_may_be_wrong(word: int) -> None:
    data = grown()
    extreme = word.to_bytes(4, "little", signed=True)
    for index in range(0, len(data) - 3, 4):
        try:
            import_tflite(from_buffer(data[:index] + extreme + data[index + 4 :]))
        except AsyncnnError:
            continue
