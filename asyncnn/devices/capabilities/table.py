"""From the figures of reference workloads to the HAL's tables."""

from collections.abc import Mapping

from asyncnn.devices.capabilities.measurement import ReferenceWorkload
from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.types import (
    Capabilities,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)

_CPU = 1.0

_GOES_WITH = {
    OperandType.FLOAT32: OperandType.TENSOR_FLOAT32,
    OperandType.INT32: OperandType.TENSOR_INT32,
    OperandType.UINT32: OperandType.TENSOR_INT32,
    OperandType.BOOL: OperandType.TENSOR_BOOL8,
    OperandType.FLOAT16: OperandType.TENSOR_FLOAT16,
    OperandType.OEM: OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.TENSOR_OEM_BYTE: OperandType.TENSOR_QUANT8_ASYMM,
}
"""Types that are no operation's first operand, and those that speak for them.

HAL 1.0 and 1.1 have one figure for the OEM types and quantised ones.
"""


def capabilities_of(exec_times: Mapping[ReferenceWorkload, float]) -> Capabilities:
    """Return the capabilities of a device with these times for all workloads.

    It computes on the CPU, so the energy it needs goes with the time.
    """
    infos = {
        workload: PerformanceInfo(exec_time=time, power_usage=time)
        for workload, time in exec_times.items()
    }
    relaxed = infos[ReferenceWorkload.RELAXED_FLOAT32]
    every_type = uniform_performance(PerformanceInfo(_CPU, _CPU))
    return Capabilities(
        relaxed_float32_to_float16_performance_scalar=relaxed,
        relaxed_float32_to_float16_performance_tensor=relaxed,
        operand_performance=tuple(
            OperandPerformance(entry.type, infos[_workload_of(entry.type)])
            for entry in every_type
        ),
        if_performance=infos[ReferenceWorkload.IF],
        while_performance=infos[ReferenceWorkload.WHILE],
    )


def reference_capabilities() -> Capabilities:
    """Return capabilities equal to the CPU's, as long as nothing was measured."""
    return capabilities_of(dict.fromkeys(ReferenceWorkload, _CPU))


def _workload_of(type_: OperandType) -> ReferenceWorkload:
    return ReferenceWorkload[_GOES_WITH.get(type_, type_).name]
