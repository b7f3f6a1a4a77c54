"""What the HAL's suite does to the packet of a valid request.

Source: HAL 1.3/vts/functional/ValidateBurst.cpp.
"""

from collections.abc import Iterator
from struct import pack

from asyncnn.burst.datums import (
    DATUM_BYTES,
    DEFAULT_QUEUE_LENGTH,
    MEASURE_FORMAT,
    POOL_FORMAT,
    REQUEST_DIMENSION,
    REQUEST_OPERAND,
    REQUEST_PACKET,
    RequestKind,
)

BAD_DATUMS = (
    REQUEST_PACKET.pack(RequestKind.PACKET, 10, 10, 10, 10),
    REQUEST_OPERAND.pack(RequestKind.INPUT, False, 0, 0, 0, 10),
    REQUEST_DIMENSION.pack(RequestKind.INPUT_DIMENSION, 0),
    REQUEST_OPERAND.pack(RequestKind.OUTPUT, False, 0, 0, 0, 10),
    REQUEST_DIMENSION.pack(RequestKind.OUTPUT_DIMENSION, 0),
    pack("<" + POOL_FORMAT, RequestKind.POOL, 2**31 - 1),
    pack("<" + MEASURE_FORMAT, RequestKind.MEASURE, 1),
)

_DIMENSIONS = (RequestKind.INPUT_DIMENSION, RequestKind.OUTPUT_DIMENSION)


def split(packet: bytes) -> list[bytes]:
    """Return the datums of a packet."""
    return [packet[at : at + DATUM_BYTES] for at in range(0, len(packet), DATUM_BYTES)]


def mutations(packet: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield every altered packet and what was done to it."""
    datums = split(packet)
    for at in range(len(datums)):
        yield f"without datum {at}", b"".join(datums[:at] + datums[at + 1 :])
    if len(datums) < DEFAULT_QUEUE_LENGTH:
        for at in range(len(datums) + 1):
            for number, bad in enumerate(BAD_DATUMS):
                altered = [*datums[:at], bad, *datums[at:]]
                yield f"bad datum {number} before datum {at}", b"".join(altered)
    for at, datum in enumerate(datums):
        for number, bad in enumerate(BAD_DATUMS):
            if datum != bad and not (datum[0] == bad[0] and bad[0] in _DIMENSIONS):
                altered = [*datums[:at], bad, *datums[at + 1 :]]
                yield f"bad datum {number} for datum {at}", b"".join(altered)
