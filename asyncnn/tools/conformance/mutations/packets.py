"""Mutations of the packets that requests travel in by burst.

Source: HAL 1.3/vts/functional/ValidateBurst.cpp.
"""

from collections.abc import Iterator, Sequence
from struct import pack

from asyncnn.burst.packets import (
    DATUM_BYTES,
    DEFAULT_QUEUE_LENGTH,
    MEASURE_FORMAT,
    POOL_FORMAT,
    REQUEST_DIMENSION,
    REQUEST_OPERAND,
    REQUEST_PACKET,
    RequestKind,
)
from asyncnn.hal.types import MeasureTiming
from asyncnn.tools.conformance.mutations.mutant import PacketMutant, PacketRow

_UNKNOWN_SLOT = 2**31 - 1

BAD_DATUMS = (
    REQUEST_PACKET.pack(RequestKind.PACKET, 10, 10, 10, 10),
    REQUEST_OPERAND.pack(RequestKind.INPUT, False, 0, 0, 0, 10),
    REQUEST_DIMENSION.pack(RequestKind.INPUT_DIMENSION, 0),
    REQUEST_OPERAND.pack(RequestKind.OUTPUT, False, 0, 0, 0, 10),
    REQUEST_DIMENSION.pack(RequestKind.OUTPUT_DIMENSION, 0),
    pack("<" + POOL_FORMAT, RequestKind.POOL, _UNKNOWN_SLOT),
    pack("<" + MEASURE_FORMAT, RequestKind.MEASURE, MeasureTiming.YES),
)
"""One datum of each kind, which is wrong almost anywhere."""

_DIMENSIONS = frozenset({RequestKind.INPUT_DIMENSION, RequestKind.OUTPUT_DIMENSION})


def split(packet: bytes) -> list[bytes]:
    """Return the datums of a packet."""
    return [packet[at : at + DATUM_BYTES] for at in range(0, len(packet), DATUM_BYTES)]


def _missing(packet: bytes) -> Iterator[PacketMutant]:
    datums = split(packet)
    for at in range(len(datums)):
        yield _mutant(f"without datum {at}", datums[:at], datums[at + 1 :])


def _inserted(packet: bytes) -> Iterator[PacketMutant]:
    datums = split(packet)
    if len(datums) == DEFAULT_QUEUE_LENGTH:
        return
    for at in range(len(datums) + 1):
        for number, bad in enumerate(BAD_DATUMS):
            words = f"bad datum {number} before datum {at}"
            yield _mutant(words, datums[:at], [bad], datums[at:])


def _replaced(packet: bytes) -> Iterator[PacketMutant]:
    datums = split(packet)
    for at, datum in enumerate(datums):
        for number, bad in enumerate(BAD_DATUMS):
            # Any number is a dimension: what it means is another matter.
            is_dimension = datum[0] == bad[0] and bad[0] in _DIMENSIONS
            if datum != bad and not is_dimension:
                words = f"bad datum {number} for datum {at}"
                yield _mutant(words, datums[:at], [bad], datums[at + 1 :])


def _mutant(words: str, *parts: Sequence[bytes]) -> PacketMutant:
    return PacketMutant(words, b"".join([datum for part in parts for datum in part]))


ROWS = (
    PacketRow("VB1", "a datum is missing", _missing),
    PacketRow("VB2", "a datum is inserted", _inserted),
    PacketRow("VB3", "a datum is another", _replaced),
)
