"""The contents of a model cache, and how they become bytes.

A file is the tag of all that follows, `MAGIC`, and an envelope around a `CacheRecord`
as MessagePack. What the tag does not fit is not looked at.
"""

import sys

import msgspec
import numpy as np

from asyncnn._version import __version__
from asyncnn.devices.cache.key import TAG_BYTES, CacheKey
from asyncnn.engine.arena import ArenaLayout
from asyncnn.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Shape
from asyncnn.hal.types import ExecutionPreference, Model, Priority
from asyncnn.kernels.kernel import PACKING_VERSION

MAGIC = b"asyncnnM"
DATA_MAGIC = b"asyncnnD"
COMPILATION_BYTES = 16
"""Length of the random number that the two files of one compilation share."""

MOST_BYTES = 2**28
"""A model cache that is longer is not read."""

_FORMAT_VERSION = 1


def versions() -> tuple[str, ...]:
    """Return all that a cache depends on besides the model."""
    return (
        f"format {_FORMAT_VERSION}",
        f"asyncnn {__version__}",
        f"packing {PACKING_VERSION}",
        f"numpy {np.__version__}",
        sys.byteorder,
    )


class StoredArray(msgspec.Struct, frozen=True, array_like=True):
    """An array: its bytes, or where they lie in the data cache."""

    dtype: str
    shape: Shape
    place: bytes | int


class StepEntry(msgspec.Struct, frozen=True, array_like=True):
    """An `asyncnn.engine.plan.StepRecord`."""

    position: int
    is_prepared: bool
    packed: dict[str, tuple[StoredArray, ...]]


class PlanEntry(msgspec.Struct, frozen=True, array_like=True):
    """An `asyncnn.engine.PlanRecord` and the number of its subgraph."""

    number: int
    shapes: tuple[Shape | None, ...]
    folded: dict[int, StoredArray]
    steps: tuple[StepEntry, ...]
    arena: ArenaLayout


class CacheRecord(msgspec.Struct, frozen=True, array_like=True):
    """A prepared model. The constants' pool of ``model`` is the data cache.

    ``extensions`` are the versions of those that it uses.
    """

    compilation: bytes
    data_bytes: int
    preference: ExecutionPreference
    priority: Priority
    model: Model
    plans: tuple[PlanEntry, ...]
    extensions: tuple[str, ...]


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """Tells whether the record inside can be understood, and is the one wanted."""

    versions: tuple[str, ...]
    token: bytes
    record: msgspec.Raw


_encode = msgspec.msgpack.Encoder().encode
_envelopes: msgspec.msgpack.Decoder[_Envelope] = msgspec.msgpack.Decoder(_Envelope)
_records: msgspec.msgpack.Decoder[CacheRecord] = msgspec.msgpack.Decoder(CacheRecord)


def sealed(record: CacheRecord, token: bytes, key: CacheKey) -> bytes:
    """Return the bytes of a model cache.

    :raises GeneralFailureError: if the driver has no key, or they would be too many.
    """
    envelope = _Envelope(versions(), token, msgspec.Raw(_encode(record)))
    content = MAGIC + _encode(envelope)
    if len(content) > MOST_BYTES - TAG_BYTES:
        raise GeneralFailureError("the model is too large to be cached")
    return key.tag(content) + content


def unsealed(data: bytes, token: bytes, key: CacheKey) -> CacheRecord:
    """Return the record in a model cache that this very driver wrote for ``token``.

    :raises GeneralFailureError: if it did not.
    """
    view = memoryview(data)
    tag, content = view[:TAG_BYTES], view[TAG_BYTES:]
    if not key.verifies(tag, content):
        raise GeneralFailureError("the model cache is not as this driver wrote it")
    if content[: len(MAGIC)] != MAGIC:
        raise GeneralFailureError("not a model cache")
    try:
        envelope = _envelopes.decode(content[len(MAGIC) :])
        if envelope.versions != versions():
            raise GeneralFailureError("the model cache is another version's")
        if envelope.token != token:
            raise GeneralFailureError("the model cache has another token")
        return _records.decode(envelope.record)
    except msgspec.MsgspecError as error:
        raise GeneralFailureError(f"the model cache: {error}") from error
