"""Reads the flatbuffer of a TFLite file into plain records, trusting no byte of it.

The generated accessors check nothing but the end of the buffer, and tables of a hostile
file may overlap. The work is bounded all the same: no vector is longer than the file,
all that is read is no longer than a multiple of it, and there are not too many tables.
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import msgspec
import numpy as np
import tflite  # type: ignore[import-untyped]
from numpy.typing import NDArray

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError


class UnsupportedOperatorError(GeneralFailureError):
    """A valid file uses an operator, or a variant of one, that has no HAL form."""


@contextmanager
def decoding() -> Iterator[None]:
    """Turn what a decoder raises on damaged bytes into one error of the family.

    :raises InvalidArgumentError: if the block raises such an error.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        TypeError,
        ValueError,
        struct.error,
    ) as error:
        raise InvalidArgumentError(
            f"damaged TFLite file ({type(error).__name__}: {error})"
        ) from error


IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of every TFLite file."""

MAX_RANK = 8
MAX_TABLES = 1 << 16
"""Most tensors, and most operators, of a subgraph."""

MAX_ALL_TABLES = 1 << 18
"""Most tables of all kinds in a file."""

METADATA = b"TFLITE_METADATA"
"""Name of the buffer that describes inputs and outputs to people and programs."""

_OVERLAP = 16
_EMPTY_TABLE = struct.pack("<HHi", 4, 4, 4)

TYPE_NAMES: dict[int, str] = {
    value: name
    for name, value in vars(tflite.TensorType).items()
    if not name.startswith("_")
}
"""Names of the element types by their number in the schema."""

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


class Tensor(msgspec.Struct, frozen=True, eq=False):
    """A tensor of the graph; ``data`` views the file if it is a constant.

    ``scales`` is empty without quantisation; more than one are per index of axis
    ``quantized_dimension``. ``unsupported`` names what cannot be imported about it.
    """

    index: int
    name: str
    type: str
    shape: tuple[int, ...]
    scales: tuple[float, ...]
    zero_points: tuple[int, ...]
    quantized_dimension: int
    data: NDArray[Any] | None
    unsupported: str = ""
    is_variable: bool = False

    @property
    def label(self) -> str:
        """Names the tensor in messages."""
        return f"tensor {self.index} ({self.name[:80]!r})"


class Operator(msgspec.Struct, frozen=True, eq=False):
    """A node of the graph: tensor indices, -1 for an input that is left out.

    ``intermediates`` only describe how some operators quantise inside.
    """

    index: int
    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    table: Any

    def options(self, kind: str) -> Any:
        """Return the options table of class ``kind``, all defaults if there is none.

        :raises InvalidArgumentError: if the options are of another kind.
        """
        union = self.table.BuiltinOptions()
        given = self.table.BuiltinOptionsType()
        if union is None or not given:
            return _defaults(kind)
        options = getattr(tflite, kind)()
        if given != getattr(tflite.BuiltinOptions, kind):
            raise InvalidArgumentError(
                f"operator {self.index} ({self.name}) has options of another kind"
            )
        options.Init(union.Bytes, union.Pos)
        return options


def _defaults(kind: str) -> Any:
    table = getattr(tflite, kind)()
    table.Init(_EMPTY_TABLE, 4)
    return table


class Graph(msgspec.Struct, frozen=True, eq=False):
    """A subgraph of a file, its operators in execution order."""

    index: int
    name: str
    tensors: Sequence[Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

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


class Contents(msgspec.Struct, frozen=True, eq=False):
    """All that is read of a file; ``metadata`` are bytes of another format."""

    graphs: tuple[Graph, ...]
    signatures: tuple[SignatureTable, ...] = ()
    metadata: memoryview | None = None


def read_contents(data: memoryview) -> Contents:
    """Read a TFLite file.

    Decoder errors such as `struct.error` pass through; see `decoding`.

    :raises InvalidArgumentError: if the bytes are not a TFLite file or inconsistent.
    """
    return _Reader(data).contents()


class _Reader:
    def __init__(self, data: memoryview) -> None:
        if data[4:8] != IDENTIFIER:
            raise InvalidArgumentError("not a TFLite file: identifier TFL3 is missing")
        self._data = data
        self._budget = _OVERLAP * len(data)
        self._tables_left = MAX_ALL_TABLES
        self._model = tflite.Model.GetRootAs(data, 0)
        if self._model.Version() != 3:
            raise InvalidArgumentError(
                f"schema version {self._model.Version()} is not 3"
            )

    def contents(self) -> Contents:
        buffers = list(self._tables(self._model, "Buffers"))
        codes = [
            self._operator_name(code)
            for code in self._tables(self._model, "OperatorCodes")
        ]
        graphs = tuple(
            self._graph(index, table, buffers, codes)
            for index, table in enumerate(self._tables(self._model, "Subgraphs"))
        )
        if not graphs:
            raise InvalidArgumentError("a file without a subgraph")
        return Contents(
            graphs,
            tuple(
                self._signature(table, graphs)
                for table in self._tables(self._model, "SignatureDefs")
            ),
            self._metadata(buffers),
        )

    def _graph(
        self, index: int, table: Any, buffers: list[Any], codes: list[str]
    ) -> Graph:
        tensors = tuple(
            self._tensor(index, tensor, buffers)
            for index, tensor in enumerate(self._tables(table, "Tensors"))
        )
        count = len(tensors)
        return Graph(
            index,
            self._name(table.Name()),
            tensors,
            tuple(
                self._operator(index, operator, codes, count)
                for index, operator in enumerate(self._tables(table, "Operators"))
            ),
            self._indexes(table.InputsAsNumpy(), count, "a graph input"),
            self._indexes(table.OutputsAsNumpy(), count, "a graph output"),
        )

    def _signature(self, table: Any, graphs: tuple[Graph, ...]) -> SignatureTable:
        name, graph = self._name(table.SignatureKey()), table.SubgraphIndex()
        if graph >= len(graphs):
            raise InvalidArgumentError(
                f"signature {name!r} is of subgraph {graph} of {len(graphs)}"
            )
        count = len(graphs[graph].tensors)
        maps = [
            tuple(
                (self._name(entry.Name()), entry.TensorIndex())
                for entry in self._tables(table, border)
            )
            for border in ("Inputs", "Outputs")
        ]
        for entry, tensor in chain(*maps):
            if tensor >= count:
                raise InvalidArgumentError(
                    f"{entry!r} of signature {name!r} is tensor {tensor} of {count}"
                )
        return SignatureTable(name, graph, *maps)

    def _metadata(self, buffers: list[Any]) -> memoryview | None:
        for table in self._tables(self._model, "Metadata"):
            if table.Name() == METADATA:
                index = table.Buffer()
                # The model works without them: damage here costs no more than them.
                if index < len(buffers):
                    return self._bytes(buffers[index]).data
        return None

    def _tables(self, table: Any, vector: str) -> Iterator[Any]:
        count: int = getattr(table, f"{vector}Length")()
        self._charge(4 * count)
        self._tables_left -= count
        if count > MAX_TABLES or self._tables_left < 0:
            raise InvalidArgumentError(
                f"more than {MAX_TABLES} tables of one kind or {MAX_ALL_TABLES} of all"
            )
        return map(getattr(table, vector), range(count))

    def _vector(self, values: NDArray[Any] | int) -> list[Any]:
        # The accessors answer 0 for a vector that is not there.
        if isinstance(values, int):
            return []
        self._charge(values.nbytes)
        return values.tolist()  # type: ignore[no-any-return]

    def _charge(self, bytes_read: int) -> None:
        self._budget -= bytes_read
        if bytes_read > len(self._data) or self._budget < 0:
            raise InvalidArgumentError("its vectors are longer than the file")

    def _indexes(
        self, values: NDArray[Any] | int, count: int, what: str
    ) -> tuple[int, ...]:
        indexes = tuple(self._vector(values))
        for index in indexes:
            if not -1 <= index < count:
                raise InvalidArgumentError(
                    f"{what} refers to tensor {index} of {count}"
                )
        return indexes

    def _operator(
        self, index: int, table: Any, codes: list[str], count: int
    ) -> Operator:
        code = table.OpcodeIndex()
        if code >= len(codes):
            raise InvalidArgumentError(
                f"operator {index} has code {code} of {len(codes)}"
            )
        what = f"operator {index} ({codes[code]})"
        return Operator(
            index,
            codes[code],
            self._indexes(table.InputsAsNumpy(), count, what),
            self._indexes(table.OutputsAsNumpy(), count, what),
            self._indexes(table.IntermediatesAsNumpy(), count, what),
            table,
        )

    def _tensor(self, index: int, table: Any, buffers: list[Any]) -> Tensor:
        name = self._name(table.Name())
        type_ = TYPE_NAMES.get(table.Type(), f"type {table.Type()}")
        shape = tuple(self._vector(table.ShapeAsNumpy()))
        if len(shape) > MAX_RANK or any(length < 0 for length in shape):
            raise InvalidArgumentError(f"tensor {name!r} has shape {list(shape)}")
        unsupported = ""
        if table.Sparsity() is not None:
            unsupported = "sparse data"
        elif type_ not in DTYPES:
            unsupported = f"elements of type {type_}"
        quantization = table.Quantization() or _defaults("QuantizationParameters")
        if quantization.DetailsType():
            unsupported = "a custom quantisation"
        data = None
        if not unsupported:
            data = self._constant(name, DTYPES[type_], shape, buffers, table.Buffer())
        if data is not None and table.IsVariable():
            raise InvalidArgumentError(f"variable {name!r} has data of a constant")
        return Tensor(
            index,
            name,
            type_,
            shape,
            tuple(self._vector(quantization.ScaleAsNumpy())),
            tuple(self._vector(quantization.ZeroPointAsNumpy())),
            quantization.QuantizedDimension(),
            data,
            unsupported,
            bool(table.IsVariable()),
        )

    def _constant(
        self,
        name: str,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        buffers: list[Any],
        index: int,
    ) -> NDArray[Any] | None:
        if index >= len(buffers):
            raise InvalidArgumentError(
                f"tensor {name!r} refers to buffer {index} of {len(buffers)}"
            )
        data = self._bytes(buffers[index])
        if not data.size:
            return None
        expected = dtype.itemsize * int(np.prod(shape, dtype=object))
        if data.nbytes != expected:
            raise InvalidArgumentError(
                f"tensor {name!r} of shape {list(shape)} needs {expected} bytes "
                f"but its buffer has {data.nbytes}"
            )
        return data.view(dtype).reshape(shape)

    def _bytes(self, buffer: Any) -> NDArray[np.uint8]:
        # Files above 2 GiB keep their data behind the flatbuffer; offset 1 is a
        # placeholder that the converter leaves in smaller ones.
        offset, size = buffer.Offset(), buffer.Size()
        if offset > 1:
            return np.frombuffer(self._data, np.uint8, size, offset)
        data: NDArray[np.uint8] | int = buffer.DataAsNumpy()
        return np.empty(0, np.uint8) if isinstance(data, int) else data

    def _operator_name(self, code: Any) -> str:
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if number == tflite.BuiltinOperator.CUSTOM:
            return f"CUSTOM {self._name(code.CustomCode())}"
        return str(tflite.BUILTIN_OPCODE2NAME.get(number, f"builtin {number}"))

    def _name(self, name: bytes | None) -> str:
        self._charge(len(name or b""))
        return (name or b"").decode(errors="replace")
