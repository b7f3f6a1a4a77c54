"""Axes whose length a file leaves open: fixed by the caller, or open in the HAL too.

A model with open axes is drafted twice, with two lengths for each of them. Where both
drafts agree the model is what either says; an axis whose lengths differ is open in the
HAL. If anything else differs, a length decides what the model is, and has to be given.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError, require_known
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import OperationType
from asyncnn.pacing import Steps
from asyncnn.runtime.axes import OpenShapes, as_arguments, dimensions_of, example_shapes
from asyncnn.runtime.drafting import Draft, Drafted, Omitted, Scalar, Value
from asyncnn.runtime.model import InputShapes, TensorInfo, shapes_by_name
from asyncnn.runtime.onnx.evaluated import Evaluated
from asyncnn.runtime.onnx.schema import Axes, Source
from asyncnn.runtime.unsupported import UnsupportedOperatorError

Constants: TypeAlias = Mapping[str, ArrayLike]
"""Values of inputs, by name, that are always the same."""

Lengths: TypeAlias = Mapping[str, Shape]
"""Complete shapes of inputs by name."""

_FIRST = ((2, 5, 7, 11, 13, 17), (101, 103, 107, 109, 113, 127))
"""Assumed lengths of first axes, which count what is computed alike."""

_OTHERS = ((96, 160, 224, 352, 416, 544), (1152, 1216, 1280, 1344, 1408, 1472))
"""Assumed lengths of other axes: most strides divide them.

Lengths of both variants are far from each other, so that what is cut or divided, up to
some length, differs.
"""


class Assumed(msgspec.Struct, frozen=True):
    """Lengths to draft a model with, two variants if any are open.

    ``open_shapes`` has the inputs that leave axes open, ``names`` those axes, by their
    lengths in both variants. ``single`` has 1 for each open first axis.
    """

    variants: tuple[Lengths, ...]
    open_shapes: OpenShapes
    names: Mapping[tuple[int, ...], str]
    single: Lengths

    def explained(self, error: AsyncnnError) -> AsyncnnError:
        """Return an error of drafts with the lengths that were open."""
        hint = (
            "the file leaves axes of its inputs open, which may be why; give "
            f"lengths, such as {as_arguments(example_shapes(self.open_shapes))}"
        )
        if isinstance(error, UnsupportedOperatorError):
            return UnsupportedOperatorError(
                error.message, hint=hint, operators=error.operators
            )
        return type(error)(error.message, hint=hint)

    def refused_alike(
        self, error: AsyncnnError, draft: Callable[[Lengths], Steps[object]]
    ) -> Steps[bool]:
        """Return whether a draft of any lengths fails so: then they are not why."""
        if not self.open_shapes or error.hint:
            return True
        for lengths in (*self.variants, self.single):
            try:
                yield from draft(lengths)
            except AsyncnnError as other:
                if str(other) == str(error):
                    continue
            return False
        return True


def open_lengths(
    source: Source, input_shapes: InputShapes, constant: set[str]
) -> Assumed:
    """Return the lengths to draft the model with.

    :param constant: names of inputs that are none of the model.
    :raises InvalidArgumentError: if ``input_shapes`` are not its inputs'.
    :raises UnsupportedOperatorError: if an input has no shape, and is given none.
    """
    inputs = [axes for axes in source.inputs if axes.name not in constant]
    inputs = ranked(inputs, input_shapes)
    for each in inputs:
        if not each.is_ranked:
            raise UnsupportedOperatorError(
                f"input {each.name[:80]!r} has no shape",
                hint="give one, by input_shapes",
            )
    lengths = {axes.name: axes.named_lengths for axes in inputs}
    known = given_lengths(lengths, input_shapes)
    symbols = _symbols(lengths, known)
    firsts = set(zip(*_FIRST, strict=True))
    first, second, single = (
        _complete(lengths, known | sizes)
        for sizes in (
            {name: pair[0] for name, pair in symbols.items()},
            {name: pair[1] for name, pair in symbols.items()},
            {n: 1 if pair in firsts else pair[0] for n, pair in symbols.items()},
        )
    )
    nameless = symbols.keys() - {str(n) for axes in inputs for n in axes.lengths}
    shown: dict[str, int | str] = {**known, **dict.fromkeys(nameless, "?")}
    opened = {
        name: [shown.get(str(axis), axis) for axis in axes]
        for name, axes in lengths.items()
        if any(axis in symbols for axis in axes)
    }
    names: dict[tuple[int, ...], str] = {
        pair: "?" if symbol in nameless else symbol for symbol, pair in symbols.items()
    }
    variants = (first, second) if symbols else (first,)
    return Assumed(variants, opened, names, single)


def _complete(
    lengths: Mapping[str, Sequence[int | str]], sizes: Mapping[str, int]
) -> Lengths:
    return {
        name: tuple(n if isinstance(n, int) else sizes[n] for n in axes)
        for name, axes in lengths.items()
    }


def _symbols(
    lengths: Mapping[str, Sequence[int | str]], known: Mapping[str, int]
) -> dict[str, tuple[int, int]]:
    """Return two lengths for each open axis, different from all others."""
    left = [list(zip(*rows, strict=True)) for rows in (_FIRST, _OTHERS)]
    symbols: dict[str, tuple[int, int]] = {}
    for axes in lengths.values():
        for place, symbol in enumerate(axes):
            if isinstance(symbol, int) or symbol in known or symbol in symbols:
                continue
            pairs = left[1 if place else 0]
            if not pairs:
                raise InvalidArgumentError(
                    "too many axes of inputs have no length",
                    hint="give them, by input_shapes",
                )
            symbols[symbol] = pairs.pop(0)
    return symbols


def ranked(inputs: Sequence[Axes], input_shapes: InputShapes) -> list[Axes]:
    """Return ``inputs``, those without axes with the axes of the shapes given to them.

    :raises InvalidArgumentError: if there is no such input.
    """
    shapes = shapes_by_name([axes.name for axes in inputs], input_shapes)
    found = []
    for axes in inputs:
        shape = None if axes.is_ranked else shapes.get(axes.name)
        if shape is None:
            found.append(axes)
            continue
        if min(shape, default=0) < 0:
            raise InvalidArgumentError(
                f"input {axes.name!r} cannot have shape {list(shape)}"
            )
        lengths = tuple(length or "" for length in shape)
        found.append(Axes(axes.name, axes.dtype, lengths))
    return found


def given_lengths(
    lengths: Mapping[str, Sequence[int | str]], input_shapes: InputShapes
) -> dict[str, int]:
    """Return the lengths that are given to open axes of inputs, by the axes' names.

    :raises InvalidArgumentError: if a shape does not fit, or there is no such input.
    """
    known: dict[str, int] = {}
    for name, shape in shapes_by_name([*lengths], input_shapes).items():
        _match(name, lengths[name], shape, known)
    return known


def _match(
    name: str, axes: Sequence[int | str], shape: Sequence[int], known: dict[str, int]
) -> None:
    """Put the lengths that ``shape`` gives to open axes into ``known``."""
    if not axes and tuple(shape) == (1,):
        return  # as the HAL has a tensor without axes
    fits = len(axes) == len(shape) and all(
        length >= 0 and known.get(str(axis), axis) in (axis, length)
        if isinstance(axis, str)
        else length in (axis, 0)
        for axis, length in zip(axes, shape, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            f"input {name!r} has shape {list(axes)}, which {list(shape)} does not fit"
        )
    pairs = zip(axes, shape, strict=True)
    known.update((axis, n) for axis, n in pairs if isinstance(axis, str) and n)


def merge(variants: Sequence[tuple[Draft, Sequence[Value], Sequence[Value]]]) -> None:
    """Open, in the first variant, each axis whose lengths differ in the second.

    :param variants: two drafts of one file, each with its inputs and outputs.
    :raises InvalidArgumentError: if they differ in anything else.
    """
    (first, inputs, outputs), (second, others, results) = variants
    twins: dict[Value, Value] = {}
    for one, other in zip(inputs, others, strict=True):
        _open(one, other, twins)
    pairs = first.needed(outputs), second.needed(results)
    if len(pairs[0]) != len(pairs[1]):
        raise _depends("how many operations it has")
    for operation, twin in zip(*pairs, strict=True):
        _compare(operation, twin, twins)
    for one, other in zip(outputs, results, strict=True):
        if not _is_same(one.source, other.source, twins):
            raise _depends(f"output {one.name!r}")


def named_axes(
    infos: Sequence[TensorInfo],
    ones: Sequence[Value],
    others: Sequence[Value],
    names: Mapping[tuple[int, ...], str],
) -> tuple[TensorInfo, ...]:
    """Return ``infos`` with the names of open axes, known by their lengths in both."""
    found = []
    for info, *values in zip(infos, ones, others, strict=True):
        shapes = [dimensions_of(value.source.shape) for value in values]
        pairs = zip(*shapes, strict=True)
        axes = [n if n == m else names.get((n, m), "?") for n, m in pairs]
        found.append(info.opened(axes))
    return tuple(found)


def _compare(one: Drafted, other: Drafted, twins: dict[Value, Value]) -> None:
    if one.type != other.type or len(one.inputs) != len(other.inputs):
        raise _depends(f"an operation, {one.type.name} or {other.type.name},")
    if isinstance(one, Evaluated) and not one.is_like(other):
        raise _depends(f"node {one.proto.op_type}")
    given = list(one.inputs)
    for index, (value, twin) in enumerate(zip(given, other.inputs, strict=True)):
        if _is_same(value, twin, twins):
            continue
        is_shape = one.type == OperationType.RESHAPE and index == 1
        if not is_shape or not isinstance(value, Value) or not isinstance(twin, Value):
            raise _depends(f"an argument of {one.type.name}")
        given[index] = _opened_shape(value, twin)
    one.inputs = tuple(given)
    for value, twin in zip(one.outputs, other.outputs, strict=True):
        _open(value, twin, twins)


def _is_same(
    one: Value | Scalar | Omitted,
    other: Value | Scalar | Omitted,
    twins: Mapping[Value, Value],
) -> bool:
    if not isinstance(one, Value) or not isinstance(other, Value):
        return one == other
    if one in twins or not one.is_constant or not other.is_constant:
        return twins.get(one) is other
    if one.form != other.form or one.shape != other.shape:
        return False
    if one.data is other.data or one.data is None or other.data is None:
        return one.data is other.data
    return np.array_equal(one.data, other.data, equal_nan=one.data.dtype.kind == "f")


def _opened_shape(one: Value, other: Value) -> Value:
    """Return the argument of a RESHAPE with one axis that it finds itself."""
    if one.data is None or other.data is None or one.shape != other.shape:
        raise _depends("a shape")
    differs = one.data != other.data
    if np.count_nonzero(differs) != 1:
        raise _depends(f"a shape, {one.data.tolist()} or {other.data.tolist()},")
    data = np.where(differs, -1, one.data).astype(np.int32)
    return Value(one.dtype, one.shape, one.form, data)


def _open(one: Value, other: Value, twins: dict[Value, Value]) -> None:
    lengths, others = one.dimensions, other.dimensions
    if one.form != other.form or len(lengths) != len(others):
        raise _depends("a type or rank")
    if lengths != others:
        pairs = zip(lengths, others, strict=True)
        one.opened = tuple(n if n == m else 0 for n, m in pairs)
    twins[one] = other


def _depends(what: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"{what} depends on the lengths of open axes")


def fixed_inputs(inputs: Sequence[Axes], constants: Constants) -> dict[str, Array]:
    """Return the values of inputs that are always the same, by their names.

    :raises InvalidArgumentError: if there is no such input, or a value does not fit.
    """
    known = {axes.name: axes for axes in inputs}
    fixed: dict[str, Array] = {}
    for name, value in constants.items():
        require_known("input", name, known)
        fixed[name] = _constant(known[name], value)
    return fixed


def _constant(axes: Axes, value: ArrayLike) -> Array:
    """Return what an input is fixed to, of its dtype and shape.

    :raises InvalidArgumentError: if it has another shape, or is no such number.
    """
    try:
        array = np.asarray(value, axes.dtype)
    except (OverflowError, TypeError, ValueError):
        raise InvalidArgumentError(
            f"{value!r} is no constant for input {axes.name!r} of {axes.dtype}"
        ) from None
    if array.size == 1 and axes.is_ranked and len(axes.lengths) < 2:
        array = array.reshape((1,) * len(axes.lengths))
    fits = not axes.is_ranked or (
        array.ndim == len(axes.lengths)
        and all(
            isinstance(length, str) or length == given
            for length, given in zip(axes.lengths, array.shape, strict=True)
        )
    )
    if not fits:
        raise InvalidArgumentError(
            f"a constant of shape {list(array.shape)} does not fit input "
            f"{axes.name!r} of shape {list(axes.lengths)}"
        )
    return array
