"""Variables that no state can be, or that contradict themselves."""

from collections.abc import Sequence

import numpy as np
import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.runtime.tflite.cases import F32, I8, boolean, const, f32, i32
from tests.runtime.tflite.files import G, Op, T, write
from tests.runtime.tflite.flow_files import (
    add,
    assign,
    constant,
    handle,
    if_,
    initial,
    named,
    once,
    read,
    unary,
    while_,
)
from tests.runtime.tflite.importing import import_tflite

STEPS = [([1, 2, 3],), ([0, 1, 0],), ([5, 5, 5],)]


def counting(*operators: Op, init: G | None = None, x: T, y: T) -> bytes:
    others = [initial(constant(10, 20, 30)) if init is None else init]
    return write([once(), *operators], [x], [y], *others)


def program(*operators: Op, init: Sequence[Op] = (), others: Sequence[G] = ()) -> bytes:
    """Return a file whose output is that of the last operator that has one."""
    x = f32(3)
    outputs = [tensor for op in operators for tensor in op.outputs if tensor.shape]
    return write(operators, [x], outputs[-1:] or [x], G(init, [], []), *others)


def initialised(value: T) -> list[Op]:
    return [named(resource := handle()), assign(resource, value)]


VALUE, SMALLER = constant(1, 2, 3), constant(1, 2)

UNSUPPORTED = {
    "another shape": (
        program(
            once(),
            named(a := handle()),
            read(a, f32(3)),
            assign(a, SMALLER),
            init=initialised(VALUE),
        ),
        r"holds TENSOR_FLOAT32 \[3\] but is assigned TENSOR_FLOAT32 \[2\]",
    ),
    "another scale": (
        program(
            once(),
            named(a := handle()),
            read(a, y := T(I8, (3,), scale=(0.5,))),
            assign(a, T.constant([1, 2, 3], I8, scale=(0.25,))),
            Op("DEQUANTIZE", [y], [f32(3)]),
            init=initialised(T.constant([1, 2, 3], I8, scale=(0.5,))),
        ),
        "scale 0.5 and zero point 0 but is assigned",
    ),
    "read as another type": (
        program(
            once(),
            named(a := handle()),
            read(a, i32(3)),
            assign(a, VALUE),
            init=initialised(VALUE),
        ),
        "value of another type",
    ),
    "initialised too late": (
        program(
            named(a := handle()), assign(a, VALUE), once(), init=initialised(VALUE)
        ),
        "used before it is initialised",
    ),
    "initialised in a branch": (
        write(
            [if_([yes := boolean(1), x := f32(2, 3)], [y := f32(2, 3)])],
            [yes, x],
            [y],
            G([once(3), Op("ABS", [p := f32(2, 3)], [q := f32(2, 3)])], [p], [q]),
            unary("NEG"),
            initial(VALUE),
        ),
        r"CALL_ONCE.*inside IF or WHILE",
    ),
    "expensive first values": (
        program(
            once(),
            init=[
                Op(
                    "BATCH_MATMUL",
                    [T.constant(np.ones((2, 2)), F32)] * 2,
                    [y := f32(2, 2)],
                ),
                *initialised(y),
            ],
        ),
        r"initialises variables.*BATCH_MATMUL",
    ),
    "a condition that assigns": (
        write(
            [while_([x := i32(1)], [y := i32(1)])],
            [x],
            [y],
            G(
                [
                    named(a := handle()),
                    assign(a, VALUE),
                    Op("LESS", [p := i32(1), const([3])], [q := boolean(1)]),
                ],
                [p],
                [q],
            ),
            G([add(p := i32(1), const([1]), q := i32(1))], [p], [q]),
        ),
        "condition of the loop assigns variable 'total'",
    ),
    "a variable as a result": (
        write([named(a := handle())], [], [a]),
        "elements of type RESOURCE",
    ),
}

CONTRADICTIONS = {
    "no value": (
        program(named(a := handle()), read(a, f32(3))),
        "variable 'total' is read before it has a value",
    ),
    "no variable": (
        program(once(), read(x := f32(3), f32(3)), init=initialised(VALUE)),
        "instead of a variable",
    ),
    "large first values": (
        program(
            once(),
            init=[
                Op(
                    "FILL",
                    [const([2**13, 2**13]), const(1.0, F32)],
                    [y := f32(2**13, 2**13)],
                ),
                *initialised(y),
            ],
        ),
        "does not hold",
    ),
    "a variable with data": (
        write(
            [Op("ABS", [T(F32, (2,), np.ones(2, F32), variable=True)], [y := f32(2)])],
            [],
            [y],
        ),
        "data of a constant",
    ),
}


@pytest.mark.parametrize(("file", "reason"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_what_no_state_can_be_is_refused_by_name(file: bytes, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_tflite(from_buffer(file))


@pytest.mark.parametrize(
    ("file", "reason"), CONTRADICTIONS.values(), ids=CONTRADICTIONS
)
def test_variables_that_contradict_themselves_are_refused(
    file: bytes, reason: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        import_tflite(from_buffer(file))
