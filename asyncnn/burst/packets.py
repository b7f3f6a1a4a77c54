"""Requests and results of bursts as packets, byte by byte the HAL's.

A packet is a series of datums of 24 bytes. A datum is a safe union: a byte that says
which member it is (in order of declaration), then the member, aligned as its widest
field demands. Whatever lies between fields is zero.

What an application sends over and over differs in little: the slots of its pools, and
whether to measure. Everything before those is a `RequestShape`, made into bytes once.
Likewise one result of a model differs from the next in its timing at most; what comes
before that is a `ResultShape`. A packet that is not known is taken apart, and
every step is checked.

Source: HAL 1.2/types.hal (FmqRequestDatum, FmqResultDatum).
"""

import functools
from collections.abc import Sequence
from struct import Struct
from typing import Final, TypeAlias

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import (
    NO_TIMING,
    UINT64_MAX,
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    OutputShape,
    OutputShapes,
    RequestArgument,
    Timing,
)

DATUM_BYTES = 24
"""Size of a datum of either union: the quantum of the queues that carry them."""

DEFAULT_QUEUE_LENGTH = 1024
"""Datums that a queue of a burst holds by convention."""


class RequestKind:
    """Discriminators of FmqRequestDatum."""

    PACKET = 0
    INPUT = 1
    INPUT_DIMENSION = 2
    OUTPUT = 3
    OUTPUT_DIMENSION = 4
    POOL = 5
    MEASURE = 6
    DEADLINE = 7  # not the HAL's: see `with_deadline`


class ResultKind:
    """Discriminators of FmqResultDatum."""

    PACKET = 0
    OPERAND = 1
    DIMENSION = 2
    TIMING = 3


# Members of a request's datum begin at 4: their widest fields have 32 bits.
REQUEST_PACKET = Struct("<B3x4I4x")
"""Kind, size of the packet in datums, numbers of inputs, outputs and pools."""
REQUEST_OPERAND = Struct("<B3xB3x4I")
"""Kind, whether it has no value, pool, offset, length, number of dimensions."""
REQUEST_DIMENSION = Struct("<B3xI16x")
POOL_FORMAT = "B3xi16x"
MEASURE_FORMAT = "B3xi16x"

# A result's begin at 8, as the durations of the timing have 64 bits.
RESULT_PACKET = Struct("<B7xIiI4x")
"""Kind, size of the packet in datums, status, number of operands."""
RESULT_OPERAND = Struct("<B7xB3xI8x")
"""Kind, whether its buffer sufficed, number of dimensions."""
RESULT_DIMENSION = Struct("<B7xI12x")
RESULT_TIMING = Struct("<B7xQQ")

_POOL = Struct("<" + POOL_FORMAT)
_DEADLINE = Struct("<B7xQ8x")
_DEADLINE_KIND = bytes([RequestKind.DEADLINE])
_MEASURE = Struct("<" + MEASURE_FORMAT)
_MEASURES = {int(measure): measure for measure in MeasureTiming}

_NO_TIMING_DATUM = RESULT_TIMING.pack(
    ResultKind.TIMING, NO_TIMING.time_on_device, NO_TIMING.time_in_driver
)

_REQUEST_MEMBERS: Final = (
    "packetInformation",
    "inputOperandInformation",
    "inputOperandDimensionValue",
    "outputOperandInformation",
    "outputOperandDimensionValue",
    "poolIdentifier",
    "measureTiming",
)
_RESULT_MEMBERS: Final = (
    "packetInformation",
    "operandInformation",
    "operandDimensionValue",
    "executionTiming",
)

_NEWEST_STATUS = ErrorStatus.INVALID_ARGUMENT
"""Statuses of HAL 1.3 do not travel by burst, but in answer to a deadline."""

_NEWEST_WITH_DEADLINE = max(ErrorStatus)

Arguments: TypeAlias = tuple[RequestArgument, ...]
Decoded: TypeAlias = tuple[Arguments, Arguments, tuple[int, ...], MeasureTiming]
"""Inputs, outputs, slots and measurement of a request."""


class PacketError(GeneralFailureError):
    """A packet is not what the HAL says packets are."""


class RequestShape:
    """The arguments of a request and the number of its pools, and their bytes.

    ``size_bytes`` is the size of the whole packet.
    """

    def __init__(
        self, inputs: Arguments, outputs: Arguments, pool_count: int, prefix: bytes
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.pool_count = pool_count
        self._prefix = prefix
        self._tail = _tail(pool_count)
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
        # The first datum, the arguments' and pools' data, and the measurement.
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


def with_deadline(packet: bytes, deadline: int) -> bytes:
    """Return what goes into the queue for a request that is to end by ``deadline``.

    The HAL's packets have no room for one. It follows them in a datum of its own where
    both ends know that: see `IBurstCallback.carries_deadlines`. So it is there as soon
    as the packet is, which a message on another way would not be. One that is later
    than the HAL can express is the last that it can.
    """
    latest = min(deadline, UINT64_MAX)
    return packet + _DEADLINE.pack(RequestKind.DEADLINE, latest)


def without_deadline(sent: bytes) -> tuple[bytes, int] | None:
    """Return the packet and the deadline that follows it; None if none does."""
    if sent[-DATUM_BYTES:][:1] != _DEADLINE_KIND:
        return None
    at = len(sent) - DATUM_BYTES
    _, deadline = _DEADLINE.unpack_from(sent, at)
    return sent[:at], deadline


def decode_request(packet: bytes) -> Decoded:
    """Return what a packet says that may hold anything.

    The arguments are decoded, not validated.

    :raises PacketError: if the packet is malformed.
    """
    reader = _PacketReader(packet, _REQUEST_MEMBERS)
    size, inputs, outputs, pools = reader.take(RequestKind.PACKET, REQUEST_PACKET)
    reader.check_size(size)
    # The sender may announce any counts: each round takes a datum or raises, so a
    # lie costs no more than the packet is long.
    arguments = [
        _argument(reader, RequestKind.INPUT, RequestKind.INPUT_DIMENSION)
        for _ in range(inputs)
    ]
    results = [
        _argument(reader, RequestKind.OUTPUT, RequestKind.OUTPUT_DIMENSION)
        for _ in range(outputs)
    ]
    slots = tuple([reader.take(RequestKind.POOL, _POOL)[0] for _ in range(pools)])
    (number,) = reader.take(RequestKind.MEASURE, _MEASURE)
    reader.check_end()
    measure = _MEASURES.get(number)
    if measure is None:
        raise PacketError(f"{number} is no MeasureTiming")
    return tuple(arguments), tuple(results), slots, measure


class ResultShape:
    """Status and output shapes of a result, and their bytes."""

    __slots__ = ("_prefix", "_untimed", "output_shapes", "status")

    def __init__(
        self, status: ErrorStatus, output_shapes: OutputShapes, prefix: bytes
    ) -> None:
        self.status = status
        self.output_shapes = output_shapes
        self._prefix = prefix
        self._untimed = prefix + _NO_TIMING_DATUM

    @classmethod
    def of(
        cls,
        status: ErrorStatus,
        output_shapes: OutputShapes = (),
        *,
        had_deadline: bool = False,
    ) -> "ResultShape":
        """Return the shape; a status that no burst knows becomes GENERAL_FAILURE.

        Who sent a deadline knows the statuses of HAL 1.3.
        """
        if status > _NEWEST_STATUS and not had_deadline:
            status = ErrorStatus.GENERAL_FAILURE
        datums: list[bytes] = []
        for shape in output_shapes:
            rank = len(shape.dimensions)
            datums.append(
                RESULT_OPERAND.pack(ResultKind.OPERAND, shape.is_sufficient, rank)
            )
            datums += [
                RESULT_DIMENSION.pack(ResultKind.DIMENSION, axis)
                for axis in shape.dimensions
            ]
        # The first datum, the operands' data, and the timing.
        size = 1 + len(datums) + 1
        head = RESULT_PACKET.pack(ResultKind.PACKET, size, status, len(output_shapes))
        return cls(status, output_shapes, b"".join((head, *datums)))

    def encode(self, timing: Timing = NO_TIMING) -> bytes:
        """Return the packet of a result with ``timing``."""
        if timing is NO_TIMING:
            return self._untimed
        return self._prefix + RESULT_TIMING.pack(
            ResultKind.TIMING, timing.time_on_device, timing.time_in_driver
        )

    def decode(self, packet: bytes) -> Timing | None:
        """Return the timing of a correct packet of this shape, else None."""
        if packet == self._untimed:
            return NO_TIMING
        at = len(self._prefix)
        if len(packet) != at + DATUM_BYTES or not packet.startswith(self._prefix):
            return None
        kind, on_device, in_driver = RESULT_TIMING.unpack_from(packet, at)
        return Timing(on_device, in_driver) if kind == ResultKind.TIMING else None


def decode_result(
    packet: bytes, *, had_deadline: bool = False
) -> tuple[ResultShape, Timing]:
    """Return the result in a packet that may hold anything.

    :raises PacketError: if the packet is malformed.
    """
    reader = _PacketReader(packet, _RESULT_MEMBERS)
    size, number, operands = reader.take(ResultKind.PACKET, RESULT_PACKET)
    reader.check_size(size)
    shapes = tuple([_shape(reader) for _ in range(operands)])
    prefix = packet[: reader.position * DATUM_BYTES]
    on_device, in_driver = reader.take(ResultKind.TIMING, RESULT_TIMING)
    reader.check_end()
    newest = _NEWEST_WITH_DEADLINE if had_deadline else _NEWEST_STATUS
    if not ErrorStatus.NONE <= number <= newest:
        raise PacketError(f"{number} is no ErrorStatus of a burst")
    return (
        ResultShape(ErrorStatus(number), shapes, prefix),
        Timing(on_device, in_driver),
    )


class _PacketReader:
    """Reads a packet that may hold anything, datum by datum, with every step checked.

    ``names`` are the union's members, in order. All methods raise a
    `PacketError` if the packet is not what they expect.
    """

    def __init__(self, packet: bytes, names: tuple[str, ...]) -> None:
        if not packet or len(packet) % DATUM_BYTES:
            raise PacketError(f"{len(packet)} bytes are no datums of {DATUM_BYTES}")
        self.packet = packet
        self.position = 0
        self._kinds = packet[::DATUM_BYTES]
        self._names = names

    def __len__(self) -> int:
        return len(self._kinds)

    def take(self, kind: int, layout: Struct) -> tuple[int, ...]:
        """Return the fields of the next datum, without its kind."""
        position = self.position
        if position >= len(self._kinds):
            raise PacketError(
                f"the packet ends after {position} datums, before {self._names[kind]}"
            )
        found = self._kinds[position]
        if found != kind:
            known = found < len(self._names)
            raise PacketError(
                f"datum {position} is {self._names[found] if known else found}, "
                f"expected {self._names[kind]}"
            )
        self.position = position + 1
        return layout.unpack_from(self.packet, position * DATUM_BYTES)[1:]

    def dimensions(self, count: int, kind: int, layout: Struct) -> tuple[int, ...]:
        """Return ``count`` dimensions; the sender may have lied about the count."""
        if count > len(self._kinds) - self.position:
            raise PacketError(
                f"datum {self.position - 1} announces {count} dimensions, "
                f"{len(self._kinds) - self.position} datums are left"
            )
        return tuple([self.take(kind, layout)[0] for _ in range(count)])

    def check_size(self, size: int) -> None:
        if size != len(self._kinds):
            raise PacketError(
                f"the packet says it has {size} datums, it has {len(self._kinds)}"
            )

    def check_end(self) -> None:
        if self.position != len(self._kinds):
            raise PacketError(
                f"{len(self._kinds) - self.position} datums follow the last one"
            )


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


def _argument(reader: _PacketReader, kind: int, dimension_kind: int) -> RequestArgument:
    has_no_value, pool, offset, length, rank = reader.take(kind, REQUEST_OPERAND)
    return RequestArgument(
        bool(has_no_value),
        DataLocation(pool, offset, length),
        reader.dimensions(rank, dimension_kind, REQUEST_DIMENSION),
    )


def _shape(reader: _PacketReader) -> OutputShape:
    is_sufficient, rank = reader.take(ResultKind.OPERAND, RESULT_OPERAND)
    dimensions = reader.dimensions(rank, ResultKind.DIMENSION, RESULT_DIMENSION)
    return OutputShape(dimensions, bool(is_sufficient))
