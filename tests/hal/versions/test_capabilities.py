import logging

import pytest

from asyncnn.hal.performance import (
    NO_PERFORMANCE_INFO,
    performance_of,
    uniform_performance,
    with_performance,
)
from asyncnn.hal.types import Capabilities, HalVersion, OperandType, PerformanceInfo
from asyncnn.hal.versions import compliant_with, convert_to, v1_0, v1_1, v1_2

V1_0, V1_1, V1_2, V1_3 = list(HalVersion)[:4]
CPU, FAST = PerformanceInfo(1.0, 1.0), PerformanceInfo(0.5, 0.25)


def newest(**faster: PerformanceInfo) -> Capabilities:
    """Capabilities equal everywhere but for the types named."""
    table = uniform_performance(CPU)
    for name, info in faster.items():
        table = with_performance(table, OperandType[name], info)
    return Capabilities(CPU, CPU, table, CPU, CPU)


def of_1_2(capabilities: Capabilities) -> v1_2.Capabilities:
    converted = convert_to(capabilities, V1_2)
    assert isinstance(converted, v1_2.Capabilities)
    return converted


def test_1_2_has_neither_control_flow_nor_signed_bytes() -> None:
    old = of_1_2(newest())
    assert old.operand_performance == uniform_performance(CPU, V1_2)
    assert not compliant_with(newest(), V1_2)
    assert compliant_with(old, V1_2)


def test_1_1_and_1_0_take_their_figures_from_tensors() -> None:
    capabilities = newest(TENSOR_FLOAT32=FAST)
    assert convert_to(capabilities, V1_0) == v1_0.Capabilities(FAST, CPU)
    assert convert_to(capabilities, V1_1) == v1_1.Capabilities(FAST, CPU, CPU)


@pytest.mark.parametrize(
    ("faster", "version", "is_lossless"),
    [
        ({}, V1_0, True),
        ({"FLOAT32": FAST}, V1_0, False),
        ({"FLOAT32": FAST}, V1_1, False),
        ({"FLOAT32": FAST, "TENSOR_FLOAT32": FAST}, V1_0, False),  # relaxed is slower
        ({"FLOAT32": FAST, "TENSOR_FLOAT32": FAST}, V1_1, True),
        ({"TENSOR_INT32": FAST}, V1_1, False),
        ({"OEM": FAST}, V1_0, False),
        ({"TENSOR_QUANT8_ASYMM": FAST}, V1_1, False),
        ({"TENSOR_FLOAT16": FAST}, V1_0, True),  # which 1.0 does not have
        ({"TENSOR_QUANT8_ASYMM_SIGNED": FAST}, V1_3, True),
    ],
)
def test_older_versions_comply_where_their_few_figures_say_it_all(
    faster: dict[str, PerformanceInfo], version: HalVersion, is_lossless: bool
) -> None:
    assert compliant_with(newest(**faster), version) is is_lossless


def test_1_0_knows_nothing_of_relaxed_arithmetic() -> None:
    assert not compliant_with(v1_1.Capabilities(CPU, CPU, FAST), V1_0)
    assert compliant_with(v1_1.Capabilities(CPU, FAST, CPU), V1_0)
    assert convert_to(v1_1.Capabilities(CPU, FAST, FAST), V1_0) == v1_0.Capabilities(
        CPU, FAST
    )


def test_figures_of_1_1_say_something_of_every_type_there_was() -> None:
    converted = convert_to(v1_1.Capabilities(CPU, FAST, FAST), V1_3)
    assert isinstance(converted, Capabilities)
    table = converted.operand_performance
    assert [entry.type for entry in table] == sorted(entry.type for entry in table)
    assert performance_of(table, OperandType.TENSOR_QUANT8_ASYMM) == FAST
    assert performance_of(table, OperandType.TENSOR_OEM_BYTE) == FAST
    assert performance_of(table, OperandType.FLOAT32) == CPU
    assert performance_of(table, OperandType.BOOL) == NO_PERFORMANCE_INFO
    assert converted.relaxed_float32_to_float16_performance_scalar == FAST
    assert converted.while_performance == NO_PERFORMANCE_INFO


@pytest.mark.parametrize(
    "old",
    [
        v1_0.Capabilities(CPU, FAST),
        v1_1.Capabilities(CPU, FAST, FAST),
        v1_2.Capabilities(FAST, CPU, uniform_performance(FAST, V1_2)),
    ],
    ids=["1.0", "1.1", "1.2"],
)
def test_there_and_back_nothing_is_lost(
    old: v1_0.Capabilities | v1_1.Capabilities | v1_2.Capabilities,
) -> None:
    versions = {v1_0.Capabilities: V1_0, v1_1.Capabilities: V1_1}
    version = versions.get(type(old), V1_2)
    assert convert_to(convert_to(old, V1_3), version) == old


def test_loss_is_logged_and_its_absence_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        convert_to(newest(), V1_0)
        assert not caplog.records
        convert_to(newest(FLOAT32=FAST), V1_0)
    assert "HAL 1.0" in caplog.text
