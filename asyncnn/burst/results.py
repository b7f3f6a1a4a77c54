"""Results as packets.

One result of a model differs from the next in its timing at most. What comes before
that is a `ResultShape`, made into bytes once and known again by them.

Source: HAL 1.2/types.hal (FmqResultDatum).
"""

from typing import Final

from asyncnn.burst.datums import (
    DATUM_BYTES,
    RESULT_DIMENSION,
    RESULT_OPERAND,
    RESULT_PACKET,
    RESULT_TIMING,
    Datums,
    PacketError,
    ResultKind,
)
from asyncnn.hal.types import NO_TIMING, ErrorStatus, OutputShape, Timing

_NAMES: Final = (
    "packetInformation",
    "operandInformation",
    "operandDimensionValue",
    "executionTiming",
)

_NEWEST_STATUS = ErrorStatus.INVALID_ARGUMENT
"""Statuses of HAL 1.3 do not travel by burst."""

_NO_TIMING_DATUM = RESULT_TIMING.pack(
    ResultKind.TIMING, NO_TIMING.time_on_device, NO_TIMING.time_in_driver
)


class ResultShape:
    """Status and output shapes of a result, and their bytes."""

    __slots__ = ("_prefix", "_untimed", "output_shapes", "status")

    def __init__(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        prefix: bytes,
    ) -> None:
        self.status = status
        self.output_shapes = output_shapes
        self._prefix = prefix
        self._untimed = prefix + _NO_TIMING_DATUM

    @classmethod
    def of(
        cls, status: ErrorStatus, output_shapes: tuple[OutputShape, ...] = ()
    ) -> "ResultShape":
        """Return the shape; a status that no burst knows becomes GENERAL_FAILURE."""
        if status > _NEWEST_STATUS:
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
        # The first datum, those of the operands, and the timing.
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


def decode_result(packet: bytes) -> tuple[ResultShape, Timing]:
    """Return the result in a packet that may hold anything.

    :raises PacketError: if the packet is malformed.
    """
    datums = Datums(packet, _NAMES)
    size, number, operands = datums.take(ResultKind.PACKET, RESULT_PACKET)
    datums.check_size(size)
    shapes = tuple([_shape(datums) for _ in range(operands)])
    prefix = packet[: datums.position * DATUM_BYTES]
    on_device, in_driver = datums.take(ResultKind.TIMING, RESULT_TIMING)
    datums.check_end()
    if not ErrorStatus.NONE <= number <= _NEWEST_STATUS:
        raise PacketError(f"{number} is no ErrorStatus of a burst")
    return (
        ResultShape(ErrorStatus(number), shapes, prefix),
        Timing(on_device, in_driver),
    )


def _shape(datums: Datums) -> OutputShape:
    is_sufficient, rank = datums.take(ResultKind.OPERAND, RESULT_OPERAND)
    dimensions = datums.dimensions(rank, ResultKind.DIMENSION, RESULT_DIMENSION)
    return OutputShape(dimensions, bool(is_sufficient))
