import pytest

from asyncnn.hal.performance import (
    NO_PERFORMANCE_INFO,
    performance_of,
    uniform_performance,
    with_performance,
)
from asyncnn.hal.types import HalVersion, OperandType, PerformanceInfo

SLOW, FAST = PerformanceInfo(2.0, 1.0), PerformanceInfo(0.5, 0.25)


@pytest.mark.parametrize(
    ("version", "missing"),
    [
        (HalVersion.V1_2, {OperandType.TENSOR_QUANT8_ASYMM_SIGNED}),
        (HalVersion.V1_3, set()),
    ],
)
def test_a_uniform_table_lists_the_types_of_its_version_in_order(
    version: HalVersion, missing: set[OperandType]
) -> None:
    types = [entry.type for entry in uniform_performance(SLOW, version)]
    assert types == sorted(set(OperandType) - missing - {OperandType.SUBGRAPH})


def test_there_is_no_table_before_1_2() -> None:
    with pytest.raises(ValueError, match=r"HAL 1\.1"):
        uniform_performance(SLOW, HalVersion.V1_1)


def test_an_updated_table_differs_in_one_entry() -> None:
    table = uniform_performance(SLOW)
    updated = with_performance(table, OperandType.BOOL, FAST)
    differing = [a for a, b in zip(updated, table, strict=True) if a != b]
    assert [entry.type for entry in differing] == [OperandType.BOOL]
    assert performance_of(updated, OperandType.BOOL) == FAST
    assert performance_of(updated, OperandType.INT32) == SLOW


def test_what_is_not_listed_cannot_be_updated_and_performs_worst() -> None:
    table = uniform_performance(SLOW, HalVersion.V1_2)
    signed = OperandType.TENSOR_QUANT8_ASYMM_SIGNED
    with pytest.raises(KeyError, match=signed.name):
        with_performance(table, signed, FAST)
    assert performance_of(table, signed) == NO_PERFORMANCE_INFO
    assert performance_of((), OperandType.OEM) == NO_PERFORMANCE_INFO


def test_control_flow_is_not_looked_up_by_operand_type() -> None:
    with pytest.raises(ValueError, match="IF and WHILE"):
        performance_of(uniform_performance(SLOW), OperandType.SUBGRAPH)
