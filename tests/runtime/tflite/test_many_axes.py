"""Tensors of more than four axes, beside NumPy and, where it takes them, LiteRT."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.axes import dimensions_of
from asyncnn.runtime.tflite import UnsupportedOperatorError
from tests.direct import run_direct
from tests.runtime.tflite.cases import BOOL, F32, I8, I32, case, const
from tests.runtime.tflite.files import Op, T, write
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.litert import run_litert

FIVE = (2, 3, 4, 2, 5)
SIX = (1, 2, 3, 2, 4, 3)

Formula = Callable[..., Any]


def tensor(dtype: Any, shape: Any) -> T:
    if dtype == I8:
        return T(I8, shape, scale=(0.5,), zero_point=(3,))
    return T(dtype, shape)


def draw(dtype: Any, shape: Any, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == F32:
        return rng.standard_normal(shape).astype(F32)
    return rng.integers(
        0 if dtype == BOOL else -9, 2 if dtype == BOOL else 9, shape
    ).astype(dtype)


def run(file: bytes, *inputs: np.ndarray) -> list[np.ndarray]:
    model = import_tflite(from_buffer(file)).model
    flat = [each.reshape(dimensions_of(each.shape)) for each in inputs]
    return run_direct(SimpleNamespace(model=model, inputs=flat))


MOVES: list[tuple[str, Any, list[Any], dict[str, Any], Formula]] = [
    ("RESHAPE", FIVE, [(6, 8, 5)], {}, lambda x: x.reshape(6, 8, 5)),
    ("RESHAPE", (6, 8, 5), [FIVE], {}, lambda x: x.reshape(FIVE)),
    ("SQUEEZE", SIX, [], {"SqueezeDims": [0]}, lambda x: x[0]),
    ("EXPAND_DIMS", (2, 3, 4, 5), [-1], {}, lambda x: x[..., None]),
    *(
        ("TRANSPOSE", shape, [order], {}, lambda x, order=order: x.transpose(order))
        for shape, order in (
            ((1, 7, 5, 3, 4), (3, 1, 2, 0, 4)),
            (FIVE, (0, 2, 1, 3, 4)),
            (FIVE, (4, 3, 2, 1, 0)),
            (FIVE, (3, 4, 0, 1, 2)),
            (FIVE, (1, 0, 2, 4, 3)),
            (SIX, (0, 1, 4, 2, 5, 3)),
            (SIX, (5, 2, 0, 3, 1, 4)),
            ((1, 1, 1, 1, 1), (4, 3, 2, 1, 0)),
        )
    ),
    (
        "SLICE",
        FIVE,
        [(1, 0, 1, 0, 2), (1, 2, -1, 2, 2)],
        {},
        lambda x: x[1:2, :2, 1:, :, 2:4],
    ),
    (
        "STRIDED_SLICE",
        FIVE,
        [(0, 0, 3, 1, 0), (2, 3, -5, 2, 5), (1, 2, -2, 1, 3)],
        {"ShrinkAxisMask": 8},
        lambda x: x[:, ::2, 3::-2, 1, ::3],
    ),
    (
        "STRIDED_SLICE",
        (2, 3, 4, 5),
        [(0, 0, 0), (2, 0, 5), (1, 1, 1)],
        {"EllipsisMask": 1, "NewAxisMask": 2},
        lambda x: x[..., None, 0:5],
    ),
    ("TILE", FIVE, [(1, 2, 1, 3, 1)], {}, lambda x: np.tile(x, (1, 2, 1, 3, 1))),
    (
        "BROADCAST_TO",
        (3, 1, 2, 1),
        [(2, 3, 4, 2, 5)],
        {},
        lambda x: np.broadcast_to(x, (2, 3, 4, 2, 5)),
    ),
    ("GATHER", FIVE, [(2, 0, 2)], {"Axis": 1}, lambda x: x[:, [2, 0, 2]]),
    ("GATHER", (2, 3, 4, 5), [((1, 0), (2, 2))], {"Axis": 1},
     lambda x: x[:, [[1, 0], [2, 2]]]),
    ("GATHER", FIVE, [((1, 0), (2, 2))], {"Axis": 1, "BatchDims": 1},
     lambda x: np.stack([x[0, [1, 0]], x[1, [2, 2]]])),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, I32, I8, BOOL])
@pytest.mark.parametrize(
    ("name", "shape", "constants", "fields", "formula"),
    MOVES,
    ids=[f"{move[0]}-{i}" for i, move in enumerate(MOVES)],
)
def test_elements_are_moved(
    name: str, shape: Any, constants: Any, fields: Any, formula: Formula, dtype: Any
) -> None:
    x = draw(dtype, shape)
    expected = formula(x)
    others = [const(value, I32) for value in constants]
    chosen = case(
        name, [tensor(dtype, shape), *others], tensor(dtype, expected.shape), **fields
    )
    (actual,) = run(chosen.file(), x)
    np.testing.assert_array_equal(actual.reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", [F32, I32, I8])
@pytest.mark.parametrize("axis", [0, 2, -1])
@pytest.mark.parametrize("name", ["CONCATENATION", "PACK"])
def test_tensors_are_joined(name: str, axis: int, dtype: Any) -> None:
    shape = FIVE if name == "CONCATENATION" else (2, 3, 4, 5)
    arrays = [draw(dtype, shape, seed) for seed in range(3)]
    join: Formula = np.concatenate if name == "CONCATENATION" else np.stack
    expected = join(arrays, axis)
    fields = (
        {"Axis": axis} if name == "CONCATENATION" else {"Axis": axis, "ValuesCount": 3}
    )
    tensors = [tensor(dtype, shape) for _ in arrays]
    chosen = case(name, tensors, tensor(dtype, expected.shape), **fields)
    (actual,) = run(chosen.file(), *arrays)
    np.testing.assert_array_equal(actual.reshape(expected.shape), expected)
    (theirs,) = run_litert(chosen.file(), arrays)
    np.testing.assert_array_equal(theirs, expected)


@pytest.mark.parametrize("dtype", [F32, I32, I8])
@pytest.mark.parametrize("axis", [0, 2, -1])
def test_a_tensor_is_taken_apart(axis: int, dtype: Any) -> None:
    x = draw(dtype, FIVE)
    count = FIVE[axis]
    for name, shape, sizes in (
        ("SPLIT", tuple(np.split(x, count, axis)[0].shape), None),
        ("UNPACK", tuple(np.take(x, 0, axis).shape), None),
        ("SPLIT_V", None, [1, count - 1]),
    ):
        source = tensor(dtype, FIVE)
        if name == "SPLIT":
            inputs = [const(axis, I32), source]
            wanted = np.split(x, count, axis)
            options = ("SplitOptions", {"NumSplits": count})
        elif name == "UNPACK":
            inputs = [source]
            wanted = [np.take(x, place, axis) for place in range(count)]
            options = ("UnpackOptions", {"Num": count, "Axis": axis})
        else:
            inputs = [source, const(sizes, I32), const(axis, I32)]
            wanted = np.split(x, [1], axis)
            options = ("SplitVOptions", {"NumSplits": 2})
        outputs = [tensor(dtype, shape or part.shape) for part in wanted]
        made = Op(name, inputs, outputs, *options)
        found = run(write([made], [source], outputs), x)
        for actual, expected in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(actual.reshape(expected.shape), expected)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (FIVE, FIVE),
        (FIVE, (1,)),
        (FIVE, (2, 5)),
        (FIVE, (2, 3, 1, 1, 1)),
        ((2, 1, 4, 2, 1), (1, 3, 1, 1, 1)),
        (SIX, (3, 2, 4, 3)),
    ],
)
@pytest.mark.parametrize(
    "name", ["ADD", "MUL", "MAXIMUM", "GREATER", "SQUARED_DIFFERENCE"]
)
def test_operands_broadcast(name: str, first: Any, second: Any) -> None:
    formulas: dict[str, Formula] = {
        "ADD": np.add, "MUL": np.multiply, "MAXIMUM": np.maximum,
        "GREATER": np.greater, "SQUARED_DIFFERENCE": lambda x, y: (x - y) ** 2,
    }  # fmt: skip
    x, y = draw(F32, first), draw(F32, second, 1)
    expected = formulas[name](x, y)
    result = T(expected.dtype.type, expected.shape)
    chosen = case(name, [T(F32, first), T(F32, second)], result)
    (actual,) = run(chosen.file(), x, y)
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, rtol=1e-6)
    known = case(name, [T(F32, first), const(y, F32)], result)
    (actual,) = run(known.file(), x)
    np.testing.assert_allclose(actual.reshape(expected.shape), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "axes", [(4,), (1, 2), (0, 4), (0, 1, 2, 3, 4), (-1, 1), (1, 3), (0, 2, 4)]
)
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("name", ["MEAN", "SUM", "REDUCE_MAX"])
def test_axes_are_reduced(name: str, keeps: bool, axes: Any) -> None:
    formulas: dict[str, Formula] = {
        "MEAN": np.mean, "SUM": np.sum, "REDUCE_MAX": np.max
    }  # fmt: skip
    x = draw(F32, FIVE)
    expected = formulas[name](x, axis=axes, keepdims=keeps)
    inputs = [T(F32, FIVE), const(axes, I32)]
    chosen = case(name, inputs, T(F32, expected.shape), KeepDims=keeps)
    (actual,) = run(chosen.file(), x)
    np.testing.assert_allclose(
        actual.reshape(expected.shape), expected, rtol=1e-5, atol=1e-6
    )


def test_the_last_axis_and_matrices() -> None:
    x = draw(F32, FIVE)
    chosen = case("SOFTMAX", [T(F32, FIVE)], T(F32, FIVE), Beta=1.0)
    (actual,) = run(chosen.file(), x)
    powers = np.exp(x)
    expected = powers / powers.sum(-1, keepdims=True)
    np.testing.assert_allclose(actual.reshape(FIVE), expected, rtol=1e-5)
    y = draw(F32, (2, 3, 4, 5, 3), 1)
    product = x @ y
    inputs = [T(F32, FIVE), T(F32, y.shape)]
    chosen = case("BATCH_MATMUL", inputs, T(F32, product.shape))
    (actual,) = run(chosen.file(), x, y)
    np.testing.assert_allclose(
        actual.reshape(product.shape), product, rtol=1e-5, atol=1e-6
    )


def test_a_split_of_heads_is_that_of_litert() -> None:
    x, y = T(F32, (1, 6, 24)), T(F32, (3, 6, 4, 1, 2))
    parts = T(F32, (1, 6, 4, 3, 2))
    operators = [
        Op("RESHAPE", [x, const(parts.shape, I32)], [parts]),
        Op("TRANSPOSE", [parts, const((3, 1, 2, 0, 4), I32)], [y]),
    ]
    file = write(operators, [x], [y])
    array = draw(F32, x.shape)
    (actual,), (expected,) = run(file, array), run_litert(file, [array])
    np.testing.assert_array_equal(actual.reshape(expected.shape), expected)


def test_what_works_on_images_is_refused_by_name() -> None:
    chosen = case("MIRROR_PAD", [T(F32, FIVE), const([[0, 0]] * 5, I32)], T(F32, FIVE))
    with pytest.raises(UnsupportedOperatorError, match="more than four axes") as found:
        import_tflite(from_buffer(chosen.file()))
    assert found.value.operators[0].name == "MIRROR_PAD"
