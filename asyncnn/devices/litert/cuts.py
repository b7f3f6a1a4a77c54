"""Where a run by LiteRT can stop: estimated times, barriers and segments.

A run ends at the next *barrier* when it is interrupted, for a cancellation, a deadline
or a pause; what it has computed is lost. Behind a *segment* its results are kept, so
that a pause costs at most one segment. Both are estimated by multiply-adds and bytes,
and by how fast these were measured to be here: see `Speeds`.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Protocol

import msgspec

from asyncnn.hal.operations.bound import BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperationType

BARRIER_NS, MOST_BARRIER_NS = 150_000, 300_000
"""Estimated time between two barriers, at most; which of both, operations decide."""

SEGMENT_NS = 3_000_000
"""Estimated time of a segment.

Each has activations of its own, so that many of them cost cache misses.
"""

MOST_STEPS = 1_000
"""Steps of a segment.

LiteRT reads a graph in a time that grows with the square of its operators, and cannot
be stopped meanwhile: a preparation that is given up waits for its end.
"""

SLACK = 0.3
"""Share of a part by which a cut moves to where the fewest tensors cross."""

WORTH_CUTTING = 1.5
"""Times that something takes longer than a part may, to be divided at all."""


class Timed(Protocol):
    """A step, or an operator of a file."""

    @property
    def cost_ns(self) -> int:
        """About what it takes."""

    @property
    def inputs(self) -> Sequence[int]:
        """What it reads, by number."""

    @property
    def outputs(self) -> Sequence[int]:
        """What it makes."""


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

_CHANNELS = 8
"""That filters are applied to at once: images of three take as long."""

_FILTERED = frozenset(
    {
        OperationType.CONV_2D,
        OperationType.GROUPED_CONV_2D,
        OperationType.FULLY_CONNECTED,
    }
)


def estimated_ns(operation: BoundOperation, speeds: Speeds = USUAL) -> int:
    """Return about how long ``operation`` takes; all shapes are known."""
    # Behind the first inputs come scalars, and tensors that are as small.
    elements = 0
    for each in (*operation.inputs[:_LARGE_INPUTS], *operation.outputs):
        elements += math.prod(_shape(each))
    return taken_ns(
        elements,
        _multiply_adds(operation),
        speeds,
        is_quantized=operation.outputs[0].scale != 0,
        is_depthwise=operation.type is OperationType.DEPTHWISE_CONV_2D,
    )


def taken_ns(
    elements: int,
    multiply_adds: float,
    speeds: Speeds,
    *,
    is_quantized: bool,
    is_depthwise: bool = False,
) -> int:
    """Return about how long an operation takes that reads and writes ``elements``."""
    of_type = speeds.integers if is_quantized else speeds.floats
    speed = of_type.depthwise_macs if is_depthwise else of_type.macs
    size_bytes = elements * (1 if is_quantized else 4)
    return int(_CALL_NS + size_bytes / of_type.bytes + multiply_adds / speed)


def _multiply_adds(operation: BoundOperation) -> float:
    output = math.prod(operation.outputs[0].shape or ())
    type_ = operation.type
    if type_ in _FILTERED:  # filters are [outputs, ...]
        return filtered_macs(output, _shape(operation.inputs[1])[1:])
    if type_ is OperationType.DEPTHWISE_CONV_2D:  # [1, height, width, outputs]
        return output * math.prod(_shape(operation.inputs[1])[1:3])
    if type_ is OperationType.TRANSPOSE_CONV_2D:
        source = math.prod(_shape(operation.inputs[0]))
        filters = _shape(operation.inputs[1])
        return float(source * math.prod(filters[:-1]))
    if type_ is OperationType.BATCH_MATMUL:
        return float(output * max(_shape(operation.inputs[0])[-2:], default=1))
    return float(output)


def filtered_macs(output: int, filter_: Shape) -> int:
    """Return the multiply-adds of ``output`` elements, each by such a filter."""
    *taps, channels = filter_
    return output * math.prod(taps) * -(-channels // _CHANNELS) * _CHANNELS


def _shape(operand: BoundOperand | None) -> Shape:
    return () if operand is None or operand.shape is None else operand.shape


def barriers(steps: Sequence[Timed]) -> list[int]:
    """Return where barriers divide the steps of a segment; see `cuts`.

    What is interrupted goes on for as long as the longest operation, at worst, whatever
    the other parts are. So these may be as long, up to `MOST_BARRIER_NS`.
    """
    longest_ns = max(step.cost_ns for step in steps)
    return cuts(steps, min(max(longest_ns, BARRIER_NS), MOST_BARRIER_NS))


def cuts(steps: Sequence[Timed], part_ns: float) -> list[int]:
    """Return where to divide ``steps`` into parts of ``part_ns`` nanoseconds at most.

    No part has more than `MOST_STEPS`, and an operation that takes longer is one by
    itself. Each number is that of the first step behind a cut. Cuts are moved back a
    little to where the fewest tensors cross.
    """
    ends = [0, *accumulate(step.cost_ns for step in steps)]
    if ends[-1] < WORTH_CUTTING * part_ns and len(steps) <= MOST_STEPS:
        return []
    crossing = _crossing(steps)
    chosen = [0]
    while True:
        start, began_ns = chosen[-1], ends[chosen[-1]]
        # At least one step, and as many as end in time.
        furthest = max(bisect_right(ends, began_ns + part_ns) - 1, start + 1)
        furthest = min(furthest, start + MOST_STEPS)
        if furthest >= len(steps):
            return chosen[1:]
        length_ns = min(part_ns, ends[furthest] - began_ns)
        earliest_ns = began_ns + (1 - SLACK) * length_ns
        earliest = min(max(bisect_left(ends, earliest_ns), start + 1), furthest)
        candidates = range(earliest, furthest + 1)
        chosen.append(min(candidates, key=lambda at: (crossing[at], -at)))


def _crossing(steps: Sequence[Timed]) -> list[int]:
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
