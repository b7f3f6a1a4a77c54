"""Inputs of other shapes than the file's: all others follow as in LiteRT."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import completed
from asyncnn.runtime.tflite import UnsupportedOperatorError
from asyncnn.runtime.tflite.shapes import RULES, result_shapes
from asyncnn.runtime.tflite.tensors import OperatorTensors
from asyncnn.tflite.contents import reading_contents
from tests.runtime.tflite.cases import F32, Case, boolean, const, f32, i32, ramp
from tests.runtime.tflite.files import G, Op, T, write
from tests.runtime.tflite.flow_files import if_
from tests.runtime.tflite.graphs import WINDOW, conv_2d
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.layer_cases import CASES
from tests.runtime.tflite.litert import run_litert
from tests.runtime.tflite.stepping import LiteRtSteps, Steps

RULED = [case for case in CASES if case.operator.name in RULES]


def images() -> bytes:
    """Return layers whose lengths the file does not know, nor how many axes."""
    x, (hidden, pooled, mean, dense, y) = f32(1, 12, 8, 1), [f32(1, 1) for _ in "12345"]
    window = {"FilterHeight": 2, "FilterWidth": 2, "StrideH": 2, "StrideW": 2}
    operators = [
        conv_2d(x, ramp((8, 3, 3, 1)), ramp((8,)), hidden),
        Op("AVERAGE_POOL_2D", [hidden], [pooled], "Pool2DOptions", window),
        Op("MEAN", [pooled, const([1, 2])], [mean], "ReducerOptions"),
        Op(
            "FULLY_CONNECTED", [mean, ramp((6, 8)), None], [dense],
            "FullyConnectedOptions",
        ),
        Op("LOGISTIC", [dense], [y]),
    ]  # fmt: skip
    return write(operators, [x], [y])


def rows() -> bytes:
    x, (whole, squares, some, y) = f32(1, 48), [f32(1, 1) for _ in range(4)]
    bounds = const([0, 0]), const([2, 12]), const([1, 2])
    operators = [
        Op("RESHAPE", [x, const([-1, 12])], [whole], "ReshapeOptions"),
        Op("MUL", [whole, whole], [squares], "MulOptions"),
        Op("STRIDED_SLICE", [squares, *bounds], [some], "StridedSliceOptions"),
        Op("CONCATENATION", [some, some], [y], "ConcatenationOptions", {"Axis": 1}),
    ]
    return write(operators, [x], [y])


def frames() -> bytes:
    x, (parts, sizes, y) = f32(1, 64), [f32(1, 1) for _ in range(3)]
    waves = T(np.complex64, (1, 1))
    layer = "FullyConnectedOptions", {"KeepNumDims": True}
    operators = [
        Op("RESHAPE", [x, const([4, 1, 16])], [parts], "ReshapeOptions"),
        Op("RFFT2D", [parts, const([1, 16])], [waves], "Rfft2dOptions"),
        Op("COMPLEX_ABS", [waves], [sizes]),
        Op("FULLY_CONNECTED", [sizes, ramp((5, 9)), None], [y], *layer),
    ]
    return write(operators, [x], [y])


def batch() -> bytes:
    x, sizes, count, shape, y = f32(2, 3, 4), i32(3), i32(), i32(2), f32(1, 1)
    bounds = const([0]), const([1]), const([1])
    mask, pair = {"ShrinkAxisMask": 1}, {"ValuesCount": 2, "Axis": 0}
    operators = [
        Op("SHAPE", [x], [sizes], "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", [sizes, *bounds], [count], "StridedSliceOptions", mask),
        Op("PACK", [count, const(-1)], [shape], "PackOptions", pair),
        Op("RESHAPE", [x, shape], [y], "ReshapeOptions"),
    ]
    return write(operators, [x], [y])


HINTED = {"images": images, "rows": rows, "frames": frames, "batch": batch}


@pytest.mark.parametrize("device", ["accelerated", "auto", "driver", "reference"])
@pytest.mark.parametrize("make", HINTED.values(), ids=HINTED)
async def test_lengths_that_a_file_does_not_know_follow(
    make: Callable[[], bytes], device: str
) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    file = make()
    named = asyncnn.load(file)
    x = np.random.default_rng(3).standard_normal(named.inputs[0].dimensions)
    (expected,) = run_litert(file, [x.astype(F32)])
    is_remote = device == "driver"
    opened = asyncnn.connect() if is_remote else asyncnn.open_device(device)
    async with opened as opened_device:
        prepared = await opened_device.prepare(named)
        for _ in range(3):
            cancelled = asyncio.ensure_future(prepared.run([x.astype(F32)]))
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            (y,) = (await prepared.run([x.astype(F32)])).values()
            assert y.shape == expected.shape
            np.testing.assert_allclose(y, expected, 1e-4, 1e-4)


@pytest.mark.parametrize("device", ["accelerated", "reference"])
async def test_lengths_that_are_computed_of_open_ones_follow(device: str) -> None:
    pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    x = T(F32, (1, 4, 4, 2), signature=(-1, 4, 4, 2))
    sizes, batch, shape, flat, y = i32(4), i32(), i32(2), f32(1, 32), f32(1, 3)
    bounds = const([0]), const([1]), const([1])
    mask, pair = {"ShrinkAxisMask": 1}, {"ValuesCount": 2, "Axis": 0}
    weights = ramp((3, 32)), None
    operators = [
        Op("SHAPE", [x], [sizes], "ShapeOptions", {"OutType": 2}),
        Op("STRIDED_SLICE", [sizes, *bounds], [batch], "StridedSliceOptions", mask),
        Op("PACK", [batch, const(32)], [shape], "PackOptions", pair),
        Op("RESHAPE", [x, shape], [flat], "ReshapeOptions"),
        Op("FULLY_CONNECTED", [flat, *weights], [y], "FullyConnectedOptions"),
    ]
    file = write(operators, [x], [y])
    named = asyncnn.load(file, input_shapes=[(5, 4, 4, 2)])
    given = np.random.default_rng(5).standard_normal((5, 4, 4, 2)).astype(F32)
    async with asyncnn.open_device(device) as opened:
        (found,) = (await (await opened.prepare(named)).run([given])).values()
    rows = [run_litert(file, [row[None]])[0] for row in given]
    np.testing.assert_allclose(found, np.concatenate(rows), 1e-5, 1e-5)


@pytest.mark.parametrize("case", RULED, ids=lambda case: case.name)
def test_the_rules_give_the_shapes_that_files_state(case: Case) -> None:
    (graph,) = completed(reading_contents(memoryview(case.file()))).graphs
    tensors = OperatorTensors(graph, graph.operators[0])
    stated = [graph.tensors[index].shape for index in graph.operators[0].outputs]
    assert list(result_shapes(tensors)) == stated


def test_most_rules_have_a_case() -> None:
    without = set(RULES) - {case.operator.name for case in RULED}
    assert without <= {"RFFT2D", "REAL", "IMAG", "COMPLEX_ABS"}


def spectrum() -> bytes:
    """Return a file like those that take sound of any length."""
    x, wide, image, hidden = f32(1, 1), f32(1, 1, 1), f32(1, 1, 1, 1), f32(1, 1, 1, 5)
    flat, turned = f32(1, 5), f32(5, 1)
    mean, loud, y, sizes = f32(1, 1), f32(5, 1), f32(1, 5, 1), i32(2)
    operators = [
        Op("EXPAND_DIMS", [x, const(-1)], [wide]),
        Op("EXPAND_DIMS", [wide, const(1)], [image]),
        conv_2d(image, ramp((5, 1, 4, 1)), ramp((5,)), hidden, Padding=1, StrideW=2),
        Op("RESHAPE", [hidden, const([-1, 5])], [flat], "ReshapeOptions"),
        Op("TRANSPOSE", [flat, const([1, 0])], [turned]),
        Op("MEAN", [turned, const([0])], [mean], "ReducerOptions", {"KeepDims": True}),
        Op("SUB", [turned, mean], [loud], "SubOptions"),
        Op("EXPAND_DIMS", [loud, const(0)], [y]),
        Op("SHAPE", [loud], [sizes], "ShapeOptions", {"OutType": 2}),
    ]
    return write(operators, [x], [y, sizes])


def resized(file: bytes, *values: Any) -> tuple[list[Any], list[Any]]:
    """Return the outputs of the engine and of LiteRT for inputs of these shapes."""
    names = [info.name for info in import_tflite(from_buffer(file)).inputs]
    arrays = [np.asarray(value, F32) for value in values]
    shapes = {name: array.shape for name, array in zip(names, arrays, strict=True)}
    steps = Steps(import_tflite(from_buffer(file), input_shapes=shapes))
    return steps.step(*arrays), LiteRtSteps(file, shapes=list(shapes.values())).step(
        *arrays
    )


def assert_resized(file: bytes, *values: Any) -> None:
    for actual, wanted in zip(*resized(file, *values), strict=True):
        assert actual.shape == wanted.shape
        np.testing.assert_allclose(actual, wanted, 1e-4, 1e-4)


@pytest.mark.parametrize("length", [4, 7, 50])
def test_sound_may_have_any_length(length: int) -> None:
    sound = np.random.default_rng(0).normal(size=(1, length))
    assert_resized(spectrum(), sound)


def test_batches_and_images_may_be_larger() -> None:
    x, hidden, pooled = f32(1, 8, 8, 2), f32(1, 8, 8, 3), f32(1, 4, 4, 3)
    flat, y = f32(1, 3), f32(1, 4)
    window = {"StrideW": 2, "StrideH": 2, "FilterWidth": 2, "FilterHeight": 2}
    operators = [
        conv_2d(x, ramp((3, 3, 3, 2)), ramp((3,)), hidden),
        Op("MAX_POOL_2D", [hidden], [pooled], "Pool2DOptions", window),
        Op("MEAN", [pooled, const([1, 2])], [flat], "ReducerOptions"),
        Op("FULLY_CONNECTED", [flat, ramp((4, 3)), None], [y], "FullyConnectedOptions"),
    ]
    values = np.random.default_rng(0).normal(size=(5, 10, 13, 2))
    assert_resized(write(operators, [x], [y]), values)
    assert WINDOW["StrideW"] == 1


def test_bodies_follow_as_well() -> None:
    condition, x, hidden, y = boolean(1), f32(1, 3), f32(1, 3), f32(1, 3)

    def body(name: str) -> G:
        a, b = f32(1, 3), f32(1, 3)
        return G([Op(name, [a], [b])], [a], [b])

    file = write(
        [if_([condition, x], [hidden]), Op("ABS", [hidden], [y])],
        [condition, x],
        [y],
        body("NEG"),
        body("EXP"),
    )
    value = np.array([[1, 2, 3], [4, 5, 6]], F32)
    steps = Steps(import_tflite(from_buffer(file), input_shapes={"t1": (2, 3)}))
    np.testing.assert_array_equal(steps.step(True, value), [value])
    np.testing.assert_allclose(steps.step(False, value), [np.exp(value)], 1e-5)


def one(operator: Op, x: T) -> bytes:
    return write([operator], [x], operator.outputs)


X = f32(1, 4)
REFUSED: dict[str, tuple[bytes, Sequence[int], type[Exception], str]] = {
    "unknown rule": (
        one(Op("DEPTH_TO_SPACE", [x := f32(1, 1, 1, 4)], [f32(1, 2, 2, 1)]), x),
        (1, 2, 2, 4),
        UnsupportedOperatorError,
        "DEPTH_TO_SPACE.*other shapes than the file",
    ),
    "reshape": (
        one(Op("RESHAPE", [X, const([4])], [f32(4)]), X),
        (1, 6),
        InvalidArgumentError,
        r"6 elements do not become \[4\]",
    ),
    "computed shape": (
        write(
            [
                Op("ARG_MAX", [X, const(1)], [s := i32(1)], "ArgMaxOptions"),
                Op("RESHAPE", [X, s], [y := f32(1, 4)]),
            ],
            [X],
            [y],
        ),
        (2, 4),
        UnsupportedOperatorError,
        "is not a constant",
    ),
    "broadcast": (
        one(Op("ADD", [X, ramp((1, 4))], [f32(1, 4)]), X),
        (1, 6),
        InvalidArgumentError,
        r"shapes \[\[1, 6\], \[1, 4\]\] do not fit",
    ),
    "nothing left": (
        one(Op("SLICE", [X, const([0, 3]), const([-1, -1])], [f32(1, 1)]), X),
        (1, 3),
        InvalidArgumentError,
        r"results of shapes \[\[1, 0\]\]",
    ),
    "slice of fewer axes": (
        one(Op("SLICE", [X, const([0]), const([-1])], [f32(1, 4)]), X),
        (2, 4),
        InvalidArgumentError,
        "do not fit",
    ),
    "more arrays than outputs": (
        one(Op("UNPACK", [X], [f32(4)], "UnpackOptions", {"Num": 1}), X),
        (100_000_000, 4),
        InvalidArgumentError,
        "100000000 arrays for 1",
    ),
    "rank": (
        one(Op("ABS", [X], [f32(1, 4)]), X),
        (4,),
        InvalidArgumentError,
        r"cannot have shape \[4\]",
    ),
    "length": (
        one(Op("ABS", [X], [f32(1, 4)]), X),
        (1, 0),
        InvalidArgumentError,
        r"cannot have shape \[1, 0\]",
    ),
    "size": (
        one(Op("ABS", [X], [f32(1, 4)]), X),
        (2**20, 2**20),
        InvalidArgumentError,
        "32-bit size",
    ),
}


@pytest.mark.parametrize(
    ("file", "shape", "error", "reason"), REFUSED.values(), ids=REFUSED
)
def test_shapes_that_lead_nowhere_are_refused(
    file: bytes, shape: Sequence[int], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        import_tflite(from_buffer(file), input_shapes={"t0": shape})


def test_an_input_that_is_not_there_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(one(Op("ABS", [X], [f32(1, 4)]), X))
    assert asyncnn.load(path, input_shapes={"t0": (3, 4)}).outputs[0].dimensions == (
        3,
        4,
    )
    with pytest.raises(InvalidArgumentError, match="no input 'x'") as caught:
        asyncnn.load(path, input_shapes={"x": (3, 4)})
    assert caught.value.hint == "known: t0"
