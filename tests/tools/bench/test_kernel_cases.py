"""The operations that are measured, and their files."""

from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.memory.pools import from_buffer
from asyncnn.tools.bench.bench_kernels import CASES, INT8, OpCase, kernel_file
from asyncnn.tools.bench.measured_models import random_inputs
from asyncnn.tools.other_runtimes import LiteRt
from tests.runtime.tflite.importing import import_tflite


def named(name: str) -> OpCase:
    return next(case for case in CASES if case.name == name)


class TestCases:
    def test_there_are_twenty_with_names_of_their_own(self) -> None:
        assert len({case.name for case in CASES}) == len(CASES) == 20

    @pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
    def test_each_is_one_operation_of_its_type_for_the_importer(
        self, case: OpCase
    ) -> None:
        pytest.importorskip("ai_edge_litert")
        model = import_tflite(from_buffer(kernel_file(case))).model
        (operation,) = model.main.operations
        (result,) = operation.outputs
        operand = model.main.operands[result]
        assert operand.dimensions == case.result.shape
        assert (operand.type in QUANT8_TYPES) is (case.type == INT8)

    @pytest.mark.parametrize(
        "case",
        [case for case in CASES if case.type == INT8],
        ids=lambda case: case.name,
    )
    def test_quantised_results_use_the_range_of_their_type(
        self, case: OpCase, tmp_path: Path
    ) -> None:
        pytest.importorskip("ai_edge_litert")
        path = tmp_path / "case.tflite"
        path.write_bytes(kernel_file(case))
        peer = LiteRt(path)
        peer.set_inputs(random_inputs(peer.input_kinds()))
        (result,) = peer.first_outputs()
        assert len(np.unique(result)) > 64
        assert np.mean((result == -128) | (result == 127)) < 0.5

    def test_the_seed_decides_the_weights(self) -> None:
        pytest.importorskip("ai_edge_litert")
        case = named("prelu_f32")
        assert kernel_file(case) == kernel_file(case)
        assert kernel_file(case) != kernel_file(case, seed=1)
