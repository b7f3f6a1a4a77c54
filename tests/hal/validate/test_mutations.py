"""Mutants of conformance models are refused, the models themselves are not.

Here the rules are asked, for every version of the structure; devices are asked by
tests/tools/conformance.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import HalVersion, Model
from asyncnn.hal.validate import validate_model
from asyncnn.tools.conformance.mutations.model_rows import MODEL_ROWS
from asyncnn.tools.conformance.mutations.mutant import Mutant, MutationRow
from asyncnn.tools.conformance.vectors import Case, find_specs
from tests.conftest import SHARED, one_in
from tests.derived.coverage import cases_of
from tests.hal.validate.samples import q8_model

VECTORS = SHARED / "vts"
SPECS = [
    path for path in find_specs(VECTORS) if not path.parent.name.endswith("_cts_only")
]
FIRST_CASES = [
    valid[0]
    for path in SPECS
    if (valid := [case for case in cases_of(path) if not case.expect_failure])
]
ROWS = [row for row in MODEL_ROWS if row.changes_subgraph]
SAMPLE_SIZE = 150
"""Mutants tried of one model and version; the seed is the name of the case."""


def spec_id(path: Path) -> str:
    return str(path.relative_to(VECTORS)).removesuffix(".json.gz")


def versions(case: Case) -> set[HalVersion]:
    """The release that the case was written for, and 1.3 if that is newer."""
    return {case.release, max(case.release, HalVersion.V1_3)}


def wrong_mutants(
    row: MutationRow, model: Model, version: HalVersion
) -> Iterator[Mutant]:
    return (m for m in row.mutants(model, version) if not m.may_pass)


def accepted(model: Model, version: HalVersion) -> bool:
    try:
        validate_model(model, version)
    except InvalidArgumentError:
        return False
    return True


@pytest.mark.parametrize("path", SPECS, ids=spec_id)
def test_every_model_that_must_work_passes(path: Path) -> None:
    for case in cases_of(path):
        if not case.expect_failure:
            for version in {*versions(case), HalVersion.AIDL_V4}:
                validate_model(case.model, version)


@pytest.mark.parametrize("case", one_in(10, FIRST_CASES), ids=lambda case: case.name)
def test_every_mutant_is_refused(case: Case) -> None:
    rng = random.Random(case.name)
    survivors: list[str] = []
    for version in versions(case):
        every = [m for row in ROWS for m in wrong_mutants(row, case.model, version)]
        survivors += [
            f"{version.name}: {mutant.label}"
            for mutant in rng.sample(every, min(SAMPLE_SIZE, len(every)))
            if accepted(mutant.model, version)
        ]
    assert survivors == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
@pytest.mark.parametrize("version", list(HalVersion)[:4])
def test_every_kind_of_mutant_of_a_small_model_is_refused(
    row: MutationRow, version: HalVersion
) -> None:
    tried = list(wrong_mutants(row, q8_model(), version))
    assert tried
    assert [m.label for m in tried if accepted(m.model, version)] == []


def test_the_vectors_are_where_the_collection_looks_for_them(shared: Path) -> None:
    assert find_specs(shared / "vts")
