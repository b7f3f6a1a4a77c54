"""Results as packets."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.burst.packets import PacketError, ResultShape, decode_result
from asyncnn.hal.types import NO_TIMING, ErrorStatus, OutputShape, Timing

shapes = st.lists(
    st.builds(
        OutputShape,
        st.lists(st.integers(0, 2**32 - 1), max_size=5).map(tuple),
        st.booleans(),
    ),
    max_size=4,
).map(tuple)
durations = st.integers(0, 2**64 - 1)


def datum(kind: int, *words: int) -> bytes:
    """A datum of a result: its kind, then words of 32 bits from byte 8."""
    return struct.pack(f"<B7x{len(words)}I", kind, *words).ljust(24, b"\0")


def timing(on_device: int, in_driver: int) -> bytes:
    return struct.pack("<B7xQQ", 3, on_device, in_driver)


def test_the_bytes_are_those_of_the_hal() -> None:
    shape = ResultShape.of(
        ErrorStatus.OUTPUT_INSUFFICIENT_SIZE,
        (OutputShape((2, 0), False), OutputShape((), True)),
    )
    assert shape.encode(Timing(5, 2**40)) == b"".join(
        [
            datum(0, 6, 3, 2),
            datum(1, 0, 2),
            datum(2, 2),
            datum(2, 0),
            datum(1, 1, 0),
            timing(5, 2**40),
        ]
    )


@given(
    st.sampled_from([s for s in ErrorStatus if s <= ErrorStatus.INVALID_ARGUMENT]),
    shapes,
    st.builds(Timing, durations, durations),
)
def test_what_was_encoded_is_decoded(
    status: ErrorStatus, shapes: tuple[OutputShape, ...], timing: Timing
) -> None:
    packet = ResultShape.of(status, shapes).encode(timing)
    decoded, decoded_timing = decode_result(packet)
    assert (decoded.status, decoded.output_shapes) == (status, shapes)
    assert decoded_timing == timing
    assert decoded.decode(packet) == timing


def test_a_known_shape_decodes_other_timings() -> None:
    shape = ResultShape.of(ErrorStatus.NONE, (OutputShape((4,), True),))
    decoded, _ = decode_result(shape.encode(Timing(1, 2)))
    assert decoded.decode(shape.encode(Timing(3, 4))) == Timing(3, 4)
    assert decoded.decode(shape.encode()) is NO_TIMING


@pytest.mark.parametrize(
    "other",
    [
        ResultShape.of(ErrorStatus.NONE, (OutputShape((5,), True),)),
        ResultShape.of(ErrorStatus.NONE, (OutputShape((4,), False),)),
        ResultShape.of(ErrorStatus.NONE),
        ResultShape.of(ErrorStatus.GENERAL_FAILURE, (OutputShape((4,), True),)),
    ],
)
def test_a_shape_does_not_decode_packets_of_another(other: ResultShape) -> None:
    shape = ResultShape.of(ErrorStatus.NONE, (OutputShape((4,), True),))
    assert shape.decode(other.encode()) is None
    assert shape.decode(other.encode(Timing(1, 2))) is None


@pytest.mark.parametrize(
    "status", [s for s in ErrorStatus if s > ErrorStatus.INVALID_ARGUMENT]
)
def test_statuses_of_hal_1_3_become_general_failure(status: ErrorStatus) -> None:
    shape, timing = decode_result(ResultShape.of(status).encode())
    assert shape.status is ErrorStatus.GENERAL_FAILURE
    assert timing == NO_TIMING


NO_TIMES = timing(2**64 - 1, 2**64 - 1)


@pytest.mark.parametrize(
    ("packet", "complaint"),
    [
        pytest.param(b"", "no datums", id="empty"),
        pytest.param(NO_TIMES, "expected packetInformation", id="no head"),
        pytest.param(datum(0, 3, 0, 0) + NO_TIMES, "it has 2", id="size"),
        pytest.param(datum(0, 1, 0, 0), "before executionTiming", id="no timing"),
        pytest.param(datum(0, 3, 0, 0) + NO_TIMES * 2, "follow", id="two timings"),
        pytest.param(datum(0, 2, 5, 0) + NO_TIMES, "no ErrorStatus", id="status 5"),
        pytest.param(
            datum(0, 2, 2**32 - 1, 0) + NO_TIMES, "-1 is no ErrorStatus", id="status -1"
        ),
        pytest.param(
            datum(0, 2, 0, 2**32 - 1) + NO_TIMES,
            "expected operandInformation",
            id="operands promised",
        ),
        pytest.param(
            datum(0, 3, 0, 1) + datum(1, 1, 2**32 - 1) + NO_TIMES,
            "announces 4294967295 dimensions",
            id="dimensions promised",
        ),
    ],
)
def test_a_malformed_packet_is_refused(packet: bytes, complaint: str) -> None:
    with pytest.raises(PacketError, match=complaint):
        decode_result(packet)
