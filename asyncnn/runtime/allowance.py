"""Limits on what a file makes of little: constants, steps, graphs used often.

A file of some bytes may ask for gigabytes or for hours; none gets more than this.
"""

import math
from typing import Any

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.runtime.unsupported import UnsupportedOperatorError

MAX_ELEMENTS = 1 << 24
"""Most elements, all together, of constants that a file implies but does not hold."""

MAX_FOLDED = 1 << 22
"""Most elements of one tensor that is folded and larger than all that it is made of."""

MAX_ALL_FOLDED = 1 << 27
"""Most elements of all tensors that are folded and may be so large."""

MAX_STEPS = 1 << 14
"""Most time steps, all together, that become operations of their own."""

MAX_OPERATORS = 1 << 16
"""Most operators; a subgraph's count each time that it is called."""

MAX_VISITS = 1 << 20
"""Most nodes of inner graphs and functions that are looked at, each time counted."""

MAX_COPIED_BYTES = 1 << 29
"""Most bytes of inner graphs and functions, counted wherever they are put in place."""


class Allowance:
    """What is left of all of them for the rest of one file."""

    def __init__(self) -> None:
        self._elements = MAX_ELEMENTS
        self._folded: float = MAX_ALL_FOLDED
        self._steps = MAX_STEPS
        self._operators = MAX_OPERATORS
        self._visits = MAX_VISITS
        self._bytes = MAX_COPIED_BYTES

    def take_elements(self, dimensions: Shape) -> None:
        """Account for a constant.

        :raises InvalidArgumentError: if it is one too many.
        """
        self._elements -= math.prod(dimensions)
        if self._elements < 0:
            raise InvalidArgumentError(
                f"constants that the file does not hold have more than {MAX_ELEMENTS} "
                f"elements, with the last of shape {list(dimensions)}"
            )

    def take_folded(self, size: float, source: int) -> None:
        """Account for a constant of ``size`` elements, computed of ``source`` ones.

        :raises InvalidArgumentError: if it is too large.
        """
        self._folded -= size
        if size > max(MAX_FOLDED, source) or self._folded < 0:
            raise InvalidArgumentError(
                f"a constant of {size:.3g} elements is too large to be computed"
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

    def visit(self, count: int) -> None:
        """Account for nodes of an inner graph or function that are looked at.

        :raises InvalidArgumentError: if they are too many.
        """
        self._visits -= count
        if self._visits < 0:
            raise InvalidArgumentError(
                f"more than {MAX_VISITS} nodes of inner graphs, with those of "
                "functions and loops counted each time"
            )

    def copy(self, body: Any) -> None:
        """Account for an inner graph or function that is put in place.

        :raises InvalidArgumentError: if all of them together are too large.
        """
        self._bytes -= body.ByteSize()
        if self._bytes < 0:
            raise InvalidArgumentError(
                f"inner graphs of more than {MAX_COPIED_BYTES} bytes, with those of "
                "functions and loops counted each time"
            )
