"""The project's own container of models: `save` writes it, `read_container` reads it.

It holds a HAL model with its names; constants stay where they lie in it.
``docs/model-format.md`` specifies the bytes. All integers are little-endian. A checksum
reveals damage; that a file was not made to do harm is what validation is for.
"""

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import msgspec
import numpy as np

from asyncnn.extensions import ExtensionNames, Extensions
from asyncnn.extensions.regions import DECLARED
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError, WrongTypeError
from asyncnn.hal.operands import dtype_of, size_of_data_bytes
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExtensionNameAndPrefix, Memory, Model, Subgraph
from asyncnn.hal.validate import validate_model
from asyncnn.memory.pools import part_of, view
from asyncnn.output_files import write_file
from asyncnn.runtime.file_kinds import MAGIC
from asyncnn.runtime.model import NamedModel

SUFFIX = ".asyncnn"
"""Customary end of a container's file name."""

FORMAT_VERSION = 1
STATEFUL_FORMAT_VERSION = 2
"""Of files of models with state, which readers of the first would not keep."""

PAIRING_FORMAT_VERSION = 3
"""Of files of models with pairs of inputs and outputs that sessions keep."""

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


class _State(msgspec.Struct, frozen=True, array_like=True):
    """A state's name, and the bytes of its first value unless that is real zeros."""

    name: str
    initial: bytes | None


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
    states: tuple[_State, ...] = ()
    pairs: tuple[tuple[str, str], ...] = ()


def save(named: NamedModel, path: str | os.PathLike[str]) -> None:
    """Write a model to ``path``, replacing a file there in one step.

    :raises GeneralFailureError: if a pool cannot be mapped or the file not written.
    """
    if not isinstance(named, NamedModel):
        raise WrongTypeError(
            f"a model of type {type(named).__name__} cannot be saved",
            hint="save what asyncnn.load or ModelBuilder.build gives",
        )
    pools = [view(memory) for memory in named.model.pools]
    header, offsets = _encode(named, pools)

    def write(file: BinaryIO) -> None:
        file.write(header)
        for offset, pool in zip(offsets, pools, strict=True):
            file.write(bytes(offset - file.tell()))
            file.write(pool)

    try:
        write_file(path, write)
    except OSError as error:
        raise GeneralFailureError(
            f"{os.fspath(path)}: cannot be written: {error.strerror}"
        ) from error


def read_container(memory: Memory) -> NamedModel:
    """Read the container whose bytes are in ``memory``.

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
    named = NamedModel.of(
        Extensions(DECLARED.values()).resolved(model),
        header.input_names,
        header.output_names,
        _read_states(header),
    )
    named = msgspec.structs.replace(named, extension_names=header.extension_names)
    return named.with_pairs(dict(header.pairs))


def _read_states(header: _Header) -> list[tuple[str, Array | None]]:
    """Return names and first values; the states are the last inputs."""
    main, states = header.main, header.states
    count = len(main.input_indexes) - len(states)
    if count < 0:
        raise InvalidArgumentError(f"{len(states)} states, but fewer inputs")
    found: list[tuple[str, Array | None]] = []
    for index, state in zip(main.input_indexes[count:], states, strict=True):
        if state.initial is None:
            found.append((state.name, None))
            continue
        operand = main.operands[index]
        if len(state.initial) != size_of_data_bytes(operand.type, operand.dimensions):
            raise InvalidArgumentError(
                f"the first value of state {state.name} has {len(state.initial)} bytes"
            )
        array = np.frombuffer(state.initial, dtype_of(operand.type))
        found.append((state.name, array.reshape(operand.dimensions)))
    return found


def _encode(
    named: NamedModel, pools: Sequence[memoryview]
) -> tuple[bytes, Sequence[int]]:
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
            version = _version_of(named.states, named.pairs)
            prefix = _PREFIX.pack(MAGIC, version, len(body), zlib.crc32(body))
            return prefix + body, offsets
        # Larger offsets may need more bytes themselves, hence the loop.
        start = _aligned(_PREFIX.size + len(body), PAGE_BYTES)


def _version_of(states: Sequence[object], pairs: Sequence[object]) -> int:
    if pairs:
        return PAIRING_FORMAT_VERSION
    return STATEFUL_FORMAT_VERSION if states else FORMAT_VERSION


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
        tuple(
            _State(
                state.info.name,
                None if state.initial is None else state.initial.tobytes(),
            )
            for state in named.states
        ),
        named.pairs,
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
    if version not in range(FORMAT_VERSION, PAIRING_FORMAT_VERSION + 1):
        raise InvalidArgumentError(
            f"format version {version} is not known",
            hint="a newer asyncnn may have written the file",
        )
    body = data[_PREFIX.size : _PREFIX.size + length]
    if len(body) != length:
        raise InvalidArgumentError("the file is cut short")
    if zlib.crc32(body) != checksum:
        raise InvalidArgumentError("the header is damaged: its checksum differs")
    try:
        header = msgspec.msgpack.decode(body, type=_Header)
    except RecursionError as error:
        raise InvalidArgumentError("malformed header: nested too deeply") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"malformed header: {error}") from error
    if version != _version_of(header.states, header.pairs):
        raise InvalidArgumentError(f"states in a file of format version {version}")
    return header


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
