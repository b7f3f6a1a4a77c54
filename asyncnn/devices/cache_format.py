"""The contents of a model cache, how they become bytes, and the key that seals them.

Within what `cache_files` closes lie the length of an envelope, the envelope around a
`CacheRecord` as MessagePack, and slices: the model's, then each plan's. A
file whose tag does not fit is not decoded.
"""

import hmac
import logging
import os
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from asyncnn import __version__
from asyncnn.devices.cache_files import TAG_BYTES, closed, content_of
from asyncnn.devices.executable import IModelBatching
from asyncnn.devices.private_files import (
    read_private,
    state_folder,
    using,
    write_private,
)
from asyncnn.engine import Program
from asyncnn.engine.records import StepRecord
from asyncnn.hal.errors import GeneralFailureError, ResourceExhaustedTransientError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.slices import SlicedModel, SliceKind
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.input_files import abandonable_steps, in_one, offload_abandonable, patience
from asyncnn.kernels.kernel import PACKING_VERSION
from asyncnn.pacing import Steps

logger = logging.getLogger(__name__)

T = TypeVar("T")

_KEY_BYTES = 32
_DIGEST = "sha256"
DATA_MAGIC = b"asyncnnD"
COMPILATION_BYTES = 16
"""Length of the random number that the two files of one compilation share."""

_FORMAT_VERSION = 8

_LENGTH = struct.Struct("<I")


class Compiled(msgspec.Struct, frozen=True, eq=False):
    """A program, how its client wants it to be executed, and its batches if any."""

    program: Program
    preference: ExecutionPreference
    priority: Priority
    batching: IModelBatching | None = None


class StoredArray(msgspec.Struct, frozen=True, array_like=True):
    """An array at ``offset`` of the data cache or of the model's operand values."""

    dtype: str
    shape: Shape
    is_data: bool
    offset: int


class SlicedPlan(msgspec.Struct, frozen=True, array_like=True):
    """An `asyncnn.engine.PlanRecord`: lengths of slices, which are of these lists.

    ``folded`` are operand indices with their values, ``offsets`` the arena's.
    """

    shapes: tuple[int, ...]
    folded: tuple[int, ...]
    steps: tuple[int, ...]
    offsets: tuple[int, ...]
    arena_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all slices."""
        return sum(map(sum, (self.shapes, self.folded, self.steps, self.offsets)))


SHAPES = SliceKind(tuple[Shape | None, ...])
FOLDED = SliceKind(tuple[tuple[int, StoredArray], ...])
STEPS = SliceKind(tuple[StepRecord[StoredArray], ...])
OFFSETS = SliceKind(tuple[tuple[int, int], ...])


class ModelRecord(msgspec.Struct, frozen=True, array_like=True):
    """A model in a cache. The constants' pool of ``model`` is the data cache.

    ``model_bytes`` are of its slices.
    """

    compilation: bytes
    data_bytes: int
    preference: ExecutionPreference
    priority: Priority
    model: SlicedModel
    model_bytes: int


class CacheRecord(ModelRecord, frozen=True, array_like=True):
    """A prepared model; ``plans`` are by number, in the order of their slices.

    A plan's number is its subgraph's. What it has among operand values lies in the
    model's, behind the model's own. ``extensions`` are the versions of the ones that
    it uses, ``engine`` is the version of the delegate of its plans' segments.
    """

    plans: dict[int, SlicedPlan]
    extensions: tuple[str, ...]
    engine: str


class CacheKey:
    """The key in the file at ``path``, which is created when it is needed first.

    By default the file lies where programs keep their state. It has to be readable by
    its owner alone. Any thread may call any method.
    """

    def __init__(self, path: str | os.PathLike[str] = "") -> None:
        self._given = path
        self._secret: bytes | None = None

    @property
    def is_known(self) -> bool:
        """Whether `verifies` waits for no file."""
        return self._secret is not None

    async def read_at_opening(self) -> None:
        """Read the key if there is one, and its folder answers; or else later."""
        try:
            path = self._path()
            what = using(path.parent)
            reading = in_one(_read_key, path)
            limit = patience(what)
            self._secret = await offload_abandonable(what, reading, deadline=limit)
        except (OSError, RuntimeError, ResourceExhaustedTransientError) as error:
            logger.debug("no key of caches yet: %s", error)

    def obtaining(self) -> Steps[None]:
        """Read the key in steps, between which whoever needs it may be stopped.

        :raises GeneralFailureError: as `tag`.
        """
        if self._secret is None:
            reading = in_one(self._obtain)
            self._secret = yield from abandonable_steps("reading a key", reading)

    def tag(self, content: bytes | memoryview) -> bytes:
        """Return the tag that nobody without the key can make for ``content``.

        :raises GeneralFailureError: if there is no key and none can be created.
        """
        if self._secret is None:
            self._secret = self._obtain()
        return hmac.digest(self._secret, content, _DIGEST)

    def verifies(self, tag: bytes | memoryview, content: bytes | memoryview) -> bool:
        """Return whether ``tag`` is the one of ``content``, in constant time."""
        return hmac.compare_digest(tag, self.tag(content))

    def _obtain(self) -> bytes:
        try:
            path = self._path()
            with suppress(FileNotFoundError):
                return _read_key(path)
            # With all its bytes, unless another process does so first.
            write_private(path, os.urandom(_KEY_BYTES), may_replace=False)
            logger.info("created the key of caches at %s", path)
            return _read_key(path)
        except (OSError, RuntimeError) as error:  # there may be no home
            raise GeneralFailureError(
                f"no key for caches: {error}", hint="set DeviceSettings.cache_key_file"
            ) from error

    def _path(self) -> Path:
        return Path(self._given) if self._given else default_key_path()


def sealed(
    record: msgspec.Struct, slices: Sequence[bytes], token: bytes, key: CacheKey
) -> bytes:
    """Return the bytes of a model cache.

    :raises GeneralFailureError: if the driver has no key, or they would be too many.
    """
    envelope = _encode(_Envelope(versions(), msgspec.Raw(_encode(record))))
    return closed((_LENGTH.pack(len(envelope)), envelope, *slices), token, key.tag)


def unsealed(
    kind: type[T], data: memoryview, token: bytes, key: CacheKey
) -> tuple[T, memoryview]:
    """Return record and slices of a model cache that this driver wrote for ``token``.

    :raises GeneralFailureError: if it did not, or was another version.
    """
    if not key.verifies(data[:TAG_BYTES], data[TAG_BYTES:]):
        raise GeneralFailureError("the model cache is not as this driver wrote it")
    content = content_of(data, token)
    try:
        start = _LENGTH.size
        end = start + _LENGTH.unpack(content[:start])[0]
        envelope = _envelopes.decode(content[start:end])
        if envelope.versions != versions():
            raise GeneralFailureError("the model cache is another version's")
        record = msgspec.msgpack.decode(envelope.record, type=kind)
        return record, content[end:]
    except (msgspec.MsgspecError, struct.error) as error:
        raise GeneralFailureError(f"the model cache: {error}") from error


def versions() -> tuple[str, ...]:
    """Return all that a cache depends on besides the model."""
    return (
        f"format {_FORMAT_VERSION}",
        f"asyncnn {__version__}",
        f"packing {PACKING_VERSION}",
        f"numpy {np.__version__}",
        sys.byteorder,
    )


def default_key_path() -> Path:
    """Return where the key lies unless it is configured."""
    return state_folder() / "cache-key"


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """Says whether the record inside can be understood, and is the one wanted."""

    versions: tuple[str, ...]
    record: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode

_envelopes: msgspec.msgpack.Decoder[_Envelope] = msgspec.msgpack.Decoder(_Envelope)


def _read_key(path: Path) -> bytes:
    secret = read_private(path, _KEY_BYTES + 1)
    if len(secret) != _KEY_BYTES:
        raise OSError(f"{path} is not a key of {_KEY_BYTES} bytes")
    return secret
