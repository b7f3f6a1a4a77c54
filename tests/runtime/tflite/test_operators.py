"""Each TFLite operator becomes HAL operations that compute the same."""

from types import SimpleNamespace

import numpy as np
import pytest

from asyncnn.hal.types import OperationType
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.tflite.importer import CONVERTERS
from tests.direct import run_direct
from tests.runtime.tflite.cases import COMPOSED, Case, case
from tests.runtime.tflite.composed_cases import ELSEWHERE, FOLDED
from tests.runtime.tflite.files import T
from tests.runtime.tflite.importing import import_tflite
from tests.runtime.tflite.layer_cases import CASES, TYPED_CASES
from tests.runtime.tflite.litert import run_litert

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def imported(case: Case) -> NamedModel:
    return import_tflite(from_buffer(case.file()))


def sample(
    tensor: T, rng: np.random.Generator, *, positive: bool, below: int = 0
) -> np.ndarray:
    dtype = np.dtype(tensor.dtype)
    if below and dtype.kind in "iu" and dtype.itemsize > 1:
        return rng.integers(0, below, tensor.shape, dtype)
    if dtype == np.bool_:
        return rng.random(tensor.shape) < 0.5
    if dtype.kind == "f":
        low = 0.5 if positive else -4
        return rng.uniform(low, 4, tensor.shape).astype(dtype)
    limits = np.iinfo(dtype) if dtype.itemsize == 1 else np.iinfo(np.int8)
    return rng.integers(limits.min, limits.max, tensor.shape, dtype, endpoint=True)


def narrowed(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32) if array.dtype == np.int64 else array


@each_case
def test_an_operator_becomes_the_operations_of_the_table(case: Case) -> None:
    operations = imported(case).model.main.operations
    names = tuple(OperationType(operation.type).name for operation in operations)
    if case.operations == COMPOSED:
        assert len(names) > 1
    else:
        assert names == case.operations


@pytest.mark.parametrize("case", TYPED_CASES, ids=lambda case: case.name)
def test_other_types_are_computed_likewise(case: Case) -> None:
    test_the_operations_compute_what_the_operator_computes(case)


@pytest.mark.parametrize("name", ["ABS", "CEIL", "ELU"])
def test_float16_is_computed_as_float32(name: str) -> None:
    x = np.array([-2.5, -0.3, 0, 1.7], np.float16)
    results = []
    for dtype in (np.float16, np.float32):
        named = imported(case(name, [T(dtype, (4,))], T(dtype, (4,))))
        given = [x.astype(dtype)]
        results += run_direct(SimpleNamespace(model=named.model, inputs=given))
    assert results[0].dtype == np.float16
    assert results[0].tolist() == results[1].astype(np.float16).tolist()


def test_a_row_is_picked_by_computed_bounds() -> None:
    bounds = T(np.int32, (2,)), T(np.int32, (2,)), T.constant([1, 1])
    inputs, row = [T(np.float32, (4, 3)), *bounds], T(np.float32, (3,))
    masks = {"ShrinkAxisMask": 1, "EndMask": 2}
    named = imported(case("STRIDED_SLICE", inputs, row, **masks))
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    given = [x, np.int32([2, 0]), np.int32([3, 0])]
    (found,) = run_direct(SimpleNamespace(model=named.model, inputs=given))
    assert found.tolist() == x[2].tolist()


@each_case
def test_the_operations_compute_what_the_operator_computes(case: Case) -> None:
    rng = np.random.default_rng(7)
    inputs = [
        sample(t, rng, positive=case.positive, below=case.below) for t in case.inputs
    ]
    named = imported(case)
    given = [np.atleast_1d(narrowed(each)) for each in inputs]
    before = [state.first_value() for state in named.states]
    actual = run_direct(SimpleNamespace(model=named.model, inputs=given + before))
    assert len(actual) == len(named.outputs) + len(named.states)
    expected = run_litert(case.litert_file(), inputs)
    for got, wanted, info in zip(actual, expected, named.outputs, strict=False):
        assert got.shape == (wanted.shape or (1,))
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(got.reshape(wanted.shape), wanted, 1e-5, 1e-5)
        else:
            steps = case.steps if info.scale else 0
            difference = got.reshape(wanted.shape).astype(int) - wanted.astype(int)
            assert np.abs(difference).max() <= steps


def test_every_converter_has_a_case() -> None:
    names = {case.operator.name for case in CASES}
    builtin = {name for name in CONVERTERS if not name.startswith("CUSTOM ")}
    assert names - FOLDED == builtin - ELSEWHERE
