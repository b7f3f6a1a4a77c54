"""Only the handle of a queue opens one, and only where memory is ordered."""

import fcntl
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from asyncnn.fmq import MemoryOrderError, MessageQueue, ring
from asyncnn.fmq.layout import (
    FIXED_SIZE,
    MAX_RING_BYTES,
    READER_SLEEPS,
    WRITTEN,
    Geometry,
)
from asyncnn.hal.errors import InvalidArgumentError, ResourceExhaustedTransientError
from asyncnn.hal.types import Handle
from asyncnn.memory.handles import create_file, seal
from tests.fmq.conftest import COUNT, QUANTUM, elements
from tests.memory.foreign import leaks, traces

SIZE = Geometry(QUANTUM, COUNT).file_bytes
FILE, LISTEN, RING = range(3)


@pytest.fixture
def created(nothing_is_left: None) -> Iterator[MessageQueue]:
    with MessageQueue.create(QUANTUM, COUNT) as queue:
        yield queue


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def memory_file(size: int = SIZE, seals: int = FIXED_SIZE) -> int:
    fd = create_file("test")
    os.ftruncate(fd, size)
    seal(fd, seals)
    return fd


def read_only() -> int:
    fd = memory_file()
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    finally:
        os.close(fd)


def huge_pages() -> int:
    try:
        fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("this system has no huge pages")
    os.ftruncate(fd, 1 << 21)
    seal(fd, FIXED_SIZE)
    return fd


def pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def tcp() -> int:
    return socket.socket(socket.AF_INET, socket.SOCK_STREAM).detach()


def stream() -> int:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM).detach()


def device() -> int:
    return os.open("/dev/zero", os.O_RDWR)


@pytest.mark.parametrize(
    ("place", "make", "complaint"),
    [
        (FILE, lambda: memory_file(seals=0), "sealed"),
        (FILE, lambda: memory_file(seals=fcntl.F_SEAL_SHRINK), "sealed"),
        (FILE, lambda: memory_file(size=SIZE - 1), "bytes"),
        (FILE, lambda: memory_file(size=SIZE + 4096), "bytes"),
        (FILE, lambda: memory_file(size=0), "bytes"),
        (FILE, lambda: memory_file(seals=FIXED_SIZE | fcntl.F_SEAL_WRITE), "written"),
        (FILE, read_only, "written"),
        (FILE, huge_pages, "ordinary"),
        (FILE, pipe, "sealed"),
        (FILE, device, "sealed"),
        (LISTEN, pipe, "eventfd"),
        (LISTEN, device, "eventfd"),
        (LISTEN, stream, "eventfd"),
        (LISTEN, memory_file, "eventfd"),
        (RING, pipe, "socket"),
        (RING, lambda: os.eventfd(0), "socket"),
        (RING, memory_file, "socket"),
        (RING, tcp, "datagram"),
        (RING, stream, "datagram"),
    ],
)
def test_a_descriptor_of_another_kind_is_refused(
    created: MessageQueue,
    stack: ExitStack,
    place: int,
    make: Callable[[], int],
    complaint: str,
) -> None:
    fds = list(created.descriptor.fds)
    fds[place] = make()
    stack.callback(os.close, fds[place])
    before = traces()
    with pytest.raises(InvalidArgumentError, match=complaint):
        MessageQueue.open(Handle(tuple(fds), created.descriptor.ints))
    assert not leaks(before)


@pytest.mark.parametrize("place", [FILE, LISTEN, RING])
@pytest.mark.parametrize("fd", [-1, 1_000_000, 1 << 40])
def test_what_is_no_descriptor_is_refused(
    created: MessageQueue, place: int, fd: int
) -> None:
    fds = list(created.descriptor.fds)
    fds[place] = fd
    with pytest.raises(InvalidArgumentError, match="descriptor"):
        MessageQueue.open(Handle(tuple(fds), created.descriptor.ints))


@pytest.mark.parametrize(
    "ints",
    [
        (),
        (QUANTUM,),
        (QUANTUM, COUNT, 1),
        (0, COUNT),
        (QUANTUM, 0),
        (-QUANTUM, -COUNT),
        (QUANTUM, COUNT + 1000),
        (1, MAX_RING_BYTES + 1),
        (1 << 40, 1 << 40),
    ],
)
def test_numbers_that_do_not_fit_are_refused(
    created: MessageQueue, ints: tuple[int, ...]
) -> None:
    with pytest.raises(InvalidArgumentError):
        MessageQueue.open(Handle(created.descriptor.fds, ints))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_handle_with_another_number_of_descriptors_is_refused(
    created: MessageQueue, count: int
) -> None:
    fds = (*created.descriptor.fds, created.descriptor.fds[0])[:count]
    with pytest.raises(InvalidArgumentError, match="handle"):
        MessageQueue.open(Handle(fds, created.descriptor.ints))


@pytest.mark.parametrize(
    ("quantum", "count"), [(0, 1), (1, 0), (-1, -1), (1, MAX_RING_BYTES + 1)]
)
def test_a_queue_has_a_reasonable_size(quantum: int, count: int) -> None:
    with pytest.raises(InvalidArgumentError, match="1 to"):
        MessageQueue.create(quantum, count)


def test_the_largest_queue_can_be_made_and_opened() -> None:
    with (
        MessageQueue.create(MAX_RING_BYTES, 1) as created,
        MessageQueue.open(created.descriptor) as opened,
    ):
        assert (opened.quantum, opened.count) == (MAX_RING_BYTES, 1)


def test_both_ends_know_whether_they_are_in_one_process(created: MessageQueue) -> None:
    assert not created.is_local
    with MessageQueue.open(created.descriptor) as opened:
        assert opened.is_local
        assert created.is_local


def test_the_descriptors_stay_the_callers(created: MessageQueue) -> None:
    copies = tuple(os.dup(fd) for fd in created.descriptor.fds)
    opened = MessageQueue.open(Handle(copies, created.descriptor.ints))
    for fd in copies:
        os.close(fd)
    created.write_nowait(bytes(QUANTUM))
    assert opened.read_nowait() == bytes(QUANTUM)
    opened.close()


def test_only_one_that_was_created_has_a_descriptor(created: MessageQueue) -> None:
    with MessageQueue.open(created.descriptor) as opened:
        assert opened.descriptor == Handle()
    created.close()
    assert created.descriptor == Handle()


def test_without_descriptors_left_it_fails_for_now_and_leaves_nothing(
    created: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> int:
        raise OSError(24, "Too many open files")

    before = traces()
    monkeypatch.setattr(socket, "socketpair", exhausted)
    with pytest.raises(ResourceExhaustedTransientError, match="Too many"):
        MessageQueue.create(QUANTUM, COUNT)
    monkeypatch.setattr(os, "eventfd", exhausted)
    with pytest.raises(ResourceExhaustedTransientError, match="Too many"):
        MessageQueue.create(QUANTUM, COUNT)
    assert not leaks(before)


class TestPlatforms:
    @pytest.mark.parametrize(
        ("module", "name", "value", "complaint"),
        [
            (platform, "machine", lambda: "aarch64", "aarch64 are not ordered"),
            (platform, "machine", lambda: "riscv64", "riscv64 are not ordered"),
            (platform, "python_implementation", lambda: "PyPy", "PyPy"),
        ],
    )
    def test_one_without_ordered_memory_has_no_queues(
        self,
        created: MessageQueue,
        monkeypatch: pytest.MonkeyPatch,
        module: object,
        name: str,
        value: object,
        complaint: str,
    ) -> None:
        monkeypatch.setattr(ring, "IS_COMPILED", False)
        monkeypatch.setattr(module, name, value)
        with pytest.raises(MemoryOrderError, match=complaint):
            MessageQueue.create(QUANTUM, COUNT)
        with pytest.raises(MemoryOrderError, match=complaint):
            MessageQueue.open(created.descriptor)

    @pytest.mark.parametrize("is_compiled", [False, True])
    def test_one_that_is_no_linux_has_none(
        self, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
    ) -> None:
        monkeypatch.setattr(ring, "IS_COMPILED", is_compiled)
        monkeypatch.setattr(sys, "platform", "darwin")
        with pytest.raises(MemoryOrderError, match="darwin"):
            MessageQueue.create(QUANTUM, COUNT)

    def test_any_order_will_do_for_the_compiled_ring(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ring, "IS_COMPILED", True)
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        MessageQueue.create(QUANTUM, COUNT).close()

    def test_one_that_cannot_read_without_waiting_has_no_queues(
        self, created: MessageQueue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(*_: object) -> int:
            raise OSError(95, "Operation not supported")

        before = traces()
        monkeypatch.setattr(os, "preadv", refused)
        with pytest.raises(MemoryOrderError, match=r"Linux 5\.8"):
            MessageQueue.open(created.descriptor)
        assert not leaks(before)


def test_an_end_may_be_opened_again_and_again() -> None:
    with MessageQueue.create(QUANTUM, COUNT) as queue:
        for _ in range(1000):
            MessageQueue.open(queue.descriptor).close()
        with MessageQueue.open(queue.descriptor) as opened:
            assert opened._announce(READER_SLEEPS, WRITTEN, 0)
            assert queue.write_nowait(elements(1))
            assert opened.read_blocking() == elements(1)
