from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.operands import DTYPES
from asyncnn.hal.types import HalVersion, OperandLifeTime, OperandType, OperationType
from asyncnn.tools.conformance.vectors import (
    Case,
    find_specs,
    load_cases,
    operation_types,
)


@pytest.fixture(scope="module")
def cases(shared: Path) -> dict[str, Case]:
    """Every case of the suite by its name."""
    specs = find_specs(shared / "vts")
    return {case.name: case for path in specs for case in load_cases(path)}


def test_every_case_has_a_name_of_its_own(cases: dict[str, Case]) -> None:
    assert len(cases) == 3098
    assert sum(case.relaxed for case in cases.values()) == 594
    assert sum(case.expect_failure for case in cases.values()) == 26


def test_specifications_are_found_in_order(shared: Path) -> None:
    specs = find_specs(shared / "vts")
    assert specs == sorted(specs)
    assert len(specs) == 505


def test_every_operation_but_oem_is_covered(cases: dict[str, Case]) -> None:
    covered = {type_ for case in cases.values() for type_ in operation_types(case)}
    assert covered == set(OperationType) - {OperationType.OEM_OPERATION}


def test_values_have_the_dtype_and_shape_of_their_operands(
    cases: dict[str, Case],
) -> None:
    for case in cases.values():
        main = case.model.main
        for index, value in zip(main.input_indexes, case.inputs, strict=True):
            if value is not None:
                operand = main.operands[index]
                assert value.dtype == DTYPES[operand.type]
                assert value.shape == operand.dimensions
        for index, output in zip(main.output_indexes, case.outputs, strict=True):
            assert output.value.dtype == DTYPES[main.operands[index].type]


def test_constants_are_aligned_and_within_their_memory(cases: dict[str, Case]) -> None:
    for case in cases.values():
        sizes = {
            OperandLifeTime.CONSTANT_COPY: len(case.model.operand_values),
            OperandLifeTime.CONSTANT_REFERENCE: sum(p.size for p in case.model.pools),
        }
        for subgraph in (case.model.main, *case.model.referenced):
            for operand in subgraph.operands:
                if operand.lifetime in sizes:
                    location = operand.location
                    assert location.offset % 4 == 0
                    assert location.offset + location.length <= sizes[operand.lifetime]


def test_a_quantised_case_reads_as_it_is_written(cases: dict[str, Case]) -> None:
    case = cases["add_quant8"]
    main = case.model.main
    first = main.operands[main.input_indexes[0]]
    assert first.type == OperandType.TENSOR_QUANT8_ASYMM
    assert first.number_of_consumers == 1
    assert (case.hal, case.release) == (HalVersion.V1_0, HalVersion.V1_0)
    assert case.inputs[0].tolist() == [1, 2]
    assert case.inputs[1].tolist() == [3, 4]
    np.testing.assert_array_equal(case.outputs[0].value, [5, 8])


def test_an_input_without_a_value_is_omitted(cases: dict[str, Case]) -> None:
    omitted = [value is None for value in cases["lsh_projection_2"].inputs]
    assert omitted == [False, True]


@pytest.mark.parametrize(
    ("name", "hal"),
    [
        ("add", HalVersion.V1_0),
        ("add_relaxed", HalVersion.V1_1),
        ("while_fib_unknown_dimension_n_5", HalVersion.V1_3),
    ],
)
def test_the_hal_of_a_case_is_what_it_needs_at_least(
    cases: dict[str, Case], name: str, hal: HalVersion
) -> None:
    assert cases[name].hal == hal
