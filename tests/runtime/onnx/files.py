"""Writes small ONNX files for tests, and runs what they become."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.parser import parse_graph

from asyncnn.devices import ReferenceDevice
from asyncnn.memory.pools import from_buffer
from asyncnn.pacing import completed
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.onnx import importing_onnx

NUMBERS = {
    np.dtype(np.float32): onnx.TensorProto.FLOAT,
    np.dtype(np.float16): onnx.TensorProto.FLOAT16,
    np.dtype(np.float64): onnx.TensorProto.DOUBLE,
    np.dtype(np.int32): onnx.TensorProto.INT32,
    np.dtype(np.int64): onnx.TensorProto.INT64,
    np.dtype(np.uint8): onnx.TensorProto.UINT8,
    np.dtype(np.int8): onnx.TensorProto.INT8,
    np.dtype(np.bool_): onnx.TensorProto.BOOL,
}

Shape = Sequence[int | str | None]


def tensor(name: str, shape: Shape | None, dtype: Any = np.float32) -> Any:
    """Describe an input or output."""
    return helper.make_tensor_value_info(name, NUMBERS[np.dtype(dtype)], shape)


def model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[str | Any],
    weights: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    functions: Sequence[Any] = (),
) -> Any:
    """Return a model; an output that is but a name is of float32."""
    graph = helper.make_graph(
        nodes,
        "graph",
        inputs,
        [tensor(out, None) if isinstance(out, str) else out for out in outputs],
        [numpy_helper.from_array(np.asarray(w), n) for n, w in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    opsets += [helper.make_opsetid(f.domain, 1) for f in functions]
    return helper.make_model(
        graph, opset_imports=opsets, functions=functions, ir_version=8
    )


def parsed(ends: str, nodes: str) -> Any:
    """Return a graph of text: ``float[2, n] x => float[] y``, ``y = Abs(x); ...``.

    Both are in ONNX's own syntax, but for semicolons between nodes.
    """
    inputs, outputs = ends.split("=>")
    text = f"graph ({inputs}) => ({outputs}) {{ {nodes.replace(';', ' ')} }}"
    graph = parse_graph(text)
    for node in graph.node:
        if not node.domain:
            node.ClearField("domain")
    return graph


def written(
    ends: str, nodes: str, weights: Mapping[str, Any] | None = None, **options: Any
) -> Any:
    """Return a model of text as `parsed` has it; ``options`` are those of `model`."""
    graph = parsed(ends, nodes)
    return model(graph.node, graph.input, graph.output, weights, **options)


def classifier(
    classes: Sequence[int | str],
    *rest: Any,
    version: int = 1,
    label: str = "output_label",
) -> Any:
    """Return a file as sklearn-onnx writes them, with dictionaries of probabilities."""
    is_texts = isinstance(classes[0], str)
    numbers = np.arange(4 * len(classes), dtype=np.float32) % 5 - 2
    by = {"classlabels_strings" if is_texts else "classlabels_ints": classes}
    nodes = [
        helper.make_node(
            *("LinearClassifier", ["x"], [label, "scores"]),
            domain="ai.onnx.ml",
            coefficients=numbers,
            intercepts=numbers[: len(classes)],
            multi_class=1,
            post_transform="SOFTMAX",
            **by,
        ),
        *rest,
    ]
    by = {"classlabels_strings" if is_texts else "classlabels_int64s": classes}
    nodes.append(
        helper.make_node(
            "ZipMap", ["scores"], ["output_probability"], domain="ai.onnx.ml", **by
        )
    )
    key = onnx.TensorProto.STRING if is_texts else onnx.TensorProto.INT64
    value = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    maps = helper.make_sequence_type_proto(helper.make_map_type_proto(key, value))
    ends = [
        helper.make_tensor_value_info("output_label", key, ["n"]),
        helper.make_value_info("output_probability", maps),
    ]
    graph = helper.make_graph(nodes, "g", [tensor("x", ("n", 4))], ends)
    opsets = [helper.make_opsetid("ai.onnx.ml", version)]
    opsets += [helper.make_opsetid("", 17)] * bool(rest)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def imported(proto: Any, folder: Path | None = None, **options: Any) -> NamedModel:
    """Import a model, or the bytes of one."""
    content = proto if isinstance(proto, bytes) else proto.SerializeToString()
    memory = from_buffer(np.frombuffer(content, np.uint8))
    return completed(importing_onnx(memory, folder=folder, **options))


async def results(named: NamedModel, **inputs: Any) -> dict[str, Any]:
    """Run a model once on the reference device."""
    async with ReferenceDevice() as hal:
        prepared = await Device("reference", hal).prepare(named)
        return dict(await prepared.run(inputs))


def operations(named: NamedModel) -> list[str]:
    """Return the names of a model's operations."""
    return [operation.type.name for operation in named.model.main.operations]
