"""The elements of burst packets: byte layout of the HAL's two message unions.

A packet is a series of datums of 24 bytes. A datum is a safe union: a byte that says
which member it is (in order of declaration), then the member, aligned as its widest
field demands. Whatever lies between fields is zero.

Source: HAL 1.2/types.hal (FmqRequestDatum, FmqResultDatum).
"""

from struct import Struct

from asyncnn.errors import GeneralFailureError

DATUM_BYTES = 24
"""Size of a datum of either union: the quantum of the queues that carry them."""

DEFAULT_QUEUE_LENGTH = 1024
"""Datums that a queue of a burst holds by convention."""


class PacketError(GeneralFailureError):
    """A packet is not what the HAL says packets are."""


class RequestKind:
    """Discriminators of FmqRequestDatum."""

    PACKET = 0
    INPUT = 1
    INPUT_DIMENSION = 2
    OUTPUT = 3
    OUTPUT_DIMENSION = 4
    POOL = 5
    MEASURE = 6


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

# Those of a result's begin at 8, as the durations of the timing have 64 bits.
RESULT_PACKET = Struct("<B7xIiI4x")
"""Kind, size of the packet in datums, status, number of operands."""
RESULT_OPERAND = Struct("<B7xB3xI8x")
"""Kind, whether its buffer sufficed, number of dimensions."""
RESULT_DIMENSION = Struct("<B7xI12x")
RESULT_TIMING = Struct("<B7xQQ")


class Datums:
    """Walks over a packet that nothing is known of; every step is checked.

    ``names`` are those of the union's members, in order.
    """

    __slots__ = ("_kinds", "_names", "packet", "position")

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
        """Return the fields of the next datum, without its kind.

        :raises PacketError: if the packet has ended or the datum is of another kind.
        """
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
        """Return ``count`` dimension values; the count is the sender's word.

        :raises PacketError: if the packet does not hold as many.
        """
        if count > len(self._kinds) - self.position:
            raise PacketError(
                f"datum {self.position - 1} announces {count} dimensions, "
                f"{len(self._kinds) - self.position} datums are left"
            )
        return tuple([self.take(kind, layout)[0] for _ in range(count)])

    def check_size(self, size: int) -> None:
        """Check what the first datum says of the packet's size.

        :raises PacketError: if as many datums did not come.
        """
        if size != len(self._kinds):
            raise PacketError(
                f"the packet says it has {size} datums, it has {len(self._kinds)}"
            )

    def check_end(self) -> None:
        """Check that the packet ends here.

        :raises PacketError: if it does not.
        """
        if self.position != len(self._kinds):
            raise PacketError(
                f"{len(self._kinds) - self.position} datums follow the last one"
            )
