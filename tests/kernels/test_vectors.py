"""Runs the conformance vectors through the kernels, one operation at a time."""

from functools import cache
from pathlib import Path

import pytest

from asyncnn import kernels
from asyncnn.tools.conformance.judging import compare
from asyncnn.tools.conformance.vectors import Case, find_specs, operation_types
from tests.conftest import SHARED
from tests.derived.coverage import cases_of
from tests.direct import run_direct

VECTORS = SHARED / "vts"


@cache
def runnable_cases(path: Path) -> tuple[Case, ...]:
    """Cases that must succeed and whose operations all have a kernel."""
    supported = kernels.supported_operations()
    return tuple(
        case
        for case in cases_of(path)
        if not case.expect_failure and operation_types(case) <= supported
    )


def spec_id(path: Path) -> str:
    return str(path.relative_to(VECTORS)).removesuffix(".json.gz")


SPECS = [path for path in find_specs(VECTORS) if runnable_cases(path)]


@pytest.mark.parametrize("path", SPECS, ids=spec_id)
def test_kernels_give_the_expected_outputs(path: Path) -> None:
    mismatches = {
        case.name: mismatch
        for case in runnable_cases(path)
        if (mismatch := compare(case, run_direct(case)))
    }
    assert mismatches == {}


def test_the_vectors_are_where_the_collection_looks_for_them(shared: Path) -> None:
    assert find_specs(shared / "vts")
