"""Parts of a plan that another engine computes at once."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from asyncnn.engine.plan import Step
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.kernels.kernel import PreparedKernel


class Segment(msgspec.Struct, frozen=True, eq=False):
    """Consecutive steps of a plan, whose operands have known shapes.

    ``inputs`` are the operands (by index) that it reads and that no step of it writes,
    without constants; ``outputs`` are those that later steps or the plan's outputs
    need. Constants are the ``value`` of the operands that the steps' operations have.
    """

    steps: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Delegate(Protocol):
    """An engine that computes segments of plans in place of the kernels."""

    def claims(self, operation: BoundOperation) -> bool:
        """Tell whether it computes ``operation``, whose shapes are all known."""
        ...

    def prepare(self, segments: Sequence[Segment]) -> Sequence[PreparedKernel | None]:
        """Return what computes each segment; None leaves it to the kernels.

        A kernel gets the segment's inputs and outputs in their order.
        """
        ...
