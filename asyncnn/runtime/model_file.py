"""Model files: `load` reads every kind, `save` writes the project's own.

A container holds a HAL model with its names; constants are mapped where they lie.
``docs/model-format.md`` specifies the bytes. All integers are little-endian. A checksum
reveals damage; that a file was not made to do harm is what validation is for.
"""

import os
import secrets
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from asyncnn.extensions import ExtensionNames
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import ExtensionNameAndPrefix, Memory, Model, Subgraph
from asyncnn.hal.validate import validate_model
from asyncnn.memory.pools import part_of, view
from asyncnn.runtime.model import NamedModel, located, map_model_file
from asyncnn.runtime.onnx import Constants, InputShapes, import_onnx, is_onnx
from asyncnn.runtime.tflite import import_tflite, schema

MAGIC = b"ASYNCNN\0"
"""First bytes of every container."""

SUFFIX = ".asyncnn"
"""Customary end of a container's file name."""

FORMAT_VERSION = 1
PAGE_BYTES = 4096
"""Alignment of the first pool."""
POOL_ALIGNMENT = 64
"""Alignment of the other pools."""

_PREFIX = struct.Struct("<8sIII")


class _Pool(msgspec.Struct, frozen=True, array_like=True):
    """Where the bytes of a pool lie in the file."""

    offset: int
    size: int
    crc32: int


class _Header(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Everything of a named model but the contents of its pools."""

    main: Subgraph
    referenced: tuple[Subgraph, ...]
    operand_values: bytes
    relax_computation_float32_to_float16: bool
    extension_name_to_prefix: tuple[ExtensionNameAndPrefix, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    pools: tuple[_Pool, ...]
    extension_names: tuple[ExtensionNames, ...] = ()


def save(named: NamedModel, path: str | os.PathLike[str]) -> None:
    """Write a model to ``path``, replacing a file there in one step.

    :raises GeneralFailureError: if a pool cannot be mapped or the file not written.
    """
    pools = [view(memory) for memory in named.model.pools]
    header, offsets = _encode(named, pools)
    with _replacing(path) as file:
        file.write(header)
        for offset, pool in zip(offsets, pools, strict=True):
            file.write(bytes(offset - file.tell()))
            file.write(pool)


def read_container(memory: Memory) -> NamedModel:
    """Read the container whose bytes are those of ``memory``.

    :raises InvalidArgumentError: if they are damaged or not a container.
    """
    header = _decode(view(memory))
    model = Model(
        header.main,
        header.referenced,
        header.operand_values,
        tuple(_read_pools(memory, header.pools)),
        header.relax_computation_float32_to_float16,
        header.extension_name_to_prefix,
    )
    validate_model(model)
    named = NamedModel.of(model, header.input_names, header.output_names)
    return msgspec.structs.replace(named, extension_names=header.extension_names)


def _encode(
    named: NamedModel, pools: Sequence[memoryview]
) -> tuple[bytes, Sequence[int]]:
    """Return what precedes the pools, and the offset of each pool."""
    checksums = [zlib.crc32(pool) for pool in pools]
    start = PAGE_BYTES
    while True:
        offsets = _offsets(start, pools)
        table = tuple(
            _Pool(offset, len(pool), checksum)
            for offset, pool, checksum in zip(offsets, pools, checksums, strict=True)
        )
        body = msgspec.msgpack.encode(_header_of(named, table))
        if _PREFIX.size + len(body) <= start:
            prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, len(body), zlib.crc32(body))
            return prefix + body, offsets
        # Larger offsets may need more bytes themselves, hence the loop.
        start = _aligned(_PREFIX.size + len(body), PAGE_BYTES)


def _header_of(named: NamedModel, pools: tuple[_Pool, ...]) -> _Header:
    model = named.model
    return _Header(
        model.main,
        model.referenced,
        model.operand_values,
        model.relax_computation_float32_to_float16,
        model.extension_name_to_prefix,
        tuple(tensor.name for tensor in named.inputs),
        tuple(tensor.name for tensor in named.outputs),
        pools,
        named.extension_names,
    )


def _offsets(start: int, pools: Sequence[memoryview]) -> Sequence[int]:
    offsets = []
    for pool in pools:
        offsets.append(start)
        start = _aligned(start + len(pool), POOL_ALIGNMENT)
    return offsets


def _aligned(position: int, alignment: int) -> int:
    return position + -position % alignment


def _decode(data: memoryview) -> _Header:
    if data[: len(MAGIC)] != MAGIC:
        raise InvalidArgumentError("not an asyncnn model file")
    if len(data) < _PREFIX.size:
        raise InvalidArgumentError("the file is cut short")
    _, version, length, checksum = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION:
        raise InvalidArgumentError(
            f"format version {version} is not {FORMAT_VERSION}",
            hint="a newer asyncnn may have written the file",
        )
    body = data[_PREFIX.size : _PREFIX.size + length]
    if len(body) != length:
        raise InvalidArgumentError("the file is cut short")
    if zlib.crc32(body) != checksum:
        raise InvalidArgumentError("the header is damaged: its checksum differs")
    try:
        return msgspec.msgpack.decode(body, type=_Header)
    except RecursionError as error:
        raise InvalidArgumentError("malformed header: nested too deeply") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"malformed header: {error}") from error


def _read_pools(memory: Memory, pools: Sequence[_Pool]) -> Iterator[Memory]:
    end = 0
    for pool in pools:
        # Overlapping pools could make the checksums take for ever.
        if pool.offset < end:
            raise InvalidArgumentError(f"the pool at offset {pool.offset} overlaps")
        end = pool.offset + pool.size
        part = part_of(memory, pool.offset, pool.size)
        if zlib.crc32(view(part)) != pool.crc32:
            raise InvalidArgumentError(
                f"the pool at offset {pool.offset} is damaged: its checksum differs"
            )
        yield part


@contextmanager
def _replacing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that takes the place of ``path`` once it is complete and on disk."""
    target = os.fspath(path)
    temporary = f"{target}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "xb") as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, target)
            except BaseException:
                os.unlink(temporary)
                raise
    except OSError as error:
        raise GeneralFailureError(
            f"{target}: cannot be written: {error.strerror}"
        ) from error


def load(
    path: str | os.PathLike[str],
    *,
    input_shapes: InputShapes = None,
    constants: Constants | None = None,
) -> NamedModel:
    """Load the model file at ``path``: TFLite, ONNX or the project's own container.

    The first bytes decide which, not the name. The file stays mapped while the model
    is in use and must not be changed; replacing it by another file is safe.

    :param input_shapes: shapes of inputs, of ONNX files only, whose axes the file
        leaves open: by name, or of all inputs in order; 0 is an axis that stays open.
    :param constants: inputs, of ONNX files only, that always have the same value, by
        name; the model has them no more.
    :raises InvalidArgumentError: if the file is empty, damaged or of no known kind.
    :raises UnsupportedOperatorError: if an operator has no HAL form.
    :raises GeneralFailureError: if the file cannot be read, or is an ONNX file and the
        package `onnx` is not installed.
    """
    memory = map_model_file(path)
    with located(path):
        if is_onnx(view(memory)):
            return import_onnx(
                memory,
                folder=Path(path).parent,
                input_shapes=input_shapes,
                constants=constants,
            )
        if input_shapes is not None or constants is not None:
            raise InvalidArgumentError(
                "input shapes and constants are for ONNX files, whose axes may be open"
            )
        return _reader_for(memory)(memory)


def _reader_for(memory: Memory) -> Callable[[Memory], NamedModel]:
    data = view(memory)
    if data[:8] == MAGIC:
        return read_container
    if data[4:8] == schema.IDENTIFIER:
        return import_tflite
    raise InvalidArgumentError("neither a TFLite, ONNX nor asyncnn model file")
