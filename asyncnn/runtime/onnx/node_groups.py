"""Nodes of ONNX in a draft, put together into operations NODES.

Those that no operation of the HAL has to come between are one group, whose graph is a
constant of the operation. Its inputs and outputs have the HAL's types and shapes;
inside, each node reads tensors as ONNX has them.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from asyncnn.extensions.onnx_nodes import NODES, onnx_module
from asyncnn.hal.operands import dtype_of
from asyncnn.hal.operations.bound import Shape
from asyncnn.runtime.axes import MAX_RANK, dimensions_of
from asyncnn.runtime.drafting import Q8, Drafted, Form, Value
from asyncnn.runtime.onnx.evaluated import Evaluated, tensor_of
from asyncnn.runtime.onnx.schema import inner_graphs
from asyncnn.runtime.onnx.tensors import NUMBERS
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_LARGE = 1 << 10
"""Bytes of a constant that is an input of a group, and not in its graph."""

_AS_THEY_ARE = frozenset(
    np.dtype(each) for each in (np.float32, np.float16, np.uint8, np.int8)
)
"""Dtypes of such constants."""


def grouped(
    operations: Sequence[Drafted], outputs: Sequence[Value]
) -> Sequence[Drafted]:
    """Return operations in an order of execution, nodes of ONNX in operations NODES.

    ``outputs`` are the model's.
    """
    if not any(isinstance(each, Evaluated) for each in operations):
        return operations
    kinds = {each: _kind(each) for each in operations}
    phases: dict[Drafted, int] = {}
    groups: defaultdict[tuple[int, Hashable], list[Drafted]] = defaultdict(list)
    readers: defaultdict[Value, set[Drafted]] = defaultdict(set)
    for each in operations:
        kind = kinds[each]
        phase = int(kind is not None)  # behind all of the HAL that waits for nothing
        for value in each.inputs:
            if isinstance(value, Value):
                readers[value].add(each)
                before = value.producer
                if before in phases and not value.is_constant:
                    phase = max(phase, phases[before] + (kinds[before] != kind))
        phases[each] = phase
        groups[phase, kind].append(each)
    read = {value.source for value in outputs}
    ordered: list[Drafted] = []
    # What comes between two of a kind has put the second one into a later phase.
    for (_, kind), members in sorted(groups.items(), key=lambda item: item[0][0]):
        if kind is None:
            ordered += members
            continue
        group = _Group()
        for each in members:
            assert isinstance(each, Evaluated)
            group.add(each)
        ends = [value for each in members for value in each.outputs]
        inside = set(members)
        ends = [value for value in ends if value in read or readers[value] - inside]
        ordered.append(group.operation(ends))
    return ordered


def _kind(operation: Drafted) -> Hashable:
    """Return what operations of one group have in common, None for the HAL's."""
    if not isinstance(operation, Evaluated):
        return None
    # Bodies read by names that are theirs alone.
    return operation if inner_graphs(operation.proto) else operation.opset


class _Group:
    """The graph of an operation NODES while it is made."""

    def __init__(self) -> None:
        self._helper = onnx_module("helper")
        self._opset = self._count = 0
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: dict[Value, Any] = {}
        self._names: dict[tuple[Value, Shape, np.dtype[Any]], str] = {}

    def add(self, made: Evaluated) -> None:
        """Add a node behind all that it reads."""
        self._opset = made.opset
        node = type(made.proto)()
        node.CopyFrom(made.proto)
        node.input[:] = ["" if v is None else self._read(v) for v in made.reads]
        for name, value in made.captured.items():
            self._add("Identity", [self._read(value)], name)
        node.output[:] = [self._new(value) for value in made.outputs]
        self._nodes.append(node)

    def operation(self, ends: Sequence[Value]) -> Drafted:
        """Return the operation, whose outputs are ``ends``."""
        info = onnx_module().ValueInfoProto
        outputs = []
        for value in ends:
            is_wide = value.dtype == np.int64  # narrowed by who sees the values
            dtype = value.dtype if is_wide else dtype_of(value.type)
            name = self._as(value, value.shape, dtype)
            outputs.append(info(name=name))
        graph = self._helper.make_graph(
            *(self._nodes, "nodes", [*self._inputs.values()], outputs), self._constants
        )
        opsets = [self._helper.make_opsetid("", self._opset)]
        model = self._helper.make_model(graph, opset_imports=opsets)
        data = np.frombuffer(model.SerializeToString(), np.uint8)
        blob = Value(data.dtype, data.shape, Form(Q8, 1.0), data)
        made = Drafted(NODES, (blob, *self._inputs))
        made.outputs = tuple(ends)
        return made

    def _read(self, value: Value) -> str:
        """Return the name of a tensor as a node reads it."""
        source = value.source
        if source.data is not None:
            data = source.data.astype(value.dtype, copy=False).reshape(value.shape)
            if value.dtype not in _AS_THEY_ARE or data.nbytes < _LARGE:
                key = source, value.shape, value.dtype
                if key not in self._names:
                    name = self._new(source, value.shape, value.dtype)
                    self._constants.append(tensor_of(data, name))
                return self._names[key]
        is_made = (source, source.shape, source.dtype) in self._names
        if not is_made and source not in self._inputs:
            name = self._new(source, dimensions_of(source.shape), dtype_of(source.type))
            self._inputs[source] = onnx_module().ValueInfoProto(name=name)
        return self._as(source, value.shape, value.dtype)

    def _as(self, source: Value, shape: Shape, dtype: np.dtype[Any]) -> str:
        """Return the name of a tensor that is there, in another shape or dtype."""
        wanted = source, shape, dtype
        if wanted in self._names:
            return self._names[wanted]
        had, had_shape, had_dtype = next(key for key in self._names if key[0] is source)
        name = self._names[had, had_shape, had_dtype]
        if had_dtype != dtype:
            number = NUMBERS[dtype]
            name = self._add("Cast", [name], self._unnamed(), to=number)
        if had_shape != shape:
            if source.opened and max(len(shape), len(had_shape)) > MAX_RANK:
                raise UnsupportedOperatorError(
                    f"a tensor of {len(shape)} axes, of which some are open"
                )
            lengths = self._unnamed()
            self._constants.append(tensor_of(np.array(shape, np.int64), lengths))
            name = self._add("Reshape", [name, lengths], self._unnamed())
        self._names[wanted] = name
        return name

    def _add(self, operator: str, inputs: Sequence[str], output: str, **by: Any) -> str:
        self._nodes.append(self._helper.make_node(operator, inputs, [output], **by))
        return output

    def _new(self, value: Value, shape: Shape | None = None, dtype: Any = None) -> str:
        """Return a name for a tensor that is about to be there."""
        name = self._unnamed()
        if shape is None:
            shape, dtype = value.shape, value.dtype
        self._names[value, shape, dtype] = name
        return name

    def _unnamed(self) -> str:
        self._count += 1
        return f"#{self._count}"
