"""What a graph may have before ONNX Runtime sees it.

It reads what a file says without distrust: weights may lie in any file, or at any
address of the process; some operators load libraries or compiled code. So all of that
is refused, as is nesting that would exhaust its stack, and functions that call
themselves, or so many others that they would fill all memory once they are inlined.
Types and shapes are ONNX Runtime's own business, and it checks them.

ONNX Runtime gets what was looked at here, written anew from the messages that it was
read into: whatever else bytes may be taken for does not matter.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from asyncnn.extensions.message_tables import described, message_class_of, pool_of
from asyncnn.extensions.protobuf import MAX_MESSAGE_BYTES, split
from asyncnn.hal.errors import InvalidArgumentError, in_one_line

TABLE = """
Model: Graph graph 7, repeated:Function functions 25
Graph: repeated:Node node 1, repeated:Tensor initializer 5, repeated:Port input 11,
    repeated:Port output 12, repeated:Port value_info 13,
    repeated:SparseTensor sparse_initializer 15
Node: repeated:bytes input 1, repeated:bytes output 2, bytes name 3, bytes op_type 4,
    repeated:Attribute attribute 5, bytes domain 7, bytes overload 8
Attribute: bytes name 1, int64 i 3, bytes s 4, Tensor t 5, Graph g 6,
    repeated:Tensor tensors 10, repeated:Graph graphs 11, int64 type 20,
    SparseTensor sparse_tensor 22, repeated:SparseTensor sparse_tensors 23
Tensor: repeated:int64 dims 1, int64 data_type 2, bytes name 8, bytes raw_data 9,
    repeated:Entry external_data 13, int64 data_location 14
Entry: bytes key 1, bytes value 2
SparseTensor: Tensor values 1, Tensor indices 2
Port: bytes name 1, Type type 2
Type: TensorType tensor_type 1
TensorType: int64 elem_type 1, Lengths shape 2
Lengths: repeated:Length dim 1
Length: int64 dim_value 1
Function: bytes name 1, repeated:bytes input 4, repeated:Node node 7, bytes domain 10,
    repeated:Attribute attribute_proto 11, bytes overload 13
"""
"""What is looked at of ONNX's ``onnx.proto``, or changed; the rest stays as it is.

Its enumerations are numbers here: of a kind that is not known, it would keep another.
"""

_pool = pool_of([described("regions", TABLE, syntax="proto2").SerializeToString()])
MODEL, NODE, TENSOR = (
    message_class_of(_pool, f"regions.{name}") for name in ("Model", "Node", "Tensor")
)

MOST_NODES = 200_000
"""Of all graphs and functions, each counted as often as it is called."""

MOST_NESTED = 16
"""Graphs within graphs."""

DOMAINS = frozenset(
    b",ai.onnx.ml,com.microsoft,com.microsoft.nchwc,com.ms.internal.nhwc".split(b",")
)
"""Of operators that the CPU provider has; the last are in files that it has written."""

REFUSED = frozenset({b"EPContext"})
"""Operators of these domains that stand for code of another engine."""

_COMPLETE = frozenset(
    {b"Concat", b"Einsum", b"Max", b"Mean", b"Min", b"QLinearConcat", b"Sum"}
)
"""Operators of any number of inputs, each of which ONNX Runtime reads unseen."""

_AT_LEAST = {b"QLinearLeakyRelu": 5, b"QLinearSigmoid": 5}
"""Inputs that are read whether they are there or not, as sessions are made."""

NEED_ELEMENTS = {
    b"Conv": (1, 2),
    b"ConvTranspose": (0, 2),
    b"FusedConv": (1, 2),
    b"GRU": (0, 0),
    b"LSTM": (0, 1),
    b"STFT": (2, 0),
    b"Unique": (0, 1),
}
"""Operators that never end, or end the process, if an input has no elements, and from
which axis on: the windows of convolutions, and what the others read."""

POSITIVE = {b"STFT": (1, 3)}
"""Operators that end the process if numbers among their inputs are not positive."""

NAMED = frozenset({b"Split"})
"""Operators that end the process if an output has no name."""

_KEEPING = frozenset({b"Cast", b"DequantizeLinear", b"Identity", b"Transpose"})
"""Operators whose result has elements if their first input has."""

_LOOKED_AT = _KEEPING | NAMED | NEED_ELEMENTS.keys() | POSITIVE.keys()
_LOOKED_AT |= {b"Constant", b"ConstantOfShape", b"Gather"}

_FILLED, _POSITIVE = 1, 2
"""What is known of a tensor: it has elements; these are numbers of 64 bits above 0."""

_INT64 = 7

_TEXT, _TENSOR, _GRAPH, _SPARSE_TENSOR = 4, 5, 6, 22
_SEVERAL = {10: _TENSOR, 11: _GRAPH, 23: _SPARSE_TENSOR}

_Name = tuple[bytes, bytes, bytes]
"""Domain, name and overload of a function, or of what a node calls."""


class Traits(NamedTuple):
    """How a graph may run: for any time, say.

    Nodes read inputs that it ``needs_elements`` of, from some axis on.
    """

    may_loop: bool
    needs_elements: Mapping[bytes, int] = {}


class CheckedGraph(NamedTuple):
    """A file that was checked, as a message without its large weights.

    ``raw`` says of each initializer where in the file its raw data lie, if these were
    taken out. ``handed_on`` are inputs that are outputs as well, and repeated outputs.
    ``tables`` are all that nodes only take rows of. What no node has, and is no output,
    is not among what is ``read``. Of nodes and the places among them, some could end
    the process, as they read ``doubtful`` tensors, which may be without elements, or
    for another reason; nodes of graphs within others come first.
    """

    model: Any
    raw: Sequence[tuple[int, int] | None]
    traits: Traits
    handed_on: frozenset[bytes]
    tables: frozenset[bytes]
    read: frozenset[bytes]
    doubtful: frozenset[bytes]
    unsafe: Sequence[tuple[Any, Sequence[int]]]


def check_graph(data: memoryview) -> CheckedGraph:
    """Check an ONNX file that ONNX Runtime is to run.

    How long that takes may depend on the data.

    :raises InvalidArgumentError: if it is damaged, or has what no graph may have.
    """
    if not 0 < len(data) <= MAX_MESSAGE_BYTES:
        raise InvalidArgumentError(f"a graph of {len(data)} bytes")
    parts = split(data)
    try:
        model = MODEL.FromString(parts.rest)
    except DecodeError as error:
        raise InvalidArgumentError(f"damaged ONNX file: {error}") from error
    check = _Check(model)
    check.check()
    inputs = {port.name for port in model.graph.input}
    outputs = Counter(port.name for port in model.graph.output)
    handed_on = {n for n, count in outputs.items() if count > 1 or n in inputs}
    needed = {name: axis for name, axis in check.needed.items() if name in inputs}
    return CheckedGraph(
        model,
        parts.raw,
        Traits(check.may_loop, needed),
        frozenset(handed_on),
        frozenset(check.tables - check.read - inputs - outputs.keys()),
        frozenset(check.tables | check.read | outputs.keys()),
        frozenset(check.doubtful | (check.needed.keys() - needed.keys())),
        check.unsafe,
    )


class _Check:
    def __init__(self, model: Any) -> None:
        self._model = model
        self.may_loop = False
        # Whether calls of functions omit inputs, and any operator in those needs all.
        self._omits = self._needs_all = False
        self.tables, self.read = set[bytes](), set[bytes]()
        self.unsafe: list[tuple[Any, Sequence[int]]] = []
        # What nodes of the graph need elements of, from which axis on, and inner ones.
        self.needed, self.doubtful = dict[bytes, int](), set[bytes]()
        # Of graphs within each other, what is known of tensors, 0 for nothing.
        self._scopes: list[dict[bytes, int]] = []
        self._constant = 0  # the one that an attribute is
        self._functions: dict[_Name, Any] = {}
        self._sizes: dict[_Name, int] = {}

    def check(self) -> None:
        for function in self._model.functions:
            name = _name(function.domain, function.name, function.overload)
            if name in self._functions:
                raise InvalidArgumentError(f"two functions {_shown(name)}")
            self._functions[name] = function
        if not self._model.HasField("graph"):
            raise InvalidArgumentError("an ONNX file without a graph")
        # Each of them, as one that nobody calls is looked at, too.
        nodes = sum(self._nodes_of(name, ()) for name in self._functions)
        self._count(nodes + self._graph(self._model.graph, 1, ()))
        self._check_complete(self._omits and self._needs_all)

    def _count(self, nodes: int) -> int:
        if nodes > MOST_NODES:
            raise InvalidArgumentError(
                f"a graph of more than {MOST_NODES} nodes, counted with all that its "
                "functions have"
            )
        return nodes

    def _nodes_of(self, name: _Name, callers: tuple[_Name, ...]) -> int:
        """Return the nodes that a call of a function is."""
        nodes = self._sizes.get(name)
        if nodes is None:
            if name in callers or len(callers) >= MOST_NESTED:
                raise InvalidArgumentError(
                    f"function {_shown(name)} calls itself, or is nested more than "
                    f"{MOST_NESTED} deep"
                )
            function, inner = self._functions[name], (*callers, name)
            scopes, self._scopes = self._scopes, [{}]
            nodes = self._nodes(function.node, 1, inner)
            for attribute in function.attribute_proto:
                nodes += self._attribute(attribute, 1, inner)
            self._scopes = scopes
            self._sizes[name] = self._count(nodes)
        return nodes

    def _graph(self, graph: Any, depth: int, callers: tuple[_Name, ...]) -> int:
        if depth > MOST_NESTED:
            raise InvalidArgumentError(f"graphs nested more than {MOST_NESTED} deep")
        scope = dict[bytes, int]()
        for tensor in graph.initializer:
            name, known = tensor.name, _known_of(tensor)
            scope[name] = min(known, scope.get(name, known))
        for port in graph.input:
            scope.setdefault(port.name, 0)
        for sparse in graph.sparse_initializer:
            _check_sparse(sparse)
        self._scopes.append(scope)
        nodes = self._nodes(graph.node, depth, callers)
        self._scopes.pop()
        return nodes

    def _nodes(self, nodes: Any, depth: int, callers: tuple[_Name, ...]) -> int:
        """Check nodes; return how many they are, with those in them."""
        count, unsafe = 0, list[int]()
        for place, node in enumerate(nodes):
            inner, is_unsafe = self._node(node, depth, callers)
            count += 1 + inner
            if is_unsafe:
                unsafe.append(place)
        if unsafe:
            self.unsafe.append((nodes, unsafe))
        return self._count(count)

    def _node(
        self, node: Any, depth: int, callers: tuple[_Name, ...]
    ) -> tuple[int, bool]:
        """Check a node; return how many are in it, and if it is unsafe."""
        nodes, self._constant = 0, 0
        is_main = depth == 1 and not callers
        for attribute in node.attribute:
            nodes += self._attribute(attribute, depth, callers)
        inputs, computed = node.input[:], node.output[:]
        name = domain, type_, _ = _name(node.domain, node.op_type, node.overload)
        omits = b"" in inputs
        if name in self._functions:
            nodes += self._nodes_of(name, callers)
            self._omits |= omits or len(inputs) < len(self._functions[name].input)
        elif domain not in DOMAINS or type_ in REFUSED:
            raise InvalidArgumentError(f"operator {_shown(name)} may not be run")
        elif len(inputs) < _AT_LEAST.get(type_, 0):
            raise InvalidArgumentError(f"{_shown(name)} of {len(inputs)} inputs")
        elif type_ in _COMPLETE:
            self._needs_all |= bool(callers)
            self._check_complete(omits)
        is_unsafe, known = omits and not inputs[-1], 0
        if type_ in _LOOKED_AT and domain in DOMAINS:
            is_unsafe |= type_ in POSITIVE or (type_ in NAMED and b"" in computed)
            is_unsafe |= self._is_in_need(node, type_, inputs, is_main)
            first = b"".join(inputs[:1])
            if type_ == b"Constant":
                known = self._constant
            elif type_ in _KEEPING:
                known = min(self._known(first), _FILLED)
            elif type_ == b"ConstantOfShape":
                known = self._known(first) // _POSITIVE
            if is_main and name == (b"", b"Gather", b""):
                self.tables.add(first)
                del inputs[:1]
        scope = self._scopes[-1]
        for each in computed:
            # Which of several of one name ONNX Runtime takes is not known.
            scope[each] = 0 if each in scope else known
        self.read.update(inputs)
        return nodes, is_unsafe

    def _is_in_need(
        self, node: Any, type_: bytes, inputs: Sequence[bytes], is_main: bool
    ) -> bool:
        """Return whether a node needs elements of a tensor that may have none."""
        place, axis = NEED_ELEMENTS.get(type_, (len(inputs), 0))
        needed = inputs[place] if place < len(inputs) else b""
        # Without an axis, elements of none are all different.
        if type_ == b"Unique" and not any(a.name == b"axis" for a in node.attribute):
            needed = b""
        if not needed or self._known(needed):
            return False
        if is_main:
            self.needed[needed] = min(axis, self.needed.get(needed, axis))
        else:
            self.doubtful.add(needed)
        return True

    def _known(self, name: bytes) -> int:
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return 0

    def _check_complete(self, omits: bool) -> None:
        if omits:
            raise InvalidArgumentError(
                "an operator of any number of inputs may lack one of them"
            )

    def _attribute(self, attribute: Any, depth: int, callers: tuple[_Name, ...]) -> int:
        """Check an attribute; return the number of nodes of graphs in it."""
        nodes = 0
        for field, value in attribute.ListFields():
            number = field.number
            kind = _SEVERAL.get(number, number)
            parts = value if kind != number else (value,)
            if kind == _TEXT:
                self._check_text(attribute, value)
            elif kind == _GRAPH:
                self.may_loop = True
                nodes += sum(self._graph(each, depth + 1, callers) for each in parts)
            elif kind == _TENSOR:
                for each in parts:
                    self._constant = _known_of(each)
            elif kind == _SPARSE_TENSOR:
                for each in parts:
                    _check_sparse(each)
        return nodes

    def _check_text(self, attribute: Any, text: bytes) -> None:
        # ONNX Runtime never comes to the end of such an equation; a function may hand
        # any text on to one.
        name = attribute.name
        if not text.isascii() and (name == b"equation" or self._functions):
            raise InvalidArgumentError(
                f"attribute {name.decode(errors='replace')[:80]!r} is not in ASCII"
            )


def _check_sparse(sparse: Any) -> None:
    for tensor in (sparse.values, sparse.indices):
        _known_of(tensor)


def _known_of(tensor: Any) -> int:
    """Check a constant; return what is known of it."""
    if tensor.external_data or tensor.data_location:
        raise InvalidArgumentError(
            "the graph has weights that are not in it",
            hint="give them as further inputs of the region",
        )
    if 0 in tensor.dims:
        return 0
    data = tensor.raw_data if tensor.data_type == _INT64 else b""
    is_positive = data and not len(data) % 8 and np.frombuffer(data, "<i8").min() > 0
    return _POSITIVE if is_positive else _FILLED


def _name(domain: bytes, name: bytes, overload: bytes) -> _Name:
    return b"" if domain == b"ai.onnx" else domain, name, overload


def operator_type(domain: bytes, type_: bytes) -> bytes:
    """Return which operator of ONNX Runtime's a node is; b"" for any other's."""
    return type_ if domain in DOMAINS or domain == b"ai.onnx" else b""


def _shown(name: _Name) -> str:
    shown = b".".join(name[:2])[:120].decode(errors="replace")
    return in_one_line(shown.lstrip("."))
