"""Kernels against float64 formulas: in graphs, and each operation on its own."""

import pytest

from asyncnn import kernels
from asyncnn.engine.plan import CONTROL_FLOW
from asyncnn.hal.operations.table import SIGNATURES
from asyncnn.hal.types import OperationType
from asyncnn.tools.conformance.random_graphs.families import (
    BUILDERS,
    DRAWN,
    RandomGraph,
    graphs,
)
from tests.random_graphs.running import check_formulas
from tests.random_graphs.trying import on_graphs

LEFT_OUT = frozenset(
    {
        OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        OperationType.BIDIRECTIONAL_SEQUENCE_LSTM,
        OperationType.BIDIRECTIONAL_SEQUENCE_RNN,
        OperationType.BOX_WITH_NMS_LIMIT,
        OperationType.DETECTION_POSTPROCESSING,
        OperationType.EMBEDDING_LOOKUP,
        OperationType.GENERATE_PROPOSALS,
        OperationType.HASHTABLE_LOOKUP,
        OperationType.HEATMAP_MAX_KEYPOINT,
        OperationType.LSH_PROJECTION,
        OperationType.LSTM,
        OperationType.QUANTIZED_16BIT_LSTM,
        OperationType.QUANTIZED_LSTM,
        OperationType.RANDOM_MULTINOMIAL,
        OperationType.RNN,
        OperationType.ROI_ALIGN,
        OperationType.ROI_POOLING,
        OperationType.SVDF,
        OperationType.UNIDIRECTIONAL_SEQUENCE_LSTM,
        OperationType.UNIDIRECTIONAL_SEQUENCE_RNN,
    }
)
"""Recurrent, detection and lookup operations, whose operands depend on each other in
ways that conformance vectors cover better."""


@on_graphs()
def test_every_operation_of_a_graph_follows_its_formula(graph: RandomGraph) -> None:
    check_formulas(graph)


@pytest.mark.parametrize("type_", sorted(DRAWN - CONTROL_FLOW), ids=lambda t: t.name)
def test_an_operation_of_any_type_follows_its_formula(type_: OperationType) -> None:
    on_graphs(0.05, graphs({type_}, max_operations=3))(check_formulas)()


def test_every_operation_is_drawn_or_left_out_on_purpose() -> None:
    assert BUILDERS.keys() | LEFT_OUT == SIGNATURES.keys()
    assert not BUILDERS.keys() & LEFT_OUT
    assert BUILDERS.keys() <= kernels.supported_operations() | CONTROL_FLOW
