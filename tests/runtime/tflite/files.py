"""Writes small TFLite files for tests."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

TYPES = {
    np.dtype(np.float32): tflite.TensorType.FLOAT32,
    np.dtype(np.float16): tflite.TensorType.FLOAT16,
    np.dtype(np.int64): tflite.TensorType.INT64,
    np.dtype(np.int32): tflite.TensorType.INT32,
    np.dtype(np.int16): tflite.TensorType.INT16,
    np.dtype(np.int8): tflite.TensorType.INT8,
    np.dtype(np.uint8): tflite.TensorType.UINT8,
    np.dtype(np.bool_): tflite.TensorType.BOOL,
}
BEHIND = b"BEHINDIT"
"""Stands for the offset of data behind the flatbuffer until that is known."""

VERSIONS = {"BROADCAST_TO": 2}
"""Oldest versions of operators that began later than with 1."""

NUMBERS = {name: code for code, name in tflite.BUILTIN_OPCODE2NAME.items()}


@dataclass(frozen=True, eq=False)
class T:
    """A tensor: a constant if ``data`` is given, quantised if ``scale`` is.

    A ``variable`` lasts from one inference to the next. ``behind`` puts the data behind
    the flatbuffer, as in files above 2 GiB.
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

    @classmethod
    def constant(cls, data: Any, dtype: Any = np.int32, **rest: Any) -> "T":
        array = np.asarray(data, dtype)
        return cls(array.dtype, array.shape, array, **rest)


@dataclass(frozen=True, eq=False)
class Op:
    """An operator on tensors; None is an input left out.

    A name that the schema does not know is that of a custom operator.
    """

    name: str
    inputs: Sequence[T | None]
    outputs: Sequence[T]
    options: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict)
    intermediates: Sequence[T] = ()


def given(operator: Op) -> list[T]:
    """Return the inputs, each once, that are neither constants nor states."""
    tensors = [t for t in operator.inputs if t and t.data is None and not t.variable]
    return list(dict.fromkeys(tensors))


def write(
    operators: Sequence[Op],
    inputs: Sequence[T],
    outputs: Sequence[T],
    *,
    version: int = 3,
    subgraphs: int = 1,
) -> bytes:
    """Return the bytes of a file with these operators, in this order."""
    return _Writer(operators, inputs, outputs).file(version, subgraphs)


class _Writer:
    def __init__(
        self, operators: Sequence[Op], inputs: Sequence[T], outputs: Sequence[T]
    ) -> None:
        self.builder = flatbuffers.Builder(1024)
        self.operators = operators
        self.inputs = inputs
        self.outputs = outputs
        self.tensors: list[T] = []
        for tensor in [
            *inputs,
            *(
                t
                for op in operators
                for t in (*op.inputs, *op.intermediates, *op.outputs)
            ),
            *outputs,
        ]:
            if tensor is not None and tensor not in self.tensors:
                self.tensors.append(tensor)

    def file(self, version: int, subgraphs: int) -> bytes:
        names = sorted({operator.name for operator in self.operators})
        codes = self.offsets([self.code(name) for name in names])
        buffers = self.offsets(
            [self.table("Buffer")] + [self.buffer(t) for t in self.tensors]
        )
        graphs = self.offsets([self.graph(names)] * subgraphs)
        model = self.table(
            "Model",
            Version=version,
            OperatorCodes=codes,
            Subgraphs=graphs,
            Buffers=buffers,
        )
        self.builder.Finish(model, file_identifier=b"TFL3")
        file = bytes(self.builder.Output())
        for tensor in self.tensors:
            if tensor.behind:
                file = file.replace(BEHIND, struct.pack("<Q", len(file)), 1)
                file += tensor.data.tobytes()
        return file

    def graph(self, names: list[str]) -> int:
        tensors = self.offsets([self.tensor(k) for k in range(len(self.tensors))])
        operators = self.offsets([self.operator(op, names) for op in self.operators])
        return self.table(
            "SubGraph",
            Tensors=tensors,
            Inputs=self.indexes(self.inputs),
            Outputs=self.indexes(self.outputs),
            Operators=operators,
        )

    def tensor(self, index: int) -> int:
        tensor = self.tensors[index]
        return self.table(
            "Tensor",
            Shape=self.vector(tensor.shape, np.int32),
            Type=TYPES[np.dtype(tensor.dtype)],
            Buffer=index + 1,
            Name=self.builder.CreateString(tensor.name or f"t{index}"),
            IsVariable=tensor.variable,
            Quantization=self.table(
                "QuantizationParameters",
                Scale=self.vector(tensor.scale, np.float32),
                ZeroPoint=self.vector(
                    tensor.zero_point or [0] * len(tensor.scale), np.int64
                ),
                QuantizedDimension=tensor.axis,
            ),
        )

    def operator(self, operator: Op, names: list[str]) -> int:
        fields = {
            "OpcodeIndex": names.index(operator.name),
            "Inputs": self.indexes(operator.inputs),
            "Outputs": self.indexes(operator.outputs),
            "Intermediates": self.indexes(operator.intermediates),
        }
        if operator.options:
            kind = operator.options
            fields["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, kind)
            fields["BuiltinOptions"] = self.table(
                kind,
                **{
                    name: self.vector(value, np.int32)
                    if isinstance(value, list)
                    else value
                    for name, value in operator.fields.items()
                },
            )
        return self.table("Operator", **fields)

    def code(self, name: str) -> int:
        number = NUMBERS.get(name, NUMBERS["CUSTOM"])
        fields = {
            "DeprecatedBuiltinCode": min(number, 127),
            "BuiltinCode": number,
            "Version": VERSIONS.get(name, 1),
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

    def indexes(self, tensors: Sequence[T | None]) -> int:
        return self.vector(
            [-1 if t is None else self.tensors.index(t) for t in tensors], np.int32
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
