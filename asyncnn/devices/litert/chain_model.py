"""A small model whose results are exact: what LiteRT is tried on."""

from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np
import tflite  # type: ignore[import-untyped]
from numpy.typing import NDArray

Array = NDArray[np.float32]

_IDENTIFIER = b"TFL3"
_VERSION = 3
_FULLY_CONNECTED, _BITCAST = 0, 1
_INPUT, _WEIGHTS, _BIAS, _FIRST = 0, 1, 2, 3


class Chain:
    """Fully connected layers in a row, with a barrier behind each.

    The input and both outputs, the first layer's and the last one's, are float32
    [rows, width]. Weights permute the columns and change signs, the bias is whole
    numbers: no rounding whatever the order of sums, as long as inputs are small whole
    numbers. XNNPACK takes no BITCAST, so LiteRT computes each layer as a node.
    """

    def __init__(self, links: int, rows: int, width: int) -> None:
        self._links, self._shape = links, (rows, width)
        random = np.random.default_rng(width)
        signs = random.choice(np.array([-1, 1], np.float32), width)
        self._weights: Array = np.diag(signs)[random.permutation(width)]
        self._bias: Array = random.integers(-3, 4, width).astype(np.float32)

    def expected(self, x: Array) -> tuple[Array, Array]:
        """Return both outputs for an input."""
        results = [x]
        for _ in range(self._links):
            results.append(results[-1] @ self._weights.T + self._bias)
        return results[1], results[-1]

    def model(self) -> bytes:
        """Return the TFLite flatbuffer."""
        return _Writer(self._links, self._shape, self._weights, self._bias).finish()


class _Writer:
    """Writes a chain; flatbuffers are written from the leaves to the root."""

    def __init__(
        self, links: int, shape: tuple[int, int], weights: Array, bias: Array
    ) -> None:
        self._builder: Any = flatbuffers.Builder(0)
        self._links, self._shape = links, shape
        self._constants = (weights, bias)

    def finish(self) -> bytes:
        buffers = self._vector(
            [self._buffer(None), *map(self._buffer, self._constants)]
        )
        codes = self._vector(
            [
                self._code(tflite.BuiltinOperator.FULLY_CONNECTED),
                self._code(tflite.BuiltinOperator.BITCAST),
            ]
        )
        graphs = self._vector([self._graph()])
        build = self._builder
        tflite.ModelStart(build)
        tflite.ModelAddVersion(build, _VERSION)
        tflite.ModelAddOperatorCodes(build, codes)
        tflite.ModelAddSubgraphs(build, graphs)
        tflite.ModelAddBuffers(build, buffers)
        build.Finish(tflite.ModelEnd(build), _IDENTIFIER)
        return bytes(build.Output())

    def _graph(self) -> int:
        weights, bias = self._constants
        tensors = [
            self._tensor(self._shape),
            self._tensor(weights.shape, buffer=1),
            self._tensor(bias.shape, buffer=2),
        ]
        operators, source, layers = [], _INPUT, []
        for _ in range(self._links):
            layer, barrier = len(tensors), len(tensors) + 1
            tensors += [self._tensor(self._shape) for _ in range(2)]
            operators += [
                self._operator(_FULLY_CONNECTED, [source, _WEIGHTS, _BIAS], layer),
                self._operator(_BITCAST, [layer], barrier),
            ]
            layers.append(layer)
            source = barrier
        made = [self._vector(tensors), self._vector(operators)]
        inputs = self._numbers([_INPUT])
        outputs = self._numbers([_FIRST + 1, source])
        build = self._builder
        tflite.SubGraphStart(build)
        tflite.SubGraphAddTensors(build, made[0])
        tflite.SubGraphAddInputs(build, inputs)
        tflite.SubGraphAddOutputs(build, outputs)
        tflite.SubGraphAddOperators(build, made[1])
        return int(tflite.SubGraphEnd(build))

    def _operator(self, code: int, inputs: list[int], output: int) -> int:
        build = self._builder
        tflite.FullyConnectedOptionsStart(build)
        options = tflite.FullyConnectedOptionsEnd(build)
        taken, made = self._numbers(inputs), self._numbers([output])
        tflite.OperatorStart(build)
        tflite.OperatorAddOpcodeIndex(build, code)
        tflite.OperatorAddInputs(build, taken)
        tflite.OperatorAddOutputs(build, made)
        if code == _FULLY_CONNECTED:
            kind = tflite.BuiltinOptions.FullyConnectedOptions
            tflite.OperatorAddBuiltinOptionsType(build, kind)
            tflite.OperatorAddBuiltinOptions(build, options)
        return int(tflite.OperatorEnd(build))

    def _tensor(self, shape: tuple[int, ...], buffer: int = 0) -> int:
        build = self._builder
        dimensions = self._numbers(list(shape))
        tflite.TensorStart(build)
        tflite.TensorAddShape(build, dimensions)
        tflite.TensorAddType(build, tflite.TensorType.FLOAT32)
        tflite.TensorAddBuffer(build, buffer)
        return int(tflite.TensorEnd(build))

    def _buffer(self, content: Array | None) -> int:
        build = self._builder
        data = None
        if content is not None:
            flat = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
            build.StartVector(1, flat.size, 16)  # aligned as the schema demands
            build.head -= flat.size
            build.Bytes[build.head : build.head + flat.size] = flat.tobytes()
            data = build.EndVector()
        tflite.BufferStart(build)
        if data is not None:
            tflite.BufferAddData(build, data)
        return int(tflite.BufferEnd(build))

    def _code(self, operator: int) -> int:
        build = self._builder
        tflite.OperatorCodeStart(build)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(build, min(operator, 127))
        tflite.OperatorCodeAddBuiltinCode(build, operator)
        tflite.OperatorCodeAddVersion(build, 1)
        return int(tflite.OperatorCodeEnd(build))

    def _numbers(self, numbers: list[int]) -> int:
        return int(self._builder.CreateNumpyVector(np.array(numbers, np.int32)))

    def _vector(self, offsets: list[int]) -> int:
        build = self._builder
        build.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            build.PrependUOffsetTRelative(offset)
        return int(build.EndVector())
