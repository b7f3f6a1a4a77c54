"""Model files: `load_model` reads every kind, `save` writes the project's own.

`bundled_file` finds the ones that come with the package, to try things with.

A container holds a HAL model with its names; constants stay where they lie in it.
``docs/model-format.md`` specifies the bytes. All integers are little-endian. A checksum
reveals damage; that a file was not made to do harm is what validation is for.
"""

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

import msgspec
import numpy as np

from asyncnn.deadlines import deadline_after
from asyncnn.extensions import Extension, ExtensionNames, Extensions
from asyncnn.extensions.regions import DECLARED
from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError, WrongTypeError
from asyncnn.hal.operands import dtype_of, size_of_data_bytes
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import ExtensionNameAndPrefix, Memory, Model, Subgraph
from asyncnn.hal.validate import validate_model
from asyncnn.input_files import AnyPath, call_abandonable, offload_abandonable
from asyncnn.memory.pools import from_buffer, part_of, view
from asyncnn.offload import SWITCH_INTERVAL_S, switching_at_least_every
from asyncnn.output_files import write_file
from asyncnn.pacing import Steps
from asyncnn.runtime.file_kinds import MAGIC, FileKind, kind_of
from asyncnn.runtime.model import (
    InputShapes,
    NamedModel,
    located,
    open_model_file,
    read_model_file,
)
from asyncnn.runtime.model_description import Outline
from asyncnn.runtime.states import pairs_by_name
from asyncnn.runtime.tflite import loading_tflite, outline_of_tflite
from asyncnn.runtime.unsupported import UnsupportedOperatorError
from asyncnn.turn import require_loop

if TYPE_CHECKING:
    from asyncnn.runtime.onnx import Constants

SUFFIX = ".asyncnn"
"""Customary end of a container's file name."""

BUNDLED = Path(__file__).parent / "bundled"
"""The folder of what `bundled_file` finds."""

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | bytearray | memoryview
"""The path of a model file, or its bytes."""

FORMAT_VERSION = 1
STATEFUL_FORMAT_VERSION = 2
"""That of files of models with state, which readers of the first would not keep."""

PAIRING_FORMAT_VERSION = 3
"""That of files of models with pairs of inputs and outputs that sessions keep."""

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
    """Return names and first values; the states are the last inputs.

    :raises InvalidArgumentError: if there are more than inputs, or bytes do not fit.
    """
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
            version = _version_of(named.states, named.pairs)
            prefix = _PREFIX.pack(MAGIC, version, len(body), zlib.crc32(body))
            return prefix + body, offsets
        # Larger offsets may need more bytes themselves, hence the loop.
        start = _aligned(_PREFIX.size + len(body), PAGE_BYTES)


def _version_of(states: Sequence[object], pairs: Sequence[object]) -> int:
    """Return the oldest version of the format that has what there is."""
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


async def load_model(
    source: ModelSource,
    *,
    signature: str | None = None,
    input_shapes: InputShapes = None,
    constants: "Constants | None" = None,
    states: Mapping[str, str] | None = None,
    extensions: Iterable[Extension | str] = (),
    strict: bool = False,
    timeout: float | None = None,  # noqa: ASYNC109 - it also ends what is cancelled
) -> NamedModel:
    """Load a model file on a thread: TFLite, ONNX or the project's own container.

    The event loop goes on meanwhile. Cancelling, or the end of the time, ends the call
    at once, even if the file's folder does not answer any more.

    ``source`` is the file's path or its bytes, which decide what kind it is, not the
    name. A file is copied into memory, and may be changed, replaced or deleted
    afterwards. Bytes that are given are used where they are, and must not change while
    the model is in use.

    :param signature: name of the signature of a TFLite file whose graph is the model;
        None for the first graph.
    :param input_shapes: of inputs, by name, or of all in order. Those of a TFLite file
        replace the file's, of the same rank, and all other shapes follow; those of an
        ONNX file settle axes that it leaves open, where 0 leaves one open still.
    :param constants: values, by name, of inputs of an ONNX file that are always the
        same; the model has them no more.
    :param states: inputs that a session keeps, by name, each with the output that is
        its next value. None for those whose names leave no doubt, or that a container
        was saved with; ``{}`` for none.
    :param extensions: where custom operators of the file are looked for, besides those
        that asyncnn brings and that packages have installed.
    :param strict: translate the file into the HAL's own operations at once. Without it,
        an ONNX file is one region, which devices with an engine for such files take as
        it is; it is translated when another device prepares it. So is a TFLite file in
        which nothing is lost by that, or that cannot be translated.
    :param timeout: seconds from now until it is given up.
    :raises InvalidArgumentError: if the file is empty, damaged or of no known kind, has
        no such signature, or none of what is given is for files of its kind.
    :raises UnsupportedOperatorError: if an operator has no HAL form, and needs one.
    :raises GeneralFailureError: if the file cannot be read or is changed meanwhile, or
        the package `onnx` is needed for it and is not installed. It is also a
        `FileNotFoundError` if there is none.
    :raises MissedDeadlineError: if it is not loaded in time.
    :raises ResourceExhaustedError: if there is no thread, as too many hang in folders
        that do not answer.
    """
    require_loop()
    steps = _loading(
        source, signature, input_shapes, constants, states, extensions, strict
    )
    what = f"loading {_where(source)}"
    return await offload_abandonable(what, steps, deadline=deadline_after(timeout))


def load(
    source: ModelSource,
    *,
    signature: str | None = None,
    input_shapes: InputShapes = None,
    constants: "Constants | None" = None,
    states: Mapping[str, str] | None = None,
    extensions: Iterable[Extension | str] = (),
    strict: bool = False,
) -> NamedModel:
    """Load a model file as `load_model` does, and block; an interrupt ends that.

    :raises AsyncnnError: as `load_model`.
    """
    steps = _loading(
        source, signature, input_shapes, constants, states, extensions, strict
    )
    return call_abandonable(f"loading {_where(source)}", steps)


def _where(source: ModelSource) -> str:
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return "the model in memory"


def _model_bytes(path: AnyPath) -> Memory:
    file = open_model_file(path)
    with located(path):
        kind_of(file)  # first: what is no model may be of any size
    return file.copy()


def _loading(
    source: ModelSource,
    signature: str | None,
    input_shapes: InputShapes,
    constants: "Constants | None",
    states: Mapping[str, str] | None,
    extensions: Iterable[Extension | str],
    strict: bool,
) -> Steps[NamedModel]:
    folder: Path | None = None
    if isinstance(source, str | os.PathLike):
        memory, folder = _model_bytes(source), Path(source).parent
    else:
        try:
            memory = from_buffer(memoryview(source).toreadonly())
        except TypeError:
            raise WrongTypeError(
                f"a model is loaded from a path or bytes, not {type(source).__name__}"
            ) from None
    yield
    with located(_where(source)), switching_at_least_every(SWITCH_INTERVAL_S):
        if not memory.size:
            raise InvalidArgumentError("it is empty")
        kind = kind_of(view(memory))
        given = {
            "a signature": (signature, (FileKind.TFLITE,)),
            "input_shapes": (input_shapes, (FileKind.TFLITE, FileKind.ONNX)),
            "constants": (constants, (FileKind.ONNX,)),
        }
        for what, (value, kinds) in given.items():
            if value and kind not in kinds:
                raise InvalidArgumentError(
                    f"{what} cannot be given for {kind.value} files"
                )
        if kind is FileKind.CONTAINER:
            named = read_container(memory)
            return named if states is None else named.with_pairs(states)
        if kind is FileKind.TFLITE:
            named = yield from loading_tflite(
                memory, signature, input_shapes, extensions, strict
            )
        else:
            named = yield from _onnx(memory, folder, input_shapes, constants, strict)
        return named.with_pairs(pairs_by_name(named) if states is None else states)


def _onnx(
    memory: Memory,
    folder: Path | None,
    input_shapes: InputShapes,
    constants: "Constants | None",
    strict: bool,
) -> Steps[NamedModel]:
    """Make a region of an ONNX file; translate it if that is asked for, or none."""
    from asyncnn.runtime.onnx import importing_onnx
    from asyncnn.runtime.onnx.whole_file import reading_whole

    refusal: UnsupportedOperatorError | None = None
    if not strict:
        try:
            return (yield from reading_whole(memory, folder, input_shapes, constants))
        except UnsupportedOperatorError as error:
            refusal = error
    try:
        return (
            yield from importing_onnx(
                memory,
                folder=folder,
                input_shapes=input_shapes,
                constants=constants,
                strict=strict,
            )
        )
    except UnsupportedOperatorError as error:
        if refusal is None or refusal.message in error.message:
            raise
        raise UnsupportedOperatorError(
            f"{refusal.message}; translated: {error.message}",
            hint=refusal.hint or error.hint,
            operators=error.operators,
        ) from error


def outline_of(path: str | os.PathLike[str]) -> Outline | None:
    """Return what a file says of its inputs and outputs, even if it isn't imported.

    A container says no more than what `load` returns, for which this is None.

    :raises InvalidArgumentError: if it is damaged or of no known kind.
    :raises GeneralFailureError: as `load`.
    """
    memory = read_model_file(path)
    with located(path):
        kind = kind_of(view(memory))
        if kind is FileKind.CONTAINER:
            return None
        if kind is FileKind.TFLITE:
            return outline_of_tflite(memory)
        from asyncnn.runtime.onnx import outline_of_onnx

        return outline_of_onnx(memory)


def bundled_file(name: str) -> Path:
    """Return the path of a file that comes with the package, to try things with.

    ``digits_float.asyncnn`` and ``digits_int8.asyncnn`` are classifiers of handwritten
    digits. An image is ``image``, float32 or quantised int8 [1, 8, 8, 1], grey levels
    from 0 (paper) to 1 (ink); ``probabilities`` [1, 10] are how likely each digit is.
    ``digits_test.npz`` has 360 images that they have not seen, ``images``, uint8
    [360, 8, 8], grey levels from 0 to 16, and which digits these are, ``labels``, uint8
    [360].

    :raises InvalidArgumentError: if no file of that name comes with the package.
    """
    known = sorted(path.name for path in BUNDLED.iterdir())
    if name not in known:
        raise InvalidArgumentError(
            f"no file {name!r} comes with asyncnn", hint=f"known: {', '.join(known)}"
        )
    return BUNDLED / name
