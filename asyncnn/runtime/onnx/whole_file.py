"""ONNX files as one region: whole, for devices with an engine that reads the format.

Only the border of the graph is looked at; what is inside is translated for devices that
have no such engine (`asyncnn.runtime.translation`). Weights of external files are put
into the bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from itertools import compress, count
from operator import not_
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from asyncnn.extensions.protobuf import (
    GRAPH,
    INITIALIZER,
    MAX_MESSAGE_BYTES,
    MIN_SPLIT_BYTES,
    RAW_DATA,
    message,
    split,
)
from asyncnn.extensions.regions import (
    BFLOAT16,
    DATA_DEPENDENT,
    ONNX,
    RegionPort,
    region_model,
    type_of,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Memory
from asyncnn.input_files import decoding
from asyncnn.memory.pools import view
from asyncnn.memory.shared import final_of
from asyncnn.pacing import Steps
from asyncnn.runtime.model import InputShapes, NamedModel, TensorInfo, distinct
from asyncnn.runtime.model_description import ModelMetadata, TensorMetadata
from asyncnn.runtime.onnx.open_axes import (
    Constants,
    fixed_inputs,
    given_lengths,
    ranked,
)
from asyncnn.runtime.onnx.schema import (
    DOMAINS,
    NAMELESS,
    Axes,
    axes_of,
    embed,
    graphs_in,
    inner_graphs,
    is_external,
    metadata_of,
    parsed,
    tensors_in,
)
from asyncnn.runtime.onnx.tensors import FileSpan, TensorReader
from asyncnn.runtime.states import states_before
from asyncnn.runtime.unsupported import UnsupportedOperatorError

_FLOAT, _INT64, _STRING, _BOOL, _BFLOAT16 = 1, 7, 8, 9, 16
"""Numbers of element types: the last one, NumPy does not have."""

_ML = "ai.onnx.ml"
_TEXTS = ("classlabels_strings", "values_strings", "default_string")
_CLASSES = ("classlabels_strings", "classlabels_int64s")
"""Attributes with texts that an operator may give, and what ZipMap names numbers by."""

_MOVING = frozenset(
    {"ArrayFeatureExtractor", "Cast", "Flatten", "Gather", "Identity", "Reshape"}
)
"""Operators whose texts are what their first input has."""


def reading_whole(
    memory: Memory,
    folder: Path | None,
    input_shapes: InputShapes,
    constants: Constants | None,
) -> Steps[NamedModel]:
    """Make one region of a file, in steps; see `importing_onnx` for the arguments.

    :raises InvalidArgumentError: if it is damaged, or what is given does not fit.
    :raises UnsupportedOperatorError: if regions have no such inputs or outputs.
    :raises GeneralFailureError: if the package `onnx` is not installed, or a file that
        it refers to cannot be read.
    """
    with decoding("ONNX"):
        parts = split(view(memory))
        model = parsed(parts)
        yield
        labels = put_in_numbers(model)
        graph, metadata = model.graph, metadata_of(model)
        nodes = _nodes_in(graph)
        weights = {tensor.name for tensor in graph.initializer}
        weights.update(each.values.name for each in graph.sparse_initializer)
        ends = [_axes(info) for info in graph.input if info.name not in weights]
        fixed = fixed_inputs(ends, constants or {})
        inputs = [each for each in ends if each.name not in fixed]
        inputs = ranked(inputs, input_shapes)
        lengths = {each.name: each.named_lengths for each in inputs}
        known = given_lengths(lengths, input_shapes)
        outputs = _like_their_states(map(_axes, graph.output), inputs)
        is_open = _has_open(inputs, known)
        # ONNX Runtime infers what follows from the file itself, and knows it better.
        is_complete = not (fixed or _has_open(ends, {}) or _has_open(outputs, {}))
        if _has_fixed(outputs) if is_open else not is_complete:
            inferred = _inferred(model, nodes, inputs, fixed, outputs, known, is_open)
            outputs = _like_their_states(inferred, inputs)
            yield
        kinds = [node.op_type for node in nodes]
        if not DATA_DEPENDENT.isdisjoint(kinds) or any(
            kind in _MISJUDGED and _is_misjudged(node)
            for kind, node in zip(kinds, nodes, strict=True)
        ):
            # The file's lengths are of one run.
            outputs = [replace(e, lengths=("",) * len(e.lengths)) for e in outputs]
        whole = memory
        has_files = b"location" in parts.rest and any(
            is_external(tensor) for tensor in tensors_in(graphs_in(graph))
        )
        if has_files or any(labels):
            whole = _completed(memory, folder, type(model))
        yield
    given = {each.name: _port(each, known) for each in inputs} | fixed
    ports = [given[each.name] for each in ends]
    results = [_port(each, known) for each in outputs]
    if any(labels):
        pairs = zip(outputs, labels, strict=True)
        said = tuple(TensorMetadata(each.name, labels=texts) for each, texts in pairs)
        metadata = replace(metadata or ModelMetadata(), outputs=said)
    model = region_model(ONNX, whole, ports, results)
    output_names = distinct((each.name for each in outputs), count())
    named = NamedModel.of(model, [each.name for each in inputs], output_names)
    return replace(
        named,
        inputs=_with_names(named.inputs, inputs, known),
        outputs=_with_names(named.outputs, outputs, known),
        metadata=metadata,
    )


def put_in_numbers(model: Any) -> list[tuple[str, ...]]:
    """Have tensors of numbers for dictionaries and texts; return what these stand for.

    What ZipMap makes dictionaries of is the output in their place. Texts that the file
    lists, such as names of classes, are numbered. ``model`` is changed.
    """
    graph, labels = model.graph, list[tuple[str, ...]]()
    computing = {name: node for node in graph.node for name in node.output}
    for info in graph.output:
        node, found = computing.get(info.name), tuple[str, ...]()
        if node is not None and (node.domain, node.op_type) == (_ML, "ZipMap"):
            found = _listed(node, _CLASSES)
            node.CopyFrom(type(node)(input=node.input, output=node.output))
            node.op_type = "Identity"
            info.type.tensor_type.elem_type = _FLOAT
            if all(each.domain not in DOMAINS for each in model.opset_import):
                model.opset_import.add(version=13)
        elif info.type.tensor_type.elem_type == _STRING:
            found = _texts_of(info.name, computing, graph)
            if found:
                _number(info, found, model)
        labels.append(found)
    return labels


def _listed(node: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return what attributes of these names list."""
    found = [each for name in names for each in node.attribute if each.name == name]
    return _texts(
        one for a in found for one in (*a.strings, *a.ints, a.s) if one != b""
    )


def _texts(given: Iterable[bytes | int]) -> tuple[str, ...]:
    """Return each text or number once, as a text."""
    return tuple(
        each.decode(errors="replace") if isinstance(each, bytes) else str(each)
        for each in dict.fromkeys(given)
    )


def _texts_of(name: str, computing: Mapping[str, Any], graph: Any) -> tuple[str, ...]:
    """Return all texts that a tensor may have; none if these are not known."""
    while name in computing and computing[name].op_type in _MOVING:
        name = computing[name].input[0]
    if name in computing:
        return _listed(computing[name], _TEXTS)
    known = [each.string_data for each in graph.initializer if each.name == name]
    return _texts(text for each in known for text in each)


def _number(info: Any, texts: Sequence[str], model: Any) -> None:
    """Have the places among ``texts`` in place of an output."""
    name, own = info.name, f"{info.name}#texts"
    for node in model.graph.node:
        for names in (node.input, node.output):
            names[:] = [own if each == name else each for each in names]
    by: dict[str, Any] = {"keys_strings": texts, "values_int64s": range(len(texts))}
    versions = [o.version for o in model.opset_import if o.domain == _ML]
    if versions == [1]:
        by = {"classes_strings": texts}
    elif not versions:
        model.opset_import.add(domain=_ML, version=2)
    make = import_module("onnx.helper").make_node
    model.graph.node.append(make("LabelEncoder", [own], [name], domain=_ML, **by))
    info.type.tensor_type.elem_type = _INT64


def _axes(info: Any) -> Axes:
    """Return what the file says of an input or output; see `axes_of`."""
    return axes_of(info, f"{info.name[:80]!r}", {_BFLOAT16: BFLOAT16})


def _like_their_states(given: Iterable[Axes], inputs: Sequence[Axes]) -> list[Axes]:
    """Return outputs with the axes of states that they are, where they have none.

    An axis of another name than all of the inputs' is of any length; but a state whose
    own axis has a name may grow from step to step.
    """
    outputs, by_name = [*given], {each.name: each for each in inputs}
    earlier = states_before(by_name, (output.name for output in outputs))
    names = {
        length
        for each in inputs
        for length in each.lengths
        if isinstance(length, str) and length not in NAMELESS
    }
    for number, output in enumerate(outputs):
        kept = [by_name[name] for name in earlier.get(output.name, ())]
        if len(kept) != 1 or kept[0].dtype != output.dtype:
            continue
        (state,) = kept
        lengths = output.lengths
        if not output.is_ranked or (
            len(lengths) == len(state.lengths)
            and all(
                own == other
                or (isinstance(own, str) and own not in names and other not in names)
                for own, other in zip(lengths, state.lengths, strict=True)
            )
        ):
            alike = replace(state, name=output.name, lengths=state.named_lengths)
            outputs[number] = alike
    return outputs


_HOLDING = frozenset({"If", "Loop", "Scan", "SequenceMap"})
"""Operators of ONNX that have graphs."""


def _nodes_in(graph: Any) -> list[Any]:
    """Return the nodes of a graph and those in it."""
    nodes = [*graph.node]
    for node in nodes:  # which grow meanwhile
        if node.op_type in _HOLDING or node.domain:
            for inner in inner_graphs(node):
                nodes += inner.node
    return nodes


_MISJUDGED = frozenset({"AveragePool", "ConvTranspose", "LpPool", "MaxPool"})


def _is_misjudged(node: Any) -> bool:
    """Return whether ONNX may infer another shape than ONNX Runtime computes."""
    given = {each.name: each for each in node.attribute}
    is_padded = "auto_pad" in given and given["auto_pad"].s.startswith(b"SAME")
    if node.op_type == "ConvTranspose":
        return is_padded and not given.keys().isdisjoint(
            {"dilations", "output_padding"}
        )
    if is_padded:
        return "dilations" in given
    if "ceil_mode" not in given or not given["ceil_mode"].i:
        return False
    kernel = given["kernel_shape"].ints if "kernel_shape" in given else ()
    strides = given["strides"].ints if "strides" in given else [1] * len(kernel)
    pads = given["pads"].ints if "pads" in given else [0] * 2 * len(kernel)
    # It has no window that begins behind the last element.
    ends = zip(kernel, strides, pads[len(kernel) :], strict=False)
    return any(stride + after > length for length, stride, after in ends)


def _has_open(borders: Sequence[Axes], known: Mapping[str, int]) -> bool:
    """Return whether any axis is without a length."""
    return not all(each.is_ranked and all(_dimensions(each, known)) for each in borders)


def _has_fixed(borders: Sequence[Axes]) -> bool:
    """Return whether the file has a number for any axis."""
    return any(isinstance(length, int) for each in borders for length in each.lengths)


def _dimensions(axes: Axes, known: Mapping[str, int]) -> tuple[int, ...]:
    """Return the lengths, 0 for those that stay open."""
    return tuple(
        known.get(length, 0) if isinstance(length, str) else length
        for length in axes.named_lengths
    )


def _port(axes: Axes, known: Mapping[str, int]) -> RegionPort:
    dimensions = _dimensions(axes, known)
    if axes.is_ranked:
        dimensions = dimensions or (1,)
    return type_of(ONNX, axes.dtype), dimensions, 0.0, 0


def _with_names(
    infos: Sequence[TensorInfo], borders: Sequence[Axes], known: Mapping[str, int]
) -> tuple[TensorInfo, ...]:
    """Return ``infos`` with the names that the file has for open axes."""
    found = []
    for info, axes in zip(infos, borders, strict=True):
        pairs = zip(_dimensions(axes, known), axes.lengths, strict=True)
        found.append(info.opened([length or _shown(name) for length, name in pairs]))
    return tuple(found)


def _shown(name: int | str) -> str:
    """Return the name of an open axis, as it has one."""
    return "?" if name in NAMELESS or str(name).startswith("axis ") else str(name)


def _inferred(
    model: Any,
    nodes: Iterable[Any],
    inputs: Sequence[Axes],
    fixed: Mapping[str, Array],
    outputs: Sequence[Axes],
    known: Mapping[str, int],
    is_open: bool,
) -> list[Axes]:
    """Return ``outputs`` with the lengths that follow from the inputs'.

    What cannot be inferred, only a run shows. Where inputs have open lengths, those
    that the file has for outputs may be of one run, and count if they can be inferred;
    else they may be wrong, and count unless others can be. ``model`` is changed.
    """
    shapes = {each.name: _dimensions(each, known) for each in inputs}
    for info in model.graph.input:
        shape = info.type.tensor_type.shape
        for axis, length in enumerate(shapes.get(info.name, ())):
            if axis == len(shape.dim):
                shape.dim.add()
            if length:
                shape.dim[axis].dim_value = length
    for node in nodes:
        # The package's inference reads them, and ends the process.
        read = node.input
        while read and not read[-1]:
            del read[-1]
        if node.op_type == "Constant":
            for part in node.attribute:
                if part.t.ByteSize() >= MIN_SPLIT_BYTES:
                    part.t.ClearField("raw_data")  # only its shape matters
    from_array = import_module("onnx.numpy_helper").from_array
    model.graph.initializer.extend(from_array(v, n) for n, v in fixed.items())
    infer = import_module("onnx.shape_inference").infer_shapes
    for info in model.graph.output:
        info.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    try:
        # It keeps the elements of what may be a shape, however many there are.
        is_needed = is_open or _has_open(outputs, known)
        inferred = infer(model, data_prop=is_needed).graph.output
        found = [_axes(info) for info in inferred]
    except Exception:  # whatever it finds fault with, the engine is to decide
        found = [replace(each, lengths=(), is_ranked=False) for each in outputs]
        if not is_open:
            return [*outputs]
    return [*map(_agreed if is_open else _checked, outputs, found)]


def _checked(output: Axes, found: Axes) -> Axes:
    """Return an output with lengths of ``found`` as well; they are open if both differ.

    ONNX Runtime runs files that say wrong lengths, too.
    """
    own, others = output.lengths, found.lengths
    if not found.is_ranked or own == others:
        return output
    if len(own) != len(others):
        return (
            replace(output, lengths=(), is_ranked=False) if output.is_ranked else found
        )
    lengths = [
        mine if isinstance(other, str) else other if mine in (other, str(mine)) else ""
        for mine, other in zip(own, others, strict=True)
    ]
    return replace(output, lengths=tuple(lengths))


def _agreed(output: Axes, found: Axes) -> Axes:
    """Return an output without the numbers that ``found`` does not have."""
    lengths, others = output.lengths, found.lengths
    if not found.is_ranked:
        others = ("",) * len(lengths)
    elif output.is_ranked and len(others) != len(lengths):
        lengths = ("",) * len(others)
    pairs = zip(lengths, others, strict=False)
    agreed = [
        own if isinstance(own, str) or own == other else "" for own, other in pairs
    ]
    return replace(output, lengths=tuple(agreed))


def _completed(memory: Memory, folder: Path | None, kind: Any) -> Memory:
    """Return the bytes of a file, a message of this ``kind``, with external weights.

    Each weight is read where it is written, so that none is there twice.

    :raises UnsupportedOperatorError: if they are too many for one message.
    """
    reader = TensorReader(memory, folder)
    whole = kind.FromString(view(memory))
    put_in_numbers(whole)
    graph, weights = whole.graph, [*whole.graph.initializer]
    are_apart = [is_external(w) and w.data_type != _BOOL for w in weights]
    del graph.initializer[:]
    graph.initializer.extend(compress(weights, map(not_, are_apart)))
    embed(graph, reader)
    inside: list[bytes | FileSpan] = [graph.SerializeToString()]
    for weight in compress(weights, are_apart):
        span = reader.span_of(weight)
        weight.ClearField("external_data")
        weight.ClearField("data_location")
        data = message(RAW_DATA, [span])
        inside += message(INITIALIZER, [weight.SerializeToString(), *data])
    whole.ClearField("graph")
    parts = [whole.SerializeToString(), *message(GRAPH, inside)]
    size = sum(map(len, parts))
    if size > MAX_MESSAGE_BYTES:
        raise UnsupportedOperatorError("its weights do not fit in one message of 2 GiB")
    read = (part.read() if isinstance(part, FileSpan) else part for part in parts)
    made = final_of(read, size)
    reader.check_unchanged()
    return made
