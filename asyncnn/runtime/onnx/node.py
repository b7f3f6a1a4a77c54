"""One ONNX node while it becomes HAL operations.

A converter reads inputs by position and attributes by name, composes operations with
``node.draft`` and returns the values of its outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.axes import CountsAxes
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import Value
from asyncnn.runtime.onnx.tensors import MAX_RANK, TensorReader, dtype_of
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_INTEGER, _FLOAT, _STRING, _TENSOR, _GRAPH = 2, 1, 3, 4, 5
_FLOATS, _INTEGERS, _STRINGS = 6, 7, 8
_VALUES = {
    _FLOAT: "f",
    _INTEGER: "i",
    _STRING: "s",
    _TENSOR: "t",
    _GRAPH: "g",
    _FLOATS: "floats",
    _INTEGERS: "ints",
    _STRINGS: "strings",
}


class OnnxNode(CountsAxes):
    """A node with the values of its inputs; ``opset`` is its domain's.

    ``name`` is its operator's, ``scope`` are all values that are known by name
    where it stands, ``given_inputs`` has None for those that are left out.
    """

    def __init__(
        self,
        proto: Any,
        inputs: Sequence[Value | None],
        draft: Composer,
        opset: int,
        scope: Mapping[str, Value],
    ) -> None:
        self.proto = proto
        self.name = str(proto.op_type)
        self.draft = draft
        self.opset = opset
        self.scope = scope
        self.reader: TensorReader | None = None
        self.run_graph: Callable[[Any, Sequence[Value]], list[Value]] | None = None
        self.given_inputs = inputs
        self._attributes = {found.name: found for found in proto.attribute}

    def has(self, index: int) -> bool:
        """Return whether input ``index`` is there and not left out."""
        return index < len(self.given_inputs) and self.given_inputs[index] is not None

    def input(self, index: int) -> Value:
        """Return input ``index``.

        :raises InvalidArgumentError: if it is left out.
        """
        found = self.given_inputs[index] if index < len(self.given_inputs) else None
        if found is None:
            raise InvalidArgumentError(f"input {index} is missing")
        return found

    def take(self, index: int, value: Value) -> None:
        """Read another value as input ``index``."""
        given = self.given_inputs
        self.given_inputs = [*given[:index], value, *given[index + 1 :]]

    def inputs(self) -> list[Value]:
        """Return all inputs.

        :raises InvalidArgumentError: if one is left out.
        """
        return [self.input(index) for index in range(len(self.given_inputs))]

    @property
    def output_count(self) -> int:
        """How many outputs it has, with those that are left out."""
        return len(self.proto.output)

    def wants(self, index: int) -> bool:
        """Return whether output ``index`` has a name."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    def data(self, index: int) -> Array:
        """Return the elements of input ``index``, which have to be known.

        :raises UnsupportedOperatorError: if they are computed.
        """
        value = self.input(index)
        if value.data is None:
            name = self.proto.input[index]
            raise UnsupportedOperatorError(
                f"input {index} ({name[:80]!r}) is not a constant"
            )
        return value.data

    def integers(self, index: int) -> list[int]:
        """Return the elements of constant input ``index`` as a list.

        :raises InvalidArgumentError: if there are too many to be axes or lengths.
        """
        data = self.data(index).reshape(-1)
        if data.size > 4 * MAX_RANK or data.dtype.kind not in "iu":
            raise InvalidArgumentError(f"input {index} has {data.size} {data.dtype}")
        return [int(element) for element in data]

    def number(self, index: int, default: Any = None) -> Any:
        """Return the only element of constant input ``index``; ``default`` without it.

        :raises InvalidArgumentError: if it has several.
        """
        if not self.has(index):
            return default
        data = self.data(index)
        if data.size != 1:
            raise InvalidArgumentError(f"input {index} has {data.size} elements")
        return data.reshape(()).item()

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute: a number, text, a list, a tensor or a graph.

        :raises InvalidArgumentError: if its type is not ``default``'s.
        """
        found = self._attributes.get(name)
        if found is None:
            return default
        if found.ref_attr_name:
            return default
        if found.type not in _VALUES:
            raise UnsupportedOperatorError(f"attribute {name!r} of type {found.type}")
        value = getattr(found, _VALUES[found.type])
        if found.type == _STRING:
            value = value.decode(errors="replace")
        elif found.type in (_FLOATS, _INTEGERS):
            value = list(value)
        elif found.type == _STRINGS:
            value = [text.decode(errors="replace") for text in value]
        if default is not None and not isinstance(value, type(default)):
            raise InvalidArgumentError(f"attribute {name!r} is {str(value)[:80]!r}")
        return value

    def given(self, name: str, index: int, default: Any = None) -> Any:
        """Return what newer opsets have as input and older ones as attribute."""
        if self.has(index):
            return self.integers(index)
        return self.attribute(name, default)

    def axes(self, axes: Sequence[int], rank: int) -> list[int]:
        """Return ``axes`` counted from the front, in order.

        :raises InvalidArgumentError: if one is outside of ``rank`` or there twice.
        """
        found = sorted(self.axis(axis, rank) for axis in axes)
        if len(set(found)) != len(found):
            raise InvalidArgumentError(f"axes {list(axes)} are repeated")
        return found

    def dtype(self, name: str, default: int = 0) -> np.dtype[Any]:
        """Return the dtype that attribute ``name`` is the number of."""
        number = self.attribute(name, default)
        return dtype_of(number, f"attribute {name!r}")

    def read_tensor(self, tensor: Any) -> Array:
        """Return the elements of an attribute that is a tensor."""
        assert self.reader is not None
        return self.reader.array(tensor)

    def run(self, graph: Any, inputs: Sequence[Value] = ()) -> list[Value]:
        """Draft the nodes of an attribute that is a graph; return its outputs."""
        assert self.run_graph is not None
        return self.run_graph(graph, inputs)

    def refuse(self, reason: str) -> UnsupportedOperatorError:
        """Return the error that says why this variant cannot be imported."""
        return UnsupportedOperatorError(reason)


Results: TypeAlias = Value | Sequence[Value | None]
Converter: TypeAlias = Callable[[OnnxNode], Results]
"""Turns one node into HAL operations and returns its outputs.

:raises UnsupportedOperatorError: if that is not possible.
"""
