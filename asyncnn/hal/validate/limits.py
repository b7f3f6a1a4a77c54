"""What the numbers in a structure may be at most, whatever their meaning."""

from asyncnn.errors import InvalidArgumentError
from asyncnn.hal.operands import size_of_data_bytes
from asyncnn.hal.types import Dimensions
from asyncnn.hal.validate.wording import broken

UINT32_MAX = 0xFFFF_FFFF
RANK_MAX = 64
"""Axes of a NumPy array. The HAL sets no limit; this one also bounds our work."""
SLICE = 100
"""Operands or operations that are checked in one go."""


def is_integer(value: object, least: int, greatest: int) -> bool:
    """Tell whether ``value`` is an integer from ``least`` to ``greatest``."""
    return isinstance(value, int) and least <= value <= greatest


def is_uint32(value: object) -> bool:
    """Tell whether ``value`` is an integer that fits in 32 bits without a sign."""
    return isinstance(value, int) and 0 <= value <= UINT32_MAX


def checked_size_bytes(type_: int, dimensions: Dimensions, rule: str) -> int:
    """Return the bytes of a value; see `size_of_data_bytes`.

    :raises InvalidArgumentError: if they break ``rule`` by not fitting in 32 bits.
    """
    try:
        return size_of_data_bytes(type_, dimensions)
    except InvalidArgumentError as error:
        raise broken(rule, error.message) from None
