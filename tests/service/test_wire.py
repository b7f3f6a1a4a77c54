from collections.abc import Callable
from typing import get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.devices.measured_capabilities import reference_capabilities
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.routes import Route, RouteStep
from asyncnn.hal.types import (
    NO_TIMING,
    BufferRole,
    DataLocation,
    DeviceType,
    Extension,
    ExtensionOperandTypeInformation,
    OutputShape,
    Priority,
    RequestArgument,
    Timing,
)
from asyncnn.qos import WorkAccounting
from asyncnn.service import wire
from asyncnn.service.decoding import decode_to_client, decode_to_driver
from asyncnn.service.wire import CacheInfo
from tests.networks import chain

MODEL = chain(3, 2, 2).model
ROUTE = Route((RouteStep("cpu", (0, 1), "gpu", "it died"), RouteStep("npu", (2,))))
INPUT = RequestArgument(False, DataLocation(1, 2, 3), (4, 5))
OMITTED = RequestArgument(True)
WORK = WorkAccounting().statistics(queued=1, running=2)
STATISTICS = DeviceStatistics(
    device="any",
    threads=1,
    resident_bytes=2**40,
    preparations=WORK,
    executions=WORK,
    models=(ModelStatistics(1, 2, 3, Priority.HIGH, WORK, 4),),
    clients=(ClientStatistics(2, "\N{SNOWMAN}", 0.5, WORK, 5),),
)

TO_DRIVER = [
    wire.Hello(1),
    wire.AnnouncePools((wire.PoolInfo(1, "mmap_fd", 2**40, (3, -1, 0), 1),)),
    wire.ForgetPools((1, 2**63)),
    wire.GetSupportedOperations(5, MODEL, (1, 2)),
    wire.GetStatistics(5),
    wire.PrepareModel(6, MODEL, (), 1, 2, None),
    wire.PrepareModel(6, MODEL, (1,), 1, 2, 2**63),
    wire.PrepareModelFromCache(7, CacheInfo(1, 2, b"token"), 2**40),
    wire.SaveModel(7, 6, CacheInfo(1, 1, b"token")),
    wire.ReleasePreparedModel(7),
    wire.Execute(8, 7, (INPUT, OMITTED), (INPUT,), (1, 1), 1, None, 2**62),
    wire.BindRequest(8, 7, (INPUT, OMITTED), (INPUT,), (1, 1)),
    wire.ExecuteBound(8, 7, 1, None, 2**62),
    wire.ExecuteFenced(
        wire.Execute(8, 7, (INPUT, OMITTED), (INPUT,), (1, 1), 1, None, 2**62),
        (0, 2**31, 0),
        2**62,
        3,
    ),
    wire.ExecuteFenced(wire.ExecuteBound(8, 7, 1, None, None), (), None, 0),
    wire.Several(
        (wire.ExecuteFenced(wire.ExecuteBound(8, 7, 1, None, None), (5,), None, 0),)
    ),
    wire.ExportFence(8),
    wire.CancelExecution(9),
    wire.ConfigureBurst(10, 7, (24, 1024), (24, 2**40), 3),
    wire.FreeMemory(10, 2**31 - 1),
    wire.CancelBurstRequest(10, 2**40),
    wire.ReleaseBurst(10),
    wire.Memories(10, 0, (1, 2)),
    wire.Allocate(11, (0, 4), (7,), (BufferRole(0, 1, 0.5),), ()),
    wire.CopyBufferTo(12, 11, 1),
    wire.CopyBufferFrom(12, 11, 1, (1, 4)),
]
TO_CLIENT = [
    wire.Welcome(
        version=1,
        device_name="some-device",
        driver_version="1.0",
        device_type=DeviceType.CPU,
        capabilities=reference_capabilities(),
        extensions=(Extension("a.b", (ExtensionOperandTypeInformation(1, True, 4),)),),
        model_cache_files=1,
        data_cache_files=2,
        max_bound_requests=3,
        max_pools=4,
        max_pool_bytes=5,
    ),
    wire.Refused("it serves 2 clients already"),
    wire.SupportedOperations(2, 0, (True, False)),
    wire.Statistics(5, 0, STATISTICS),
    wire.Statistics(5, 2, None),
    wire.StatusChanged(1),
    wire.ModelSaved(9, 2),
    wire.Prepared(3, 5, "ill-formed \N{SNOWMAN}"),
    wire.Prepared(3, 0, "", MODEL),
    wire.Prepared(3, 0, "", None, ROUTE),
    wire.Executed(4, 0, (OutputShape((1, 2), True),), Timing(1, 2**64 - 1), ""),
    wire.Executed(4, 3, (), NO_TIMING, "reason"),
    wire.Took(4, ROUTE),
    wire.Took(4, None, is_left=True),
    wire.FencedDone(
        (
            wire.FencedEnd(4, 5, "late", 2**62, None, None),
            wire.FencedEnd(5, 0, "", 1, Timing(1, 2), Timing(3, 2**64 - 1)),
        )
    ),
    wire.GetMemories(5, 6, (7, 2**31)),
    wire.BurstConfigured(6, 4),
    wire.BurstEnded(6),
    wire.Allocated(7, 0, 2**32 - 1),
    wire.PoolsRefused((7,)),
    wire.BufferCopied(8, 4),
]


KINDS_TO_DRIVER = tuple(get_origin(kind) or kind for kind in get_args(wire.ToDriver))


def test_every_message_is_covered() -> None:
    assert {type(message) for message in TO_DRIVER} == set(KINDS_TO_DRIVER)
    assert {type(message) for message in TO_CLIENT} == set(wire.ToClient.__args__)


@pytest.mark.parametrize("message", TO_DRIVER, ids=lambda m: type(m).__name__)
def test_messages_reach_the_driver_as_they_were(message: wire.ToDriver) -> None:
    assert decode_to_driver(wire.encode(message)) == message


@pytest.mark.parametrize("message", TO_CLIENT, ids=lambda m: type(m).__name__)
def test_messages_reach_the_client_as_they_were(message: wire.ToClient) -> None:
    assert decode_to_client(wire.encode(message)) == message


decoders = pytest.mark.parametrize("decode", [decode_to_driver, decode_to_client])
Decode = Callable[[bytes], object]

GARBAGE = {
    "nothing": b"",
    "no array": b"\x01",
    "no tag": b"\x90",
    "unknown tag": b"\x92\xa3Foo\x01",
    "not UTF-8": b"\x92\xa3\xff\xfe\xfd\x01",
    "too few fields": b"\x91\xafCancelExecution",
    "wrong type": b"\x92\xafCancelExecution\xa1a",
    "too large an integer": b"\x92\xafCancelExecution\xcb" + b"\x7f" * 8,
    "more than one message": wire.encode(wire.CancelExecution(1)) * 2,
    "endless array": b"\x92\xabForgetPools\xdd\xff\xff\xff\xff" + b"\1" * 99,
    "endless text": b"\xdb\xff\xff\xff\xff",
    "deep arrays": b"\x91" * 10**6,
    "deep maps": b"\x81\xa1a" * 10**6,
    "deep in a field": b"\x92\xabForgetPools" + b"\x91" * 10**6,
}


@decoders
@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused(decode: Decode, data: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        decode(data)


@decoders
@given(st.binary())
def test_random_bytes_are_refused(decode: Decode, data: bytes) -> None:
    with pytest.raises(InvalidArgumentError):
        decode(data)


@given(st.sampled_from(TO_DRIVER), st.integers(0), st.binary(min_size=1, max_size=4))
def test_a_damaged_message_is_a_message_or_refused(
    message: wire.ToDriver, at: int, damage: bytes
) -> None:
    data = bytearray(wire.encode(message))
    at %= len(data)
    data[at : at + len(damage)] = damage
    try:
        decoded = decode_to_driver(bytes(data))
    except InvalidArgumentError:
        return
    assert isinstance(decoded, KINDS_TO_DRIVER)


def test_messages_to_one_side_are_none_to_the_other() -> None:
    with pytest.raises(InvalidArgumentError, match="not a message to a client"):
        decode_to_client(wire.encode(wire.CancelExecution(1)))
    with pytest.raises(InvalidArgumentError, match="not a message to a driver"):
        decode_to_driver(wire.encode(wire.Prepared(1, 0, "")))


@decoders
def test_what_a_peer_sends_is_no_command_to_a_terminal(decode: Decode) -> None:
    tagged = wire.encode(wire.CancelExecution(1)).replace(b"Cancel", b"\x1b[2J\n\0")
    with pytest.raises(InvalidArgumentError) as raised:
        decode(tagged)
    assert str(raised.value).isprintable()
