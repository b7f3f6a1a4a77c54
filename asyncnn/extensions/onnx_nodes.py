"""Nodes of ONNX that the HAL cannot say: the extension ``org.asyncnn.onnx.nodes``.

Its operation NODES has a graph as a constant, and the inputs and outputs of that graph.
Every device of the project has it: the reference evaluator of the package `onnx`
computes one node after the other, and a run can be left between two of them, in bodies
of loops as well. What an engine is to read as it is are `asyncnn.extensions.regions`.

A client is not trusted: a graph has no weights in files, no functions, and operators of
ONNX's own domain only.
"""

import math
from collections import ChainMap
from collections.abc import (
    Callable,
    Generator,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import suppress
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from asyncnn.extensions.extension import Extension
from asyncnn.extensions.onnx_recurrent import RECURRENT, recurrence
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array, BoundOperation, OperationFailedError
from asyncnn.hal.operations.declaring import layout_of
from asyncnn.hal.operations.shapes import declared
from asyncnn.kernels.kernel import (
    Inputs,
    InterruptibleRun,
    Outputs,
    PreparedKernel,
    TiledRun,
    stateless,
)

MOST_NESTED = 16
"""Graphs within graphs."""

MOST_ELEMENTS = 1 << 28
"""Of a tensor that is larger than all that it is made of."""

_MOST_NUMBERS = 1 << 6
"""How many elements of a shape or the like are looked at."""

_DOMAINS = frozenset({"", "ai.onnx"})

Evaluating: TypeAlias = Generator[None, None, list[Any]]
"""Evaluates nodes one after the other, and returns the results that are asked for."""

_Scope: TypeAlias = MutableMapping[str, Any]


class NodeGraph:
    """A graph that the evaluator computes; ``opset`` is the version of its operators.

    :raises InvalidArgumentError: if it has what the evaluator may not see.
    :raises GeneralFailureError: if the evaluator lacks an operator, or is not there.
    """

    def __init__(self, graph: Any, opset: int, depth: int = 0) -> None:
        if depth > MOST_NESTED:
            raise InvalidArgumentError(f"graphs nested more than {MOST_NESTED} deep")
        if graph.sparse_initializer:
            raise InvalidArgumentError("a sparse initializer")
        self.inputs = [info.name for info in graph.input]
        self.outputs = [info.name for info in graph.output]
        self._constants = {each.name: _array(each) for each in graph.initializer}
        self._nodes = [_Node(node, opset, depth) for node in graph.node]

    def evaluating(
        self, given: Sequence[Any], outer: _Scope | None = None
    ) -> Evaluating:
        """Evaluate the graph, within the scope of an ``outer`` one.

        :raises OperationFailedError: if an operator cannot compute what it is given.
        """
        if len(given) != len(self.inputs):
            raise OperationFailedError(f"{len(given)} inputs for {len(self.inputs)}")
        own = {
            "": None,
            **self._constants,
            **dict(zip(self.inputs, given, strict=True)),
        }
        scope: _Scope = own if outer is None else ChainMap(own, outer)
        for node in self._nodes:
            results = yield from node.evaluating(scope)
            scope.update(zip(node.outputs, results, strict=False))
            yield
        return _values(scope, self.outputs)


class _Node:
    def __init__(self, proto: Any, opset: int, depth: int) -> None:
        if proto.domain not in _DOMAINS:
            raise InvalidArgumentError(f"operator {proto.domain}.{proto.op_type}")
        self.name = str(proto.op_type)
        self.inputs, self.outputs = list(proto.input), list(proto.output)
        self._graphs: dict[str, NodeGraph] = {}
        self._attributes: dict[str, Any] = {}
        for attribute in proto.attribute:
            for tensor in (attribute.t, *attribute.tensors):
                _check_within(tensor)
            if attribute.graphs or attribute.ref_attr_name:
                raise InvalidArgumentError(f"attribute {attribute.name[:80]!r}")
            if attribute.HasField("g"):
                graph = NodeGraph(attribute.g, opset, depth + 1)
                self._graphs[attribute.name] = graph
            else:
                value = onnx_module("helper").get_attribute_value(attribute)
                self._attributes[attribute.name] = value
        self._growth = _growth_by(self._attributes)
        self._proto, self._opset = proto, opset
        self._run: Callable[..., Sequence[Any]] | None = None
        if self.name in RECURRENT:
            return
        if not self._graphs:
            self._run = _evaluator(proto, opset)
        elif self.name not in _FLOWS:
            raise GeneralFailureError(f"the evaluator has no bodies of {self.name}")

    def evaluating(self, scope: _Scope) -> Evaluating:
        given = _values(scope, self.inputs)
        try:
            if self._graphs:
                return (yield from _FLOWS[self.name](self, given, scope))
            self._check_size(given)
            if self._run is None:
                return (yield from recurrence(self.name, self._attributes, given))
            return list(self._run(given))
        except (OperationFailedError, MemoryError):
            raise
        except Exception as error:  # the evaluator's operators raise anything
            text = str(error).split("\n", 1)[0][:200]
            raise OperationFailedError(f"{self.name} of ONNX fails: {text}") from error

    def _check_size(self, given: Sequence[Any]) -> None:
        """Check how many elements come of it, before they are made."""
        sizes = [np.size(value) for value in given if value is not None]
        most = max(MOST_ELEMENTS, sum(sizes))
        size = size_of_result(self.name, given)
        # Most often all that is given cannot make so many, whatever the operator is.
        if size <= most and not math.prod(sizes) * self._growth <= MOST_ELEMENTS:
            size = max(size, self._inferred_size(given))
        if size > most:
            raise OperationFailedError(f"{self.name} of ONNX gives {size:.3g} elements")

    def _inferred_size(self, given: Sequence[Any]) -> int:
        """Return how many elements its result has by ONNX's rules; 0 if unknown."""
        helper = onnx_module("helper")
        types: dict[str, Any] = {}
        values: dict[str, Any] = {}
        try:
            for name, value in zip(self.inputs, given, strict=True):
                if value is not None:
                    array = np.asarray(value)
                    element = helper.np_dtype_to_tensor_dtype(array.dtype)
                    types[name] = helper.make_tensor_type_proto(element, array.shape)
                    if array.size <= _MOST_NUMBERS:
                        values[name] = onnx_module("numpy_helper").from_array(array)
            schema = onnx_module("defs").get_schema(self.name, self._opset)
            imports = [helper.make_opsetid("", self._opset)]
            infer = onnx_module("shape_inference").infer_node_outputs
            found = infer(schema, self._proto, types, values, opset_imports=imports)
        except Exception:  # the evaluator says what does not fit
            return 0
        shapes = [each.tensor_type.shape.dim for each in found.values()]
        return max((math.prod(n.dim_value for n in each) for each in shapes), default=0)

    def body(self, name: str) -> NodeGraph:
        if name not in self._graphs:
            raise OperationFailedError(f"{self.name} of ONNX has no {name}")
        return self._graphs[name]

    def number(self, name: str) -> int:
        return int(self._attributes.get(name) or 0)

    def each(self, name: str, count: int) -> list[int]:
        """Return a number for each of ``count`` inputs or outputs, 0 if none is there.

        :raises OperationFailedError: if there are others.
        """
        numbers = list(self._attributes.get(name) or [0] * count)
        if len(numbers) != count:
            raise OperationFailedError(f"{len(numbers)} {name} for {count}")
        return numbers


def size_of_result(name: str, given: Sequence[Any]) -> float:
    """Return how many elements come of a node by what little it may be given.

    :raises LookupError: if that is too little; `ValueError` if it does not fit.
    """
    numbers = [[] if v is None else np.ravel(v)[:_MOST_NUMBERS].tolist() for v in given]
    shapes = [np.shape(value) for value in given if value is not None]
    size = math.prod(shapes[0]) if shapes else 0
    match name:
        case "ConstantOfShape":
            size = math.prod(numbers[0])
        case "Expand":
            size = math.prod(np.broadcast_shapes(shapes[0], numbers[1]))
        case "Tile":
            size *= math.prod(numbers[1])
        case "OneHot":
            size *= numbers[1][0]
        case "Range":
            start, limit, step = (each[0] for each in numbers)
            size = abs(limit - start) / abs(step) if step else 0
        case "Pad" if len(given) > 1:
            axes = (
                numbers[3] if len(given) > 3 and numbers[3] else range(len(shapes[0]))
            )
            lengths, pads = list(shapes[0]), numbers[1]
            for place, axis in enumerate(axes):
                lengths[axis] += pads[place] + pads[place + len(pads) // 2]
            size = math.prod(lengths)
        case "HannWindow" | "HammingWindow" | "BlackmanWindow":
            size = numbers[0][0]
        case "MelWeightMatrix":
            size = numbers[0][0] * numbers[1][0]
        case "AffineGrid":
            size = 3 * math.prod(numbers[1])
        case "Col2Im":
            size = math.prod(shapes[0][:2]) * math.prod(numbers[1])
        case "MaxUnpool" if len(given) > 2:
            size = math.prod(numbers[2])
        case "LSTM" | "GRU" | "RNN" if len(shapes) > 2:
            size = math.prod(shapes[0][:2]) * shapes[2][0] * shapes[2][-1]
        case "DFT" if len(given) > 1 and numbers[1]:
            shortest = min((n for n in shapes[0] if n > 1), default=1)
            size = size // shortest * numbers[1][0]
        case "Resize" | "Upsample":
            scales = numbers[1 if name == "Upsample" or len(given) == 2 else 2]
            size = size * math.prod(scales) if scales else math.prod(numbers[3])
        case _ if len(shapes) > 1:
            with suppress(ValueError):  # it may be no operator that broadcasts
                size = max(size, math.prod(np.broadcast_shapes(*shapes)))
    return size


def _growth_by(attributes: Mapping[str, Any]) -> float:
    """Return how many times as large a result may be by the numbers of attributes."""
    values = (v if isinstance(v, list) else [v] for v in attributes.values())
    numbers = [n for v in values for n in v if isinstance(n, int | float)]
    return math.prod([1.0 + abs(number) for number in numbers])


def _collect(collected: Sequence[list[Array]], row: Sequence[Array]) -> None:
    """Add what a step gives to what others have, unless that is too much."""
    size = 0
    for rows, each in zip(collected, row, strict=True):
        rows.append(each)
        size += len(rows) * np.size(each)
    if size > MOST_ELEMENTS:
        raise OperationFailedError(f"steps of ONNX have {size:.3g} elements")


def _if(node: _Node, given: Sequence[Any], scope: _Scope) -> Evaluating:
    branch = "then_branch" if given[0].reshape(()) else "else_branch"
    return (yield from node.body(branch).evaluating((), scope))


def _loop(node: _Node, given: Sequence[Any], scope: _Scope) -> Evaluating:
    body, states = node.body("body"), list(given[2:])
    limit = None if given[0] is None else int(given[0].reshape(()))
    goes_on = given[1] is None or bool(given[1].reshape(()))
    collected: list[list[Array]] = [[] for _ in body.outputs[1 + len(states) :]]
    step = 0
    while goes_on and (limit is None or step < limit):
        counter = np.array(step, np.int64)
        results = yield from body.evaluating([counter, np.array(True), *states], scope)
        goes_on, states = bool(results[0].reshape(())), results[1 : 1 + len(states)]
        _collect(collected, results[1 + len(states) :])
        step += 1
    if collected and not step:
        raise OperationFailedError("a loop of no steps has results of no shape")
    return [*states, *map(np.stack, collected)]


def _scan(node: _Node, given: Sequence[Any], scope: _Scope) -> Evaluating:
    body, count = node.body("body"), node.number("num_scan_inputs")
    if not 0 < count <= len(given):
        raise OperationFailedError(f"a scan over {count} of {len(given)} inputs")
    states, scanned = list(given[:-count]), given[-count:]
    axes = node.each("scan_input_axes", count)
    columns = [np.moveaxis(v, axis, 0) for v, axis in zip(scanned, axes, strict=True)]
    flips = node.each("scan_input_directions", count)
    columns = [v[::-1] if flip else v for v, flip in zip(columns, flips, strict=True)]
    lengths = {len(column) for column in columns}
    if len(lengths) != 1 or not max(lengths):
        raise OperationFailedError(f"a scan over {sorted(lengths)} elements")
    collected: list[list[Array]] = [[] for _ in body.outputs[len(states) :]]
    for rows in zip(*columns, strict=True):
        results = yield from body.evaluating([*states, *map(np.asarray, rows)], scope)
        states = results[: len(states)]
        _collect(collected, results[len(states) :])
    axes = node.each("scan_output_axes", len(collected))
    flips = node.each("scan_output_directions", len(collected))
    turned = [
        np.stack(rows[::-1] if flip else rows, axis)
        for rows, axis, flip in zip(collected, axes, flips, strict=True)
    ]
    return [*states, *turned]


_FLOWS: Mapping[str, Callable[[_Node, Sequence[Any], _Scope], Evaluating]] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
}
"""What has bodies: in the evaluator, nobody could leave one."""


def _evaluator(proto: Any, opset: int) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return what computes one node."""
    helper = onnx_module("helper")
    names = [f"{place}" if name else "" for place, name in enumerate(proto.input)]
    results = [f"to {place}" for place in range(len(proto.output))]
    node = type(proto)()
    node.CopyFrom(proto)
    node.domain, node.input[:], node.output[:] = "", names, results
    ends = [
        [onnx_module().ValueInfoProto(name=name) for name in part if name]
        for part in (names, results)
    ]
    graph = helper.make_graph([node], "node", *ends)
    try:
        evaluator = onnx_module("reference").ReferenceEvaluator(graph, {"": opset})
    except Exception as error:  # whatever it finds fault with
        text = str(error).split("\n", 1)[0][:200]
        raise GeneralFailureError(f"{proto.op_type} of ONNX: {text}") from error

    def run(given: Sequence[Any]) -> Sequence[Any]:
        pairs = zip(names, given, strict=True)
        with np.errstate(all="ignore"):
            feed = {name: value for name, value in pairs if name}
            found: Sequence[Any] = evaluator.run(None, feed)
        return found

    return run


def onnx_module(name: str = "") -> Any:
    """Return the package `onnx`, or a part of it.

    :raises GeneralFailureError: if it is not installed.
    """
    try:
        return import_module(f"onnx.{name}".rstrip("."))
    except ImportError as error:
        raise GeneralFailureError(
            f"nodes of ONNX need the package onnx: {error}",
            hint="install it with: pip install 'asyncnn[onnx]'",
        ) from error


def _check_within(tensor: Any) -> None:
    if tensor.data_location == tensor.EXTERNAL or tensor.external_data:
        raise InvalidArgumentError("the graph has weights that are not in it")


def _array(tensor: Any) -> Array:
    _check_within(tensor)
    try:
        array: Array = onnx_module("numpy_helper").to_array(tensor)
    except Exception as error:  # of a damaged one
        raise InvalidArgumentError(f"damaged constant: {error}") from error
    return array


def _values(scope: Mapping[str, Any], names: Sequence[str]) -> list[Any]:
    try:
        return [scope[name] for name in names]
    except KeyError as error:
        name = error.args[0][:80]
        raise OperationFailedError(f"{name!r} is read but never computed") from None


_NARROWED = np.dtype(np.int64), np.dtype(np.int32)
"""What a graph computes, and how the HAL has it."""


class _Nodes:
    """What an operation NODES computes."""

    def __init__(self, operation: BoundOperation) -> None:
        model = onnx_module().ModelProto()
        try:
            model.ParseFromString(operation.input(0).require_value().tobytes())
        except Exception as error:  # protobuf's own class, of one of its packages
            raise InvalidArgumentError(f"damaged ONNX graph: {error}") from error
        if len(model.opset_import) != 1 or model.functions:
            raise InvalidArgumentError("a graph with functions, or several domains")
        self.graph = NodeGraph(model.graph, model.opset_import[0].version)
        given, made = len(operation.inputs) - 1, len(operation.outputs)
        if (given, made) != (len(self.graph.inputs), len(self.graph.outputs)):
            raise InvalidArgumentError(f"{given} inputs and {made} outputs")
        self._dtypes = [output.dtype for output in operation.outputs]

    def evaluating(self, inputs: Inputs) -> Evaluating:
        given = []
        for array in inputs:
            seen = array.view()
            seen.flags.writeable = False  # it is the run's, not the evaluator's
            given.append(seen)
        results = yield from self.graph.evaluating(given)
        for place, (result, dtype) in enumerate(
            zip(results, self._dtypes, strict=True)
        ):
            if isinstance(result, np.ndarray) and (result.dtype, dtype) == _NARROWED:
                results[place] = narrow = result.astype(np.int32)
                if not np.array_equal(result, narrow):
                    raise OperationFailedError(f"output {place} is beyond 32 bits")
            elif not isinstance(result, np.ndarray) or result.dtype != dtype:
                raise OperationFailedError(f"output {place} is not of {dtype}")
        return results


def _prepare(operation: BoundOperation) -> PreparedKernel:
    nodes = _Nodes(operation)

    def tiles(inputs: Inputs, outputs: Outputs) -> Iterator[None]:
        results = yield from nodes.evaluating(inputs[1:])
        for place, (output, result) in enumerate(zip(outputs, results, strict=True)):
            if output.size != result.size:
                raise OperationFailedError(
                    f"output {place} is of shape {list(result.shape)}, not "
                    f"{list(output.shape)}"
                )
            output[...] = result.reshape(output.shape)

    return stateless(TiledRun(tiles))


def _compute(operation: BoundOperation) -> InterruptibleRun:
    nodes = _Nodes(operation)
    given = [each and each.require_value() for each in operation.inputs[1:]]
    interrupted: list[bool] = []

    def attempt(inputs: Inputs, outputs: list[Array]) -> bool:
        evaluating = nodes.evaluating(given)
        while not interrupted:
            try:
                next(evaluating)
            except StopIteration as end:
                outputs += [np.atleast_1d(result) for result in end.value]
                return True
        return False

    return InterruptibleRun(
        attempt,  # type: ignore[arg-type]
        lambda: interrupted.append(True),
        interrupted.clear,
    )


onnx_nodes = Extension("org.asyncnn.onnx.nodes")

_LAYOUT = layout_of("graph: Q8, inputs*: any -> outputs+: any")
NODES = onnx_nodes.operation(
    "NODES",
    0,
    inputs=_LAYOUT.inputs,
    outputs=_LAYOUT.outputs,
    shape=declared,
    prepare=_prepare,
    compute=_compute,
)
"""The bytes of a graph, then its inputs; lengths of outputs may be left to a run."""
