"""Axes of tensors: of open lengths, and more than most HAL operations take.

Neighbours that an operation treats alike are merged for it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.operations.shapes import merged_order

MAX_RANK = 4
"""Highest rank of most operations."""


def dimensions_of(shape: Shape) -> Shape:
    """Return the shape of a file's tensor as the HAL has it.

    Rank 0 becomes 1, and of more than four axes the first ones are merged.
    """
    first = len(shape) - MAX_RANK + 1
    if first > 1:
        return (math.prod(shape[:first]), *shape[first:])
    return shape or (1,)


def hint_of_shape(wanted: Shape, given: Shape) -> str:
    """Return what to do with an array whose first axis alone is wrong, or nothing."""
    if (1, *given) == wanted:
        return "array[numpy.newaxis] adds the first axis"
    if wanted[:1] == (1,) and given[:1] > (1,) and given[1:] == wanted[1:]:
        return "each array[k:k+1] is a run of its own: asyncio.gather awaits many"
    return ""


class CountsAxes:
    """Base of an operator of a file, which says axes from either end."""

    def axis(self, axis: int, rank: int) -> int:
        """Return ``axis`` counted from the front.

        :raises InvalidArgumentError: if it is outside of ``rank``.
        """
        if not -rank <= axis < rank:
            raise InvalidArgumentError(f"axis {axis} is outside of rank {rank}")
        return axis % rank


def merged_axes(shape: Shape, kept: Sequence[int]) -> tuple[Shape, dict[int, int]]:
    """Merge neighbours among axes that are not ``kept``, if there are too many axes.

    Return the new shape and where each kept axis is in it.
    """
    if len(shape) <= MAX_RANK:
        return shape, {axis: axis for axis in kept}
    lengths: list[int] = []
    places: dict[int, int] = {}
    is_open = False
    for axis, length in enumerate(shape):
        if axis in kept:
            places[axis] = len(lengths)
            lengths.append(length)
            is_open = False
        elif is_open:
            lengths[-1] *= length
        else:
            lengths.append(length)
            is_open = True
    return tuple(lengths), places


def broadcast_groups(shape: Shape, parts: Sequence[Shape]) -> list[list[int]]:
    """Return the axes of ``shape``: together those along which all parts go alike.

    ``parts`` broadcast to it and have as many axes; single elements are left out.
    """
    groups: list[list[int]] = []
    before: list[bool] | None = None
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        kind = [part[axis] == length for part in parts]
        if kind == before:
            groups[-1].append(axis)
        else:
            groups.append([axis])
        before = kind
    return groups


def merged_groups(shape: Shape, groups: Sequence[Sequence[int]]) -> Shape:
    """Return a shape with one axis for each group of its axes."""
    return tuple(math.prod(shape[axis] for axis in axes) for axes in groups)


class Transposition(NamedTuple):
    """A tensor is taken as one of ``shape``, whose axes then get another order."""

    shape: Shape
    order: tuple[int, ...]


def transpositions(shape: Shape, order: Sequence[int]) -> Iterator[Transposition]:
    """Yield what puts the axes of ``shape`` in another order, by few axes at a time.

    Axes of length 1 cost nothing, and axes that stay together move as one.
    """
    lengths, left = map(list, merged_order(shape, order))
    if len(left) <= MAX_RANK:
        if left != sorted(left):
            yield Transposition(tuple(lengths), tuple(left))
        return
    # One after the other to its place: before it, what it passes, itself, the rest.
    for place in range(len(left)):
        found = left[place]
        if found == place:
            continue
        parts = (
            math.prod(lengths[:place]),
            math.prod(lengths[place:found]),
            lengths[found],
            math.prod(lengths[found + 1 :]),
        )
        yield Transposition(parts, (0, 2, 1, 3))
        lengths.insert(place, lengths.pop(found))
        left = [p + 1 if place <= p < found else p for p in left]
        left[place] = place


OpenShapes: TypeAlias = Mapping[str, Sequence[int | str]]
"""Lengths of the axes of inputs; those that the file leaves open have names, or ``?``.
"""

_EXAMPLE_LENGTH = 640
"""Length to try for an axis that is open, but for a first one: many strides divide it.
"""


def example_shapes(
    shapes: OpenShapes, length: int = _EXAMPLE_LENGTH
) -> dict[str, Shape]:
    """Return shapes that may do: first axes of 1, others of ``length``.

    Axes of one name are of one length. Those without a name are of 1 in an input that
    is not like the first one, such as state.
    """
    known: dict[str, int] = {}
    found: dict[str, Shape] = {}
    for name, axes in shapes.items():
        is_like_first = axes == next(iter(shapes.values()))
        lengths: list[int] = []
        for place, axis in enumerate(axes):
            if axis == "?":
                lengths.append(length if place and is_like_first else 1)
            elif isinstance(axis, str):
                lengths.append(known.setdefault(axis, length if place else 1))
            else:
                lengths.append(axis)
        found[name] = tuple(lengths)
    return found


def as_arguments(shapes: Mapping[str, Shape]) -> str:
    """Return what gives shapes to inputs, in Python and on a command line."""
    return f"input_shapes={dict(shapes)}, or {as_options(shapes)}"


def as_options(shapes: Mapping[str, Shape]) -> str:
    """Return what gives shapes to inputs on a command line, for a shell."""
    import shlex

    return " ".join(
        shlex.join(("--input-shape", f"{name}={','.join(map(str, shape))}"))
        for name, shape in shapes.items()
    )


def hint_of_open_shapes(shapes: OpenShapes) -> str:
    """Return what to do about inputs whose shapes the file leaves open."""
    return (
        "the file leaves shapes to the application: load it with your own, "
        f"such as {as_arguments(example_shapes(shapes))}"
    )
