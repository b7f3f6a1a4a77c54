import asyncio
import fcntl
import os
import resource
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from asyncnn.hal.errors import InvalidArgumentError
from tests.service.conftest import Ends
from tests.service.raw import BY_FILE, INLINE, Inbox, RawClient


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.memfd_create("sent")
    yield fd
    os.close(fd)


async def test_packets_arrive_whole_and_in_order(ends: Ends) -> None:
    inbox = Inbox()
    there, here = Inbox().channel(ends[0]), inbox.channel(ends[1])
    sent = [b"", b"a", b"b" * 5000, b"c" * 65535, b"d" * 65536, b"e" * 10**6, b"f"]
    for data in sent:
        there.send(data)
    while len(inbox.packets) < len(sent):
        await inbox.change()
    assert inbox.packets == sent
    there.close()
    here.close()


@pytest.mark.parametrize("size", [3, 10**6])
async def test_descriptors_travel_beside_a_packet(
    ends: Ends, file: int, size: int
) -> None:
    inbox = Inbox()
    there, here = Inbox().channel(ends[0]), inbox.channel(ends[1])
    there.send(b"x" * size, [file] * 4)
    await inbox.change()
    assert inbox.fds == [[os.fstat(file).st_ino] * 4]
    there.close()
    here.close()


async def test_descriptors_are_kept_while_the_peer_does_not_read(
    ends: Ends, file: int
) -> None:
    inbox, there = Inbox(), Inbox().channel(ends[0])
    copy = os.dup(file)
    for _ in range(1000):
        there.send(b"x" * 500, [copy])
    os.close(copy)
    here = inbox.channel(ends[1])
    while len(inbox.packets) < 1000:
        await inbox.change()
    assert inbox.fds == [[os.fstat(file).st_ino]] * 1000
    assert not inbox.reasons
    there.close()
    here.close()


@pytest.mark.parametrize("size", [0, 1000, 10**5])
async def test_a_peer_that_never_reads_is_hung_up_on(
    ends: Ends, file: int, size: int
) -> None:
    inbox = Inbox()
    there = inbox.channel(ends[0], max_unread_bytes=10**5)
    for _ in range(2000):
        there.send(b"x" * size, [file])
    assert there.is_closed
    assert not inbox.reasons  # told by the loop, never by `send`
    await inbox.change()
    (reason,) = inbox.reasons
    assert reason.startswith("the peer does not read what it is sent: more than 100000")
    assert there.has_refused


async def test_what_is_queued_is_dropped_when_the_channel_closes(
    ends: Ends, file: int
) -> None:
    inbox = Inbox()
    there = inbox.channel(ends[0])
    for _ in range(1000):
        there.send(b"x" * 500, [file])
    there.close()
    there.send(b"nobody gets this", [file])
    await asyncio.sleep(0)
    assert there.is_closed
    assert not inbox.reasons


async def test_a_loss_is_not_told_after_closing(ends: Ends) -> None:
    inbox = Inbox()
    there = inbox.channel(ends[0])
    ends[1].close()
    there.send(b"x")
    assert there.is_closed
    there.close()
    await asyncio.sleep(0)
    assert not inbox.reasons


async def test_a_peer_that_leaves_is_noticed(ends: Ends) -> None:
    inbox = Inbox()
    here = inbox.channel(ends[1])
    ends[0].close()
    await inbox.change()
    assert inbox.reasons == ["the peer has gone"]
    assert here.is_closed


async def test_sending_to_a_peer_that_left_tells_the_loss_once(ends: Ends) -> None:
    inbox = Inbox()
    here = inbox.channel(ends[1])
    ends[0].close()
    here.send(b"x")
    here.send(b"y")
    await inbox.change()
    await asyncio.sleep(0)
    assert inbox.reasons == ["sending failed: Broken pipe"]


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_running_out_of_descriptors_is_the_senders_to_handle(
    ends: Ends, file: int
) -> None:
    inbox = Inbox()
    here = Inbox().channel(ends[1])
    with no_more_descriptors(), pytest.raises(OSError, match="Too many open files"):
        here.send(b"x" * 10**6)
    with pytest.raises(OSError, match="Bad file descriptor"):
        here.send(b"x", [10**6])
    here.send(b"goes on", [file])
    there = inbox.channel(ends[0])
    await inbox.change()
    assert inbox.packets == [b"goes on"]
    here.close()
    there.close()


async def test_an_abandoned_channel_is_lost_soon(ends: Ends) -> None:
    inbox = Inbox()
    here = inbox.channel(ends[1])
    here.abandon("enough")
    here.abandon("enough")
    assert here.is_closed
    assert not inbox.reasons
    await inbox.change()
    assert inbox.reasons == ["enough"]


async def test_a_large_message_is_read_from_a_file_that_cannot_change(
    ends: Ends,
) -> None:
    there, raw = Inbox().channel(ends[0]), RawClient(ends[1])
    there.send(b"x" * 10**6)
    packet, (fd,) = await raw.receive_packet()
    assert packet == BY_FILE + struct.pack("<Q", 10**6)
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    assert seals & fcntl.F_SEAL_WRITE
    assert seals & fcntl.F_SEAL_SHRINK
    os.close(fd)
    there.close()


PACKETS = {
    "unknown kind": b"\7hello",
    "no file": BY_FILE + bytes(8),
    "short length": BY_FILE + bytes(7),
    "too long": INLINE + bytes(70000),
}


@pytest.mark.parametrize("packet", PACKETS.values(), ids=PACKETS)
async def test_malformed_packets_end_the_channel(ends: Ends, packet: bytes) -> None:
    RawClient(ends[0]).send_packet(packet)
    await ends_it(ends[1])


async def ends_it(end: socket.socket, **limits: int) -> None:
    inbox = Inbox()
    here = inbox.channel(end, **limits)
    await inbox.change()
    assert here.is_closed
    assert not inbox.packets


@pytest.mark.parametrize("size", [11, 2**20 + 1, 2**32, 2**64 - 1])
async def test_a_file_shorter_than_it_says_ends_the_channel(
    ends: Ends, size: int
) -> None:
    RawClient(ends[0]).send_file(b"0123456789", size)
    await ends_it(ends[1])


async def test_a_file_that_is_not_sealed_ends_the_channel(
    ends: Ends, file: int
) -> None:
    inbox = Inbox()
    inbox.channel(ends[1])
    os.write(file, b"0123456789")
    RawClient(ends[0]).send_packet(BY_FILE + struct.pack("<Q", 10), [file])
    await inbox.change()
    assert inbox.reasons == ["a message's file is not sealed"]


async def test_a_pipe_instead_of_a_file_ends_the_channel(ends: Ends) -> None:
    inbox = Inbox()
    inbox.channel(ends[1])
    for fd in (pipe := os.pipe()):
        RawClient(ends[0]).send_packet(BY_FILE + struct.pack("<Q", 1), [fd])
    await inbox.change()
    assert inbox.reasons == ["a message's file cannot be read: Invalid argument"]
    for fd in pipe:
        os.close(fd)


@pytest.mark.parametrize("count", [5, 6, 7, 253])
async def test_too_many_descriptors_end_the_channel_and_are_closed(
    ends: Ends, file: int, count: int
) -> None:
    RawClient(ends[0]).send_packet(INLINE + b"x", [file] * count)
    await ends_it(ends[1], max_fds=4)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (InvalidArgumentError("no such thing"), "no such thing"),
        (ZeroDivisionError(), "handling a message failed"),
    ],
)
async def test_a_failing_receiver_ends_the_channel_and_descriptors_are_closed(
    ends: Ends, file: int, error: Exception, reason: str
) -> None:
    inbox = Inbox()
    here = inbox.channel(ends[1])
    inbox.error = error
    raw = RawClient(ends[0])
    raw.send_packet(INLINE + b"x", [file])
    raw.send_packet(INLINE + b"never received", [file])
    await inbox.change()
    assert here.is_closed
    assert inbox.packets == [b"x"]
    assert inbox.reasons == [reason]
