"""How the texts of the families' tables are read."""

import pytest

from asyncnn.hal.operations.declaring import QUANTIZATIONS, declare
from asyncnn.hal.operations.shapes import same_as_input
from asyncnn.hal.operations.signature import (
    F16,
    F32,
    FLOAT16,
    FLOAT32,
    INT32,
    Argument,
    ArgumentLayout,
    TypeRow,
)
from asyncnn.hal.types import HalVersion

V1_0, V1_2, V1_3 = HalVersion.V1_0, HalVersion.V1_2, HalVersion.V1_3


def declared(types="1.0: F32", layouts="input"):
    return declare(f"ABS {types}", layouts, same_as_input)


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        ("1.0: F32", [(V1_0, {"T": F32})]),
        (
            "1.0: F32; AIDL_V2: F16",
            [(V1_0, {"T": F32}), (HalVersion.AIDL_V2, {"T": F16})],
        ),
        (
            "S/T 1.2: FLOAT32/F32 FLOAT16/F16",
            [(V1_2, {"S": FLOAT32, "T": F32}), (V1_2, {"S": FLOAT16, "T": F16})],
        ),
    ],
)
def test_types_are_rows_since_a_version(types, expected) -> None:
    assert declared(types).rows == tuple(TypeRow(*each) for each in expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("input", [Argument("input")]),
        ("x y: INT32", [Argument("x", INT32), Argument("y", INT32)]),
        ("x, y: U", [Argument("x"), Argument("y", "U")]),
        ("bias? state", [Argument("bias", optional=True), Argument("state")]),
        ("input+ [1-4]", [Argument("input", ranks=(1, 2, 3, 4), at_least=1)]),
        ("input*: any", [Argument("input", None, at_least=0)]),
        ("x: INT32 [2] @1.2", [Argument("x", INT32, (2,), since=V1_2)]),
        ("x = unit", [Argument("x", quantization=QUANTIZATIONS["unit"])]),
    ],
)
def test_a_layout_lists_arguments(text, expected) -> None:
    (layout,) = declared(layouts=text).layouts
    assert layout == ArgumentLayout(tuple(expected), (Argument("output"),))
    (layout,) = declared(layouts=f"input -> {text}").layouts
    assert layout.outputs == tuple(expected)


def test_inputs_may_end_at_each_bar() -> None:
    (layout,) = declared(layouts="a b | c | d: INT32 @1.3").layouts
    assert layout.counts == (2, 3, 4)
    assert [argument.name for argument in layout.inputs] == ["a", "b", "c", "d"]


def test_a_newer_layout_begins_with_its_version() -> None:
    layouts = declared(layouts=("1.2: x", "1.3: x -> y, z: INT32")).layouts
    assert [layout.since for layout in layouts] == [V1_2, V1_3]
    assert layouts[1].outputs == (Argument("y"), Argument("z", INT32))


@pytest.mark.parametrize(
    ("types", "layouts"),
    [
        ("F32", "input"),
        ("1.0: F31", "input"),
        ("1.7: F32", "input"),
        ("T/S 1.0: F32", "input"),
        ("1.0: F32", ""),
        ("1.0: F32", "input: T: U"),
        ("1.0: F32", "input [a]"),
        ("1.0: F32", "input @2.0"),
        ("1.0: F32", "input = unity"),
        ("1.0: F32", "input -> -> output"),
    ],
)
def test_what_cannot_be_read_is_an_error(types, layouts) -> None:
    with pytest.raises((KeyError, ValueError)):
        declared(types, layouts)


def test_an_operation_is_one_of_the_hal() -> None:
    with pytest.raises(KeyError, match="ABSOLUTE"):
        declare("ABSOLUTE 1.0: F32", "input", same_as_input)
