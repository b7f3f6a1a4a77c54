"""Where a run by LiteRT can stop: estimated times, barriers and segments.

A run ends at the next *barrier* when it is interrupted, for a cancellation, a deadline
or a pause; what it has computed is lost. Behind a *segment* its results are kept, so
that a pause costs at most one segment. Both are estimated by multiply-adds and bytes,
and by how fast these were measured to be here: see `Speeds`.
"""

import math
from collections.abc import Sequence

import msgspec

from asyncnn.engine.delegation import Step
from asyncnn.hal.operations.bound import BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperationType

BARRIER_NS = 150_000
"""Estimated time between two barriers."""

SEGMENT_NS = 6_000_000
"""Estimated time of a segment.

Each has activations of its own, so that many of them cost cache misses.
"""

SLACK = 0.3
"""Share of a part by which a cut moves to where the fewest tensors cross."""


class TypeSpeeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one kind of numbers, in each nanosecond of a thread.

    ``macs`` are multiply-adds, ``depthwise_macs`` those of depthwise convolutions, and
    ``bytes`` those that are read or written.
    """

    macs: float
    depthwise_macs: float
    bytes: float


class Speeds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Those of float and of 8-bit operations."""

    floats: TypeSpeeds
    integers: TypeSpeeds


USUAL = Speeds(TypeSpeeds(50.0, 12.5, 4.0), TypeSpeeds(100.0, 25.0, 4.0))
"""Of the slower of usual CPUs, where nothing was measured."""

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


def estimated_ns(operation: BoundOperation, speeds: Speeds = USUAL) -> float:
    """Return about how long ``operation`` takes; all shapes are known."""
    # Behind the first inputs come scalars, and tensors that are as small.
    tensors = (*operation.inputs[:_LARGE_INPUTS], *operation.outputs)
    elements = sum(math.prod(_shape(each)) for each in tensors)
    is_quantized = operation.outputs[0].scale != 0
    of_type = speeds.integers if is_quantized else speeds.floats
    is_depthwise = operation.type is OperationType.DEPTHWISE_CONV_2D
    speed = of_type.depthwise_macs if is_depthwise else of_type.macs
    size_bytes = elements * (1 if is_quantized else 4)
    return _CALL_NS + size_bytes / of_type.bytes + _multiply_adds(operation) / speed


def _multiply_adds(operation: BoundOperation) -> float:
    output = math.prod(operation.outputs[0].shape or ())
    type_ = operation.type
    if type_ in _FILTERED:  # filters are [outputs, ...]
        return output * math.prod(_shape(operation.inputs[1])[1:])
    if type_ is OperationType.DEPTHWISE_CONV_2D:  # [1, height, width, outputs]
        return output * math.prod(_shape(operation.inputs[1])[1:3])
    if type_ is OperationType.TRANSPOSE_CONV_2D:
        source = math.prod(_shape(operation.inputs[0]))
        filters = _shape(operation.inputs[1])
        return float(source * math.prod(filters[:-1]))
    if type_ is OperationType.BATCH_MATMUL:
        return float(output * max(_shape(operation.inputs[0])[-2:], default=1))
    return float(output)


def _shape(operand: BoundOperand | None) -> Shape:
    return () if operand is None or operand.shape is None else operand.shape


def cuts(steps: Sequence[Step], part_ns: float, speeds: Speeds = USUAL) -> list[int]:
    """Return where to divide ``steps`` into parts of about ``part_ns`` nanoseconds.

    Each number is that of the first step behind a cut. Cuts are moved a little to where
    the fewest tensors cross.
    """
    costs = [estimated_ns(step.operation, speeds) for step in steps]
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
