"""Nodes without a HAL form: drafted as they are, for the evaluator of ONNX.

What the HAL's operations cannot say in about three is drafted as a node of ONNX. Those
that can be computed together become one operation NODES; see
`asyncnn.extensions.onnx_nodes`. Within one, tensors are ONNX's; at its border, the
HAL's.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncnn.extensions.onnx_nodes import NODES, NodeGraph, onnx_module
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array, OperationFailedError, Shape
from asyncnn.runtime.axes import MAX_RANK
from asyncnn.runtime.composing import Composer
from asyncnn.runtime.drafting import HAL_TYPES, Drafted, Form, Value
from asyncnn.runtime.onnx.node import OnnxNode
from asyncnn.runtime.onnx.schema import DOMAINS, embed, inner_graphs
from asyncnn.runtime.onnx.tensors import DTYPES, NUMBERS
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_SHAPED_BY_RUNS = frozenset({"Loop", "Scan", "STFT"})
"""Operators whose shapes ONNX infers not at all, or not as they are."""

_RANDOM = frozenset(
    (
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
    )
)
"""Operators whose results are no constants, even if all inputs are."""

_NEWER_MODES = {b"bilinear": b"linear", b"bicubic": b"cubic"}
"""Of GridSample, from set 20 on."""

_MOST_KNOWN = 1 << 12
"""Elements of a constant that shapes may follow from."""


class Evaluated(Drafted):
    """A node of ONNX in a draft; ``reads`` are its inputs as the node has them.

    A node with graphs in it reads ``captured`` values by their names there, too.
    """

    __slots__ = ("captured", "opset", "proto", "reads")

    def __init__(
        self,
        proto: Any,
        opset: int,
        reads: Sequence[Value | None],
        captured: Mapping[str, Value],
    ) -> None:
        self.proto, self.opset, self.reads = proto, opset, reads
        self.captured = captured
        given = [value.source for value in self.all_read]
        super().__init__(NODES, tuple(given))

    def is_like(self, other: Drafted) -> bool:
        """Return whether another is the same node, whatever lengths axes have."""
        if not isinstance(other, Evaluated) or self.proto != other.proto:
            return False
        pairs = zip(self.all_read, other.all_read, strict=True)
        return self.opset == other.opset and all(
            (one.dtype, one.rank) == (two.dtype, two.rank) for one, two in pairs
        )

    @property
    def all_read(self) -> list[Value]:
        """All values that it reads."""
        return [*(v for v in self.reads if v is not None), *self.captured.values()]


def evaluate(node: OnnxNode) -> list[Value | None]:
    """Draft a node as it is, and return its outputs: constants, if all is known.

    :raises UnsupportedOperatorError: if the evaluator, or a type or shape bars that.
    """
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    draft = node.draft
    if node.name in _RANDOM:
        raise node.refuse("its result is random")
    if node.name == "ImageDecoder":
        raise node.refuse("it decodes files")
    if node.name == "Scan" and node.opset < 9:
        raise node.refuse("a scan over batches")
    if node.name == "ConvTranspose" and node.attribute("group", 1) > 1 and node.has(2):
        raise node.refuse("a bias of groups, which the evaluator adds wrongly")
    given = node.given_inputs
    if node.opset < 11 and node.name in ("Resize", "Upsample"):
        given = [given[0], None, *given[1:]]  # where a region comes in newer ones
    if node.name == "NonMaxSuppression":  # the evaluator wants limits in a row
        limits = [draft.reshape(v, (1,)) if v else None for v in given[2:]]
        given = [*given[:2], *limits]
    elif node.name == "OneHot":  # it wants a number of classes without axes
        classes = [draft.reshape(each, ()) for each in given[1:2] if each]
        given = [*given[:1], *classes, *given[2:]]
    reads = [draft.plain(v) if v else None for v in given]
    captured = {}
    for name in _free_names(proto):
        if name not in node.scope:
            raise node.refuse(f"its body reads {name[:80]!r}, which is not computed")
        captured[name] = draft.plain(node.scope[name])
    assert node.reader is not None
    for graph in inner_graphs(proto):
        embed(graph, node.reader)
    made = Evaluated(proto, _explicit(proto, node.opset), reads, captured)
    if all(value.is_constant for value in made.all_read):
        arrays = _computed(made, [*map(_data_of, made.all_read)], draft)
        return [
            draft.constant(array) if name else None
            for name, array in zip(proto.output, arrays, strict=True)
        ]
    try:
        NodeGraph(_graph_of(made), made.opset)
    except AsyncnnError as error:
        raise UnsupportedOperatorError(error.message) from error
    wanted = _ends_of(made, draft)
    for name, (dtype, _) in zip(proto.output, wanted, strict=True):
        if name and dtype not in HAL_TYPES:
            raise node.refuse(f"{name[:80]!r} has elements of type {dtype}")
    made.outputs = tuple(_output(made, dtype, shape) for dtype, shape in wanted)
    draft.append(made)
    pairs = zip(proto.output, made.outputs, strict=True)
    return [value if name else None for name, value in pairs]


def _output(made: "Evaluated", dtype: np.dtype[Any], shape: Shape) -> Value:
    """Return an output; lengths of 0 are the ones that only a run shows."""
    lengths = tuple(length or 1 for length in shape)
    value = Value(dtype, lengths, Form.of(dtype), producer=made)
    if 0 in shape:
        value.is_run_shaped, value.opened = True, shape
    return value


def _explicit(proto: Any, opset: int) -> int:
    """Have a node say what its operator set takes for granted; return a later set.

    The evaluator knows newer rules better, and has the newest defaults for all.
    """
    name = str(proto.op_type)
    attribute = onnx_module("helper").make_attribute
    if opset < 11 and name in ("Resize", "Upsample"):
        proto.op_type, opset = "Resize", 11
        mode = attribute("coordinate_transformation_mode", "asymmetric")
        proto.attribute.extend([mode, attribute("nearest_mode", "floor")])
    elif opset < 11 and name == "Scatter":
        proto.op_type, opset = "ScatterElements", 11
    elif opset < 16 and name == "RoiAlign":
        mode = attribute("coordinate_transformation_mode", "output_half_pixel")
        proto.attribute.append(mode)
        opset = 16
    elif opset < 20 and name == "GridSample":
        for each in proto.attribute:
            if each.name == "mode":
                each.s = _NEWER_MODES.get(each.s, each.s)
        opset = 20
    elif name == "BatchNormalization":
        opset = max(opset, 15)  # what the evaluator has of older ones fails
    elif name in ("QuantizeLinear", "DequantizeLinear"):
        opset = max(opset, 19)  # it has no older ones
    opset = max(opset, 7)  # `older` has seen to what it means in set 6
    if not onnx_module("defs").has(proto.op_type, opset):
        return opset
    known = onnx_module("defs").get_schema(proto.op_type, opset).attributes
    for each in [each for each in proto.attribute if each.name not in known]:
        proto.attribute.remove(each)
    given = {each.name for each in proto.attribute}
    newest = onnx_module("defs").get_schema(proto.op_type).attributes
    for each_name, declared in known.items():
        default = declared.default_value
        is_new = each_name in newest and newest[each_name].default_value == default
        if default.type and not is_new and each_name not in given:
            proto.attribute.append(default)
    return opset


def _free_names(proto: Any) -> set[str]:
    """Return what graphs in a node read of those around them.

    :raises UnsupportedOperatorError: if there are operators that are not ONNX's.
    """
    free: set[str] = set()
    for graph in inner_graphs(proto):
        known = {each.name for each in (*graph.input, *graph.initializer)}
        for node in graph.node:
            if node.domain not in DOMAINS:
                raise UnsupportedOperatorError("a body with operators that ONNX lacks")
            free |= {*filter(None, node.input), *_free_names(node)} - known
            known.update(node.output)
        free |= {each.name for each in graph.output} - known
    return free


def evaluated_constants(node: OnnxNode) -> list[Array]:
    """Return the outputs of a node without graphs, whose inputs are all known.

    :raises UnsupportedOperatorError: if the evaluator cannot compute it.
    """
    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    made = Evaluated(proto, _explicit(proto, node.opset), node.given_inputs, {})
    return _computed(made, [*map(_data_of, made.all_read)], node.draft)


def _computed(made: Evaluated, given: Sequence[Array], draft: Composer) -> list[Array]:
    """Return the outputs of a node, of which only so many steps are bearable.

    :raises UnsupportedOperatorError: if the evaluator cannot compute it.
    """
    try:
        steps = NodeGraph(_graph_of(made), made.opset).evaluating(given)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: list[Array] = end.value
                break
            draft.allowance.take_steps(1)
    except OperationFailedError as error:
        raise UnsupportedOperatorError(error.message) from error
    if any(isinstance(each, list) for each in found):
        raise UnsupportedOperatorError("its result is a sequence")
    return found


def _data_of(value: Value) -> Array:
    assert value.data is not None
    return value.data


def _renamed(made: Evaluated) -> tuple[Any, list[str], list[str]]:
    """Return the node with names of its own, its inputs' and its outputs'."""
    proto = type(made.proto)()
    proto.CopyFrom(made.proto)
    inputs = [f"#{place}" if value else "" for place, value in enumerate(made.reads)]
    outputs = [f"#to {place}" for place in range(len(proto.output))]
    proto.input[:], proto.output[:] = inputs, outputs
    return proto, [*filter(None, inputs), *made.captured], outputs


def _graph_of(made: Evaluated, *, is_typed: bool = False) -> Any:
    """Return a graph of one node; if it ``is_typed``, with all that is known of it."""
    helper = onnx_module("helper")
    info = onnx_module().ValueInfoProto
    proto, names, outputs = _renamed(made)
    inputs, constants = [], []
    for name, value in zip(names, made.all_read, strict=True):
        if not is_typed:
            inputs.append(info(name=name))
            continue
        number = NUMBERS[value.dtype]
        known = (value.is_run_shaped and value.opened) or value.shape
        lengths = [length or None for length in known]
        inputs.append(helper.make_tensor_value_info(name, number, lengths))
        if value.is_constant and math.prod(value.shape) <= _MOST_KNOWN:
            constants.append(tensor_of(_data_of(value), name))
    ends = [info(name=name) for name in outputs]
    return helper.make_graph([proto], "node", inputs, ends, constants)


def tensor_of(array: Array, name: str) -> Any:
    """Return a constant of a graph."""
    whole = np.ascontiguousarray(array).reshape(array.shape)
    return onnx_module("numpy_helper").from_array(whole, name)


def _ends_of(made: Evaluated, draft: Composer) -> list[tuple[np.dtype[Any], Shape]]:
    """Return dtype and shape of each output, 0 for lengths that only a run shows.

    :raises UnsupportedOperatorError: if not even the axes follow from the inputs.
    """
    name = made.proto.op_type
    is_run_shaped = any(value.is_run_shaped for value in made.all_read)
    if name == "STFT" and not is_run_shaped:
        is_run_shaped = not all(v is None or v.is_constant for v in made.reads[1::2])
    if name == "Loop" and not is_run_shaped and not _counts_are_known(made):
        return _ends_of_loop(made, draft)
    if name in _SHAPED_BY_RUNS and not is_run_shaped:
        given = [_data_of(v) if v.is_constant else _zeros(v) for v in made.all_read]
        return [(array.dtype, array.shape) for array in _computed(made, given, draft)]
    helper = onnx_module("helper")
    opsets = [helper.make_opsetid("", made.opset)]
    model = helper.make_model(_graph_of(made, is_typed=True), opset_imports=opsets)
    try:
        infer = onnx_module("shape_inference").infer_shapes
        inferred = infer(model, strict_mode=True, data_prop=True).graph.output
    except Exception as error:  # whatever it finds fault with
        text = str(error).strip().split("\n", 1)[0][:200]
        raise UnsupportedOperatorError(f"ONNX infers no shape: {text}") from error
    found = []
    for name, each in zip(made.proto.output, inferred, strict=True):
        tensor = each.type.tensor_type
        shape = tuple(axis.dim_value for axis in tensor.shape.dim)
        is_open = not tensor.HasField("shape") or (len(shape) > MAX_RANK and 0 in shape)
        if name and (is_open or tensor.elem_type not in DTYPES):
            raise UnsupportedOperatorError(f"data decide the shape of {name[:80]!r}")
        found.append((DTYPES.get(tensor.elem_type, np.dtype(np.float32)), shape))
    return found


def _ends_of_loop(
    made: Evaluated, draft: Composer
) -> list[tuple[np.dtype[Any], Shape]]:
    """Return dtypes and shapes by one step; only a run shows how many there are.

    :raises UnsupportedOperatorError: if states are not as long after it as before.
    """
    states = made.reads[2:]
    begun = [draft.constant(np.array(1)), draft.constant(np.array(True)), *states]
    once = Evaluated(made.proto, made.opset, begun, made.captured)
    given = [_data_of(v) if v.is_constant else _zeros(v) for v in once.all_read]
    results = _computed(once, given, draft)
    for state, result in zip(states, results, strict=False):
        if state is None or state.shape != result.shape:
            raise UnsupportedOperatorError("a loop whose states may grow")
    rows = [(result.dtype, (0, *result.shape[1:])) for result in results]
    ends = [(result.dtype, result.shape) for result in results]
    return [*ends[: len(states)], *rows[len(states) :]]


def _zeros(value: Value) -> Array:
    return np.broadcast_to(np.zeros((), value.dtype), value.shape)


def _counts_are_known(made: Evaluated) -> bool:
    """Return whether the end of a loop follows from constants and counted steps."""
    (body,) = inner_graphs(made.proto)
    states = dict(zip([i.name for i in body.input[2:]], made.reads[2:], strict=False))
    after = dict(zip(states, [o.name for o in body.output[1:]], strict=False))
    computing = {name: node for node in body.node for name in node.output}
    known: list[Value | None] = [*made.reads[:2]]
    seen: set[str] = set()
    left = [body.output[0].name]
    while left:
        name = left.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in computing:
            left += [*computing[name].input, *_free_names(computing[name])]
        elif name in states:
            known.append(states[name])
            left.append(after[name])
        else:
            known.append(made.captured.get(name))
    return all(value is None or value.is_constant for value in known)
