"""Writes model files in LiteRT's schema, such as the project's own reference models."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import flatbuffers  # type: ignore[import-untyped]
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.tools.other_runtimes import litert_module

_FILE_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3

_HALF = 128
"""What a code is more without a sign than with it."""

Quantization: TypeAlias = tuple[float, int]
"""Scale and zero point of an int8 tensor."""


class TfliteWriter:
    """Collects tensors and operators of one subgraph; `finish` returns the file.

    ``schema`` is LiteRT's module of generated classes. Tensors are known by the index
    that the method adding them returns. All are float32, or int8 with int32 biases if
    ``quantized``; constants are random, the same for the same ``seed``. If it is
    ``unsigned``, codes are uint8, and weights have one scale, as before there were
    scales for channels.

    :raises PeerMissingError: if LiteRT is not installed.
    """

    def __init__(self, *, quantized: bool, seed: int, unsigned: bool = False) -> None:
        self.schema: Any = litert_module("schema_py_generated")
        self._quantized = quantized
        self._unsigned = unsigned
        self._rng = np.random.default_rng(seed)
        self._weight_scales: Array = np.ones(1, np.float32)
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._codes: list[Any] = []
        self._code_indexes: dict[tuple[str, int], int] = {}
        self._buffers: list[Any] = [self.schema.BufferT()]

    def tensor(self, name: str, shape: Dimensions, quantization: Quantization) -> int:
        """Add a tensor that is computed or an input."""
        if not self._quantized:
            return self._add(name, shape, "FLOAT32")
        scale, zero_point = quantization
        scales = np.array([scale], np.float32)
        if self._unsigned:
            zero_point += _HALF
            return self._add(name, shape, "UINT8", scales, zero_point=zero_point)
        return self._add(name, shape, "INT8", scales, zero_point=zero_point)

    def state(self, name: str, shape: Dimensions) -> int:
        """Add a float32 tensor that is kept from run to run, zeros at first."""
        index = self._add(name, shape, "FLOAT32")
        self._tensors[index].isVariable = True
        return index

    def constant(
        self,
        name: str,
        array: Array,
        scales: Array | None = None,
        axis: int = 0,
        zero_point: int = 0,
    ) -> int:
        """Add a constant, quantised with one scale for each index along ``axis``."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._buffers.append(self.schema.BufferT(data=data))
        type_ = array.dtype.name.upper()
        return self._add(
            name,
            array.shape,
            type_,
            scales,
            buffer=len(self._buffers) - 1,
            zero_point=zero_point,
            axis=axis,
        )

    def weights(
        self, name: str, shape: Dimensions, axis: int | None, deviation: float
    ) -> int:
        """Add weights with a scale for each index along ``axis``, or one if None."""
        values = self._rng.normal(0, deviation, shape).astype(np.float32)
        if not self._quantized:
            return self.constant(name, values)
        if self._unsigned:
            axis = None
        others = tuple(i for i in range(values.ndim) if i != axis)
        scales = np.abs(values).max(others, keepdims=True) / np.float32(127)
        integers = np.rint(values / scales)
        self._weight_scales = scales.reshape(-1)
        if self._unsigned:
            codes = (integers + _HALF).astype(np.uint8)
            return self.constant(name, codes, self._weight_scales, zero_point=_HALF)
        codes = integers.astype(np.int8)
        return self.constant(name, codes, self._weight_scales, axis or 0)

    def bias(self, name: str, size: int, data_scale: float) -> int:
        """Add the bias of the last weights, for data of ``data_scale``."""
        values = self._rng.normal(0, 0.1, size).astype(np.float32)
        if not self._quantized:
            return self.constant(name, values)
        scales = np.float32(data_scale) * self._weight_scales
        return self.constant(name, np.rint(values / scales).astype(np.int32), scales)

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        output: int,
        options: Any = None,
        *,
        version: int = 1,
    ) -> None:
        """Add an operator.

        ``name`` is a member of the schema's `BuiltinOperator`, ``options`` an object
        of it like `Pool2DOptionsT`. An input of -1 is one that is left out.
        """
        operator = self.schema.OperatorT(
            opcodeIndex=self._code(name, version), inputs=[*inputs], outputs=[output]
        )
        if options is not None:
            kind = type(options).__name__.removesuffix("T")
            operator.builtinOptionsType = getattr(self.schema.BuiltinOptions, kind)
            operator.builtinOptions = options
        self._operators.append(operator)

    def finish(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """Return the bytes of the file."""
        subgraph = self.schema.SubGraphT(
            tensors=self._tensors,
            inputs=[*inputs],
            outputs=[*outputs],
            operators=self._operators,
        )
        model = self.schema.ModelT(
            version=_SCHEMA_VERSION,
            operatorCodes=self._codes,
            subgraphs=[subgraph],
            buffers=self._buffers,
        )
        builder = flatbuffers.Builder()
        builder.Finish(model.Pack(builder), file_identifier=_FILE_IDENTIFIER)
        return bytes(builder.Output())

    def _code(self, name: str, version: int) -> int:
        key = (name, version)
        if key not in self._code_indexes:
            number = getattr(self.schema.BuiltinOperator, name)
            self._code_indexes[key] = len(self._codes)
            self._codes.append(
                self.schema.OperatorCodeT(
                    deprecatedBuiltinCode=number, builtinCode=number, version=version
                )
            )
        return self._code_indexes[key]

    def _add(
        self,
        name: str,
        shape: Dimensions,
        type_: str,
        scales: Array | None = None,
        *,
        buffer: int = 0,
        zero_point: int = 0,
        axis: int = 0,
    ) -> int:
        tensor = self.schema.TensorT(
            name=name,
            shape=[*shape],
            type=getattr(self.schema.TensorType, type_),
            buffer=buffer,
        )
        if scales is not None:
            tensor.quantization = self.schema.QuantizationParametersT(
                scale=scales.astype(np.float32),
                zeroPoint=np.full(scales.shape, zero_point, np.int64),
                quantizedDimension=axis,
            )
        self._tensors.append(tensor)
        return len(self._tensors) - 1
