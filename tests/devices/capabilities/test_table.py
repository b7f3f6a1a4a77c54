import pytest

from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
    capabilities_of,
    reference_capabilities,
)
from asyncnn.hal.performance import performance_of, uniform_performance
from asyncnn.hal.types import Capabilities, OperandType, PerformanceInfo


@pytest.fixture
def capabilities(measurement: CapabilityMeasurement) -> Capabilities:
    return capabilities_of(measurement.exec_times)


def test_without_a_measurement_all_is_as_on_the_cpu() -> None:
    cpu = PerformanceInfo(1.0, 1.0)
    assert reference_capabilities() == Capabilities(
        cpu, cpu, uniform_performance(cpu), cpu, cpu
    )


def test_every_type_but_subgraph_is_listed_in_order(capabilities: Capabilities) -> None:
    listed = [entry.type for entry in capabilities.operand_performance]
    assert listed == sorted(set(OperandType) - {OperandType.SUBGRAPH})


@pytest.mark.parametrize(
    ("type_", "workload"),
    [
        (OperandType.TENSOR_FLOAT32, ReferenceWorkload.TENSOR_FLOAT32),
        (OperandType.FLOAT32, ReferenceWorkload.TENSOR_FLOAT32),
        (OperandType.FLOAT16, ReferenceWorkload.TENSOR_FLOAT16),
        (OperandType.UINT32, ReferenceWorkload.TENSOR_INT32),
        (OperandType.BOOL, ReferenceWorkload.TENSOR_BOOL8),
        (OperandType.TENSOR_QUANT16_ASYMM, ReferenceWorkload.TENSOR_QUANT16_ASYMM),
        (OperandType.TENSOR_OEM_BYTE, ReferenceWorkload.TENSOR_QUANT8_ASYMM),
    ],
)
def test_a_type_has_the_time_of_its_workload_and_needs_energy_alike(
    capabilities: Capabilities,
    measurement: CapabilityMeasurement,
    type_: OperandType,
    workload: ReferenceWorkload,
) -> None:
    time = measurement.exec_times[workload]
    info = performance_of(capabilities.operand_performance, type_)
    assert info == PerformanceInfo(time, time)


def test_relaxed_arithmetic_and_control_flow_have_times_of_their_own(
    capabilities: Capabilities, measurement: CapabilityMeasurement
) -> None:
    times = measurement.exec_times
    relaxed = times[ReferenceWorkload.RELAXED_FLOAT32]
    for info, time in (
        (capabilities.relaxed_float32_to_float16_performance_scalar, relaxed),
        (capabilities.relaxed_float32_to_float16_performance_tensor, relaxed),
        (capabilities.if_performance, times[ReferenceWorkload.IF]),
        (capabilities.while_performance, times[ReferenceWorkload.WHILE]),
    ):
        assert info.exec_time == time
