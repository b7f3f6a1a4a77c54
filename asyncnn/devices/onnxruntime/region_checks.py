"""What a graph may have before ONNX Runtime sees it.

It reads what a file says without distrust: weights may lie in any file, or at any
address of the process; some operators load libraries or compiled code. So all of that
is refused, as is nesting that would exhaust its stack, and functions that call
themselves, or so many others that they would fill all memory once they are inlined.
Types and shapes are ONNX Runtime's own business, and it checks them.

The numbers of fields are from ONNX's ``onnx.proto``.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from asyncnn.extensions.protobuf import MAX_MESSAGE_BYTES, Field, decoded, fields
from asyncnn.extensions.regions import DATA_DEPENDENT
from asyncnn.hal.errors import InvalidArgumentError, in_one_line

MOST_NODES = 200_000
"""Of all graphs and functions, each counted as often as it is called."""

MOST_NESTED = 16
"""Graphs within graphs."""

DOMAINS = frozenset(
    {
        b"",
        b"ai.onnx.ml",
        b"com.microsoft",
        b"com.microsoft.nchwc",
        b"com.ms.internal.nhwc",
    }
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

_DATA_DEPENDENT = frozenset(name.encode() for name in DATA_DEPENDENT)
_GRAPH, _FUNCTION = 7, 25
_NODE, _INITIALIZER, _INPUT, _OUTPUT, _SPARSE_INITIALIZER = 1, 5, 11, 12, 15
_READ, _COMPUTED, _OP_TYPE, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
_PORT_NAME, _NODE_OVERLOAD = 1, 8
_DIMS, _TENSOR_NAME = 1, 8
_ATTRIBUTE_NAME, _TEXT = 1, 4
_TENSORS_OF = frozenset({5, 10})
_GRAPHS_OF = frozenset({6, 11})
_SPARSE_TENSORS_OF = frozenset({22, 23})
_VALUES, _INDICES = 1, 2
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
_FUNCTION_NAME, _FUNCTION_INPUT, _FUNCTION_NODE, _FUNCTION_DOMAIN = 1, 4, 7, 10
_FUNCTION_ATTRIBUTE, _FUNCTION_OVERLOAD = 11, 13

_Name = tuple[bytes, bytes, bytes]
"""Domain, name and overload of a function, or of what a node calls."""


class Traits(NamedTuple):
    """How a graph may run: for any time, with results of shapes that data decide.

    ``handed_on`` are inputs that are outputs as well, and repeated outputs. Some node
    of one that is to be mended could end the process, as it reads ``doubtful`` tensors,
    which may be without elements, or for another reason. ``tables`` are all that nodes
    only take rows of. Such nodes read inputs that it ``needs_elements`` of, from some
    axis on. What no node has, and is no output, is not among what is ``read``.
    """

    may_loop: bool
    depends_on_data: bool
    handed_on: frozenset[bytes] = frozenset()
    is_to_be_mended: bool = False
    doubtful: frozenset[bytes] = frozenset()
    tables: frozenset[bytes] = frozenset()
    needs_elements: Mapping[bytes, int] = {}
    read: frozenset[bytes] = frozenset()


def check_graph(data: memoryview) -> Traits:
    """Check an ONNX file that ONNX Runtime is to run; return how it may run.

    How long that takes may depend on the data.

    :raises InvalidArgumentError: if it is damaged, or has what no graph may have.
    """
    if not 0 < len(data) <= MAX_MESSAGE_BYTES:
        raise InvalidArgumentError(f"a graph of {len(data)} bytes")
    check = _Check(data)
    check.check()
    handed_on = frozenset(check.inputs & check.outputs | check.repeated)
    tables = check.tables - check.read - check.inputs - check.outputs
    needed = {name: axis for name, axis in check.needed.items() if name in check.inputs}
    doubtful = check.doubtful | (check.needed.keys() - needed.keys())
    return Traits(
        *(check.may_loop, check.depends_on_data, handed_on),
        *(check.is_to_be_mended or bool(doubtful), frozenset(doubtful)),
        *(frozenset(tables), needed),
        frozenset(check.tables | check.read | check.outputs),
    )


class _Check:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.may_loop = self.depends_on_data = False
        # Whether calls of functions omit inputs, and any operator in those needs all.
        self._omits = self._needs_all = False
        self.inputs, self.outputs = set[bytes](), set[bytes]()
        self.repeated = set[bytes]()
        self.tables, self.read = set[bytes](), set[bytes]()
        self.is_to_be_mended = False
        # What nodes of the graph need elements of, from which axis on, and inner ones.
        self.needed, self.doubtful = dict[bytes, int](), set[bytes]()
        # Of graphs within each other, which tensors surely have elements.
        self._scopes: list[dict[bytes, bool]] = []
        self._is_filled = False  # the constant that an attribute is
        self._functions: dict[_Name, Field] = {}
        self._sizes: dict[_Name, int] = {}

    def check(self) -> None:
        data = self._data
        graphs: list[Field] = []
        for field in fields(data, 0, len(data)):
            if field.number == _GRAPH:
                graphs.append(field)
            elif field.number == _FUNCTION:
                texts = self._texts(
                    field, _FUNCTION_DOMAIN, _FUNCTION_NAME, _FUNCTION_OVERLOAD
                )
                name = _name(*texts)
                if name in self._functions:
                    raise InvalidArgumentError(f"two functions {_shown(name)}")
                self._functions[name] = field
        if not graphs:
            raise InvalidArgumentError("an ONNX file without a graph")
        # Each of them, as one that nobody calls is looked at, too.
        nodes = sum(self._nodes_of(name, ()) for name in self._functions)
        nodes += sum(self._graph(graph, 1, ()) for graph in graphs)
        self._count(nodes)
        self._check_complete(self._omits and self._needs_all)

    def _texts(self, message: Field, *numbers: int) -> list[bytes]:
        found = dict.fromkeys(numbers, b"")
        for field in self._within(message):
            if field.number in found:
                found[field.number] = bytes(self._data[field.value : field.end])
        return [*found.values()]

    def _within(self, message: Field) -> Iterator[Field]:
        if not message.is_bytes:
            raise InvalidArgumentError(
                f"damaged ONNX file: field {message.number} at byte {message.start} "
                "is no message"
            )
        return fields(self._data, message.value, message.end)

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
            nodes = 0
            scopes, self._scopes = self._scopes, [{}]
            for field in self._within(self._functions[name]):
                if field.number == _FUNCTION_NODE:
                    nodes += self._node(field, 1, (*callers, name))
                elif field.number == _FUNCTION_ATTRIBUTE:
                    nodes += self._attribute(field, 1, (*callers, name))[1]
            self._scopes = scopes
            self._sizes[name] = self._count(nodes)
        return nodes

    def _graph(self, graph: Field, depth: int, callers: tuple[_Name, ...]) -> int:
        if depth > MOST_NESTED:
            raise InvalidArgumentError(f"graphs nested more than {MOST_NESTED} deep")
        nodes, scope = 0, dict[bytes, bool]()
        self._scopes.append(scope)
        by_kind = sorted(self._within(graph), key=lambda each: each.number == _NODE)
        for field in by_kind:  # nodes are the last
            if field.number == _NODE:
                nodes += self._node(field, depth, callers)
            elif field.number == _INITIALIZER:
                name, scope[name] = self._tensor(field)
            elif field.number == _SPARSE_INITIALIZER:
                self._sparse_tensor(field)
            elif field.number in (_INPUT, _OUTPUT):
                (name,) = self._texts(field, _PORT_NAME)
                if field.number == _INPUT:
                    scope.setdefault(name, False)
                if depth == 1:
                    self.repeated |= self.outputs & {name}
                    (self.inputs if field.number == _INPUT else self.outputs).add(name)
        self._scopes.pop()
        return self._count(nodes)

    def _node(self, node: Field, depth: int, callers: tuple[_Name, ...]) -> int:
        nodes, self._is_filled = 1, False
        is_main = depth == 1 and not callers
        texts = {_DOMAIN: b"", _OP_TYPE: b"", _NODE_OVERLOAD: b""}
        inputs, computed, attributes = list[bytes](), list[bytes](), set[bytes]()
        for field in self._within(node):
            if field.number == _ATTRIBUTE:
                attribute, inner = self._attribute(field, depth, callers)
                attributes.add(attribute)
                nodes += inner
                continue
            text = bytes(self._data[field.value : field.end])
            if field.number == _READ:
                inputs.append(text)
            elif field.number == _COMPUTED:
                computed.append(text)
            elif field.number in texts:
                texts[field.number] = text
        name = _name(*texts.values())
        domain, type_ = name[0], operator_type(*name[:2])
        omits = b"" in inputs
        self.is_to_be_mended |= inputs[-1:] == [b""] or type_ in POSITIVE
        self.is_to_be_mended |= type_ in NAMED and b"" in computed
        if name in self._functions:
            nodes += self._nodes_of(name, callers)
            taken = self._within(self._functions[name])
            most = sum(field.number == _FUNCTION_INPUT for field in taken)
            self._omits |= omits or len(inputs) < most
        elif domain not in DOMAINS or type_ in REFUSED:
            raise InvalidArgumentError(f"operator {_shown(name)} may not be run")
        elif len(inputs) < _AT_LEAST.get(type_, 0):
            raise InvalidArgumentError(f"{_shown(name)} of {len(inputs)} inputs")
        elif type_ in _COMPLETE:
            self._needs_all |= bool(callers)
            self._check_complete(omits)
        self.depends_on_data |= type_ in _DATA_DEPENDENT
        place, axis = NEED_ELEMENTS.get(type_, (len(inputs), 0))
        needed = inputs[place] if place < len(inputs) else b""
        # Without an axis, elements of none are all different.
        if needed and (type_ != b"Unique" or b"axis" in attributes):
            if is_main and not self._has_elements(needed):
                self.needed[needed] = min(axis, self.needed.get(needed, axis))
            elif not self._has_elements(needed):
                self.doubtful.add(needed)
        has_elements = type_ == b"Constant" and self._is_filled
        has_elements |= type_ in _KEEPING and self._has_elements(b"".join(inputs[:1]))
        self._scopes[-1].update(dict.fromkeys(computed, has_elements))
        if is_main and name == (b"", b"Gather", b""):
            self.tables.update(inputs[:1])
            inputs = inputs[1:]
        self.read.update(inputs)
        return nodes

    def _has_elements(self, name: bytes) -> bool:
        """Return whether a tensor surely has elements."""
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name]
        return False

    def _check_complete(self, omits: bool) -> None:
        if omits:
            raise InvalidArgumentError(
                "an operator of any number of inputs may lack one of them"
            )

    def _attribute(
        self, attribute: Field, depth: int, callers: tuple[_Name, ...]
    ) -> tuple[bytes, int]:
        """Check an attribute; return its name, and the nodes of graphs in it."""
        nodes = 0
        name = text = b""
        for field in self._within(attribute):
            if field.number == _ATTRIBUTE_NAME:
                name = bytes(self._data[field.value : field.end])
            elif field.number == _TEXT:
                text = bytes(self._data[field.value : field.end])
            elif field.number in _GRAPHS_OF:
                self.may_loop = True
                nodes += self._graph(field, depth + 1, callers)
            elif field.number in _TENSORS_OF:
                _, self._is_filled = self._tensor(field)
            elif field.number in _SPARSE_TENSORS_OF:
                self._sparse_tensor(field)
        # ONNX Runtime never comes to the end of such an equation; a function may hand
        # any text on to one.
        if not text.isascii() and (name == b"equation" or self._functions):
            raise InvalidArgumentError(
                f"attribute {name.decode(errors='replace')[:80]!r} is not in ASCII"
            )
        return name, nodes

    def _sparse_tensor(self, tensor: Field) -> None:
        for field in self._within(tensor):
            if field.number in (_VALUES, _INDICES):
                self._tensor(field)

    def _tensor(self, tensor: Field) -> tuple[bytes, bool]:
        """Check a constant; return its name, and whether it has elements."""
        name, lengths = b"", list[int]()
        for field in self._within(tensor):
            if field.number == _DIMS:
                lengths += decoded(self._data, field.value, field.end)
            elif field.number == _TENSOR_NAME:
                name = bytes(self._data[field.value : field.end])
            elif field.number == _EXTERNAL_DATA or (
                field.number == _DATA_LOCATION
                and not field.is_bytes
                and self._data[field.value]
            ):
                raise InvalidArgumentError(
                    "the graph has weights that are not in it",
                    hint="give them as further inputs of the region",
                )
        return name, 0 not in lengths


def _name(domain: bytes, name: bytes, overload: bytes) -> _Name:
    return b"" if domain == b"ai.onnx" else domain, name, overload


def operator_type(domain: bytes, type_: bytes) -> bytes:
    """Return which operator of ONNX Runtime's a node is; b"" for any other's."""
    return type_ if domain in DOMAINS or domain == b"ai.onnx" else b""


def _shown(name: _Name) -> str:
    shown = b".".join(name[:2])[:120].decode(errors="replace")
    return in_one_line(shown.lstrip("."))
