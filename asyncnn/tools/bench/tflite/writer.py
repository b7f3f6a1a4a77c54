"""Writes TFLite files with the schema that LiteRT carries."""

from collections.abc import Sequence
from typing import Any

import flatbuffers  # type: ignore[import-untyped]
import numpy as np

from asyncnn.hal.operations.bound import Array
from asyncnn.tools.bench.litert import litert_module

_FILE_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3

_TYPE_NAMES = {
    np.dtype(np.float32): "FLOAT32",
    np.dtype(np.int32): "INT32",
    np.dtype(np.int8): "INT8",
}


class TfliteWriter:
    """Collects tensors and operators of one subgraph; `finish` returns the file.

    ``schema`` is LiteRT's module of generated classes. Tensors are known by the index
    that the method adding them returns.

    :raises PeerMissingError: if LiteRT is not installed.
    """

    def __init__(self) -> None:
        self.schema: Any = litert_module("schema_py_generated")
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._codes: list[Any] = []
        self._code_indexes: dict[tuple[str, int], int] = {}
        self._buffers: list[Any] = [self.schema.BufferT()]

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        *,
        scale: float = 0.0,
        zero_point: int = 0,
    ) -> int:
        """Add a tensor that is computed or an input; scale 0 means not quantised."""
        scales = np.array([scale], np.float32) if scale else None
        return self._add(name, shape, dtype, 0, scales, zero_point, 0)

    def constant(
        self, name: str, array: Array, *, scales: Array | None = None, axis: int = 0
    ) -> int:
        """Add weights, quantised with one scale for each index along ``axis``."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        self._buffers.append(self.schema.BufferT(data=data))
        buffer = len(self._buffers) - 1
        return self._add(name, array.shape, array.dtype, buffer, scales, 0, axis)

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
        of it like `Pool2DOptionsT`.
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
        shape: Sequence[int],
        dtype: np.dtype[Any],
        buffer: int,
        scales: Array | None,
        zero_point: int,
        axis: int,
    ) -> int:
        tensor = self.schema.TensorT(
            name=name,
            shape=[*shape],
            type=getattr(self.schema.TensorType, _TYPE_NAMES[np.dtype(dtype)]),
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
