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

_FORMAT_VERSION = 2


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
    """An array at ``offset`` of the data cache or of the model's operand values."""

    dtype: str
    shape: Shape
    is_data: bool
    offset: int


class StepEntry(msgspec.Struct, frozen=True, array_like=True):
    """An `asyncnn.engine.records.StepRecord`."""

    position: int
    is_prepared: bool
    packed: dict[str, tuple[StoredArray, ...]]


class PlanEntry(msgspec.Struct, frozen=True, array_like=True):
    """An `asyncnn.engine.PlanRecord`."""

    shapes: tuple[Shape | None, ...]
    folded: dict[int, StoredArray]
    steps: tuple[StepEntry, ...]
    arena: ArenaLayout


class CacheRecord(msgspec.Struct, frozen=True, array_like=True):
    """A prepared model. The constants' pool of ``model`` is the data cache.

    ``plans`` are `PlanEntry` structures, encoded, by the number of their subgraph. What
    lies among operand values is in ``operand_values`` of the model, behind its own.
    ``extensions`` are the versions of those that it uses.
    """

    compilation: bytes
    data_bytes: int
    preference: ExecutionPreference
    priority: Priority
    model: Model
    plans: dict[int, msgspec.Raw]
    extensions: tuple[str, ...]


class _Envelope(msgspec.Struct, frozen=True, array_like=True):
    """Tells whether the record inside can be understood, and is the one wanted."""

    versions: tuple[str, ...]
    token: bytes
    record: msgspec.Raw


encode = msgspec.msgpack.Encoder().encode
"""Turns what is defined here into bytes."""

decode_plan = msgspec.msgpack.Decoder(PlanEntry).decode
"""Turns the bytes of a plan into a `PlanEntry`."""

_envelopes: msgspec.msgpack.Decoder[_Envelope] = msgspec.msgpack.Decoder(_Envelope)
_records: msgspec.msgpack.Decoder[CacheRecord] = msgspec.msgpack.Decoder(CacheRecord)


def sealed(record: CacheRecord, token: bytes, key: CacheKey) -> bytes:
    """Return the bytes of a model cache.

    :raises GeneralFailureError: if the driver has no key, or they would be too many.
    """
    envelope = _Envelope(versions(), token, msgspec.Raw(encode(record)))
    content = MAGIC + encode(envelope)
    if len(content) > MOST_BYTES - TAG_BYTES:
        raise GeneralFailureError("the model is too large to be cached")
    return key.tag(content) + content


def unsealed(data: memoryview, token: bytes, key: CacheKey) -> CacheRecord:
    """Return the record in a model cache that this very driver wrote for ``token``.

    :raises GeneralFailureError: if it did not.
    """
    tag, content = data[:TAG_BYTES], data[TAG_BYTES:]
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
