"""Building blocks of shape rules, and checks that many signatures share.

A rule reads a `BoundOperation` and returns its output shapes. An illegal shape or value
raises `OperationFailedError`, a value that is not known yet `ValueNeededError`.
"""

from collections.abc import Callable

from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import BoundOperation, OperationFailedError, Shape
from asyncnn.hal.operations.signature import Requirement, TypedCheck, Usage

NCHW_TO_NHWC = (0, 2, 3, 1)
NHWC_TO_NCHW = (0, 3, 1, 2)


def require(operation: BoundOperation, condition: bool, message: str) -> None:
    """Check a rule that operands have to meet.

    :raises OperationFailedError: if ``condition`` is false.
    """
    if not condition:
        raise OperationFailedError(f"{operation.type.name}: {message}")


def require_if_known(
    operation: BoundOperation,
    index: int,
    legal: Callable[[float], bool],
    message: str,
) -> None:
    """Check a scalar that shapes do not depend on, unless only the request tells it.

    :raises OperationFailedError: if its value is known and not ``legal``.
    """
    if operation.has(index) and operation.input(index).value is not None:
        require(operation, legal(operation.real(index)), message)


def shape_of_rank(operation: BoundOperation, index: int, *ranks: int) -> Shape:
    """Return the shape of input ``index``, whose rank is one of ``ranks``.

    :raises OperationFailedError: if its rank is another one.
    """
    shape = operation.shape(index)
    if len(shape) not in ranks:
        expected = " or ".join(map(str, ranks))
        raise OperationFailedError(
            f"{operation.type.name}: input {index} has rank {len(shape)}, "
            f"expected {expected}"
        )
    return shape


def require_shape(
    operation: BoundOperation, index: int, expected: Shape, name: str
) -> None:
    """Check that input ``index``, called ``name``, has the shape ``expected``.

    :raises OperationFailedError: if it has another one.
    """
    actual = operation.shape(index)
    if actual != expected:
        raise OperationFailedError(
            f"{operation.type.name}: {name} has shape {list(actual)}, "
            f"expected {list(expected)}"
        )


def integers(operation: BoundOperation, index: int) -> list[int]:
    """Return the elements of the int32 tensor ``index`` in row-major order."""
    return [int(element) for element in operation.value(index).reshape(-1)]


def integers_of_length(operation: BoundOperation, index: int, length: int) -> list[int]:
    """Return the elements of the one-axis int32 tensor ``index``.

    :raises OperationFailedError: if it has not exactly ``length`` elements.
    """
    require_shape(operation, index, (length,), f"input {index}")
    return integers(operation, index)


def normalized_axes(operation: BoundOperation, index: int, rank: int) -> set[int]:
    """Return the axes in the int32 tensor ``index``, each within ``[0, rank)``.

    :raises OperationFailedError: if one is outside ``[-rank, rank)``.
    """
    shape_of_rank(operation, index, 1)
    axes = integers(operation, index)
    for axis in axes:
        require(operation, -rank <= axis < rank, f"axis {axis} is outside rank {rank}")
    return {axis % rank for axis in axes}


def permuted(shape: Shape, order: tuple[int, ...]) -> Shape:
    """Return the shape whose axis ``i`` is axis ``order[i]`` of ``shape``."""
    return tuple(shape[axis] for axis in order)


def image_shape(operation: BoundOperation, nchw: bool, index: int = 0) -> Shape:
    """Return the shape of a four-axis input as [N, H, W, C], whatever its layout."""
    shape = shape_of_rank(operation, index, 4)
    return permuted(shape, NCHW_TO_NHWC) if nchw else shape


def in_layout(shape: Shape, nchw: bool) -> Shape:
    """Return an [N, H, W, C] shape in the layout that the operation uses."""
    return permuted(shape, NHWC_TO_NCHW) if nchw else shape


def broadcast(operation: BoundOperation, first: Shape, second: Shape) -> Shape:
    """Return the shape of an element-wise combination, aligned at the last axes.

    :raises OperationFailedError: if two axes differ and neither is 1.
    """
    rank = max(len(first), len(second))
    one = (1,) * (rank - len(first)) + first
    other = (1,) * (rank - len(second)) + second
    for a, b in zip(one, other, strict=True):
        require(
            operation,
            a == b or 1 in (a, b),
            f"shapes {list(first)} and {list(second)} do not broadcast",
        )
    return tuple(b if a == 1 else a for a, b in zip(one, other, strict=True))


def broadcast_inputs(operation: BoundOperation) -> tuple[Shape]:
    """Give the first two inputs' broadcast shape."""
    return (broadcast(operation, operation.shape(0), operation.shape(1)),)


def same_as_input(operation: BoundOperation) -> tuple[Shape]:
    """Give the shape of input 0."""
    return (operation.shape(0),)


def data_dependent(operation: BoundOperation) -> tuple[None, ...]:
    """Give no shape: only the computed data tell how many results there are."""
    return (None,) * len(operation.outputs)


def whole_quotient(
    operation: BoundOperation, size: int, divisor: int, what: str
) -> int:
    """Return ``size / divisor``.

    :raises OperationFailedError: if that is not a whole number.
    """
    require(
        operation,
        divisor > 0 and size % divisor == 0,
        f"{what} {size} is not divisible by {divisor}",
    )
    return size // divisor


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
