"""What the reference device says of its performance."""

from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.types import Capabilities, PerformanceInfo

_AS_THE_CPU = PerformanceInfo(exec_time=1.0, power_usage=1.0)


def reference_capabilities() -> Capabilities:
    """Return capabilities equal to the CPU's, which this device runs on."""
    return Capabilities(
        relaxed_float32_to_float16_performance_scalar=_AS_THE_CPU,
        relaxed_float32_to_float16_performance_tensor=_AS_THE_CPU,
        operand_performance=uniform_performance(_AS_THE_CPU),
        if_performance=_AS_THE_CPU,
        while_performance=_AS_THE_CPU,
    )
