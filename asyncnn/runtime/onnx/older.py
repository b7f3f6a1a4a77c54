"""What operators meant in operator sets 6 to 8, where newer ones mean something else.

A node gets inputs that make it mean the same by the newer rules, or is refused. In
set 6 a second operand broadcasts only if the node has ``broadcast`` 1, from its
``axis`` on.
BatchNormalization and Dropout train unless ``is_test`` is 1. Up to set 8, Upsample has
its scales as an attribute.

Source: Changelog.md of ONNX, operators of version 6 of the default operator set.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Shape
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.unsupported import UnsupportedOperatorError

NEWER_OPSET = 9
"""The first operator set with the newer rules."""

_BROADCASTING_OPSET = 7
"""The first one with newer rules for all but Upsample."""

_BROADCASTING = frozenset(
    (
        *("Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor"),
        *("Equal", "Greater", "Less"),
    )
)
_TRAINED = frozenset({"BatchNormalization", "Dropout"})
_RECURRENT = frozenset({"RNN", "GRU", "LSTM"})


def by_newer_rules(
    proto: Any, inputs: Sequence[Value | None], draft: Composer, opset: int
) -> Sequence[Value | None]:
    """Return the inputs of a node of an older operator set as newer ones take them.

    :raises InvalidArgumentError: if the second operand does not fit along its axes.
    :raises UnsupportedOperatorError: if the newer operator cannot do the same.
    """
    name = str(proto.op_type)
    if opset >= _BROADCASTING_OPSET:
        if name != "Upsample":
            return inputs
        scales = [x for a in proto.attribute if a.name == "scales" for x in a.floats]
        return (*inputs, draft.constant(np.array(scales, np.float32)))
    numbers = {one.name: one.i for one in proto.attribute}
    if name in _TRAINED and not numbers.get("is_test", 0):
        raise UnsupportedOperatorError("is_test is 0, which means training")
    if name == "Upsample":
        raise UnsupportedOperatorError("its scales are older than operator set 7")
    has_sequence = name in _RECURRENT and any(proto.output[:1])
    if has_sequence and not numbers.get("output_sequence", 0):
        raise UnsupportedOperatorError(
            "output_sequence is 0, but the sequence is a named output"
        )
    if len(inputs) < 2:
        return inputs
    first, second = inputs[:2]
    if first is None or second is None:
        return inputs
    if name in _BROADCASTING:
        aligned = second.shape
        if numbers.get("broadcast", 0):
            aligned = _aligned(first.shape, second.shape, numbers.get("axis"))
        elif first.shape != second.shape:
            raise InvalidArgumentError(
                f"shapes {list(first.shape)} and {list(second.shape)} differ, and "
                "broadcast is 0"
            )
    elif name == "PRelu" and len(second.shape) == 1:
        aligned = _aligned(first.shape, second.shape, 1)
    else:
        return inputs
    return (first, draft.reshape(second, aligned), *inputs[2:])


def _aligned(first: Shape, second: Shape, axis: int | None) -> Shape:
    """Return ``second`` with an axis for each of ``first`` from ``axis`` on."""
    if all(length == 1 for length in second):
        return (1,) * len(first)
    place = len(first) - len(second) if axis is None else axis
    place += len(first) if place < 0 and axis is not None else 0
    end = place + len(second)
    if (
        place < 0
        or end > len(first)
        or any(
            length not in (1, whole)
            for length, whole in zip(second, first[place:end], strict=True)
        )
    ):
        raise InvalidArgumentError(
            f"shape {list(second)} does not fit from axis {place} on in {list(first)}"
        )
    return second + (1,) * (len(first) - end)
