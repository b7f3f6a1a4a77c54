"""Writes small TFLite files for tests."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import ml_dtypes
import numpy as np
import tflite
from flatbuffers import flexbuffers

TYPES = {
    np.dtype(np.float32): tflite.TensorType.FLOAT32,
    np.dtype(np.float16): tflite.TensorType.FLOAT16,
    np.dtype(np.int64): tflite.TensorType.INT64,
    np.dtype(np.int32): tflite.TensorType.INT32,
    np.dtype(np.int16): tflite.TensorType.INT16,
    np.dtype(np.int8): tflite.TensorType.INT8,
    np.dtype(np.uint8): tflite.TensorType.UINT8,
    np.dtype(np.bool_): tflite.TensorType.BOOL,
    np.dtype(np.float64): tflite.TensorType.FLOAT64,
    np.dtype(np.uint32): tflite.TensorType.UINT32,
    np.dtype(np.uint16): tflite.TensorType.UINT16,
    np.dtype(np.complex64): tflite.TensorType.COMPLEX64,
    np.dtype(ml_dtypes.int4): tflite.TensorType.INT4,
    np.dtype(object): tflite.TensorType.RESOURCE,
    np.dtype(np.bytes_): tflite.TensorType.STRING,
}
BEHIND = b"BEHINDIT"
"""Stands for the offset of data behind the flatbuffer until that is known."""

VERSIONS = {"BROADCAST_TO": 2}
"""Oldest versions of operators that began later than with 1."""

NUMBERS = {name: code for code, name in tflite.BUILTIN_OPCODE2NAME.items()}


@dataclass(frozen=True)
class Level:
    """One axis of a sparse tensor, as it is stored: dense, or with segments."""

    size: int = 0
    segments: Sequence[int] = ()
    indices: Sequence[int] = ()
    dtype: Any = np.int32

    @property
    def is_dense(self) -> bool:
        return not self.segments


@dataclass(frozen=True)
class Sparse:
    """How the data of a tensor, which are only those stored, lie in it."""

    order: Sequence[int]
    blocks: Sequence[int]
    levels: Sequence[Level]


@dataclass(frozen=True, eq=False)
class T:
    """A tensor: a constant if ``data`` is given, quantised if ``scale`` is.

    A ``variable`` lasts from one inference to the next. ``behind`` puts the data behind
    the flatbuffer, as in files above 2 GiB. ``signature`` is its shape with -1 for what
    the application may choose. ``details`` is the kind of a custom quantisation.
    """

    dtype: Any = np.float32
    shape: Sequence[int] = (1, 4)
    data: Any = None
    scale: Sequence[float] = ()
    zero_point: Sequence[int] = ()
    axis: int = 0
    name: str = ""
    variable: bool = False
    behind: bool = False
    sparse: "Sparse | None" = None
    signature: Sequence[int] = ()
    details: int = 0

    @classmethod
    def constant(cls, data: Any, dtype: Any = np.int32, **rest: Any) -> "T":
        array = np.asarray(data, dtype)
        return cls(array.dtype, array.shape, array, **rest)


@dataclass(frozen=True, eq=False)
class Op:
    """An operator on tensors; None is an input left out.

    A name that the schema does not know is that of a custom operator, whose options are
    the bytes ``custom``. Version 0 stands for the oldest one.
    """

    name: str
    inputs: Sequence[T | None]
    outputs: Sequence[T]
    options: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    intermediates: Sequence[T] = ()
    custom: bytes = b""
    version: int = 0


def flex(options: Mapping[str, Any]) -> bytes:
    """Return a map of options as MediaPipe and detection have them."""
    builder = flexbuffers.Builder()
    with builder.Map():
        for key, value in options.items():
            builder.Key(key)
            if isinstance(value, list):
                builder.TypedVectorFromElements(value)
            else:
                kinds = {bool: builder.Bool, int: builder.Int, float: builder.Float}
                kinds.get(type(value), builder.String)(value)
    return bytes(builder.Finish())


def packed(*values: int) -> bytes:
    """Return options that are the bytes of a struct of integers."""
    return struct.pack(f"<{len(values)}i", *values)


def given(operator: Op) -> list[T]:
    """Return the inputs, each once, that are neither constants nor states."""
    tensors = [t for t in operator.inputs if t and t.data is None and not t.variable]
    return list(dict.fromkeys(tensors))


@dataclass(frozen=True, eq=False)
class G:
    """A subgraph; operators refer to others by their numbers in the file."""

    operators: Sequence[Op]
    inputs: Sequence[T]
    outputs: Sequence[T]
    name: str = ""

    @property
    def tensors(self) -> list[T]:
        """Each tensor once, those of the border and their operators."""
        all_tensors = [*self.inputs]
        for op in self.operators:
            for tensor in (*op.inputs, *op.intermediates, *op.outputs):
                all_tensors += [tensor] if tensor is not None else []
        return list(dict.fromkeys([*all_tensors, *self.outputs]))


@dataclass(frozen=True)
class Signature:
    """Names of inputs and outputs of a subgraph, and their tensors."""

    name: str
    inputs: Mapping[str, T]
    outputs: Mapping[str, T]
    graph: int = 0


def write(
    operators: Sequence[Op],
    inputs: Sequence[T],
    outputs: Sequence[T],
    *others: G,
    version: int = 3,
    signatures: Sequence[Signature] = (),
    metadata: bytes = b"",
) -> bytes:
    """Return the bytes of a file with these operators, in this order.

    ``others`` are further subgraphs, from number 1.
    """
    graphs = [G(operators, inputs, outputs, "main"), *others]
    return _Writer(graphs).file(version, signatures, metadata)


class _Writer:
    def __init__(self, graphs: Sequence[G]) -> None:
        self.builder = flatbuffers.Builder(1024)
        self.graphs = graphs
        self.tensors = [tensor for graph in graphs for tensor in graph.tensors]
        operators = [op for graph in graphs for op in graph.operators]
        self.names = sorted({operator.name for operator in operators})
        self.versions = {op.name: op.version for op in operators if op.version}

    def file(
        self, version: int, signatures: Sequence[Signature], metadata: bytes
    ) -> bytes:
        codes = self.offsets([self.code(name) for name in self.names])
        buffers = [self.table("Buffer")] + [self.buffer(t) for t in self.tensors]
        fields: dict[str, int] = {}
        if metadata:
            data = self.vector(np.frombuffer(metadata, np.uint8), np.uint8)
            buffers.append(self.table("Buffer", Data=data))
            name = self.builder.CreateString("TFLITE_METADATA")
            entry = self.table("Metadata", Name=name, Buffer=len(buffers) - 1)
            fields["Metadata"] = self.offsets([entry])
        if signatures:
            fields["SignatureDefs"] = self.offsets(
                [self.signature(signature) for signature in signatures]
            )
        model = self.table(
            "Model",
            Version=version,
            OperatorCodes=codes,
            Subgraphs=self.offsets([self.graph(graph) for graph in self.graphs]),
            Buffers=self.offsets(buffers),
            **fields,
        )
        self.builder.Finish(model, file_identifier=b"TFL3")
        file = bytes(self.builder.Output())
        for tensor in self.tensors:
            if tensor.behind:
                file = file.replace(BEHIND, struct.pack("<Q", len(file)), 1)
                file += tensor.data.tobytes()
        return file

    def graph(self, graph: G) -> int:
        tensors = graph.tensors
        return self.table(
            "SubGraph",
            Tensors=self.offsets([self.tensor(k, t) for k, t in enumerate(tensors)]),
            Inputs=self.indexes(graph.inputs, tensors),
            Outputs=self.indexes(graph.outputs, tensors),
            Operators=self.offsets(
                [self.operator(op, tensors) for op in graph.operators]
            ),
            Name=self.builder.CreateString(graph.name),
        )

    def signature(self, signature: Signature) -> int:
        tensors = self.graphs[signature.graph].tensors
        return self.table(
            "SignatureDef",
            SignatureKey=self.builder.CreateString(signature.name),
            SubgraphIndex=signature.graph,
            Inputs=self.map(signature.inputs, tensors),
            Outputs=self.map(signature.outputs, tensors),
        )

    def map(self, names: Mapping[str, T], tensors: list[T]) -> int:
        return self.offsets(
            [
                self.table(
                    "TensorMap",
                    Name=self.builder.CreateString(name),
                    TensorIndex=tensors.index(tensor),
                )
                for name, tensor in names.items()
            ]
        )

    def sparsity(self, sparse: Sparse) -> int:
        return self.table(
            "SparsityParameters",
            TraversalOrder=self.vector(sparse.order, np.int32),
            BlockMap=self.vector(sparse.blocks, np.int32),
            DimMetadata=self.offsets([self.level(each) for each in sparse.levels]),
        )

    def level(self, level: Level) -> int:
        if level.is_dense:
            return self.table("DimensionMetadata", Format=0, DenseSize=level.size)
        kind = f"{np.dtype(level.dtype).name.title()}Vector"
        fields: dict[str, int] = {}
        for name in ("Segments", "Indices"):
            values = self.vector(getattr(level, name.lower()), level.dtype)
            fields[f"Array{name}Type"] = getattr(tflite.SparseIndexVector, kind)
            fields[f"Array{name}"] = self.table(kind, Values=values)
        return self.table("DimensionMetadata", Format=1, **fields)

    def tensor(self, index: int, tensor: T) -> int:
        fields = {"Sparsity": self.sparsity(tensor.sparse)} if tensor.sparse else {}
        if tensor.signature:
            fields["ShapeSignature"] = self.vector(tensor.signature, np.int32)
        return self.table(
            "Tensor",
            **fields,
            Shape=self.vector(tensor.shape, np.int32),
            Type=TYPES[np.dtype(tensor.dtype)],
            Buffer=self.tensors.index(tensor) + 1,
            Name=self.builder.CreateString(tensor.name or f"t{index}"),
            IsVariable=tensor.variable,
            Quantization=self.table(
                "QuantizationParameters",
                Scale=self.vector(tensor.scale, np.float32),
                ZeroPoint=self.vector(
                    tensor.zero_point or [0] * len(tensor.scale), np.int64
                ),
                QuantizedDimension=tensor.axis,
                DetailsType=tensor.details,
            ),
        )

    def operator(self, operator: Op, tensors: list[T]) -> int:
        fields = {
            "OpcodeIndex": self.names.index(operator.name),
            "Inputs": self.indexes(operator.inputs, tensors),
            "Outputs": self.indexes(operator.outputs, tensors),
            "Intermediates": self.indexes(operator.intermediates, tensors),
        }
        if operator.options:
            kind = operator.options
            old = hasattr(tflite.BuiltinOptions, kind)
            name = "BuiltinOptions" if old else "BuiltinOptions2"
            fields[f"{name}Type"] = getattr(getattr(tflite, name), kind)
            fields[name] = self.table(
                kind, **{k: self.option(v) for k, v in operator.fields.items()}
            )
        if operator.custom:
            options = np.frombuffer(operator.custom, np.uint8)
            fields["CustomOptions"] = self.vector(options, np.uint8)
        return self.table("Operator", **fields)

    def option(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.builder.CreateString(value)
        if isinstance(value, bytes):
            return self.vector(np.frombuffer(value, np.uint8), np.uint8)
        if not isinstance(value, list):
            return value
        is_real = any(isinstance(each, float) for each in value)
        return self.vector(value, np.float32 if is_real else np.int32)

    def code(self, name: str) -> int:
        number = NUMBERS.get(name, NUMBERS["CUSTOM"])
        fields = {
            "DeprecatedBuiltinCode": min(number, 127),
            "BuiltinCode": number,
            "Version": self.versions.get(name, VERSIONS.get(name, 1)),
        }
        if name not in NUMBERS:
            fields["CustomCode"] = self.builder.CreateString(name)
        return self.table("OperatorCode", **fields)

    def buffer(self, tensor: T) -> int:
        if tensor.data is None:
            return self.table("Buffer")
        data = np.frombuffer(tensor.data.tobytes(), np.uint8)
        if tensor.behind:
            (offset,) = struct.unpack("<Q", BEHIND)
            return self.table("Buffer", Offset=offset, Size=data.size)
        return self.table("Buffer", Data=self.vector(data, np.uint8))

    def indexes(self, chosen: Sequence[T | None], tensors: list[T]) -> int:
        return self.vector(
            [-1 if t is None else tensors.index(t) for t in chosen], np.int32
        )

    def vector(self, values: Any, dtype: Any) -> int:
        return self.builder.CreateNumpyVector(np.asarray(values, dtype))

    def offsets(self, offsets: list[int]) -> int:
        self.builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self.builder.PrependUOffsetTRelative(offset)
        return self.builder.EndVector()

    def table(self, kind: str, **fields: Any) -> int:
        getattr(tflite, f"{kind}Start")(self.builder)
        for name, value in fields.items():
            getattr(tflite, f"{kind}Add{name}")(self.builder, value)
        return int(getattr(tflite, f"{kind}End")(self.builder))
