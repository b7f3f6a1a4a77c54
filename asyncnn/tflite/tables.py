"""What a TFLite file has, as plain records: tensors, operators, graphs, signatures.

Their options alone are read later, by the generated accessors, of which modules are
loaded that these need.
"""

import math
import struct
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.lazy import module_alone
from asyncnn.tflite import flatbuffer

_EMPTY_TABLE = struct.pack("<HHi", 4, 4, 4)

generated = partial(module_alone, "tflite")
"""Returns a module of the generated reader, which has one for each table."""


def _names(enumeration: type[Any]) -> dict[int, str]:
    members = vars(enumeration).items()
    return {value: name for name, value in members if not name.startswith("_")}


TYPE_NAMES = _names(generated("TensorType").TensorType)
"""Names of the element types by their number in the schema."""

OPERATOR_NAMES = _names(generated("BuiltinOperator").BuiltinOperator)
"""Names of operators by their number in the schema."""

BUILTINS = frozenset(OPERATOR_NAMES.values())
"""Names of the operators that the schema has."""

BUILTIN_OPTIONS = _names(generated("BuiltinOptions").BuiltinOptions)
"""Names of the tables of options, by the number of their kind."""

OPTION_VECTORS = {"ReshapeOptions": 4, "SqueezeOptions": 4, "BucketizeOptions": 4}
"""Tables of options whose first field is a vector, and the bytes of an element."""

TENSOR_FORMS, QUANTIZATION_FORMS = "@bI@@B@@B", "@@@@B@i"
"""Fields of a tensor and of its quantisation; see `flatbuffer.Rows`."""

CUSTOM = generated("BuiltinOperator").BuiltinOperator.CUSTOM

DTYPES: dict[str, np.dtype[Any]] = {
    "FLOAT32": np.dtype(np.float32),
    "FLOAT16": np.dtype(np.float16),
    "INT64": np.dtype(np.int64),
    "INT32": np.dtype(np.int32),
    "INT16": np.dtype(np.int16),
    "INT8": np.dtype(np.int8),
    "UINT8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
"""NumPy dtypes of the element types that can be imported."""

PACKED = "INT4"
"""The type of weights of which two are in a byte, the first in its lower half."""

ALL_DTYPES = DTYPES | {
    PACKED: np.dtype(np.int8),
    "FLOAT64": np.dtype(np.float64),
    "UINT64": np.dtype(np.uint64),
    "UINT32": np.dtype(np.uint32),
    "UINT16": np.dtype(np.uint16),
    "COMPLEX64": np.dtype(np.complex64),
}
"""Types of what engines compute with, too."""


class Tensor(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A tensor of the graph; ``data`` views the file if it is a constant.

    ``scales`` is empty without quantisation; more than one are per index of axis
    ``quantized_dimension``. ``unsupported`` names what cannot be imported about it.
    ``other_data`` are of types that cannot be.
    ``signature`` is the shape with -1 for lengths that the application may choose, or
    empty. Its ``table`` lies there in the file, and ``buffer`` is the number of its
    constant's. One that ``is_plain`` has nothing else there that an engine may read.
    """

    index: int
    name: str
    type: str
    shape: tuple[int, ...]
    scales: Sequence[float]
    zero_points: tuple[int, ...]
    quantized_dimension: int
    data: NDArray[Any] | None
    unsupported: str = ""
    is_variable: bool = False
    signature: tuple[int, ...] = ()
    other_data: NDArray[Any] | None = None
    table: int = 0
    buffer: int = 0
    is_plain: bool = False

    @property
    def stored(self) -> NDArray[Any] | None:
        """What the file has of it, be it of a type that cannot be imported."""
        return self.other_data if self.data is None else self.data

    def unpacked(self) -> "Tensor":
        """Return weights of 4 bits as the 8 bits that they stand for; others as is."""
        if self.type != PACKED or self.other_data is None:
            return self
        pairs = self.other_data.view(np.int8)[:, None]
        halves = np.concatenate([pairs << 4 >> 4, pairs >> 4], 1).reshape(-1)
        data = halves[: math.prod(self.shape)].reshape(self.shape)
        return replace(self, type="INT8", data=data, other_data=None, unsupported="")

    @property
    def label(self) -> str:
        """Names the tensor in messages."""
        return label_of(self.index, self.name)


def label_of(index: int, name: str) -> str:
    """Name a tensor in messages."""
    return f"tensor {index} ({name[:80]!r})"


_MOST_CUSTOM_BYTES = 1 << 16
_OPTIONS, _CUSTOM_OPTIONS, _OPTIONS_2, OPERATOR_FIELDS = 3, 5, 11, 13
"""Fields of operators. Options are two: their kind, and they themselves."""


class Operator(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A node of the graph: tensor indices, -1 for an input that is left out.

    ``intermediates`` only describe how some operators quantise inside. ``places`` are
    fields in ``data``, the file, where its ``table`` lies. One that ``is_plain`` has
    nothing else there that an engine may read.
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...] = ()
    version: int = 1
    data: memoryview = memoryview(b"")
    places: flatbuffer.Places = (0,) * OPERATOR_FIELDS
    table: int = 0
    is_plain: bool = False

    def kind_of_options(self) -> tuple[int, int]:
        """Return the numbers of the kinds of its options, one of each union."""
        data, places = self.data, self.places
        first, second = [
            int(flatbuffer.uint8(data, places[field])[0]) if places[field] else 0
            for field in (_OPTIONS, _OPTIONS_2)
        ]
        return first, second

    def options_place(self) -> int:
        """Return where the table of options lies in the file, 0 without one."""
        place = self.places[_OPTIONS + 1]
        return flatbuffer.target(self.data, place) if place else 0

    def custom_options(self) -> bytes:
        """Return the bytes that the file has for a custom operator.

        :raises InvalidArgumentError: if they are very many.
        """
        start, count = flatbuffer.vector(self.data, self.places[_CUSTOM_OPTIONS])
        if count > _MOST_CUSTOM_BYTES:
            raise InvalidArgumentError(f"options of {count} bytes")
        options = bytes(self.data[start : start + count])
        if len(options) < count:
            raise struct.error
        return options

    def options(self, kind: str) -> Any:
        """Return the options table of class ``kind``, all defaults if there is none.

        :raises InvalidArgumentError: if the options are of another kind.
        """
        made, number, first = _kind_of_options(kind)
        data, (type_, place) = self.data, self.places[first : first + 2]
        given = flatbuffer.uint8(data, type_)[0] if type_ else 0
        options = made()
        if not given or not place:
            options.Init(_EMPTY_TABLE, 4)
            return options
        if given != number:
            raise InvalidArgumentError(
                f"operator {self.index} ({self.name}) has options of another kind"
            )
        options._tab = flatbuffer.AccessedTable(data, flatbuffer.target(data, place))
        return options


@cache
def _kind_of_options(kind: str) -> tuple[type[Any], int, int]:
    """Return the class of options, the number of their kind, and their first field."""
    kinds, first = generated("BuiltinOptions").BuiltinOptions, _OPTIONS
    if not hasattr(kinds, kind):
        kinds, first = generated("BuiltinOptions2").BuiltinOptions2, _OPTIONS_2
    return getattr(generated(kind), kind), getattr(kinds, kind), first


class ShortTensor(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What describes a tensor anew; its ``kind`` is the number of its type.

    ``lengths``, ``scales`` and ``points`` are where vectors lie in the file, 0 without
    one; there are ``count`` scales. One that ``is_anew`` may not be referred to as it
    is.
    """

    table: int
    buffer: int
    kind: int
    lengths: int
    count: int
    scales: int
    points: int
    axis: int
    is_anew: int = 1


class ShortOperator(msgspec.Struct, frozen=True, eq=False, gc=False):
    """An operator of a sound graph, with its ``number`` there; `_scan.c` makes them.

    It ``reads`` tensors, of which ``inputs`` vary from run to run. Its ``options`` are
    a table of a ``kind``, by number, as is its ``code``. The rest is what it takes; see
    `asyncnn.engine.costs`.
    """

    number: int
    table: int
    code: int
    kind: int
    options: int
    reads: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    elements: float
    macs: float
    is_scaled: int
    is_depthwise: int


class Survey(msgspec.Struct, frozen=True, eq=False):
    """What is known of all of a sound graph, before its records are made.

    ``buffers`` are where tables and bytes begin, how many bytes there are, and the
    width of elements as which operators read them, 0 if none does. Of a part of a
    graph, ``operators`` are the part's alone.
    """

    buffers: Sequence[tuple[int, int, int, int]]
    tensors: Sequence[ShortTensor]
    operators: Sequence[ShortOperator]
    may_surprise: int
    is_hybrid: int
    is_part: bool = False


class Graph(msgspec.Struct, frozen=True, eq=False):
    """A subgraph of a file, its operators in execution order.

    One of the usual form has a ``survey``, and is sound; see `scan`.
    """

    index: int
    name: str
    tensors: Sequence[Tensor]
    operators: Sequence[Operator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    survey: Survey | None = None

    @property
    def label(self) -> str:
        """Names the subgraph in messages."""
        return f"subgraph {self.index} ({self.name[:80]!r})"


class SignatureTable(msgspec.Struct, frozen=True):
    """What a file calls the inputs and outputs of one of its subgraphs: tensors."""

    name: str
    graph: int
    inputs: tuple[tuple[str, int], ...]
    outputs: tuple[tuple[str, int], ...]


class StoredBytes(NamedTuple):
    """Bytes of constants, which a file refers to by its number."""

    table: int
    start: int
    size: int
    is_plain: bool


class Contents(msgspec.Struct, frozen=True, eq=False):
    """All that is read of a file; ``metadata`` are bytes of another format.

    ``codes`` are where these tables lie in ``data``, the file. So are ``buffers``, with
    place and size of their bytes, and whether these are where they usually are.
    """

    graphs: tuple[Graph, ...]
    signatures: tuple[SignatureTable, ...] = ()
    metadata: memoryview | None = None
    data: memoryview = memoryview(b"")
    codes: Sequence[int] = ()
    buffers: Sequence[StoredBytes] = ()


def extents(contents: Contents) -> Iterator[tuple[int, int]]:
    """Yield where all begins and ends that describes graphs, but their constants.

    Tables, their vtables, strings and vectors, as far as readers in C++ look at them.
    """
    data = contents.data
    tensor_row = flatbuffer.Rows(data, TENSOR_FORMS).row
    quantization_row = flatbuffer.Rows(data, QUANTIZATION_FORMS).row

    def vector(at: int, width: int) -> tuple[int, int]:
        return at, at and at + 4 + width * flatbuffer.length(data, at)

    for code in contents.codes:
        yield from flatbuffer.extents(data, code)
        name = flatbuffer.places(data, code, 2)[1]
        yield vector(name and flatbuffer.target(data, name), 1)
    for graph in contents.graphs:
        for tensor in graph.tensors:
            shape, _, _, name, quantized, _, _, signature, *_ = tensor_row(tensor.table)
            yield from flatbuffer.extents(data, tensor.table)
            yield from (vector(shape, 4), vector(name, 1), vector(signature, 4))
            if quantized:
                yield from flatbuffer.extents(data, quantized)
                low, high, scales, points, *_ = quantization_row(quantized)
                yield from (vector(each, 4) for each in (low, high, scales))
                yield vector(points, 8)
        for operator in graph.operators:
            yield from flatbuffer.extents(data, operator.table)
            for field in (1, 2, 8):
                place = operator.places[field]
                yield vector(place and flatbuffer.target(data, place), 4)
            options = operator.options_place()
            if options:
                yield from flatbuffer.extents(data, options)
                kind = BUILTIN_OPTIONS[operator.kind_of_options()[0]]
                (place,) = flatbuffer.places(data, options, 1)
                if place and kind in OPTION_VECTORS:
                    yield vector(flatbuffer.target(data, place), OPTION_VECTORS[kind])
