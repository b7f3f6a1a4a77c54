"""Tables of performance by operand type.

Source: 1.2 and 1.3/types.hal (Capabilities) and the helpers of the HAL's utilities.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from asyncnn.hal.types import (
    Capabilities,
    HalVersion,
    OperandPerformance,
    OperandType,
    PerformanceInfo,
)

_FLT_MAX = float(np.finfo(np.float32).max)

NO_PERFORMANCE_INFO = PerformanceInfo(exec_time=_FLT_MAX, power_usage=_FLT_MAX)
"""Of a type that a table does not list: as bad as can be said."""

Performances = Sequence[OperandPerformance]

_NOT_IN_1_2 = frozenset({OperandType.TENSOR_QUANT8_ASYMM_SIGNED})
_by_type = attrgetter("type")

_BESIDE_THE_TABLE = (
    "relaxed_float32_to_float16_performance_scalar",
    "relaxed_float32_to_float16_performance_tensor",
    "if_performance",
    "while_performance",
)


def uniform_performance(
    info: PerformanceInfo, version: HalVersion = HalVersion.V1_3
) -> tuple[OperandPerformance, ...]:
    """Return a table with ``info`` for every type that ``version`` lists, in order.

    SUBGRAPH is none of them: IF and WHILE have figures of their own.

    :raises ValueError: before HAL 1.2, which had no such table.
    """
    if version < HalVersion.V1_2:
        raise ValueError(f"{version.title} has no performance by operand type")
    missing = {OperandType.SUBGRAPH}
    if version < HalVersion.V1_3:
        missing |= _NOT_IN_1_2
    types = sorted(set(OperandType) - missing)
    return tuple(OperandPerformance(type_, info) for type_ in types)


def with_performance(
    table: Performances, type_: OperandType, info: PerformanceInfo
) -> tuple[OperandPerformance, ...]:
    """Return the table with another entry for ``type_``.

    :raises KeyError: if it lists no such type.
    """
    index = _index(table, type_)
    if index is None:
        raise KeyError(f"{type_.name} is not in the table")
    return (*table[:index], OperandPerformance(type_, info), *table[index + 1 :])


def performance_of(table: Performances, type_: OperandType) -> PerformanceInfo:
    """Return the entry of ``type_``, `NO_PERFORMANCE_INFO` if there is none.

    :raises ValueError: for SUBGRAPH; see the fields for IF and WHILE.
    """
    if type_ is OperandType.SUBGRAPH:
        raise ValueError("IF and WHILE have figures of their own")
    index = _index(table, type_)
    return NO_PERFORMANCE_INFO if index is None else table[index].info


def kernel_capabilities(device: object) -> Capabilities | None:
    """Return what a device measured of its kernels; None if nothing was measured.

    What it declares is relative to the same, which is not the CPU of a framework. It
    says so itself, by an attribute of this name.
    """
    found: Capabilities | None = getattr(device, "kernel_capabilities", None)
    return found


def relative_to(
    capabilities: Capabilities, kernels: Capabilities | None
) -> Capabilities:
    """Return ``capabilities`` divided by ``kernels``, type by type, if there are any.

    So what was measured beside plain NumPy is relative to the CPU of a framework, as
    what others declare; see `kernel_capabilities`.
    """
    if kernels is None:
        return capabilities

    def ratio(one: PerformanceInfo, other: PerformanceInfo) -> PerformanceInfo:
        return PerformanceInfo(
            one.exec_time / other.exec_time, one.power_usage / other.power_usage
        )

    scalar, tensor, if_, while_ = (
        ratio(getattr(capabilities, name), getattr(kernels, name))
        for name in _BESIDE_THE_TABLE
    )
    table = kernels.operand_performance
    return Capabilities(
        scalar,
        tensor,
        tuple(
            OperandPerformance(
                each.type, ratio(each.info, performance_of(table, each.type))
            )
            for each in capabilities.operand_performance
        ),
        if_,
        while_,
    )


def _index(table: Performances, type_: OperandType) -> int | None:
    index = bisect_left(table, type_, key=_by_type)
    found = index < len(table) and table[index].type == type_
    return index if found else None
