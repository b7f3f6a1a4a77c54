"""Descriptors of other makers, some of whom mean no good."""

import os
import select
import socket
from pathlib import Path

import pytest

from asyncnn.fences import FenceSource, FenceState, SyncFence
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import ErrorStatus
from tests.fences.conftest import Given


@pytest.mark.parametrize("count", [10, 60_000])
def test_a_pipe_with_too_many_bytes_has_failed(count: int) -> None:
    reader, writer = os.pipe()
    fence = SyncFence.from_fd(reader)
    os.write(writer, bytes(count))
    assert fence.status is ErrorStatus.GENERAL_FAILURE
    assert str(count) in fence.reason
    os.close(reader)
    os.close(writer)


def test_a_fence_that_was_seen_signalled_stays_so() -> None:
    fd = os.eventfd(1)
    fence = SyncFence.from_fd(fd)
    assert fence.state is FenceState.SIGNALLED
    os.eventfd_read(fd)
    assert fence.state is FenceState.SIGNALLED
    os.close(fd)


def test_a_socket_that_ends_after_a_byte_was_signalled() -> None:
    mine, yours = socket.socketpair()
    fence = SyncFence.from_fd(yours.fileno())
    mine.send(b"x")
    mine.close()
    assert fence.state is FenceState.SIGNALLED
    yours.close()


@pytest.mark.parametrize("how", [socket.SHUT_WR, socket.SHUT_RDWR])
async def test_a_socket_that_ends_without_one_has_failed(how: int) -> None:
    mine, yours = socket.socketpair()
    fence = SyncFence.from_fd(yours.fileno())
    mine.shutdown(how)
    with pytest.raises(AsyncnnError):
        await fence.wait(20)
    assert fence.status is ErrorStatus.DEVICE_UNAVAILABLE
    mine.close()
    yours.close()


async def test_what_is_always_readable_is_signalled(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (tmp_path / "file").open() as file:
        await SyncFence.from_fd(file.fileno())


async def test_what_a_loop_cannot_watch_fails_instead_of_hanging() -> None:
    innermost = inner = select.epoll()
    keep = [inner]
    for _ in range(6):  # deeper than the kernel nests them
        outer = select.epoll()
        try:
            outer.register(inner, select.EPOLLIN)
        except OSError:
            outer.close()
            break
        keep.append(outer)
        inner = outer
    fence = SyncFence.from_fd(inner.fileno())
    with pytest.raises(AsyncnnError):
        await fence.wait(20)
    assert fence.status is ErrorStatus.GENERAL_FAILURE
    assert "watched" in fence.reason
    assert innermost is keep[0]
    for epoll in keep:
        epoll.close()


def test_a_fence_is_never_one_of_the_standard_streams() -> None:
    fence = SyncFence.from_fd(0)
    assert fence.fileno() > 2


class TestHandingOver:
    def test_only_a_pipe_can_be_adopted(self) -> None:
        fd = os.eventfd(0)
        with pytest.raises(InvalidArgumentError, match="not a pipe"):
            FenceSource.adopt(fd)
        os.close(fd)

    def test_a_closed_descriptor_cannot_be_adopted(self) -> None:
        with pytest.raises(InvalidArgumentError, match="cannot signal"):
            FenceSource.adopt(1 << 20)

    def test_a_pipe_that_nobody_reads_does_no_harm(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        assert FenceSource.adopt(writer).signal()
        os.close(writer)

    def test_a_full_pipe_does_not_block_its_new_owner(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK)
        source = FenceSource.adopt(writer)
        os.write(writer, bytes(1 << 20))  # as much as it takes
        with pytest.raises(BlockingIOError):
            os.write(writer, b"x")
        os.set_blocking(writer, True)
        assert source.signal()
        os.close(reader)
        os.close(writer)

    def test_readers_may_have_gone(self) -> None:
        fence, source = SyncFence.pair()
        fence.fileno()
        fence.close()
        assert source.signal()

    def test_it_happens_once_and_only_while_the_fence_is_active(self) -> None:
        given = Given()
        fence, source = SyncFence.pair(given)
        assert fence.producer is given
        assert fence.fileno() == fence.fileno()
        assert len(given.write_ends) == 1
        os.close(given.write_ends[0])
        source.signal()
        assert fence.producer is None
        done, source = SyncFence.pair(given)
        source.signal()
        assert SyncFence.from_fd(done.fileno()).state is FenceState.SIGNALLED
        assert len(given.write_ends) == 1

    def test_a_new_owner_that_dies_fails_the_descriptor(self) -> None:
        given = Given()
        fence, source = SyncFence.pair(given)
        imported = SyncFence.from_fd(fence.fileno())
        os.close(given.write_ends[0])
        assert imported.status is ErrorStatus.DEVICE_UNAVAILABLE
        assert fence.state is FenceState.ACTIVE  # until the source has heard of it
        source.fail(ErrorStatus.DEVICE_UNAVAILABLE)
