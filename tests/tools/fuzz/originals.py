"""The files that are damaged: generated ones of every kind, and small trained ones."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from asyncnn.hal.types import FusedActivationFunc, Operand, OperandType, OperationType
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.container import save
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from tests.runtime.onnx.files import parsed
from tests.runtime.tflite.test_hostile import (
    hybrid_file,
    recurrent_file,
    streaming_file,
)

TRAINED = (
    "hello_world_int8.tflite",
    "hello_world_float.tflite",
    "micro_speech_quantized.tflite",
    "trained_lstm_int8.tflite",
    "kws_ref_model.tflite",
)


def contained(named: NamedModel) -> bytes:
    """Return the container of a model."""
    with TemporaryDirectory() as folder:
        path = Path(folder, "model")
        save(named, path)
        return path.read_bytes()


def dense_container() -> bytes:
    """Return a container with a pool, a large constant and names."""
    operand = Operand(OperandType.TENSOR_FLOAT32, (2, 40))
    builder = ModelBuilder(relaxed=True)
    x = builder.input("x", operand.type, operand.dimensions)
    weights = builder.constant(np.ones((40, 40), np.float32))
    bias = builder.constant(np.zeros(40, np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    y = builder.operation(
        OperationType.FULLY_CONNECTED, [x, weights, bias, none], operand
    )
    builder.output(builder.operation(OperationType.RELU, [y], operand), "y")
    return contained(builder.build())


def convolution_in_onnx() -> bytes:
    """Return an ONNX file with weights of all kinds of storage, and open axes."""
    rng = np.random.default_rng(0)
    weights = numpy_helper.from_array(rng.random((4, 3, 3, 3), np.float32), "w")
    bias = helper.make_tensor("b", TensorProto.FLOAT, [4], [0.1, 0.2, 0.3, 0.4])
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [0, -1])
    large = numpy_helper.from_array(rng.random((100, 8), np.float32), "large")
    nodes = [
        helper.make_node(
            "Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]
        ),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Reshape", ["p", "shape"], ["f"]),
        helper.make_node("Gemm", ["f", "large"], ["y"], transB=1, alpha=0.5),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 100])
    return _in_onnx(nodes, [x], [y], [weights, bias, shape, large])


def quantized_in_onnx() -> bytes:
    """Return an ONNX file of quantised values, with a branch and a loop."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-9, 9, (6, 5), np.int8)
    constants = [
        numpy_helper.from_array(np.float32(0.1), "s"),
        numpy_helper.from_array(np.int8(3), "z"),
        numpy_helper.from_array(weights, "w"),
        numpy_helper.from_array(np.int8(0), "wz"),
        numpy_helper.from_array(np.array(3, np.int64), "trips"),
        numpy_helper.from_array(np.array(True), "on"),
    ]
    then, other = "then () => (float[2, 5] t)", "else () => (float[2, 5] e)"
    branches = f"then_branch = {then} {{ t = Exp(m) }}, "
    branches += f"else_branch = {other} {{ e = Neg(m) }}"
    body = (
        "body (int64 i, bool go, float[2, 5] before)"
        " => (bool goes, float[2, 5] after)"
        " { after = Add(before, m) goes = Identity(go) }"
    )
    graph = parsed(
        "float[2, 6] x => float[2, 5] y",
        "q = QuantizeLinear(x, s, z); d = DequantizeLinear(q, s, z);"
        "dw = DequantizeLinear(w, s, wz); m = MatMul(d, dw);"
        "sum = ReduceSum<keepdims=0>(m); c = Greater(sum, s);"
        f"b = If<{branches}>(c); y = Loop<body = {body}>(trips, on, b)",
    )
    return _in_onnx(graph.node, graph.input, graph.output, constants)


def _in_onnx(
    nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any]
) -> bytes:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, constants)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    data: bytes = model.SerializeToString()
    return data


GENERATED: Mapping[str, Callable[[], bytes]] = {
    "hybrid": hybrid_file,
    "recurrent": recurrent_file,
    "container": dense_container,
    "convolution in onnx": convolution_in_onnx,
    "quantized in onnx": quantized_in_onnx,
    "streaming": streaming_file,
    "hybrid container": lambda: contained(load(hybrid_file())),
    "streaming container": lambda: contained(load(streaming_file())),
}


def files(models: Path | None) -> Iterator[tuple[str, bytes]]:
    """Yield names and bytes, of trained models if their folder is known."""
    for name, make in GENERATED.items():
        yield name, make()
    for name in TRAINED if models is not None else ():
        assert models is not None
        yield name, (models / name).read_bytes()
