"""Cases derived from the vectors, for what the vectors leave out."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.types import HalVersion, OperandType, OperationType
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.conformance.judging import compare, judge
from asyncnn.tools.conformance.preparing import preparing
from asyncnn.tools.conformance.vectors import Case
from tests.conftest import SHARED
from tests.derived.cases import derive, derived_cases
from tests.derived.coverage import Pair, pairs_of, pairs_with_vectors, succeeding_cases
from tests.direct import run_direct

F16 = OperandType.TENSOR_FLOAT16
F32 = OperandType.TENSOR_FLOAT32
I32 = OperandType.TENSOR_INT32
Q8 = OperandType.TENSOR_QUANT8_ASYMM
Q8S = OperandType.TENSOR_QUANT8_ASYMM_SIGNED

CASES = derived_cases(SHARED / "vts")


def case_name(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_kernels_give_the_expected_outputs(case: Case) -> None:
    assert compare(case, run_direct(case)) == []


async def test_the_device_gives_the_expected_outputs() -> None:
    async with open_device() as device:
        prepare = preparing(device.hal, HalVersion.V1_3)
        problems = {case.name: await judge(case, prepare, "sync") for case in CASES}
    assert {name: lines for name, lines in problems.items() if lines} == {}


def test_names_are_unique_and_every_case_adds_a_pair(shared: Path) -> None:
    assert len({case.name for case in CASES}) == len(CASES) > 0
    with_vectors = pairs_with_vectors(shared / "vts")
    assert all(pairs_of(case) - with_vectors for case in CASES)


@pytest.fixture(scope="module")
def templates(shared: Path) -> dict[str, Case]:
    """Cases of the suite by name."""
    return {case.name: case for case in succeeding_cases(shared / "vts")}


def test_nothing_is_derived_that_is_not_wanted(templates: dict[str, Case]) -> None:
    assert list(derive(templates.values(), frozenset())) == []


def only(cases: Iterator[Case]) -> Case:
    (case,) = cases
    return case


def test_comparisons_are_mirrored(templates: dict[str, Case]) -> None:
    template = templates["less_simple_int32"]
    case = only(derive([template], {Pair(OperationType.GREATER, (I32,))}))
    main = case.model.main
    first, second = (
        case.inputs[main.input_indexes.index(index)]
        for index in main.operations[0].inputs
    )
    np.testing.assert_array_equal(first > second, template.outputs[0].value)
    np.testing.assert_array_equal(first > second, case.outputs[0].value)
    assert np.any(first > second)
    assert np.any(first < second)


def test_lookups_move_bytes_whatever_they_mean(templates: dict[str, Case]) -> None:
    template = templates["hashtable_lookup_float"]
    wanted = {Pair(OperationType.HASHTABLE_LOOKUP, (I32,))}
    case = only(derive([template], wanted))
    for index in (0, 1):
        np.testing.assert_array_equal(case.inputs[index], template.inputs[index])
    found, hits = case.outputs
    assert found.value.dtype == np.int32
    np.testing.assert_array_equal(
        found.value.view(np.float32), template.outputs[0].value
    )
    np.testing.assert_array_equal(hits.value, template.outputs[1].value)


def test_elements_of_fewer_bytes_make_the_last_axis_longer(
    templates: dict[str, Case],
) -> None:
    template = templates["lsh_projection"]
    case = only(derive([template], {Pair(OperationType.LSH_PROJECTION, (F32, Q8))}))
    values, weights = case.inputs
    assert values.shape == (3, 8)
    assert values.tobytes() == template.inputs[0].tobytes()
    np.testing.assert_array_equal(weights, template.inputs[1])
    np.testing.assert_array_equal(case.outputs[0].value, template.outputs[0].value)


def test_float16_cases_hold_the_float32_numbers(templates: dict[str, Case]) -> None:
    template = templates["depth_to_space_float_1"]
    wanted = {Pair(OperationType.DEPTH_TO_SPACE, (F16,))}
    case = only(derive([template], wanted))
    np.testing.assert_array_equal(case.inputs[0], template.inputs[0].astype(np.float16))
    expected = template.outputs[0].value.astype(np.float16)
    np.testing.assert_array_equal(case.outputs[0].value, expected)


def test_float_cases_made_of_codes_end_in_the_same_codes(
    templates: dict[str, Case],
) -> None:
    template = templates["channel_shuffle_quant8_signed_quant8_signed_dim4_axis3"]
    wanted = {Pair(OperationType.CHANNEL_SHUFFLE, (F32,))}
    case = only(derive([template], wanted))
    shuffle, quantize = case.model.main.operations
    assert quantize.type == OperationType.QUANTIZE
    assert quantize.inputs == shuffle.outputs
    np.testing.assert_array_equal(case.inputs[0], template.inputs[0] * 0.25)
    np.testing.assert_array_equal(case.outputs[0].value, template.outputs[0].value)


def test_twins_fill_in_the_other_8_bit_type(templates: dict[str, Case]) -> None:
    template = templates["channel_shuffle_quant8_signed_quant8_signed_dim4_axis3"]
    wanted = {Pair(OperationType.CHANNEL_SHUFFLE, (Q8,))}
    case = only(derive([template], wanted))
    np.testing.assert_array_equal(
        case.inputs[0].astype(int), template.inputs[0].astype(int) + 128
    )


@pytest.mark.parametrize(
    ("pair", "output"),
    [
        (Pair(OperationType.DEQUANTIZE, (Q8S, F32)), [3.5, 3.375]),
        (Pair(OperationType.CAST, (Q8S, Q8S)), [0, -1]),
        (Pair(OperationType.ABS, (F32,)), [300, 299]),
        (Pair(OperationType.DIV, (I32,)), [0, -1]),
    ],
    ids=str,
)
def test_formulas_need_no_template(pair: Pair, output: list[float]) -> None:
    value = only(derive([], {pair})).outputs[0].value.ravel()
    assert value[[0, -1]].tolist() == output
