"""Drafts the model of a file that was read: node by node, by converters.

What is refused does not end it: all that cannot be imported is named in one error.
"""

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import count
from typing import Any, Self

import numpy as np

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.pacing import Steps, completed
from asyncnn.runtime.building import Building
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import F16, F32, HAL_TYPES, I32, Form, Value, hal_type
from asyncnn.runtime.model import NamedModel, distinct
from asyncnn.runtime.onnx import (
    activation,
    arithmetic,
    lstm_layers,
    moving_operators,
    pooling,
    quantization,
    reduction,
    resize,
    weighted,
)
from asyncnn.runtime.onnx.evaluated import evaluate
from asyncnn.runtime.onnx.folding import FOLDED, fold
from asyncnn.runtime.onnx.functions import body_of, instantiated, is_function
from asyncnn.runtime.onnx.node import Converter, OnnxNode
from asyncnn.runtime.onnx.node_groups import grouped
from asyncnn.runtime.onnx.older import NEWER_OPSET, by_newer_rules
from asyncnn.runtime.onnx.open_axes import Lengths
from asyncnn.runtime.onnx.quantization import (
    KEEPING_QUANTIZATION,
    Readers,
    bytes_of,
    readers_of,
)
from asyncnn.runtime.onnx.schema import (
    DOMAINS,
    Source,
    captured,
    inner_graphs,
    onnx_package,
    operator_name,
    place_of,
)
from asyncnn.runtime.onnx.tensors import checked_shape
from asyncnn.runtime.unsupported import Refusals, UnsupportedOperatorError

MAX_DEPTH = 32
"""Most functions and graphs within each other."""

MAX_NODES = 1 << 16
"""Most nodes of a file, counted wherever they are put in place."""

_NODES_PER_STEP = 16

_UNKNOWN = "this operator cannot be imported"


_WIDENING = frozenset(
    (
        *("Abs", "Add", "Cast", "MatMul", "Mul", "Neg", "Pow", "Sub", "Sum"),
        *("ReduceL1", "ReduceProd", "ReduceSum", "ReduceSumSquare"),
    )
)
"""Operators of int64 whose results may be beyond the 32 bits that the HAL has of it."""

_MAX_FILLED = 1 << 27
"""Most elements of a constant that the device fills, as no constant has so many."""


def _constant_of_shape(node: OnnxNode) -> Value:
    """Return a constant that was too large to be folded."""
    shape, tensor = node.integers(0), node.attribute("value")
    value = np.zeros(1, np.float32) if tensor is None else node.read_tensor(tensor)
    is_filled = HAL_TYPES.get(value.dtype) in (F16, F32, I32)
    is_large = min(shape, default=0) < 0 or math.prod(shape) > _MAX_FILLED
    if value.size != 1 or not is_filled or is_large:
        raise InvalidArgumentError(f"a constant of shape {shape} is too large")
    return node.draft.full(tuple(shape), value.reshape(()).item(), value.dtype)


def _check_width(node: OnnxNode) -> None:
    """Leave arithmetic of int64 to the evaluator, which sees to it that results fit."""
    given = node.input(0).dtype
    is_wide = (
        given == np.int64
        if node.name != "Cast"
        else (given.kind == "f" and node.dtype("to") == np.int64)
    )
    if is_wide:
        raise node.refuse("results of int64 may be beyond 32 bits")


def _dropout(node: OnnxNode) -> list[Value | None]:
    if node.has(2) and node.number(2):
        raise node.refuse("training")
    value = node.input(0)
    mask = None
    if node.wants(1):
        ones = node.draft.full(value.shape, 1, "int32")
        mask = node.draft.cast(ones, "bool")
    return [value, mask]


CONVERTERS: dict[str, Converter] = {
    **activation.CONVERTERS,
    **weighted.CONVERTERS,
    **arithmetic.CONVERTERS,
    **pooling.CONVERTERS,
    **quantization.CONVERTERS,
    **lstm_layers.CONVERTERS,
    **reduction.CONVERTERS,
    **moving_operators.CONVERTERS,
    **resize.CONVERTERS,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": _dropout,
}
"""By the operator's name; other domains than ONNX's stand in front."""


class Import:
    """Drafts the model of one file with certain lengths of its inputs' axes.

    The file's graph is drafted in steps, but a graph within it in one.
    """

    def __init__(self, source: Source, *, is_strict: bool) -> None:
        self.draft = Composer()
        self._is_strict = is_strict
        self._source = source
        self._checker = onnx_package().checker
        self._allowance = self.draft.allowance
        self._count = 0
        self._places: list[tuple[int, Any]] = []
        self._refusals = Refusals()
        self.inputs: list[Value] = []
        self.outputs: list[tuple[str, Value]] = []

    @classmethod
    def drafting(
        cls,
        source: Source,
        fixed: Mapping[str, Array],
        is_strict: bool,
        lengths: Lengths,
    ) -> Steps[Self]:
        """Draft the model in steps; see `asyncnn.runtime.onnx.importing_onnx`."""
        made = cls(source, is_strict=is_strict)
        yield from made._drafting(fixed, lengths)
        return made

    def _drafting(self, fixed: Mapping[str, Array], lengths: Lengths) -> Steps[None]:
        source = self._source
        scope: dict[str, Value] = {}
        for name, array in (*source.weights.items(), *fixed.items()):
            scope[name] = self.draft.constant(array, name)
        for axes in source.inputs:
            if axes.name not in scope:
                scope[axes.name] = self._input(axes.name, axes.dtype, lengths)
        try:
            found = yield from self._running(
                source.graph, ChainMap(scope), _Opsets(source.opsets)
            )
        except _RefusedError:
            self._refusals.raise_any()
            raise
        names = [output.name for output in source.graph.output]
        if not names:
            raise InvalidArgumentError("there are no outputs")
        self.outputs = list(zip(distinct(names, count()), found, strict=True))

    @property
    def ends(self) -> tuple[list[Value], list[Value]]:
        """The inputs and the outputs."""
        return self.inputs, [value for _, value in self.outputs]

    def _input(self, name: str, dtype: Any, lengths: Lengths) -> Value:
        what = f"input {name[:80]!r}"
        shape = checked_shape(lengths[name], what)
        form = None
        if dtype.itemsize == 1 and dtype != np.bool_:
            form = bytes_of(self._readers, name, self._source.weights, dtype)
        hal_type(dtype, what)
        value = Value(dtype, shape, form or Form.of(dtype), name=name)
        self.inputs.append(value)
        return value

    @cached_property
    def _readers(self) -> Readers:
        return readers_of(self._source.graph)

    def building(self) -> Steps[NamedModel]:
        """Make the model in steps."""
        return Building(grouped).building(self.draft, self.inputs, self.outputs)

    def _running(
        self,
        graph: Any,
        scope: ChainMap[str, Value],
        opsets: "_Opsets",
        inputs: Sequence[Value] = (),
    ) -> Steps[list[Value]]:
        """Draft the nodes of a graph within another's scope; return its outputs."""
        names = scope.new_child()  # no copy: a loop may do this thousands of times
        if graph is not self._source.graph:
            self._allowance.copy(graph)
            for tensor in graph.initializer:
                array = self._source.reader.array(tensor)
                names[tensor.name] = self.draft.constant(array, tensor.name)
            if len(inputs) != len(graph.input):
                raise InvalidArgumentError(f"a graph has {len(graph.input)} inputs")
            for info, value in zip(graph.input, inputs, strict=True):
                names[info.name] = value
        results = [output.name for output in graph.output]
        yield from self._converting(self._needed(graph.node, results), names, opsets)
        return [_find(names, name, "output") for name in results]

    def _converting(
        self, nodes: Sequence[Any], names: ChainMap[str, Value], opsets: "_Opsets"
    ) -> Steps[None]:
        self._count += len(nodes)
        if self._count > MAX_NODES or len(self._places) > MAX_DEPTH:
            raise InvalidArgumentError(
                f"with functions and loops counted, there are more than {MAX_NODES} "
                f"nodes, or they are nested too deeply"
            )
        lost: set[str] = set()
        for index, proto in enumerate(nodes):
            self._places.append((index, proto))
            read = set(proto.input)
            for graph in inner_graphs(proto):
                read |= captured(graph, self._allowance.visit)
            if read.isdisjoint(lost):
                is_lost = not self._try(proto, index, names, opsets)
            else:
                # What it reads was refused; it may have to be refused by itself, too.
                is_lost = True
                if not self._is_known(proto):
                    self._refuse(proto, index, UnsupportedOperatorError(_UNKNOWN))
            if is_lost:
                lost.update(filter(None, proto.output))
            self._places.pop()
            if not (index + 1) % _NODES_PER_STEP:
                yield
        if lost:
            raise _RefusedError

    def _try(
        self, proto: Any, index: int, names: ChainMap[str, Value], opsets: "_Opsets"
    ) -> bool:
        """Draft a node; return whether it is not refused."""
        depth = len(self._places)
        try:
            self._node(proto, names, opsets)
        except _RefusedError:
            del self._places[depth:]
            return False
        except UnsupportedOperatorError as error:
            self._refuse(proto, index, error)
            return False
        except AsyncnnError as error:
            raise error.at(place_of(index, proto)) from error
        return True

    def _refuse(self, proto: Any, index: int, error: UnsupportedOperatorError) -> None:
        place = ": ".join(place_of(*each) for each in self._places)
        self._refusals.add(operator_name(proto), index, place, error)

    def _is_known(self, proto: Any) -> bool:
        name = proto.op_type
        if proto.domain not in DOMAINS:
            key = f"{proto.domain}.{name}"
            return key in CONVERTERS or (proto.domain, name) in self._source.functions
        if name in CONVERTERS or name in FOLDED or is_function(name):
            return True
        return not self._is_strict and bool(onnx_package().defs.has(name))

    def _node(self, proto: Any, names: ChainMap[str, Value], opsets: "_Opsets") -> None:
        inputs: Sequence[Value | None] = [
            _find(names, name, "input") if name else None for name in proto.input
        ]
        domain = proto.domain
        opset = opsets.of(domain)
        if opset < NEWER_OPSET and domain in DOMAINS:
            inputs = by_newer_rules(proto, inputs, self.draft, opset)
        if proto.op_type not in KEEPING_QUANTIZATION:
            inputs = [v if v is None else self.draft.plain(v) for v in inputs]
        node = OnnxNode(proto, inputs, self.draft, opset, names)
        node.reader = self._source.reader
        node.run_graph = lambda graph, given: completed(
            self._running(graph, names, opsets, given)
        )
        results = self._results(node, proto, inputs, opsets)
        outputs, known = list(proto.output), names.maps[0]
        written = [name for name in outputs if name]
        if len(set(written)) != len(written) or not known.keys().isdisjoint(written):
            raise InvalidArgumentError(f"it writes {written[:8]} again")
        for name, value in zip(outputs, results, strict=False):
            if not name:
                continue
            if value is None:
                raise UnsupportedOperatorError(f"its output {name[:80]!r}")
            if 0 in value.shape and not value.is_constant:
                raise UnsupportedOperatorError(f"{name[:80]!r} has no elements")
            if not value.name:
                value.name = name
            names[name] = value
        if len(results) < len(outputs) and any(outputs[len(results) :]):
            raise UnsupportedOperatorError("it has outputs that cannot be imported")

    def _results(
        self,
        node: OnnxNode,
        proto: Any,
        inputs: Sequence[Value | None],
        opsets: "_Opsets",
    ) -> Sequence[Value | None]:
        key, domain = node.name, proto.domain
        if any(value is not None and value.is_run_shaped for value in inputs):
            reason = "it reads a tensor of which only a run shows the shape"
            return self._evaluated(node, UnsupportedOperatorError(reason))
        own = self._source.functions.get((domain, key))
        if domain in DOMAINS:
            self._check(proto, opsets)
            folded = fold(node)
            if folded is not None:
                return (self.draft.constant(folded),)
        else:
            key = f"{domain}.{key}"
        converter = CONVERTERS.get(key)
        if converter is not None and own is None:
            try:
                if key in _WIDENING and not self._is_strict and inputs:
                    _check_width(node)
                results = converter(node)
            except UnsupportedOperatorError as error:
                return self._evaluated(node, error)
            return (results,) if isinstance(results, Value) else results
        body = body_of(node, own)
        if body is None:
            return self._evaluated(node, UnsupportedOperatorError(_UNKNOWN))
        return self._call(body, proto, inputs)

    def _evaluated(
        self, node: OnnxNode, error: UnsupportedOperatorError
    ) -> Sequence[Value | None]:
        """Draft a node as it is, for the evaluator of ONNX."""
        if node.proto.domain not in DOMAINS:
            raise error
        if self._is_strict:
            hint = error.hint or "without strict, ONNX's own evaluator may compute it"
            raise UnsupportedOperatorError(
                error.message, hint=hint, operators=error.operators
            )
        try:
            return evaluate(node)
        except UnsupportedOperatorError as other:
            if error.message == _UNKNOWN:
                raise other from error
            raise error from other

    def _call(
        self, body: Any, proto: Any, inputs: Sequence[Value | None]
    ) -> Sequence[Value | None]:
        """Draft the nodes of a function in place of a node."""
        given = dict(zip(body.input, inputs, strict=False))
        names: ChainMap[str, Value] = ChainMap(
            {name: value for name, value in given.items() if value is not None}
        )
        opsets = _Opsets({o.domain: o.version for o in body.opset_import})
        self._allowance.copy(body)
        nodes = instantiated(body, proto, names, self._allowance.visit)
        completed(self._converting(self._needed(nodes, body.output), names, opsets))
        return [names.get(name) for name in body.output]

    def _check(self, proto: Any, opsets: "_Opsets") -> None:
        """Check a node against its operator's schema."""
        if inner_graphs(proto) or any(a.ref_attr_name for a in proto.attribute):
            return
        checker = self._checker
        if opsets.checking is None:
            opsets.checking = checker.C.CheckerContext()
            opsets.checking.ir_version = self._source.ir_version
            opsets.checking.opset_imports = {"": opsets.own}
        scope = checker.C.LexicalScopeContext()
        try:
            checker.C.check_node(proto.SerializeToString(), opsets.checking, scope)
        except checker.ValidationError as error:
            text = str(error).split("\n", 1)[0][:300]
            if "No Op registered" in text:
                raise UnsupportedOperatorError(_UNKNOWN) from error
            raise InvalidArgumentError(text) from error

    def _needed(self, nodes: Sequence[Any], outputs: Sequence[str]) -> list[Any]:
        """Return the nodes that ``outputs`` depend on, in order."""
        needed = set(outputs)
        chosen = []
        for node in reversed(nodes):
            if needed.isdisjoint(node.output):
                continue
            chosen.append(node)
            needed.update(node.input)
            for graph in inner_graphs(node):
                needed |= captured(graph, self._allowance.visit)
        return chosen[::-1]


class _Opsets:
    """Versions of operator sets by domain; ``own`` is of ONNX's own operators.

    Nodes are checked by them in the context ``checking``, made when it is needed first.
    """

    def __init__(self, versions: Mapping[str, int]) -> None:
        self._versions = {"" if d in DOMAINS else d: v for d, v in versions.items()}
        self.own = self._versions.get("", 1)
        self.checking: Any = None

    def of(self, domain: str) -> int:
        return self._versions.get(domain, 1) if domain not in DOMAINS else self.own


class _RefusedError(UnsupportedOperatorError):
    """Nodes of a graph were refused, and are listed."""


def _find(names: Mapping[str, Value], name: str, what: str) -> Value:
    try:
        return names[name]
    except KeyError:
        raise InvalidArgumentError(
            f"{what} {name[:80]!r} is not computed before it is read"
        ) from None
