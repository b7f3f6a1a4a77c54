"""Checks how an operand is quantised: rule M4, and since when its type exists.

Source: HAL 1.0 to 1.3/types.hal (OperandType, SymmPerChannelQuantParams).
"""

import msgspec

from asyncnn.hal.operands import is_extension_type
from asyncnn.hal.types import (
    HalVersion,
    Operand,
    OperandType,
    SymmPerChannelQuantParams,
)
from asyncnn.hal.validate.limits import is_integer
from asyncnn.hal.validate.wording import brief, broken

_FLOAT32_MAX = float.fromhex("0x1.fffffep127")
_FLOAT32_TINIEST = float.fromhex("0x1p-149")


class _Scale(msgspec.Struct, frozen=True):
    """What a scale must be: in words, its bounds, and whether it may be zero too."""

    words: str
    least: float
    greatest: float
    may_be_zero: bool


_ZERO = _Scale("zero", 0, 0, True)
_POSITIVE = _Scale("positive", _FLOAT32_TINIEST, _FLOAT32_MAX, False)
_NOT_NEGATIVE = _Scale("zero or positive", _FLOAT32_TINIEST, _FLOAT32_MAX, True)


class TypeRules(msgspec.Struct, frozen=True):
    """Since when a type exists, and how its operands are quantised."""

    since: HalVersion
    scale: _Scale = _ZERO
    least_zero_point: int = 0
    greatest_zero_point: int = 0


_PER_CHANNEL = OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
_V1_0, _V1_2, _V1_3 = HalVersion.V1_0, HalVersion.V1_2, HalVersion.V1_3
TYPE_RULES: dict[int, TypeRules] = {
    OperandType.FLOAT32: TypeRules(_V1_0),
    OperandType.INT32: TypeRules(_V1_0),
    OperandType.UINT32: TypeRules(_V1_0),
    OperandType.TENSOR_FLOAT32: TypeRules(_V1_0),
    OperandType.TENSOR_INT32: TypeRules(_V1_0, _NOT_NEGATIVE),
    OperandType.TENSOR_QUANT8_ASYMM: TypeRules(_V1_0, _POSITIVE, 0, 255),
    OperandType.BOOL: TypeRules(_V1_2),
    OperandType.TENSOR_QUANT16_SYMM: TypeRules(_V1_2, _POSITIVE),
    OperandType.TENSOR_FLOAT16: TypeRules(_V1_2),
    OperandType.TENSOR_BOOL8: TypeRules(_V1_2),
    OperandType.FLOAT16: TypeRules(_V1_2),
    OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL: TypeRules(_V1_2),
    OperandType.TENSOR_QUANT16_ASYMM: TypeRules(_V1_2, _POSITIVE, 0, 65535),
    OperandType.TENSOR_QUANT8_SYMM: TypeRules(_V1_2, _POSITIVE),
    OperandType.TENSOR_QUANT8_ASYMM_SIGNED: TypeRules(_V1_3, _POSITIVE, -128, 127),
    OperandType.SUBGRAPH: TypeRules(_V1_3),
    OperandType.OEM: TypeRules(_V1_0),
    OperandType.TENSOR_OEM_BYTE: TypeRules(_V1_0),
}
EXTENSION_RULES = TypeRules(_V1_2)


def check_quantization(operand: Operand, rules: TypeRules) -> None:
    """Check scale and zero point.

    :raises InvalidArgumentError: if one is not what the operand's type allows.
    """
    scale, allowed = operand.scale, rules.scale
    # NaN is not within any bounds.
    if not allowed.least <= scale <= allowed.greatest and (
        scale != 0 or not allowed.may_be_zero
    ):
        raise broken("M4", f"scale must be {allowed.words}, is {brief(scale)}")
    least, greatest = rules.least_zero_point, rules.greatest_zero_point
    zero_point = operand.zero_point
    if not isinstance(zero_point, int) or not least <= zero_point <= greatest:
        legal = f"from {least} to {greatest}" if least < greatest else str(least)
        raise broken("M4", f"zero point must be {legal}, is {brief(zero_point)}")


def check_extra_params(operand: Operand) -> None:
    """Check that there are scales per channel where, and only where, they belong.

    :raises InvalidArgumentError: if there aren't, or they don't fit the dimensions.
    """
    extra = operand.extra_params
    if operand.type == _PER_CHANNEL:
        if not isinstance(extra, SymmPerChannelQuantParams):
            raise broken("M4", "scales per channel are missing")
        _check_channels(operand, extra)
    elif is_extension_type(operand.type):
        if extra is not None and not isinstance(extra, bytes):
            raise broken("M4", "an extension operand cannot have scales per channel")
    elif extra is not None:
        raise broken("M4", "this type has no extra parameters")


def _check_channels(operand: Operand, quant: SymmPerChannelQuantParams) -> None:
    rank = len(operand.dimensions)
    if not is_integer(quant.channel_dim, 0, rank - 1):
        raise broken("M4", f"channel axis {brief(quant.channel_dim)} of rank {rank}")
    channels = operand.dimensions[quant.channel_dim]
    if channels == 0 or len(quant.scales) != channels:
        raise broken("M4", f"{len(quant.scales)} scales for {channels} channels")
    for channel, scale in enumerate(quant.scales):
        if not _FLOAT32_TINIEST <= scale <= _FLOAT32_MAX:
            raise broken(
                "M4",
                f"scale of channel {channel} must be positive, is {brief(scale)}",
            )
