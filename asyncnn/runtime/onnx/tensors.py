"""Tensors of ONNX files as NumPy arrays.

Arrays view the bytes of the file where they can, and hold what external files have for
them. No length that a file states is believed before it is compared with what is there.
"""

import math
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from asyncnn.extensions.regions import ONNX_DTYPES
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.hal.types import Memory
from asyncnn.memory.pools import view
from asyncnn.memory.shared import FileReader
from asyncnn.runtime.model import open_model_file
from asyncnn.runtime.unsupported import UnsupportedOperatorError

MAX_RANK = 8
MAX_BYTES = 1 << 40
"""Largest tensor that is believed to be one."""

_ALL_NAMES = """
FLOAT UINT8 INT8 UINT16 INT16 INT32 INT64 STRING BOOL FLOAT16 DOUBLE UINT32 UINT64
COMPLEX64 COMPLEX128 BFLOAT16 FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ
UINT4 INT4 FLOAT4E2M1 FLOAT8E8M0 UINT2 INT2
"""
TYPE_NAMES = dict(enumerate(_ALL_NAMES.split(), 1))
"""Names of element types by their number in the format."""

DTYPES: dict[int, np.dtype[Any]] = {**ONNX_DTYPES}
"""Dtypes of the types whose elements can be read; not all can be computed with."""

NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
"""Of element types in the format."""

_FIELDS = {
    **dict.fromkeys((1,), "float_data"),
    **dict.fromkeys((2, 3, 4, 5, 6, 9, 10), "int32_data"),
    7: "int64_data",
    11: "double_data",
    **dict.fromkeys((12, 13), "uint64_data"),
}
_BITS = {
    **dict.fromkeys((14,), 64),
    **dict.fromkeys((15,), 128),
    **dict.fromkeys((17, 18, 19, 20, 24), 8),
    **dict.fromkeys((21, 22, 23), 4),
    **dict.fromkeys((25, 26), 2),
}
"""Of elements that have no dtype, packed where they have 4 or fewer."""

_STORED = {"int32_data": np.int64, "int64_data": np.int64, "uint64_data": np.uint64}


def dtype_of(number: int, what: str) -> np.dtype[Any]:
    """Return the dtype of element type ``number``, which ``what`` has.

    :raises UnsupportedOperatorError: if the importer cannot read such elements.
    """
    if number not in DTYPES:
        name = TYPE_NAMES.get(number, f"type {number}")
        raise UnsupportedOperatorError(f"{what} has elements of type {name}")
    return DTYPES[number]


def checked_shape(lengths: Sequence[int], what: str) -> Shape:
    """Return ``lengths`` as a shape.

    :raises InvalidArgumentError: if they cannot be the lengths of axes.
    """
    shape = tuple(int(length) for length in lengths)
    if len(shape) > MAX_RANK or any(length < 0 for length in shape):
        raise InvalidArgumentError(f"{what} has shape {list(shape[:20])}")
    return shape


class _ExternalFile:
    """A file of tensors, nothing else of which is read.

    A folder may have files of any size that are none of a model's, and a model any
    number of tensors that lie in the same bytes: it has no more than the file.
    """

    def __init__(self, path: Path) -> None:
        self.file = open_model_file(path)
        self._left = len(self.file)
        self._spans: dict[tuple[int, int], FileSpan] = {}

    def span(self, offset: int, length: int, what: str) -> "FileSpan":
        found = self._spans.get((offset, length))
        if found is None:
            self._left -= length
            if self._left < 0:
                raise InvalidArgumentError(
                    f"{what} overlaps others: with it, they have more than all "
                    f"{len(self.file)} bytes of their file"
                )
            found = self._spans[offset, length] = FileSpan(self.file, offset, length)
        return found


class FileSpan:
    """Bytes of a file, which are not read before they are wanted."""

    def __init__(self, file: FileReader, offset: int, length: int) -> None:
        self._file, self._offset, self._length = file, offset, length

    def __len__(self) -> int:
        return self._length

    def read(self) -> memoryview:
        """Read them now, whenever they were before."""
        return self._file[self._offset : self._offset + self._length]

    @cached_property
    def data(self) -> memoryview:
        """What they are when they are wanted first."""
        return self.read()


class TensorReader:
    """Reads the tensors of one file, whose bytes are ``memory``.

    ``folder`` is where its external files are looked for, and nowhere else; None for a
    file that can have none.
    """

    def __init__(self, memory: Memory, folder: Path | None) -> None:
        self._data = view(memory)
        self._folder = folder
        self._external: dict[str, _ExternalFile] = {}

    def check_unchanged(self) -> None:
        """Check that nobody has written to external files since they were opened.

        :raises GeneralFailureError: if anybody has.
        """
        for external in self._external.values():
            external.file.check_unchanged()

    def array(self, tensor: Any, raw: tuple[int, int] | None = None) -> Array:
        """Return the elements of ``tensor``, a ``TensorProto``.

        :param raw: where its raw data are in the file if they were taken out.
        :raises InvalidArgumentError: if the elements do not fit in its shape.
        :raises UnsupportedOperatorError: if they are of a type that cannot be read.
        """
        what = f"tensor {tensor.name[:80]!r}"
        shape = checked_shape(tensor.dims, what)
        dtype = dtype_of(tensor.data_type, what)
        needed = dtype.itemsize * math.prod(shape)
        if needed > MAX_BYTES:
            raise InvalidArgumentError(f"{what} has shape {list(shape)}")
        if tensor.HasField("segment"):
            raise UnsupportedOperatorError(f"{what} is stored in segments")
        if tensor.data_location == tensor.EXTERNAL:
            found = np.frombuffer(self._span(tensor, what, needed).data, np.uint8)
        elif raw is not None:
            found = np.frombuffer(self._data[raw[0] : raw[1]], np.uint8)
        elif tensor.HasField("raw_data"):
            found = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            return _typed(tensor, what, dtype, shape)
        if found.nbytes != needed:
            raise InvalidArgumentError(
                f"{what} of shape {list(shape)} needs {needed} bytes but has "
                f"{found.nbytes}"
            )
        if dtype == np.bool_:
            return np.not_equal(found, 0).reshape(shape)
        elements: Array = found.view(dtype).reshape(shape)
        # What is not aligned would be slow for ever; a copy is slow once.
        return elements if elements.flags.aligned else elements.copy()

    def span_of(self, tensor: Any) -> FileSpan:
        """Return where the elements of an external tensor lie.

        :raises InvalidArgumentError: if they do not fit in its shape, or its file.
        :raises UnsupportedOperatorError: if it is not known how large they are.
        """
        what = f"tensor {tensor.name[:80]!r}"
        count = math.prod(checked_shape(tensor.dims, what))
        type_ = tensor.data_type
        bits = _BITS.get(type_) or 8 * dtype_of(type_, what).itemsize
        return self._span(tensor, what, -(-count * bits // 8))

    def _span(self, tensor: Any, what: str, needed: int) -> FileSpan:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        offset = _number(entries.get("offset", "0"), what)
        external = self._open(entries.get("location", ""), what)
        length = _number(entries.get("length", str(needed)), what)
        if length != needed or offset + length > len(external.file):
            raise InvalidArgumentError(
                f"{what} needs {needed} bytes but is said to have {length} from byte "
                f"{offset} of a file of {len(external.file)}"
            )
        return external.span(offset, length, what)

    def _open(self, location: str, what: str) -> _ExternalFile:
        if location in self._external:
            return self._external[location]
        if self._folder is None:
            raise InvalidArgumentError(
                f"{what} lies in another file, {location[:80]!r}",
                hint="load the model by its path, so that it can be found",
            )
        path = _beside(self._folder, location, what)
        # By its path: there are many ways to write one.
        external = self._external.get(str(path))
        if external is None:
            try:
                external = _ExternalFile(path)
            except GeneralFailureError as error:
                raise _missing(what, location) from error
        self._external[location] = self._external[str(path)] = external
        return external


def _beside(folder: Path, location: str, what: str) -> Path:
    """Return the path of a file that is in ``folder``, and nowhere else."""
    try:
        folder = folder.resolve()
        path = Path(os.path.abspath(folder / location))
        # A link could lead out of the folder as well as "..".
        is_inside = "\0" not in location and path.resolve().is_relative_to(folder)
        if not location or not is_inside or path.is_symlink():
            raise InvalidArgumentError(
                f"{what} lies outside of the model's folder, at {location[:80]!r}"
            )
        return path
    except OSError as error:
        raise _missing(what, location) from error


def _missing(what: str, location: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what} lies in a file that is not there, {location[:80]!r}"
    )


def _number(text: str, what: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise InvalidArgumentError(f"{what} has an offset or length of {text[:40]!r}")
    return int(text)


def _typed(tensor: Any, what: str, dtype: np.dtype[Any], shape: Shape) -> Array:
    """Return elements that the message has one by one."""
    name = _FIELDS[tensor.data_type]
    values = getattr(tensor, name)
    if len(values) != math.prod(shape):
        raise InvalidArgumentError(
            f"{what} of shape {list(shape)} has {len(values)} elements"
        )
    stored = np.array(values, _STORED.get(name, dtype))
    if dtype == np.float16:
        elements: Array = stored.astype(np.uint16).view(np.float16)
    else:
        elements = stored.astype(dtype)
    if dtype != np.float16 and not np.array_equal(
        elements.astype(stored.dtype), stored, equal_nan=dtype.kind == "f"
    ):
        raise InvalidArgumentError(f"{what} has values that are no {dtype}")
    return elements.reshape(shape)
