"""Requests as packets.

What an application sends over and over differs in little: the slots of its pools, and
whether to measure. Everything before those is a `RequestShape`, made into bytes once by
the sender and into arguments once by the receiver, which knows it again by comparing
bytes. Neither of them looks at single fields of a repeated request.

Source: HAL 1.2/types.hal (FmqRequestDatum).
"""

import functools
from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

from asyncnn.burst.datums import (
    DATUM_BYTES,
    MEASURE_FORMAT,
    POOL_FORMAT,
    REQUEST_DIMENSION,
    REQUEST_OPERAND,
    REQUEST_PACKET,
    Datums,
    PacketError,
    RequestKind,
)
from asyncnn.hal.types import DataLocation, MeasureTiming, RequestArgument

_NAMES: Final = (
    "packetInformation",
    "inputOperandInformation",
    "inputOperandDimensionValue",
    "outputOperandInformation",
    "outputOperandDimensionValue",
    "poolIdentifier",
    "measureTiming",
)

_POOL = Struct("<" + POOL_FORMAT)
_MEASURE = Struct("<" + MEASURE_FORMAT)
_MEASURES = {int(measure): measure for measure in MeasureTiming}

Arguments: TypeAlias = tuple[RequestArgument, ...]


class RequestShape:
    """The arguments of a request and the number of its pools, and their bytes."""

    __slots__ = (
        "_kinds",
        "_prefix",
        "_tail",
        "inputs",
        "outputs",
        "pool_count",
        "size_bytes",
    )

    def __init__(
        self, inputs: Arguments, outputs: Arguments, pool_count: int, prefix: bytes
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.pool_count = pool_count
        self._prefix = prefix
        self._tail = _tail(pool_count)
        self._kinds = (RequestKind.POOL,) * pool_count + (RequestKind.MEASURE,)
        self.size_bytes = len(prefix) + self._tail.size

    @classmethod
    def of(
        cls, inputs: Arguments, outputs: Arguments, pool_count: int
    ) -> "RequestShape":
        """Return the shape of a request.

        :raises struct.error: if a number of the arguments has no place in 32 bits.
        """
        datums = [
            *_operands(inputs, RequestKind.INPUT, RequestKind.INPUT_DIMENSION),
            *_operands(outputs, RequestKind.OUTPUT, RequestKind.OUTPUT_DIMENSION),
        ]
        # The first datum, those of the arguments and pools, and the measurement.
        size = 1 + len(datums) + pool_count + 1
        head = REQUEST_PACKET.pack(
            RequestKind.PACKET, size, len(inputs), len(outputs), pool_count
        )
        return cls(inputs, outputs, pool_count, b"".join((head, *datums)))

    def encode(self, slots: Sequence[int], measure: MeasureTiming) -> bytes:
        """Return the packet of a request whose pools are in ``slots``."""
        fields: list[int] = []
        for slot in slots:
            fields += (RequestKind.POOL, slot)
        return self._prefix + self._tail.pack(*fields, RequestKind.MEASURE, measure)

    def decode(self, packet: bytes) -> tuple[tuple[int, ...], MeasureTiming] | None:
        """Return slots and measurement of a correct packet of this shape, else None."""
        if len(packet) != self.size_bytes or not packet.startswith(self._prefix):
            return None
        fields = self._tail.unpack_from(packet, len(self._prefix))
        measure = _MEASURES.get(fields[-1])
        if measure is None or fields[::2] != self._kinds:
            return None
        return fields[1:-2:2], measure


@functools.lru_cache(maxsize=64)
def _tail(pool_count: int) -> Struct:
    return Struct("<" + POOL_FORMAT * pool_count + MEASURE_FORMAT)


def _operands(arguments: Arguments, kind: int, dimension_kind: int) -> list[bytes]:
    datums: list[bytes] = []
    for argument in arguments:
        at, dimensions = argument.location, argument.dimensions
        if argument.has_no_value:
            at, dimensions = DataLocation(), ()
        datums.append(
            REQUEST_OPERAND.pack(
                kind,
                argument.has_no_value,
                at.pool_index,
                at.offset,
                at.length,
                len(dimensions),
            )
        )
        datums += [REQUEST_DIMENSION.pack(dimension_kind, axis) for axis in dimensions]
    return datums


def decode_request(
    packet: bytes,
) -> tuple[RequestShape, tuple[int, ...], MeasureTiming]:
    """Return shape, slots and measurement of a packet that may hold anything.

    What the arguments mean is left to the validation of requests.

    :raises PacketError: if the packet is malformed.
    """
    datums = Datums(packet, _NAMES)
    size, inputs, outputs, pools = datums.take(RequestKind.PACKET, REQUEST_PACKET)
    datums.check_size(size)
    # The counts are the sender's word: each round takes a datum, or ends it all.
    arguments = [
        _argument(datums, RequestKind.INPUT, RequestKind.INPUT_DIMENSION)
        for _ in range(inputs)
    ]
    results = [
        _argument(datums, RequestKind.OUTPUT, RequestKind.OUTPUT_DIMENSION)
        for _ in range(outputs)
    ]
    prefix = packet[: datums.position * DATUM_BYTES]
    slots = tuple([datums.take(RequestKind.POOL, _POOL)[0] for _ in range(pools)])
    (number,) = datums.take(RequestKind.MEASURE, _MEASURE)
    datums.check_end()
    measure = _MEASURES.get(number)
    if measure is None:
        raise PacketError(f"{number} is no MeasureTiming")
    return (
        RequestShape(tuple(arguments), tuple(results), len(slots), prefix),
        slots,
        measure,
    )


def _argument(datums: Datums, kind: int, dimension_kind: int) -> RequestArgument:
    has_no_value, pool, offset, length, rank = datums.take(kind, REQUEST_OPERAND)
    return RequestArgument(
        bool(has_no_value),
        DataLocation(pool, offset, length),
        datums.dimensions(rank, dimension_kind, REQUEST_DIMENSION),
    )
