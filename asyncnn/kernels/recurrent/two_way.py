"""Two cells along one sequence: their inputs, and outputs apart or merged."""

import msgspec

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.kernels.kernel import Outputs, PreparedKernel
from asyncnn.kernels.recurrent.unroll import Direction, Extent, Results, unrolled


class Auxiliary(msgspec.Struct, frozen=True):
    """The inputs that feed each direction.

    An auxiliary input with weights of its own is ``joined`` to the main input of both
    cells; without weights it is the input of the backward cell alone.
    """

    forward: tuple[int, ...] = (0,)
    backward: tuple[int, ...] = (0,)
    joined: bool = False

    @classmethod
    def of(cls, operation: BoundOperation, index: int, weights: int) -> "Auxiliary":
        """Read the role of input ``index``; ``weights`` is one input with weights."""
        if operation.has(weights):
            return cls((0, index), (0, index), joined=True)
        return cls(backward=(index,)) if operation.has(index) else cls()


def two_way(
    forward: Direction,
    backward: Direction,
    extent: Extent,
    forward_outputs: int,
    merge: bool,
) -> PreparedKernel:
    """Return the kernel of both directions.

    Its outputs are two sequences, or one that joins them at the last axis, and perhaps
    the last states: all of the forward, then of the backward direction.
    """

    def separate(outputs: Outputs) -> Results:
        return Results([extent.by_step(output) for output in outputs[:2]], outputs[2:])

    def merged(outputs: Outputs) -> Results:
        both = extent.by_step(outputs[0])
        parts = [both[..., :forward_outputs], both[..., forward_outputs:]]
        return Results(parts, outputs[1:])

    return unrolled([forward, backward], extent, merged if merge else separate)
