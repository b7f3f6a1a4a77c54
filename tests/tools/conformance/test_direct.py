from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.tools.conformance.vectors import (
    Case,
    ExpectedOutput,
    find_specs,
    load_cases,
)
from tests.direct import run_direct
from tests.hal.validate.samples import q8_model


def test_operations_feed_each_other_and_read_constants_of_both_kinds() -> None:
    stored = np.array([[30, 10, 14], [20, 21, 22]], np.uint8)
    case = Case(
        spec="spec",
        folder="V1_0",
        name="case",
        min_hal=None,
        declared_hal=None,
        expect_failure=False,
        relaxed=False,
        model=q8_model(),
        inputs=(stored,),
        outputs=(ExpectedOutput(stored, ignored=True),),
    )
    [output] = run_direct(case)
    # Each constant is zero, that is 7 steps below the zero point.
    np.testing.assert_array_equal(output, [[16, 7, 7], [7, 7, 8]])


def test_control_flow_is_left_to_the_engine(shared: Path) -> None:
    specs = find_specs(shared / "vts")
    [path] = [p for p in specs if p.name == "while_infinite_loop.json.gz"]
    with pytest.raises(GeneralFailureError, match="direct evaluation has no WHILE"):
        run_direct(load_cases(path)[0])
