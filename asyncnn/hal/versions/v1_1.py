"""Data of HAL 1.1 where they differ from the canonical ones (1.1/types.hal)."""

import msgspec

from asyncnn.hal.types import Memory, Operation, PerformanceInfo
from asyncnn.hal.versions.v1_0 import Operand


class Model(msgspec.Struct, frozen=True):
    """A single graph that may be computed in less than its full precision."""

    operands: tuple[Operand, ...]
    operations: tuple[Operation, ...]
    input_indexes: tuple[int, ...]
    output_indexes: tuple[int, ...]
    operand_values: bytes = b""
    pools: tuple[Memory, ...] = ()
    relax_computation_float32_to_float16: bool = False


class Capabilities(msgspec.Struct, frozen=True):
    """Performance for two kinds of data, and for one with less precision."""

    float32_performance: PerformanceInfo
    quantized8_performance: PerformanceInfo
    relaxed_float32_to_float16_performance: PerformanceInfo
