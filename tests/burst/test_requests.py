"""Requests as packets."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.burst.packets import PacketError, RequestShape, decode_request
from asyncnn.hal.types import DataLocation, MeasureTiming, RequestArgument

INPUT = RequestArgument(False, DataLocation(1, 64, 16), (2, 3))
OMITTED = RequestArgument(has_no_value=True)
OUTPUT = RequestArgument(False, DataLocation(0, 0, 8))
SHAPE = RequestShape.of((INPUT, OMITTED), (OUTPUT,), 2)
PACKET = SHAPE.encode((7, 3), MeasureTiming.YES)

u32 = st.integers(0, 2**32 - 1)
arguments = st.builds(
    RequestArgument,
    st.just(False),
    st.builds(DataLocation, u32, u32, u32),
    st.lists(u32, max_size=5).map(tuple),
) | st.just(OMITTED)
argument_lists = st.lists(arguments, max_size=4).map(tuple)
slot_lists = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)


def datum(kind: int, *words: int) -> bytes:
    """A datum of a request: its kind, then words of 32 bits from byte 4."""
    return struct.pack(f"<B3x{len(words)}I", kind, *words).ljust(24, b"\0")


def datums_of(packet: bytes) -> list[bytes]:
    return [packet[k : k + 24] for k in range(0, len(packet), 24)]


def test_the_bytes_are_those_of_the_hal() -> None:
    assert datums_of(PACKET) == [
        datum(0, 9, 2, 1, 2),
        datum(1, 0, 1, 64, 16, 2),
        datum(2, 2),
        datum(2, 3),
        datum(1, 1, 0, 0, 0, 0),
        datum(3, 0, 0, 0, 8, 0),
        datum(5, 7),
        datum(5, 3),
        datum(6, 1),
    ]


@given(argument_lists, argument_lists, slot_lists, st.sampled_from(MeasureTiming))
def test_what_was_encoded_is_decoded(
    inputs: tuple[RequestArgument, ...],
    outputs: tuple[RequestArgument, ...],
    slots: tuple[int, ...],
    measure: MeasureTiming,
) -> None:
    packet = RequestShape.of(inputs, outputs, len(slots)).encode(slots, measure)
    assert decode_request(packet) == (inputs, outputs, slots, measure)


@pytest.mark.parametrize(
    ("packet", "complaint"),
    [
        pytest.param(b"", "no datums", id="empty"),
        pytest.param(PACKET[:-1], "no datums", id="part of a datum"),
        pytest.param(PACKET[24:], "expected packetInformation", id="no head"),
        pytest.param(PACKET[:24] * 2, "says it has 9 datums", id="size too large"),
        pytest.param(PACKET + datum(6, 1), "it has 10", id="size too small"),
        pytest.param(datum(0, 1, 2**32 - 1, 0, 0), "ends after", id="inputs promised"),
        pytest.param(datum(0, 1, 0, 2**32 - 1, 0), "ends after", id="outputs promised"),
        pytest.param(datum(0, 1, 0, 0, 2**32 - 1), "ends after", id="pools promised"),
        pytest.param(datum(0, 1, 0, 0, 0), "measureTiming", id="no measurement"),
        pytest.param(
            datum(0, 2, 0, 0, 0) + datum(6, 2), "no MeasureTiming", id="measurement 2"
        ),
        pytest.param(
            datum(0, 3, 0, 0, 0) + datum(6, 1) * 2, "follow", id="two measurements"
        ),
        pytest.param(
            datum(0, 3, 1, 0, 0) + datum(1, 0, 0, 0, 0, 2**32 - 1) + datum(6, 0),
            "announces 4294967295 dimensions",
            id="dimensions promised",
        ),
        pytest.param(
            datum(0, 3, 1, 0, 0) + datum(1, 0, 0, 0, 0, 1) + datum(4, 0),
            "is outputOperandDimensionValue, expected inputOperandDimensionValue",
            id="dimension of an output",
        ),
        pytest.param(
            datum(0, 2, 1, 0, 0) + datum(99), "datum 1 is 99, expected", id="no kind"
        ),
    ],
)
def test_a_malformed_packet_is_refused(packet: bytes, complaint: str) -> None:
    with pytest.raises(PacketError, match=complaint):
        decode_request(packet)


@given(st.data())
def test_a_changed_packet_is_decoded_or_refused(data: st.DataObject) -> None:
    datums = datums_of(PACKET)
    position = data.draw(st.integers(0, len(datums) - 1))
    datums[position] = data.draw(st.binary(min_size=24, max_size=24))
    packet = b"".join(datums)
    try:
        inputs, outputs, slots, measure = decode_request(packet)
        again = RequestShape.of(inputs, outputs, len(slots)).encode(slots, measure)
    except PacketError:
        return
    # What lies between the fields is not looked at.
    assert decode_request(again) == (inputs, outputs, slots, measure)
