"""A TFLite graph while it is being written: tensors, constants and operators.

Tensors are numbered in the order in which they are made. A constant keeps a reference
to its array and is converted, where TFLite wants another dtype, only when the file is
made: asking whether an operation can be written costs no copy of its weights.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import ArrayLike

from asyncnn.hal.operations.bound import Array, Shape

FLOAT32, FLOAT16, INT32 = "FLOAT32", "FLOAT16", "INT32"
UINT8, INT8, BOOL = "UINT8", "INT8", "BOOL"

_DTYPES: dict[str, np.dtype[Any]] = {
    FLOAT32: np.dtype(np.float32),
    FLOAT16: np.dtype(np.float16),
    INT32: np.dtype(np.int32),
    UINT8: np.dtype(np.uint8),
    INT8: np.dtype(np.int8),
    BOOL: np.dtype(np.bool_),
}
"""NumPy dtypes of the element types that are written, by their names in the schema."""

TYPE_NAMES = tuple(_DTYPES)

_SHARED_BYTES = 256
"""Constants of so few bytes are the same one if their contents are."""

Convert: TypeAlias = Callable[[Array], Array]


class WrittenTensor(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A tensor of the graph. Real value = ``scale * (stored - zero_point)``.

    With ``scales``, which are float32, there is one for each index of ``axis``, and
    ``scale`` is 0.
    ``buffer`` is the position of its constant, None if it is computed or an input.
    """

    number: int
    type: str
    shape: Shape
    scale: float = 0.0
    zero_point: int = 0
    scales: bytes = b""
    axis: int = 0
    buffer: int | None = None

    @property
    def quantization(self) -> tuple[float, int]:
        """Scale and zero point; (0, 0) if it is not quantised."""
        return self.scale, self.zero_point


class Constant(msgspec.Struct, frozen=True, eq=False, gc=False):
    """Bytes of the file: ``array``, converted by ``convert`` to ``dtype``."""

    array: Array
    dtype: np.dtype[Any]
    convert: Convert | None

    @property
    def size_bytes(self) -> int:
        """Bytes that it takes in the file."""
        return self.array.size * self.dtype.itemsize

    def data(self) -> Array:
        """Return its bytes as one axis of uint8, uncopied where nothing changes."""
        array = self.array if self.convert is None else self.convert(self.array)
        flat = np.ascontiguousarray(array, self.dtype).reshape(-1)
        return flat.view(np.uint8)


class OperatorOptions(msgspec.Struct, frozen=True, gc=False):
    """An options table of the schema, such as Pool2DOptions, and its scalar fields."""

    kind: str
    fields: tuple[tuple[str, float], ...]


def options(kind: str, **fields: float) -> OperatorOptions:
    """Return the table called ``kind`` with these fields, by their schema's names."""
    return OperatorOptions(kind, tuple(fields.items()))


class WrittenOperator(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One operator; a name of `BuiltinOperator`, and numbers of tensors."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: OperatorOptions | None
    version: int


_SIGNED_VERSIONS = {
    "BATCH_MATMUL": 2,
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "FULLY_CONNECTED": 4,
    "HARD_SWISH": 1,
    "MIRROR_PAD": 2,
    "PRELU": 1,
    "RELU_N1_TO_1": 1,
    "RESHAPE": 1,
    "BITCAST": 1,
    "REVERSE_V2": 3,
}
"""Versions of operators whose first int8 version is not 2."""


class WrittenGraph:
    """Tensors, constants and operators in order."""

    def __init__(self) -> None:
        self.tensors: list[WrittenTensor] = []
        self.constants: list[Constant] = []
        self.operators: list[WrittenOperator] = []
        self._buffers: dict[object, int] = {}

    def tensor(
        self, type_: str, shape: Shape, scale: float = 0.0, zero_point: int = 0
    ) -> WrittenTensor:
        """Add a tensor that an operator computes, or that is an input."""
        return self._add(
            WrittenTensor(len(self.tensors), type_, shape, scale, zero_point)
        )

    def like(self, other: WrittenTensor, shape: Shape | None = None) -> WrittenTensor:
        """Add a tensor of the type and quantisation of ``other``."""
        shape = other.shape if shape is None else shape
        return self.tensor(other.type, shape, other.scale, other.zero_point)

    def constant(
        self,
        type_: str,
        array: Array,
        quantization: tuple[float, int] = (0.0, 0),
        convert: Convert | None = None,
        scales: bytes = b"",
        axis: int = 0,
    ) -> WrittenTensor:
        """Add a constant; the bytes of the same array are written once."""
        fields = *quantization, scales, axis, self._buffer(type_, array, convert)
        number = len(self.tensors)
        return self._add(WrittenTensor(number, type_, array.shape, *fields))

    def integers(self, values: ArrayLike) -> WrittenTensor:
        """Add an int32 constant: axes, sizes, a permutation."""
        return self.constant(INT32, np.asarray(values, np.int32))

    def real(self, value: float) -> WrittenTensor:
        """Add a float32 constant of one element."""
        return self.constant(FLOAT32, np.array([value], np.float32))

    def operator(
        self,
        name: str,
        inputs: Sequence[WrittenTensor],
        outputs: Sequence[WrittenTensor],
        table: OperatorOptions | None = None,
        version: int | None = None,
    ) -> None:
        """Add an operator; its version follows from its types unless given."""
        if version is None:
            is_signed = INT8 in [tensor.type for tensor in (*inputs, *outputs)]
            version = _SIGNED_VERSIONS.get(name, 2) if is_signed else 1
        self.operators.append(
            WrittenOperator(
                name,
                tuple([tensor.number for tensor in inputs]),
                tuple([tensor.number for tensor in outputs]),
                table,
                version,
            )
        )

    def repeat(self, tensors: int, operators: int, turns: int, row: int) -> int:
        """Add the computed floats and operators from these numbers on again.

        What they read of themselves, or of an equal part before, moves on with them;
        instead of ``row`` each of the ``turns`` reads the next tensor. Returns how many
        tensors each has.
        """
        part, operations = self.tensors[tensors:], self.operators[operators:]
        length = len(part)
        own = range(tensors - length, tensors + length)
        for turn in range(1, turns + 1):
            begun = turn * length
            self.tensors += [
                WrittenTensor(each.number + begun, each.type, each.shape)
                for each in part
            ]
            moved = [*range(own.start), *range(own.start + begun, own.stop + begun)]
            moved[row] = row + turn
            self._operate_again(operations, moved)
        return length

    def append(
        self, other: "WrittenGraph", known: dict[int, WrittenTensor]
    ) -> list[WrittenTensor]:
        """Add all of another graph; return its tensors, as they are here.

        Those in ``known``, by their numbers there, are here already.
        """
        numbers = [each.number for each in known.values()]
        all_here = [*range(len(self.tensors))]
        if not self.operators and [*known] == numbers == all_here:
            # As the first operation of most segments has it: nothing gets a new number.
            self.tensors += other.tensors[len(known) :]
            self.operators += other.operators
            self.constants += other.constants
            self._buffers |= other._buffers
            return self.tensors[:]
        buffers = [
            self._shared_buffer(key, other.constants[position])
            for key, position in other._buffers.items()
        ]
        tensors = []
        for tensor in other.tensors:
            here = known.get(tensor.number)
            if here is None:
                _, *fields, place = astuple(tensor)
                fields.append(None if place is None else buffers[place])
                here = self._add(WrittenTensor(len(self.tensors), *fields))
            tensors.append(here)
        self._operate_again(other.operators, [tensor.number for tensor in tensors])
        return tensors

    def _operate_again(
        self, operators: Sequence[WrittenOperator], moved: Sequence[int]
    ) -> None:
        """Add operators, on tensors of these numbers in place of their own."""
        self.operators += [
            WrittenOperator(
                each.name,
                tuple([moved[number] for number in each.inputs]),
                tuple([moved[number] for number in each.outputs]),
                each.options,
                each.version,
            )
            for each in operators
        ]

    def _add(self, tensor: WrittenTensor) -> WrittenTensor:
        self.tensors.append(tensor)
        return tensor

    def _buffer(self, type_: str, array: Array, convert: Convert | None) -> int:
        dtype = _DTYPES[type_]
        key: object = (id(array), dtype, convert)
        if convert is None and array.nbytes <= _SHARED_BYTES:
            key = (array.astype(dtype).tobytes(), dtype)
        return self._shared_buffer(key, Constant(array, dtype, convert))

    def _shared_buffer(self, key: object, constant: Constant) -> int:
        """Return the position of a constant, the same for the same ``key``."""
        if key not in self._buffers:
            self._buffers[key] = len(self.constants)
            self.constants.append(constant)
        return self._buffers[key]


def elements(shape: Shape) -> int:
    """Return how many elements a tensor of this shape has."""
    return math.prod(shape)
