"""What the kernel's answers about its fences are taken for."""

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator

import pytest

from asyncnn.fences import FenceState, SyncFence
from asyncnn.fences.foreign import is_sync_file
from asyncnn.hal.types import ErrorStatus
from tests.fences import kernel


class FakeKernel:
    """Answers as ``sync_file`` does, of a fence merged from two; see its header."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.status = 0
        self.times = (0, 0)

    def ioctl(self, fd: int, request: int, question: bytes) -> bytes:
        assert request == 0xC038_3E04
        room, address = struct.unpack_from("I4xQ", question, 40)
        if room:
            assert room == len(self.times)
            fences = b"".join(
                struct.pack("32s32siIQ", b"", b"", self.status, 0, time)
                for time in self.times
            )
            ctypes.memmove(address, fences, len(fences))
        return question[:32] + struct.pack(
            "iII4xQ", self.status, 0, len(self.times), address
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKernel]:
    fd = os.eventfd(0)
    fake = FakeKernel(fd)
    monkeypatch.setattr(fcntl, "ioctl", fake.ioctl)
    yield fake
    os.close(fd)


def test_a_fence_is_active_while_the_kernel_says_so(fake: FakeKernel) -> None:
    assert SyncFence.from_fd(fake.fd).state is FenceState.ACTIVE


def test_a_signalled_fence_ended_with_the_last_of_its_parts(fake: FakeKernel) -> None:
    fence = SyncFence.from_fd(fake.fd)
    fake.status, fake.times = 1, (30, 70)
    os.eventfd_write(fake.fd, 1)
    assert fence.state is FenceState.SIGNALLED
    assert fence.signalled_at_ns == 70


def test_a_failed_fence_says_why_and_when(fake: FakeKernel) -> None:
    fence = SyncFence.from_fd(fake.fd)
    fake.status, fake.times = -errno.ETIMEDOUT, (30, 70)
    os.eventfd_write(fake.fd, 1)
    assert fence.status is ErrorStatus.GENERAL_FAILURE
    assert os.strerror(errno.ETIMEDOUT) in fence.reason
    assert fence.signalled_at_ns == 70


def test_other_descriptors_are_no_fences_of_the_kernel() -> None:
    reader, writer = os.pipe()
    assert not is_sync_file(reader)
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(not kernel.OFFERED, reason="this kernel does not offer sw_sync")
def test_the_kernel_tells_when_its_fence_was_signalled() -> None:
    with kernel.timeline() as timeline:
        fd = timeline.fence()
        assert is_sync_file(fd)
        fence = SyncFence.from_fd(fd)
        os.close(fd)
        timeline.advance()
        assert fence.signalled_at_ns
