"""The protocol's names for dtypes, and arrays from and to what requests carry.

Tensors are little-endian bytes, JSON numbers, or fields of gRPC messages.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from asyncnn.hal.errors import InvalidArgumentError, require_known
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model import TensorInfo, has_fixed_shape

DATATYPES: Mapping[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
}
"""The dtype of each datatype that models here may have."""

COPIED_BYTES, WRITTEN_BYTES = 1 << 20, 1 << 15
"""So many are copied, or read and written as numbers, in a moment."""

_MOST_ELEMENTS = 1 << 56

_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
_floats = msgspec.json.Decoder(list[float])
_KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
"""Kinds of numbers in JSON that may stand for elements of a kind."""


def datatype_of(info: TensorInfo | Array) -> str:
    """Return what the protocol calls the dtype of an input, an output or an array.

    :raises InvalidArgumentError: if it has no name for it.
    """
    try:
        return _NAMES[info.dtype]
    except KeyError:
        raise InvalidArgumentError(
            f"{info}: the Open Inference Protocol has no such datatype"
        ) from None


def declared(
    infos: Mapping[str, TensorInfo], name: str, datatype: str, shape: tuple[int, ...]
) -> np.dtype[Any]:
    """Return the dtype of an input that a request has.

    That the shape is the model's is for the run to check.

    :raises InvalidArgumentError: if the model has no such input, or another datatype,
        or a length is negative, or an array of that shape cannot be.
    """
    require_known("input", name, infos)
    info = infos[name]
    dtype = DATATYPES.get(datatype)
    if dtype is None or dtype != info.dtype:
        raise InvalidArgumentError(
            f"input {name!r} is given as {datatype or 'no datatype'}"[:200],
            hint=f"the model takes {datatype_of(info)}",
        )
    if shape == info.dimensions:
        return dtype
    # NumPy has up to 64 axes, and multiplies lengths beside one that is 0, too.
    is_apt = len(shape) <= 32 and min(shape, default=0) >= 0
    if not is_apt or math.prod(length or 1 for length in shape) > _MOST_ELEMENTS:
        raise InvalidArgumentError(
            f"input {name[:80]!r} cannot have shape {[*shape[:8]]}"[:200]
        )
    return dtype


def from_bytes(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: bytes | memoryview
) -> Array:
    """Return the array that bytes are, which it keeps; a copy if they are unaligned.

    :raises InvalidArgumentError: if they are more or less than its shape has.
    """
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise InvalidArgumentError(
            f"input {name!r} of shape {[*shape]} has {len(data)} bytes, not {wanted}"
        )
    array: Array = np.frombuffer(data, dtype).reshape(shape)
    if dtype.kind == "b":
        check_truths(f"input {name!r}", array)
    return array if array.flags.aligned else array.copy()


def check_truths(where: str, array: Array) -> None:
    """Check that truth values are bytes of 0 and 1; no other is true or false.

    :raises InvalidArgumentError: if one is not.
    """
    if array.dtype.kind == "b" and array.size and array.view(np.uint8).max() > 1:
        raise InvalidArgumentError(f"{where} has bytes other than 0 and 1")


def from_json(
    info: TensorInfo, dtype: np.dtype[Any], shape: tuple[int, ...], text: bytes
) -> Array:
    """Return an array of numbers in JSON, as `from_numbers` does.

    Only as many as its shape and the model have are read. Texts are not: NumPy would
    make all elements as long as the longest.

    :raises InvalidArgumentError: as `from_numbers`.
    """
    name, wanted, found = info.name, math.prod(shape), text.count(b",") + 1
    is_usual = shape == info.dimensions or not has_fixed_shape(info)
    if not is_usual and wanted > math.prod(info.dimensions):
        raise InvalidArgumentError(
            f"input {name!r} has shape {[*shape]}, the model takes {info}"
        )
    if not wanted and not text.strip(b"[], \t\r\n"):
        return np.empty(shape, dtype)
    if found > max(wanted, 1):
        raise InvalidArgumentError(
            f"input {name!r} of shape {[*shape]} has {found} elements in data"
        )
    if dtype.kind == "f":
        with suppress(msgspec.DecodeError):  # most are so; the rest is reported below
            numbers = _floats.decode(text)
            if len(numbers) == wanted:
                with np.errstate(over="ignore"):  # what is too large is infinite
                    return np.array(numbers, dtype).reshape(shape)
    try:
        data = "" if b'"' in text else msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgumentError(f"the data of input {name!r}: {error}") from None
    return from_numbers(name, dtype, shape, data)


def from_numbers(
    name: str, dtype: np.dtype[Any], shape: tuple[int, ...], data: object
) -> Array:
    """Return an array of numbers in lists, flat or nested as the shape is.

    :raises InvalidArgumentError: if there are more or less than its shape has, or one
        cannot be an element.
    """
    if data is None:
        raise InvalidArgumentError(f"input {name!r} has no data")
    try:
        found = np.array(data)
    except (ValueError, OverflowError):
        found = np.empty((), object)
    wanted = math.prod(shape)
    if found.size == wanted == 0:
        return np.empty(shape, dtype)
    if found.dtype.kind not in _KINDS[dtype.kind]:
        raise InvalidArgumentError(
            f"the data of input {name!r} are no numbers for {_NAMES[dtype]}",
            hint="give one list, or lists of lists of equal lengths",
        )
    if found.shape not in ((wanted,), shape):
        raise InvalidArgumentError(
            f"input {name!r} of shape {[*shape]} has {found.size} elements in data of "
            f"shape {[*found.shape]}"
        )
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if found.min() < limits.min or found.max() > limits.max:
            raise InvalidArgumentError(
                f"input {name!r} has numbers beyond the range of {_NAMES[dtype]}"
            )
    with np.errstate(over="ignore"):  # what is too large is infinite
        return found.astype(dtype).reshape(shape)
