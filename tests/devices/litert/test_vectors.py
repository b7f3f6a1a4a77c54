"""The conformance vectors whose operations are all claimed, on LiteRT."""

from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import AsyncnnError
from asyncnn.tools.conformance.judging import compare
from asyncnn.tools.conformance.vectors import Case, find_specs, load_cases
from tests.conftest import SHARED
from tests.devices.litert.running import is_claimed, plan_of, run_plan

VECTORS = SHARED / "vts"
LEAST_CASES = 1800

SPECS = find_specs(VECTORS)


def judge(case: Case) -> list[str] | None:
    """Return what is wrong; None if not all of the case is claimed."""
    if case.expect_failure:
        return None
    try:
        with np.errstate(all="ignore"):
            plan = plan_of(case.model, case.inputs)
    except AsyncnnError:
        return None  # a model that only an execution prepares
    if not is_claimed(plan):
        return None
    return compare(case, run_plan(plan, case.inputs))


def spec_id(path: Path) -> str:
    return str(path.relative_to(VECTORS)).removesuffix(".json.gz")


@pytest.mark.parametrize("path", SPECS, ids=spec_id)
def test_what_is_claimed_passes(path: Path) -> None:
    judged = {case.name: judge(case) for case in load_cases(path)}
    assert {name: wrong for name, wrong in judged.items() if wrong} == {}


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
def test_most_cases_are_claimed(shared: Path) -> None:
    judged = [judge(case) for path in SPECS for case in load_cases(path)]
    assert sum(wrong is not None for wrong in judged) >= LEAST_CASES
