"""Limits on what a file makes of little: constants, steps, subgraphs called often.

A file of some bytes may ask for gigabytes or for hours; none gets more than this.
"""

import math

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Dimensions
from asyncnn.runtime.unsupported import UnsupportedOperatorError

MAX_ELEMENTS = 1 << 24
"""Most elements, all together, of constants that a file implies but does not hold."""

MAX_STEPS = 1 << 14
"""Most time steps, all together, that become operations of their own."""

MAX_OPERATORS = 1 << 16
"""Most operators, with those of a subgraph counted each time that it is called."""


class Allowance:
    """What is left of all three for the rest of one file."""

    def __init__(self) -> None:
        self._elements = MAX_ELEMENTS
        self._steps = MAX_STEPS
        self._operators = MAX_OPERATORS

    def take_elements(self, dimensions: Dimensions) -> None:
        """Account for a constant.

        :raises InvalidArgumentError: if it is one too many.
        """
        self._elements -= math.prod(dimensions)
        if self._elements < 0:
            raise InvalidArgumentError(
                f"constants that the file does not hold have more than {MAX_ELEMENTS} "
                f"elements, with the last of shape {list(dimensions)}"
            )

    def take_steps(self, count: int) -> None:
        """Account for the steps of a layer.

        :raises UnsupportedOperatorError: if they are too many.
        """
        self._steps -= count
        if self._steps < 0:
            raise UnsupportedOperatorError(
                f"more than {MAX_STEPS} time steps in all layers"
            )

    def take_operators(self, count: int) -> None:
        """Account for work on the operators of a subgraph that is called.

        :raises UnsupportedOperatorError: if they are too many.
        """
        self._operators -= count
        if self._operators < 0:
            raise UnsupportedOperatorError(
                f"its subgraphs have more than {MAX_OPERATORS} operators when each is "
                "counted wherever it is called"
            )
