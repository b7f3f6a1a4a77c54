"""XNNPACK's packed weights (under construction)."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class PackedWeights:
    """Packed weights of one model."""

    def compile(self, compile_with: Callable[[int], T]) -> T:
        """Compile."""
        raise NotImplementedError
