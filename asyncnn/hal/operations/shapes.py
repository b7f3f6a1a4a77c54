"""Building blocks of shape rules, and checks that many signatures share.

A rule reads a `BoundOperation` and returns its output shapes. An illegal shape or value
raises `OperationFailedError`, a value that is not known yet `ValueNeededError`.
"""

import math
from collections.abc import Sequence

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, Shape
from asyncnn.hal.operations.signature import Requirement, TypedCheck, Usage

NHWC_TO_NCHW = (0, 3, 1, 2)
NCHW_TO_NHWC = (0, 2, 3, 1)


def permuted(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return the shape whose axis ``i`` is axis ``order[i]`` of ``shape``."""
    return tuple(shape[axis] for axis in order)


def merged_order(axes: Shape, order: Sequence[int]) -> tuple[Shape, Shape]:
    """Return the same permutation with axes that stay neighbours made into one.

    Axes of length 1 are left out.
    """
    long = [axis for axis, length in enumerate(axes) if length != 1]
    groups: list[list[int]] = []
    for axis in (long.index(axis) for axis in order if axis in long):
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    in_source = sorted(groups)
    lengths = tuple(math.prod(axes[long[i]] for i in group) for group in in_source)
    return lengths, tuple(in_source.index(group) for group in groups)


def in_layout(shape: Shape, nchw: bool) -> Shape:
    """Return an [N, H, W, C] shape in the layout that the operation uses."""
    return permuted(shape, NHWC_TO_NCHW) if nchw else shape


def broadcast_inputs(operation: BoundOperation) -> tuple[Shape]:
    """Give the shape of the first two inputs together, aligned at the last axes.

    :raises OperationFailedError: if two axes differ and neither is 1.
    """
    first, second = operation.shape(0), operation.shape(1)
    if first == second:
        return (first,)
    rank = max(len(first), len(second))
    one = (1,) * (rank - len(first)) + first
    other = (1,) * (rank - len(second)) + second
    operation.require(
        all(a == b or 1 in (a, b) for a, b in zip(one, other, strict=True)),
        f"shapes {list(first)} and {list(second)} do not broadcast",
    )
    return (tuple(b if a == 1 else a for a, b in zip(one, other, strict=True)),)


def same_as_input(operation: BoundOperation) -> tuple[Shape]:
    """Give the shape of input 0."""
    return (operation.shape(0),)


def declared(operation: BoundOperation) -> tuple[Shape | None, ...]:
    """Give the shapes that the model declares."""
    return tuple(output.shape for output in operation.outputs)


def data_dependent(operation: BoundOperation) -> tuple[None, ...]:
    """Give no shape: only the computed data show how many results there are."""
    return (None,) * len(operation.outputs)


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
