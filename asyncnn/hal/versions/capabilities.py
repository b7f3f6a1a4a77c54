"""Capabilities in the shape of each version.

Source: the conversions of the HAL's utilities. Unlike them, a table made from HAL 1.0
or 1.1 figures lists TENSOR_QUANT8_ASYMM itself, too.
"""

from typing import TypeAlias

from asyncnn.hal.performance import NO_PERFORMANCE_INFO, Performances, performance_of
from asyncnn.hal.types import (
    Capabilities,
    HalVersion,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)
from asyncnn.hal.versions import v1_0, v1_1, v1_2

AnyCapabilities: TypeAlias = (
    Capabilities | v1_2.Capabilities | v1_1.Capabilities | v1_0.Capabilities
)

_FLOATS = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
_LIKE_QUANTIZED8 = (
    OperandType.INT32,
    OperandType.UINT32,
    OperandType.TENSOR_INT32,
    OperandType.TENSOR_QUANT8_ASYMM,
    OperandType.OEM,
    OperandType.TENSOR_OEM_BYTE,
)
"""Types that HAL 1.0 and 1.1 do not tell apart."""


def is_compliant_capabilities(
    capabilities: AnyCapabilities, version: HalVersion
) -> bool:
    """Tell whether nothing is lost when ``version`` has to say it."""
    if version >= HalVersion.V1_3:
        return True
    if version >= HalVersion.V1_2:
        # The newest shape has figures for IF, WHILE and one more type.
        return not isinstance(capabilities, Capabilities)
    match capabilities:
        case v1_0.Capabilities():
            return True
        case v1_1.Capabilities():
            return version >= HalVersion.V1_1 or _is_not_faster_relaxed(capabilities)
        case _:
            return _is_told_apart_by_two(capabilities, version)


def convert_capabilities(
    capabilities: AnyCapabilities, version: HalVersion
) -> AnyCapabilities:
    """Return the capabilities as a caller of ``version`` knows them.

    Figures that the older version did not have are taken from what stood for them;
    those that it has no place for are dropped.
    """
    newest = canonical_capabilities(capabilities)
    if version >= HalVersion.V1_3:
        return newest
    table = newest.operand_performance
    if version >= HalVersion.V1_2:
        return v1_2.Capabilities(
            newest.relaxed_float32_to_float16_performance_scalar,
            newest.relaxed_float32_to_float16_performance_tensor,
            tuple(
                entry
                for entry in table
                if entry.type is not OperandType.TENSOR_QUANT8_ASYMM_SIGNED
            ),
        )
    float32 = performance_of(table, OperandType.TENSOR_FLOAT32)
    quantized8 = performance_of(table, OperandType.TENSOR_QUANT8_ASYMM)
    if version < HalVersion.V1_1:
        return v1_0.Capabilities(float32, quantized8)
    relaxed = newest.relaxed_float32_to_float16_performance_tensor
    return v1_1.Capabilities(float32, quantized8, relaxed)


def canonical_capabilities(capabilities: AnyCapabilities) -> Capabilities:
    """Return the capabilities in the newest shape.

    Nothing is known there of IF and WHILE before HAL 1.3, which had neither.
    """
    match capabilities:
        case Capabilities():
            return capabilities
        case v1_2.Capabilities():
            return Capabilities(
                capabilities.relaxed_float32_to_float16_performance_scalar,
                capabilities.relaxed_float32_to_float16_performance_tensor,
                capabilities.operand_performance,
                if_performance=NO_PERFORMANCE_INFO,
                while_performance=NO_PERFORMANCE_INFO,
            )
        case v1_1.Capabilities():
            relaxed = capabilities.relaxed_float32_to_float16_performance
        case _:
            relaxed = capabilities.float32_performance
    return Capabilities(
        relaxed,
        relaxed,
        _table(capabilities.float32_performance, capabilities.quantized8_performance),
        if_performance=NO_PERFORMANCE_INFO,
        while_performance=NO_PERFORMANCE_INFO,
    )


def _table(
    float32: PerformanceInfo, quantized8: PerformanceInfo
) -> tuple[OperandPerformance, ...]:
    infos = dict.fromkeys(_FLOATS, float32) | dict.fromkeys(
        _LIKE_QUANTIZED8, quantized8
    )
    return tuple(OperandPerformance(type_, infos[type_]) for type_ in sorted(infos))


def _is_not_faster_relaxed(capabilities: v1_1.Capabilities) -> bool:
    relaxed = capabilities.relaxed_float32_to_float16_performance
    return relaxed == capabilities.float32_performance


def _is_told_apart_by_two(
    capabilities: v1_2.Capabilities | Capabilities, version: HalVersion
) -> bool:
    table = capabilities.operand_performance
    scalar = capabilities.relaxed_float32_to_float16_performance_scalar
    tensor = capabilities.relaxed_float32_to_float16_performance_tensor
    is_relaxed_alike = scalar == tensor and _are_alike(table, _FLOATS)
    if version < HalVersion.V1_1:
        float32 = performance_of(table, OperandType.TENSOR_FLOAT32)
        is_relaxed_alike = is_relaxed_alike and tensor == float32
    return is_relaxed_alike and _are_alike(table, _LIKE_QUANTIZED8)


def _are_alike(table: Performances, types: tuple[OperandType, ...]) -> bool:
    return len({performance_of(table, type_) for type_ in types}) == 1
