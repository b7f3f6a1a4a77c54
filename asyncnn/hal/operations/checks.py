"""Checks of quantisation and rank that several operations share."""

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.signature import Requirement, TypedCheck, Usage


def _quantization_is_kept(usage: Usage) -> Requirement | None:
    output = usage.output
    for operand in usage.all("input"):
        if (operand.scale, operand.zero_point) != (output.scale, output.zero_point):
            raise usage.error("output", "is quantised unlike the input")
    return None


quantization_is_kept = TypedCheck("input", QUANT8_TYPES, _quantization_is_kept)
"""Checks that each quantised ``input`` has the scale and zero point of the output."""


def rank_is_kept(usage: Usage) -> Requirement | None:
    """Check that ``input`` and output have the same rank, where both are known.

    :raises InvalidArgumentError: if the ranks differ.
    """
    source, target = usage.input("input").dimensions, usage.output.dimensions
    if source and target and len(source) != len(target):
        raise usage.error(
            "output", f"has rank {len(target)}, the input rank {len(source)}"
        )
    return None
