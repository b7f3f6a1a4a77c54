"""Reads the flatbuffer of a TFLite file into plain records, trusting no byte of it.

Of the generated reader, only options are read by accessors, and modules loaded that
these need. Nothing checks more than the end of the buffer, and tables of a hostile file
may overlap. The work is bounded all the same: no vector is longer than the file,
all that is read is no longer than a multiple of it, and there are not too many tables.
"""

import math
import struct
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import Memory
from asyncnn.memory.pages import is_final
from asyncnn.memory.pools import view
from asyncnn.pacing import Steps
from asyncnn.tflite import flatbuffer
from asyncnn.tflite.tables import (
    ALL_DTYPES,
    CUSTOM,
    DTYPES,
    OPERATOR_FIELDS,
    OPERATOR_NAMES,
    PACKED,
    QUANTIZATION_FORMS,
    TENSOR_FORMS,
    TYPE_NAMES,
    Contents,
    Graph,
    Operator,
    SignatureTable,
    StoredBytes,
    Tensor,
    generated,
    label_of,
)

T = TypeVar("T")

IDENTIFIER = b"TFL3"
"""Bytes 4 to 8 of every TFLite file."""

MAX_RANK = 8
MAX_TABLES = 1 << 16
"""Most tensors, and most operators, of a subgraph."""

MAX_ALL_TABLES = 1 << 18
"""Most tables of all kinds in a file."""

_TABLES_PER_STEP = 64

METADATA = "TFLITE_METADATA"
"""Name of the buffer that describes inputs and outputs to people and programs."""

_OVERLAP, _FEW = 16, 8
"""Vectors of few elements are in step with the number of tables, which has a bound."""

_INT64 = np.dtype("<i8")
_SCALE_BYTES = 4
_unread = itemgetter(5, 6, 7, 9, 10, 11, 12)
"""Returns the fields of operators that are for custom ones, or newer."""

_MOST_SPARSE = 64
"""How much longer than the file sparse constants may be, all together."""


def _agree(signature: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Return whether shapes agree, but for lengths that the signature leaves open."""
    pairs = zip(signature, shape, strict=False)
    return len(signature) == len(shape) and all(own in (-1, n) for own, n in pairs)


def reading_contents(data: memoryview) -> Steps[Contents]:
    """Read a TFLite file in steps.

    Decoder errors such as `struct.error` pass through; see `input_files.decoding`.

    :raises InvalidArgumentError: if the bytes are not a TFLite file or inconsistent.
    """
    return (yield from TableReader(data).contents())


class TableReader:
    """Reads the tables of a file, each when it is asked for.

    :raises InvalidArgumentError: if it is no TFLite file.
    """

    def __init__(self, data: memoryview) -> None:
        if data[4:8] != IDENTIFIER:
            raise InvalidArgumentError("not a TFLite file: identifier TFL3 is missing")
        self._data = data
        self._budget = _OVERLAP * len(data)
        self._dense_bytes = _MOST_SPARSE * len(data)
        self._tables_left = MAX_ALL_TABLES
        self._root = flatbuffer.places(data, flatbuffer.target(data, 0), 8)
        self._tensor_row = flatbuffer.Rows(data, TENSOR_FORMS).row
        self._quantization_row = flatbuffer.Rows(data, QUANTIZATION_FORMS).row
        self._buffer_row = flatbuffer.Rows(data, "@QQ").row
        version = self._uint32(self._root[0])
        if version != 3:
            raise InvalidArgumentError(f"schema version {version} is not 3")

    def contents(self) -> Steps[Contents]:
        """Read all of them in steps; see `reading_contents`."""
        root = self._root
        buffers = yield from self._each(root[4], self._buffer)
        tables = self._positions(root[1])
        codes = [self.operator_code(table) for table in tables]
        found: list[Graph] = []
        for index, table in enumerate(self._positions(root[2])):
            graph = yield from self._graph(index, table, buffers, codes)
            found.append(graph)
        if not found:
            raise InvalidArgumentError("a file without a subgraph")
        graphs, at = tuple(found), self._positions(root[7])
        signatures = tuple(self._signature(each, graphs) for each in at)
        metadata = self._metadata(root[6], buffers)
        return Contents(graphs, signatures, metadata, self._data, tables, buffers)

    def _graph(
        self,
        index: int,
        table: int,
        buffers: Sequence[StoredBytes],
        codes: Sequence[tuple[str, int]],
    ) -> Steps[Graph]:
        places = flatbuffer.places(self._data, table, 5)
        tensors = yield from self._each(
            places[0], partial(self.tensor, buffers=buffers)
        )
        count = len(tensors)
        operators = yield from self._each(
            places[3], partial(self.operator, codes=codes, count=count)
        )
        return Graph(
            index,
            self._text(places[4]),
            tensors,
            operators,
            self._indexes(
                self._numbers(places[1], flatbuffer.INT32), count, "a graph input"
            ),
            self._indexes(
                self._numbers(places[2], flatbuffer.INT32), count, "a graph output"
            ),
        )

    def _each(self, place: int, read: Callable[[int, int], T]) -> Steps[tuple[T, ...]]:
        """Read the tables of a field's vector, a few in each step."""
        found: list[T] = []
        for number, table in enumerate(self._positions(place)):
            found.append(read(number, table))
            if not (number + 1) % _TABLES_PER_STEP:
                yield
        return tuple(found)

    def _signature(self, table: int, graphs: tuple[Graph, ...]) -> SignatureTable:
        places = flatbuffer.places(self._data, table, 5)
        name, graph = self._text(places[2]), self._uint32(places[4])
        if graph >= len(graphs):
            raise InvalidArgumentError(
                f"signature {name!r} is of subgraph {graph} of {len(graphs)}"
            )
        count = len(graphs[graph].tensors)
        maps = [tuple(map(self._entry, self._positions(place))) for place in places[:2]]
        for entry, tensor in chain(*maps):
            if tensor >= count:
                raise InvalidArgumentError(
                    f"{entry!r} of signature {name!r} is tensor {tensor} of {count}"
                )
        return SignatureTable(name, graph, *maps)

    def _entry(self, table: int) -> tuple[str, int]:
        """Read a name and a number, of which some tables consist."""
        name, number = flatbuffer.places(self._data, table, 2)
        return self._text(name), self._uint32(number)

    def _metadata(
        self, place: int, buffers: Sequence[StoredBytes]
    ) -> memoryview | None:
        for table in self._positions(place):
            name, index = self._entry(table)
            # The model works without them: damage here costs no more than them.
            if name == METADATA and index < len(buffers):
                _, start, size, _ = buffers[index]
                return self._data[start : start + size]
        return None

    def _positions(self, place: int) -> list[int]:
        """Return where the tables of a field's vector lie."""
        start, count = flatbuffer.vector(self._data, place)
        self._count_tables(count)
        return flatbuffer.tables(self._data, start, count)

    def _count_tables(self, count: int) -> None:
        self._charge(4 * count)
        self._tables_left -= count
        if count > MAX_TABLES or self._tables_left < 0:
            raise InvalidArgumentError(
                f"more than {MAX_TABLES} tables of one kind or {MAX_ALL_TABLES} of all"
            )

    def _charge(self, bytes_read: int) -> None:
        self._budget -= bytes_read
        if bytes_read > len(self._data) or self._budget < 0:
            raise InvalidArgumentError("its vectors are longer than the file")

    def _indexes(
        self, indexes: tuple[int, ...], count: int, what: str
    ) -> tuple[int, ...]:
        if indexes and not -1 <= min(indexes) <= max(indexes) < count:
            wrong = next(each for each in indexes if not -1 <= each < count)
            raise InvalidArgumentError(f"{what} refers to tensor {wrong} of {count}")
        return indexes

    def operator(
        self, index: int, table: int, codes: Sequence[tuple[str, int]], count: int
    ) -> Operator:
        """Read an operator, whose code is one of ``codes``, of ``count`` tensors."""
        data = self._data
        places = flatbuffer.places(data, table, OPERATOR_FIELDS)
        code = self._uint32(places[0])
        if code >= len(codes):
            raise InvalidArgumentError(
                f"operator {index} has code {code} of {len(codes)}"
            )
        name, version = codes[code]
        what = f"operator {index} ({name})"
        inputs, outputs, intermediates = [
            self._numbers(places[field], flatbuffer.INT32) if places[field] else ()
            for field in (1, 2, 8)
        ]
        self._indexes(inputs + outputs + intermediates, count, what)
        return Operator(
            *(index, name, inputs, outputs, intermediates, version),
            *(data, places, table),
            is_plain=flatbuffer.field_count(data, table) <= OPERATOR_FIELDS + 1
            and not any(_unread(places)),
        )

    def _buffer(self, _: int, table: int) -> StoredBytes:
        """Read where the bytes of a buffer lie.

        Files above 2 GiB keep them behind the flatbuffer; offset 1 is a placeholder
        that the converter leaves in smaller ones.
        """
        vector, offset, size, more = self._buffer_row(table)
        if offset > 1:
            return StoredBytes(table, offset, size, False)
        size = flatbuffer.length(self._data, vector)
        return StoredBytes(table, vector + 4, size, not (offset or more))

    def tensor(self, index: int, table: int, buffers: Sequence[StoredBytes]) -> Tensor:
        """Read a tensor, whose data are in one of ``buffers``."""
        row = self._tensor_row(table)
        shape_at, number, buffer, named, quantized, is_variable, sparsity = row[:7]
        signature_at, _, more = row[7:]
        name = self._text_at(named)
        type_ = TYPE_NAMES.get(number, f"type {number}")
        shape = self._numbers_at(shape_at, flatbuffer.INT32)
        if len(shape) > MAX_RANK or (shape and min(shape) < 0):
            raise InvalidArgumentError(
                f"{label_of(index, name)} has shape {list(shape[:20])}"
            )
        unsupported = "" if type_ in DTYPES else f"elements of type {type_}"
        scales: Sequence[float] = ()
        zero_points: tuple[int, ...] = ()
        axis, is_usual = 0, not (more or sparsity)
        if quantized:
            row = self._quantization_row(quantized)
            *limits, scales_at, points_at, kind, _, axis, more = row
            is_usual &= not more
            for limits_at in filter(None, limits):
                self._reals_at(limits_at)  # nobody wants them, but readers in C++
            if scales_at:
                scales = self._reals_at(scales_at)
                count = len(scales)
                zero_points = self._numbers_at(points_at, _INT64)
                along = shape[axis] if 0 <= axis < len(shape) else -1
                is_usual &= len(zero_points) == count
                is_usual &= along == count if count > 1 else not axis
            elif points_at:
                zero_points = self._numbers_at(points_at, _INT64)
            if kind:
                unsupported, is_usual = "a custom quantisation", False
        signature = self._numbers_at(signature_at, flatbuffer.INT32)
        constant = None
        if type_ in ALL_DTYPES:
            stored = (-(-math.prod(shape) // 2),) if type_ == PACKED else shape
            constant = self._constant(
                (index, name), ALL_DTYPES[type_], stored, buffers, buffer, sparsity
            )
        if constant is not None and is_variable:
            raise InvalidArgumentError(
                f"{label_of(index, name)} is a variable and has data of a constant"
            )
        return Tensor(
            index,
            name,
            type_,
            shape,
            scales,
            zero_points,
            axis,
            None if unsupported else constant,
            unsupported,
            bool(is_variable),
            signature,
            constant if unsupported else None,
            table,
            buffer,
            is_usual and (not signature or _agree(signature, shape)),
        )

    def _constant(
        self,
        named: tuple[int, str],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        buffers: Sequence[StoredBytes],
        index: int,
        sparsity: int,
    ) -> NDArray[Any] | None:
        if index >= len(buffers):
            raise InvalidArgumentError(
                f"{label_of(*named)} refers to buffer {index} of {len(buffers)}"
            )
        _, start, size, _ = buffers[index]
        if not size:
            return None
        expected = dtype.itemsize * math.prod(shape)
        if sparsity:
            from asyncnn.tflite.sparse import densify  # few files have such

            label = label_of(*named)
            if start + size > len(self._data):
                raise InvalidArgumentError(f"{label} reaches beyond the file")
            self._take_dense(expected)
            stored = np.ndarray((size // dtype.itemsize,), dtype, self._data, start)
            table = generated("SparsityParameters").SparsityParameters()
            table.Init(self._data, sparsity)
            try:
                return densify(table, stored, shape)
            except AsyncnnError as error:
                raise error.at(label) from error
        if size != expected:
            raise InvalidArgumentError(
                f"{label_of(*named)} of shape {list(shape)} needs {expected} bytes "
                f"but its buffer has {size}"
            )
        return np.ndarray(shape, dtype, self._data, start)

    def _take_dense(self, size: int) -> None:
        self._dense_bytes -= size
        if self._dense_bytes < 0:
            raise InvalidArgumentError(
                f"sparse constants that are {_MOST_SPARSE} times as long as the file"
            )

    def _numbers(self, place: int, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        """Return the numbers of a field's vector, none for one that is left out."""
        if not place:
            return ()
        return self._numbers_at(flatbuffer.target(self._data, place), dtype)

    def _numbers_at(self, vector: int, dtype: np.dtype[Any]) -> tuple[Any, ...]:
        """Return the numbers of a vector, none of one at 0."""
        if not vector:
            return ()
        count = flatbuffer.length(self._data, vector)
        if count > _FEW:
            self._charge(count * dtype.itemsize)
        return flatbuffer.numbers(self._data, vector + 4, count, dtype)

    def _reals_at(self, vector: int) -> Sequence[float]:
        """Return the float32 numbers of a vector."""
        count = flatbuffer.length(self._data, vector)
        self._charge(count * _SCALE_BYTES)
        return flatbuffer.reals(self._data, vector + 4, count)

    def _text(self, place: int) -> str:
        """Return the string of a field, an empty one for one that is left out."""
        return self._text_at(flatbuffer.target(self._data, place)) if place else ""

    def _text_at(self, string: int) -> str:
        """Return a string, an empty one at 0."""
        length = flatbuffer.length(self._data, string)
        if length > _FEW:
            self._charge(length)
        end = string + 4 + length
        # Readers in C++ copy as many bytes, or what is before the first that is 0.
        if string and (end >= len(self._data) or self._data[end]):
            raise struct.error("a string that does not end")
        return str(self._data[string + 4 : end], "utf-8", "replace")

    def _uint32(self, place: int) -> int:
        """Return the number of a field, 0 for one that is left out."""
        return int(flatbuffer.uint32(self._data, place)[0]) if place else 0

    def operator_code(self, table: int) -> tuple[str, int]:
        """Return name and version of an operator."""
        data = self._data
        short, custom, edition, long = flatbuffer.places(data, table, 4)
        version = flatbuffer.int32(data, edition)[0] if edition else 1
        number = max(
            flatbuffer.int32(data, long)[0] if long else 0,
            flatbuffer.int8(data, short)[0] if short else 0,
        )
        # Compilers for other processors leave the number out of custom operators.
        name = self._text(custom)[:80]
        if number == CUSTOM or (name and not number):
            # It gets into messages, which are of one line.
            shown = "".join(each if each.isprintable() else " " for each in name)
            return f"CUSTOM {shown}", version
        return OPERATOR_NAMES.get(number, f"builtin {number}"), version


_checked: dict[tuple[int, int], Contents] = {}
"""By the addresses and sizes of files. Contents refer to their file, so that no other
one comes to lie there.
"""


def keep_checked(memory: Memory, address: int, contents: Contents) -> None:
    """Keep what was checked as long as its file, ``memory``, which lies at ``address``.

    Loading a file and preparing it, in one process, check it once, if nobody can write
    to it any more: who could might change what was checked.
    """
    if memory.buffer is not None and is_final(np.frombuffer(view(memory), np.uint8)):
        place = address, memory.size
        _checked[place] = contents
        weakref.finalize(memory, _checked.pop, place, None).atexit = False


def checked(address: int, size: int) -> Contents | None:
    """Return what was kept of a file of ``size`` bytes."""
    return _checked.get((address, size))
