"""Where a run by LiteRT can stop: estimated times, barriers and segments.

A run ends at the next *barrier* when it is interrupted, for a cancellation, a deadline
or a pause; what it has computed is lost. Behind a *segment* its results are kept, so
that a pause costs at most one segment. Both are estimated by multiply-adds and bytes,
for the slower of usual CPUs: a barrier too many costs little.
"""

import math
from collections.abc import Sequence

from asyncnn.engine.delegation import Step
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperationType

BARRIER_NS = 300_000
"""Estimated time between two barriers."""

SEGMENT_NS = 6_000_000
"""Estimated time of a segment.

Each has activations of its own, so that many of them cost cache misses.
"""

SLACK = 0.3
"""Share of a part by which a cut moves to where the fewest tensors cross."""

_FLOAT_MACS_PER_NS = 50.0
_INTEGER_MACS_PER_NS = 100.0
_BYTES_PER_NS = 4.0
_CALL_NS = 300.0
"""Of one operation, however small."""

_LARGE_INPUTS = 3

_FILTERED = frozenset(
    {
        OperationType.CONV_2D,
        OperationType.GROUPED_CONV_2D,
        OperationType.FULLY_CONNECTED,
    }
)


def estimated_ns(operation: BoundOperation) -> float:
    """Return about how long ``operation`` takes; all shapes are known."""
    # Behind the first inputs come scalars, and tensors that are as small.
    tensors = (*operation.inputs[:_LARGE_INPUTS], *operation.outputs)
    elements = sum(math.prod(_shape(each)) for each in tensors)
    is_quantized = operation.outputs[0].scale != 0
    speed = _INTEGER_MACS_PER_NS if is_quantized else _FLOAT_MACS_PER_NS
    size_bytes = elements * (1 if is_quantized else 4)
    return _CALL_NS + size_bytes / _BYTES_PER_NS + _multiply_adds(operation) / speed


def _multiply_adds(operation: BoundOperation) -> float:
    output = math.prod(operation.outputs[0].shape or ())
    type_ = operation.type
    if type_ in _FILTERED:  # filters are [outputs, ...]
        return output * math.prod(_shape(operation.inputs[1])[1:])
    if type_ is OperationType.DEPTHWISE_CONV_2D:  # [1, height, width, outputs]
        return 4.0 * output * math.prod(_shape(operation.inputs[1])[1:3])
    if type_ is OperationType.TRANSPOSE_CONV_2D:
        source = math.prod(_shape(operation.inputs[0]))
        filters = _shape(operation.inputs[1])
        return float(source * math.prod(filters[:-1]))
    if type_ is OperationType.BATCH_MATMUL:
        return float(output * max(_shape(operation.inputs[0])[-2:], default=1))
    return float(output)


def _shape(operand: BoundOperand | None) -> Shape:
    return () if operand is None or operand.shape is None else operand.shape


def cuts(steps: Sequence[Step], part_ns: float) -> list[int]:
    """Return where to divide ``steps`` into parts of about ``part_ns`` nanoseconds.

    Each number is that of the first step behind a cut. Cuts are moved a little to where
    the fewest tensors cross.
    """
    costs = [estimated_ns(step.operation) for step in steps]
    parts = round(sum(costs) / part_ns)
    if parts < 2:
        return []
    ends = [0.0]
    for cost in costs:
        ends.append(ends[-1] + cost)
    crossing = _crossing(steps)
    part = ends[-1] / parts
    chosen: list[int] = []
    for number in range(1, parts):
        ideal = part * number
        candidates = range(chosen[-1] + 1 if chosen else 1, len(steps))
        near = [at for at in candidates if abs(ends[at] - ideal) <= SLACK * part]
        if near:
            chosen.append(
                min(near, key=lambda at: (crossing[at], abs(ends[at] - ideal)))
            )
        elif candidates:
            nearest = min(candidates, key=lambda at: abs(ends[at] - ideal))
            if abs(ends[nearest] - ideal) < part:
                chosen.append(nearest)
    return chosen


def _crossing(steps: Sequence[Step]) -> list[int]:
    """Return, for each boundary, how many tensors made before are read behind it."""
    last = {index: at for at, step in enumerate(steps) for index in step.inputs}
    changes = [0] * (len(steps) + 1)
    for at, step in enumerate(steps):
        for index in step.outputs:
            if last.get(index, at) > at:
                changes[at + 1] += 1
                changes[last[index] + 1] -= 1
    crossing = [0]
    for change in changes[1:]:
        crossing.append(crossing[-1] + change)
    return crossing
