"""ONNX Runtime as a peer: its session, and the HAL's models written as ONNX.

Written as somebody would who makes a model for ONNX Runtime: images are NCHW, and
quantised tensors uint8, as that has no fast kernels for int8 ones. What a model is
given is converted likewise, once, by `OnnxRuntime.converted`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncnn.engine import Program
from asyncnn.engine.delegation import Step
from asyncnn.hal.operations.bound import Array, BoundOperand, Shape
from asyncnn.hal.operations.shapes import NCHW_TO_NHWC, NHWC_TO_NCHW
from asyncnn.hal.operations.sliding_windows import (
    Window2D,
    convolution_window,
    pool_window,
)
from asyncnn.hal.types import FusedActivationFunc, OperationType
from asyncnn.pacing import completed
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.translation import translating
from asyncnn.tools.bench.environment import peer_module
from asyncnn.tools.other_runtimes import (
    OnnxFile,
    PeerRefusedError,
    onnx_runtime_version,
)

ONNX = "onnx"
"""ONNX Runtime with one thread, as a contender."""

PACKAGES = ("onnxruntime", "onnx")

_IR_VERSION, _OPSET = 8, 17
_CONTRIBUTED = "com.microsoft"
_SIGN = 128
_CODES = 256

_BOUNDS = {
    FusedActivationFunc.RELU: (0.0, np.inf),
    FusedActivationFunc.RELU1: (-1.0, 1.0),
    FusedActivationFunc.RELU6: (0.0, 6.0),
}


def _onnx(name: str) -> Any:
    return peer_module(name, "onnx", "asyncnn[bench]")


class OnnxRuntime:
    """A session of ONNX Runtime with one thread, which runs ``named``.

    ``contents`` are its `onnx_file`'s, if they are there already.

    :raises PeerMissingError: if ONNX Runtime or the package onnx is not installed.
    :raises PeerRefusedError: if an operation of the model cannot be rewritten.
    """

    def __init__(self, named: NamedModel, contents: bytes = b"") -> None:
        onnx_runtime_version()
        file = OnnxFile(contents or onnx_file(named))
        self._session, self._names = file.session, file.names

    def converted(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Return the model's inputs as the session takes them, by its names."""
        arrays = map(_converted, inputs)
        return dict(zip(self._names, arrays, strict=True))

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """Compute the outputs, as new arrays: NCHW, and uint8 for any codes."""
        outputs: list[Array] = self._session.run(None, feed)
        return outputs

    def restored(
        self, arrays: Sequence[Array], infos: Sequence[TensorInfo]
    ) -> list[Array]:
        """Return what `run` has given as the model does: NHWC, and its own codes."""
        return [
            _restored(array, info.dtype)
            for array, info in zip(arrays, infos, strict=True)
        ]

    def awaited(self, feed: Mapping[str, Array]) -> Callable[[], Awaitable[object]]:
        """Return what awaits `run` in `asyncio.to_thread`."""
        return lambda: asyncio.to_thread(self.run, feed)

    def bound(self, feed: Mapping[str, Array]) -> Callable[[], object]:
        """Return the barest call: of inputs and outputs that were bound once."""
        binding = self._session.io_binding()
        for name, array in feed.items():
            binding.bind_cpu_input(name, array)
        for output in self._session.get_outputs():
            binding.bind_output(output.name)
        return lambda: self._session.run_with_iobinding(binding)


def _converted(array: Array) -> Array:
    if array.ndim == 4:
        array = array.transpose(NHWC_TO_NCHW)
    if array.dtype == np.int8:
        array = array.view(np.uint8) ^ np.uint8(_SIGN)
    return np.ascontiguousarray(array)


def _restored(array: Array, dtype: np.dtype[Any]) -> Array:
    if array.ndim == 4:
        array = array.transpose(NCHW_TO_NHWC)
    if dtype == np.int8 and array.dtype == np.uint8:
        array = (array ^ np.uint8(_SIGN)).view(np.int8)
    return np.ascontiguousarray(array)


def _has_no_onnx_form(what: str) -> PeerRefusedError:
    return PeerRefusedError(
        f"it is given ONNX files, and {what} cannot be rewritten as ONNX yet"
    )


def onnx_file(named: NamedModel) -> bytes:
    """Return the bytes of an ONNX file that computes the same as ``named``.

    :raises PeerMissingError: if the package onnx is not installed.
    :raises PeerRefusedError: if an operation cannot be rewritten.
    """
    program = Program(completed(translating(named)).model)
    if program.declared_shapes is None:
        raise PeerRefusedError("the shapes of the model's inputs are open")
    plan = program.plan(program.declared_shapes)
    graph = _OnnxGraph()
    for step in plan.steps:
        write = _WRITERS.get(step.operation.type)
        if write is None:
            raise _has_no_onnx_form(step.name)
        write(graph, step)
    sides = [
        [(port.index, port.dtype, port.shape) for port in ports]
        for ports in (plan.inputs, plan.outputs)
    ]
    return graph.file(*sides)


class _OnnxGraph:
    """Nodes and constants so far; tensor ``t3`` is operand 3."""

    def __init__(self) -> None:
        self._helper = _onnx("onnx.helper")
        self._numpy = _onnx("onnx.numpy_helper")
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, array: Any, dtype: Any) -> str:
        name = f"c{len(self._constants)}"
        contents = np.ascontiguousarray(np.asarray(array, dtype))
        self._constants.append(
            self._numpy.from_array(contents.reshape(np.shape(array)), name)
        )
        return name

    def node(
        self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any
    ) -> str:
        """Add a node with one output, which gets a name if it has none."""
        output = output or f"n{len(self._nodes)}"
        contributed = kind.startswith("Q") and kind != "QLinearConv"
        domain = _CONTRIBUTED if contributed else ""
        made = self._helper.make_node(
            kind, [*inputs], [output], domain=domain, **attributes
        )
        self._nodes.append(made)
        return output

    def quantization(self, operand: BoundOperand) -> list[str]:
        """Return scale and zero point of codes, as constants."""
        scale = self.constant(operand.scale, np.float32)
        return [scale, self.constant(_zero_point(operand), np.uint8)]

    def operand(self, step: Step, number: int) -> list[str]:
        """Return input ``number``, with its scale and zero point if it has codes."""
        operand, name = step.operation.input(number), f"t{step.inputs[number]}"
        if operand.value is not None:
            name = self.constant(_converted(operand.value), None)
        return [name, *(self.quantization(operand) if _has_codes(operand) else ())]

    def finish(
        self,
        step: Step,
        activation: FusedActivationFunc,
        kind: str,
        inputs: Sequence[str],
        **attributes: Any,
    ) -> None:
        """Add the node that makes the step's output, and its activation if need be."""
        output, name = step.operation.outputs[0], f"t{step.outputs[0]}"
        bounds = _bounds(activation, output)
        if bounds is None:
            self.node(kind, inputs, name, **attributes)
            return
        made = self.node(kind, inputs, **attributes)
        dtype = np.uint8 if _has_codes(output) else np.float32
        limits = [self.constant(each, dtype) for each in bounds]
        self.node("Clip", [made, *limits], name)

    def finish_linear(self, step: Step, *what: Any, **attributes: Any) -> None:
        """Do so with a node that, for codes, takes their quantization at last."""
        activation, kind, inputs = what
        output = step.operation.outputs[0]
        if _has_codes(output):
            kind, inputs = f"QLinear{kind}", [*inputs, *self.quantization(output)]
        self.finish(step, activation, kind, inputs, **attributes)

    def file(self, *sides: Sequence[tuple[int, Any, Shape | None]]) -> bytes:
        helper = self._helper
        inputs, outputs = ([self._value(*each) for each in ports] for ports in sides)
        graph = helper.make_graph(
            self._nodes, "model", inputs, outputs, self._constants
        )
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIBUTED, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        contents: bytes = model.SerializeToString()
        return contents

    def _value(self, index: int, dtype: Any, shape: Shape | None) -> Any:
        if shape is not None and len(shape) == 4:
            shape = tuple(shape[axis] for axis in NHWC_TO_NCHW)
        codes = np.dtype(np.uint8) if dtype == np.int8 else dtype
        element = self._helper.np_dtype_to_tensor_dtype(codes)
        return self._helper.make_tensor_value_info(f"t{index}", element, shape)


def _has_codes(operand: BoundOperand) -> bool:
    return operand.dtype.itemsize == 1


def _zero_point(operand: BoundOperand) -> int:
    return operand.zero_point + (_SIGN if operand.dtype == np.int8 else 0)


def _bounds(
    activation: FusedActivationFunc, output: BoundOperand
) -> tuple[float, float] | None:
    """Return the smallest and largest value, None if the type's range sees to it."""
    if activation not in _BOUNDS:
        return None
    low, high = _BOUNDS[activation]
    if not _has_codes(output):
        return low, high
    codes = [
        round(real / output.scale) if np.isfinite(real) else _CODES
        for real in (low, high)
    ]
    zero = _zero_point(output)
    low, high = (min(max(code + zero, 0), _CODES - 1) for code in codes)
    return None if (low, high) == (0, _CODES - 1) else (low, high)


def _windowed(window: Window2D) -> dict[str, Any]:
    if window.nchw:
        raise _has_no_onnx_form("a window over NCHW images")
    axes = window.height, window.width
    return {
        "kernel_shape": [axis.filter for axis in axes],
        "strides": [axis.stride for axis in axes],
        "pads": [*(a.before for a in axes), *(a.after for a in axes)],
    }


def _convolution(graph: _OnnxGraph, step: Step) -> None:
    _convolve(graph, step, convolution_window(step.operation), (0, 3, 1, 2), 1)


def _depthwise(graph: _OnnxGraph, step: Step) -> None:
    window = convolution_window(step.operation, "depth_multiplier")
    _convolve(graph, step, window, (3, 0, 1, 2), step.operation.shape(0)[3])


def _convolve(
    graph: _OnnxGraph, step: Step, window: Window2D, order: Shape, groups: int
) -> None:
    """Write a convolution; ``order`` are the axes of its filters as ONNX has them."""
    operation = step.operation
    filters, bias = (operation.input(number).require_value() for number in (1, 2))
    attributes = _windowed(window) | {
        "group": groups,
        "dilations": [window.height.dilation, window.width.dilation],
    }
    weights = graph.constant(filters.transpose(order), filters.dtype)
    inputs, kind = [*graph.operand(step, 0), weights], "Conv"
    if _has_codes(operation.outputs[0]):
        inputs += _of_weights(graph, operation.input(1))
        inputs += graph.quantization(operation.outputs[0])
        kind = "QLinearConv"
    inputs.append(graph.constant(bias, bias.dtype))
    graph.finish(step, window.activation, kind, inputs, **attributes)


def _of_weights(graph: _OnnxGraph, filters: BoundOperand) -> list[str]:
    """Return scales and zero points of filters, one each or one for each channel."""
    scales: Any = filters.scale
    zeros: Any = np.array(filters.zero_point, filters.dtype)
    if filters.channel_quant is not None:
        scales = filters.channel_quant.scales
        zeros = np.zeros(len(scales), filters.dtype)
    return [graph.constant(scales, np.float32), graph.constant(zeros, None)]


def _fully_connected(graph: _OnnxGraph, step: Step) -> None:
    operation = step.operation
    weights, bias = (operation.input(number).require_value() for number in (1, 2))
    rows, *quantization = graph.operand(step, 0)
    if len(operation.shape(0)) != 2:
        shape = graph.constant([-1, weights.shape[1]], np.int64)
        rows = graph.node("Reshape", [_channels_last(graph, step, rows), shape])
    inputs = [rows, *quantization, graph.constant(weights, weights.dtype)]
    sums = graph.constant(bias, bias.dtype)
    if not quantization:
        graph.finish(step, operation.activation(3), "Gemm", [*inputs, sums], transB=1)
        return
    inputs += [*_of_weights(graph, operation.input(1)), sums]
    inputs += graph.quantization(operation.outputs[0])
    graph.finish(step, operation.activation(3), "QGemm", inputs, transB=1)


def _average(graph: _OnnxGraph, step: Step) -> None:
    window = pool_window(step.operation)
    what = window.activation, "AveragePool", graph.operand(step, 0)
    graph.finish_linear(step, *what, **_windowed(window))


def _add(graph: _OnnxGraph, step: Step) -> None:
    operation = step.operation
    if len(operation.shape(0)) != len(operation.shape(1)):
        raise _has_no_onnx_form("ADD of two ranks")
    inputs = [*graph.operand(step, 0), *graph.operand(step, 1)]
    graph.finish_linear(step, operation.activation(2), "Add", inputs)


def _softmax(graph: _OnnxGraph, step: Step) -> None:
    operation = step.operation
    if operation.real(1) != 1 or len(operation.shape(0)) != 2:
        raise _has_no_onnx_form("SOFTMAX of such a rank or factor")
    contributed = {"opset": 13} if _has_codes(operation.outputs[0]) else {}
    what = FusedActivationFunc.NONE, "Softmax", graph.operand(step, 0)
    graph.finish_linear(step, *what, axis=-1, **contributed)


def _reshape(graph: _OnnxGraph, step: Step) -> None:
    operation = step.operation
    name = _channels_last(graph, step, graph.operand(step, 0)[0])
    wanted = operation.outputs[0].require_shape()
    inputs = [name, graph.constant(wanted, np.int64)]
    if len(wanted) == 4:
        inputs = [graph.node("Reshape", inputs)]
        output = f"t{step.outputs[0]}"
        graph.node("Transpose", inputs, output, perm=[*NHWC_TO_NCHW])
    else:
        graph.finish(step, FusedActivationFunc.NONE, "Reshape", inputs)


def _channels_last(graph: _OnnxGraph, step: Step, name: str) -> str:
    """Return input 0 in the HAL's order of elements."""
    shape = step.operation.shape(0)
    if len(shape) != 4 or shape[1] == shape[2] == 1:
        return name
    return graph.node("Transpose", [name], perm=[*NCHW_TO_NHWC])


_WRITERS: dict[Any, Callable[[_OnnxGraph, Step], None]] = {
    OperationType.ADD: _add,
    OperationType.AVERAGE_POOL_2D: _average,
    OperationType.CONV_2D: _convolution,
    OperationType.DEPTHWISE_CONV_2D: _depthwise,
    OperationType.FULLY_CONNECTED: _fully_connected,
    OperationType.RESHAPE: _reshape,
    OperationType.SOFTMAX: _softmax,
}
