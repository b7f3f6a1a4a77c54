"""Pools that other processes can map: fixed in size, given back when dropped."""

import ctypes
import errno
import fcntl
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from asyncnn.engine.array_memory import has_tail
from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from asyncnn.hal.types import Memory
from asyncnn.memory import allocate, allocate_blob, from_buffer, shareable, view
from asyncnn.memory.handles import seals_of
from asyncnn.memory.pages import ROOM_BYTES, is_final, room_before
from asyncnn.memory.pools import part_of
from asyncnn.memory.shared import FileReader
from tests.memory.foreign import allocate_unsealed, leaks, sent, traces

Make = Callable[[int], Memory]
SEALED: list[Make] = [allocate, allocate_blob]
EVERY: list[Make] = [*SEALED, allocate_unsealed]


@pytest.mark.parametrize("make", EVERY)
class TestEveryPool:
    @pytest.mark.parametrize("size", [1, 4095, 4096, 100_000])
    def test_it_is_zero_and_writable(self, make: Make, size: int) -> None:
        pool = make(size)
        assert bytes(view(pool)) == bytes(size)
        view(pool)[-1:] = b"x"
        assert (pool.size, len(view(pool))) == (size, size)

    def test_its_handle_leads_to_the_same_bytes(self, make: Make) -> None:
        pool = make(5000)
        view(sent(pool))[4900:4905] = b"hello"
        assert view(pool)[4900:4905] == b"hello"

    def test_no_child_process_inherits_it(self, make: Make) -> None:
        pool = make(8)
        assert not os.get_inheritable(pool.handle.fds[0])

    def test_it_leaves_nothing_behind(self, make: Make) -> None:
        before = traces()
        pool = make(4096)
        assert traces() > before
        del pool
        assert traces() == before

    def test_views_outlive_it(self, make: Make) -> None:
        pool = make(10)
        data = view(pool)
        del pool
        data[:2] = b"ok"
        assert bytes(data) == b"ok" + bytes(8)

    def test_it_may_be_empty(self, make: Make) -> None:
        assert len(view(make(0))) == 0

    def test_a_negative_size_is_refused(self, make: Make) -> None:
        before = traces()
        with pytest.raises(InvalidArgumentError, match="-1 bytes"):
            make(-1)
        assert not leaks(before)

    @pytest.mark.parametrize("size", [2**62, 2**64])
    def test_an_absurd_size_leaves_nothing_behind(self, make: Make, size: int) -> None:
        before = traces()
        with pytest.raises(
            (GeneralFailureError, InvalidArgumentError, ResourceExhaustedError)
        ):
            make(size)
        assert not leaks(before)


@pytest.mark.parametrize("make", SEALED)
class TestSealedPools:
    @pytest.mark.parametrize("size", [0, 99, 101])
    def test_nobody_can_change_the_size(self, make: Make, size: int) -> None:
        pool = make(100)
        with pytest.raises(PermissionError):
            os.ftruncate(pool.handle.fds[0], size)

    def test_nobody_can_add_seals(self, make: Make) -> None:
        pool = make(100)
        with pytest.raises(PermissionError):
            fcntl.fcntl(pool.handle.fds[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)

    def test_running_out_of_descriptors_may_pass(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        monkeypatch.setattr(os, "memfd_create", fail)
        with pytest.raises(ResourceExhaustedError, match="Too many open"):
            make(100)


def test_an_older_system_needs_no_seal_against_execution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create = os.memfd_create

    def create_as_before(name: str, flags: int) -> int:
        if flags & ~(os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING):
            raise OSError(errno.EINVAL, "Invalid argument")
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", create_as_before)
    assert len(view(allocate(10))) == 10


class TestShareable:
    @pytest.mark.parametrize("make", EVERY)
    def test_a_pool_with_a_descriptor_is_itself(self, make: Make) -> None:
        pool = make(10)
        assert shareable(pool) is pool

    def test_a_writable_pool_gets_a_writable_copy(self) -> None:
        original = bytearray(b"abc" * 2000)
        copy = shareable(from_buffer(original))
        assert view(sent(copy)) == original
        view(sent(copy))[:1] = b"X"
        assert view(copy)[:1] == b"X"
        assert original[:1] == b"a"

    def test_a_read_only_pool_gets_a_copy_that_never_changes(self) -> None:
        copy = shareable(from_buffer(b"abc" * 2000))
        assert bytes(view(sent(copy))) == bytes(view(copy)) == b"abc" * 2000
        assert view(copy).readonly
        assert view(sent(copy)).readonly
        with pytest.raises(PermissionError):
            os.pwrite(copy.handle.fds[0], b"X", 0)
        assert seals_of(copy.handle.fds[0]) & fcntl.F_SEAL_SHRINK

    def test_a_reader_cannot_ask_for_more(self) -> None:
        copy = shareable(from_buffer(b"abc"))
        handle = copy.handle
        greedy = Memory("mmap_fd", 3, type(handle)(handle.fds, (3, 0, 0)))
        with pytest.raises(GeneralFailureError, match="Permission denied"):
            view(greedy)

    def test_only_the_pool_is_copied(self) -> None:
        copy = shareable(Memory("ashmem", 3, buffer=memoryview(b"abcdef")))
        assert os.fstat(copy.handle.fds[0]).st_size == 3

    @pytest.mark.parametrize("empty", [b"", bytearray()])
    def test_an_empty_pool_can_travel(self, empty: bytes | bytearray) -> None:
        assert len(view(sent(shareable(from_buffer(empty))))) == 0

    def test_copies_leave_nothing_behind(self) -> None:
        before = traces()
        for data in (b"abc", bytearray(b"abc")):
            shareable(from_buffer(data))
        assert traces() == before

    def test_a_copy_that_fails_leaves_nothing_behind(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "pwritev", fail)
        before = traces()
        with pytest.raises(ResourceExhaustedError, match="No space left"):
            shareable(from_buffer(b"abc"))
        assert not leaks(before)

    def test_a_pool_of_nothing_cannot_travel(self) -> None:
        with pytest.raises(GeneralFailureError, match="0 descriptors"):
            shareable(Memory("ashmem", 4))


def test_pools_are_not_executable() -> None:
    pool = allocate(8)
    if os.fstat(pool.handle.fds[0]).st_mode & stat.S_IXUSR:
        pytest.skip("this system cannot seal files against execution")
    with pytest.raises(PermissionError):
        os.chmod(pool.handle.fds[0], 0o777)


@pytest.mark.parametrize("make", SEALED)
def test_what_a_file_may_not_have_is_exhausted(make: Make) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ResourceExhaustedError, match="ulimit -f"):
            make(4097)
        make(4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [1, 1 << 21, (1 << 21) + 1, 3 << 21])
def test_a_file_that_was_read_never_changes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := bytes(range(256)) * (size // 256) + bytes(size % 256))
    reader = FileReader(path)
    pool = reader.read()
    path.write_bytes(bytes(size))
    assert view(pool) == data
    assert is_final(np.frombuffer(view(pool), np.uint8))
    assert not pool.handle.fds  # it is of this process, as long as nobody gets it
    assert view(shareable(pool)) == view(pool) == data
    os.utime(path, ns=(0, 0))
    with pytest.raises(GeneralFailureError, match="was changed"):
        reader.read()


@pytest.mark.parametrize("size", [(1 << 21) + 4090, (3 << 21) - 64, 1 << 22])
def test_a_file_that_is_sent_is_there_once(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := np.arange(size, dtype=np.uint8).tobytes())
    pool = FileReader(path).read()
    array = np.frombuffer(view(pool), np.uint8)
    sent = shareable(pool)
    assert shareable(pool) is sent
    assert bytes(array) == bytes(view(sent)) == data
    assert is_final(array)
    assert has_tail(array, array.ctypes.data)
    assert inode_at(array.ctypes.data) == os.fstat(sent.handle.fds[0]).st_ino
    assert shareable(part_of(pool, 1, 4)) is not sent  # part of it is a copy


def inode_at(address: int) -> int:
    """Return the number of the file that is mapped there, 0 without one."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(each, 16) for each in line.split()[0].split("-"))
        if begin <= address < end:
            return int(line.split()[4])
    return 0


def test_there_is_room_in_front_of_what_never_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * (1 << 14))
    pool = FileReader(path).read()
    for memory in (pool, shareable(pool)):
        array = np.frombuffer(view(memory), np.uint8)[32:]
        rooms = [room for _ in range(40) if (room := room_before(array)) is not None]
        ends = sorted({room.end for room in rooms})
        assert len(ends) == len(rooms)
        assert (np.diff(ends) == ROOM_BYTES).all()
        for room in rooms:
            assert room.end + room.distance == array.ctypes.data
            ctypes.memset(room.end - ROOM_BYTES, 255, ROOM_BYTES)
        assert room_before(array) is None
        assert bytes(view(memory)) == path.read_bytes()
        end = rooms.pop().end
        del room
        again = room_before(array)
        assert again is not None
        assert again.end == end
    short = shareable(from_buffer(bytes(99)))  # there may be many
    assert room_before(np.frombuffer(view(short), np.uint8)) is None
    assert room_before(np.zeros(9)) is None
