"""Pools over memory of the process and over files."""

import gc
import itertools
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory.pools import from_buffer, map_file, part_of, view

DATA = bytes(range(256)) * 40


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def fd(file: Path) -> Iterator[int]:
    descriptor = os.open(file, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


class TestFromBuffer:
    def test_the_pool_is_the_array_itself(self) -> None:
        array = np.zeros((3, 4), np.float32)
        pool = from_buffer(array)
        view(pool)[:] = np.ones(12, np.float32).tobytes()
        assert array.all()
        assert (pool.name, pool.size) == ("ashmem", 48)

    def test_the_pool_keeps_the_buffer_alive(self) -> None:
        pool = from_buffer(np.arange(1000, dtype=np.int32))
        gc.collect()
        assert np.frombuffer(view(pool), np.int32)[-1] == 999

    def test_a_read_only_buffer_gives_a_read_only_pool(self) -> None:
        assert view(from_buffer(b"abc")).readonly

    @pytest.mark.parametrize("empty", [b"", np.zeros((0, 3), np.float32)])
    def test_an_empty_buffer_gives_an_empty_pool(
        self, empty: bytes | np.ndarray
    ) -> None:
        assert from_buffer(empty).size == len(view(from_buffer(empty))) == 0

    def test_scattered_memory_is_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="contiguous"):
            from_buffer(np.zeros((4, 4))[:, ::2])


class TestMapFile:
    def test_the_whole_file_is_mapped(self, file: Path) -> None:
        pool = map_file(file)
        assert (pool.name, pool.size, view(pool)) == ("mmap_fd", len(DATA), DATA)
        assert view(pool).readonly

    @pytest.mark.parametrize(
        ("offset", "length"),
        [
            *itertools.product([0, 1, 4095, 4096, 5000], [0, 7, None]),
            (len(DATA), 0),
            (len(DATA), None),
        ],
    )
    def test_any_part_of_the_file_is_mapped(
        self, file: Path, offset: int, length: int | None
    ) -> None:
        end = None if length is None else offset + length
        assert view(map_file(file, offset, length)) == DATA[offset:end]

    def test_a_descriptor_is_duplicated(self, fd: int) -> None:
        pool = map_file(fd)
        assert pool.handle.fds != (fd,)
        assert view(pool) == DATA

    def test_writes_to_a_writable_pool_reach_the_file(self, file: Path) -> None:
        pool = map_file(file, 4100, 4, writable=True)
        view(pool)[:] = b"WORD"
        assert file.read_bytes()[4100:4104] == b"WORD"

    def test_the_handle_says_how_to_map_it_elsewhere(self, file: Path) -> None:
        pool = map_file(file, 300, 20)
        elsewhere = Memory("mmap_fd", pool.size, pool.handle)
        assert pool.handle.ints == (mmap.PROT_READ, 300, 0)
        assert view(elsewhere) == DATA[300:320]

    def test_nothing_stays_open_once_the_pool_is_gone(self, file: Path) -> None:
        before = open_descriptors()
        pool = map_file(file)
        data = view(pool)
        del pool
        assert data == DATA
        del data
        assert open_descriptors() == before

    @pytest.mark.parametrize(
        ("offset", "length"), [(0, len(DATA) + 1), (9, len(DATA)), (-1, 5), (0, -1)]
    )
    def test_bytes_outside_of_the_file_are_refused(
        self, file: Path, offset: int, length: int
    ) -> None:
        before = open_descriptors()
        with pytest.raises(InvalidArgumentError, match="not within a file"):
            map_file(file, offset, length)
        assert open_descriptors() == before

    def test_an_offset_behind_the_end_is_refused(self, file: Path) -> None:
        with pytest.raises(InvalidArgumentError, match="not within a file"):
            map_file(file, len(DATA) + 1)

    def test_a_missing_file_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(GeneralFailureError, match="nothing: No such file"):
            map_file(tmp_path / "nothing")

    def test_a_directory_is_refused(self, tmp_path: Path) -> None:
        before = open_descriptors()
        with pytest.raises(InvalidArgumentError, match="a directory"):
            map_file(tmp_path)
        assert open_descriptors() == before

    def test_a_fifo_is_refused_at_once(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        with pytest.raises(InvalidArgumentError, match="not a regular file"):
            map_file(tmp_path / "fifo")

    def test_a_closed_descriptor_is_refused(self, file: Path) -> None:
        descriptor = os.open(file, os.O_RDONLY)
        os.close(descriptor)
        with pytest.raises(GeneralFailureError, match="Bad file descriptor"):
            map_file(descriptor)

    def test_a_read_only_descriptor_cannot_be_mapped_for_writing(self, fd: int) -> None:
        before = open_descriptors()
        with pytest.raises(GeneralFailureError, match="Permission denied"):
            map_file(fd, writable=True)
        assert open_descriptors() == before


class TestPartOf:
    def test_a_part_has_the_bytes_and_a_handle_of_its_own(self, file: Path) -> None:
        part = part_of(map_file(file, 100), 28, 10)
        elsewhere = Memory("mmap_fd", part.size, part.handle)
        assert view(part) == view(elsewhere) == DATA[128:138]

    def test_a_part_keeps_the_whole_alive(self, file: Path) -> None:
        before = open_descriptors()
        part = part_of(map_file(file), 0, 5)
        gc.collect()
        assert view(Memory("mmap_fd", 5, part.handle)) == DATA[:5]
        del part
        assert open_descriptors() == before

    def test_a_part_of_process_memory_shares_it(self) -> None:
        whole = bytearray(8)
        view(part_of(from_buffer(whole), 2, 3))[:] = b"abc"
        assert bytes(whole) == b"\0\0abc\0\0\0"

    @pytest.mark.parametrize(
        ("offset", "length"), [(-1, 2), (0, 9), (9, 0), (5, 4), (2, -1)]
    )
    def test_bytes_outside_of_the_pool_are_refused(
        self, offset: int, length: int
    ) -> None:
        with pytest.raises(InvalidArgumentError, match="not within a pool"):
            part_of(from_buffer(bytes(8)), offset, length)


class TestView:
    def test_a_file_shorter_than_the_pool_is_refused(self, fd: int) -> None:
        handle = Handle((fd,), (mmap.PROT_READ, 0, 0))
        with pytest.raises(InvalidArgumentError, match="not within a file"):
            view(Memory("mmap_fd", len(DATA) + 1, handle))

    def test_offset_words_are_unsigned(self, fd: int) -> None:
        handle = Handle((fd,), (mmap.PROT_READ, -1, -1))
        with pytest.raises(InvalidArgumentError, match=str(2**64 - 1)):
            view(Memory("mmap_fd", 1, handle))

    def test_an_ashmem_descriptor_is_mapped(self, fd: int) -> None:
        pool = Memory("ashmem", 100, Handle((fd,)))
        assert view(pool) == DATA[:100]
        assert view(pool).readonly

    def test_a_writable_ashmem_descriptor_is_mapped_for_writing(self) -> None:
        descriptor = os.memfd_create("pool")
        try:
            os.ftruncate(descriptor, 8)
            view(Memory("ashmem", 8, Handle((descriptor,))))[:] = b"12345678"
            assert os.pread(descriptor, 8, 0) == b"12345678"
        finally:
            os.close(descriptor)

    @pytest.mark.parametrize(
        ("name", "fds", "ints"),
        [
            ("mmap_fd", 0, (1, 0, 0)),
            ("mmap_fd", 2, (1, 0, 0)),
            ("mmap_fd", 1, ()),
            ("mmap_fd", 1, (8, 0, 0)),
            ("mmap_fd", 1, (-1, 0, 0)),
            ("ashmem", 1, (1,)),
        ],
    )
    def test_a_malformed_handle_is_refused(
        self, fd: int, name: str, fds: int, ints: tuple[int, ...]
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            view(Memory(name, 4, Handle((fd,) * fds, ints)))

    @pytest.mark.parametrize("name", ["hardware_buffer", "hardware_buffer_blob", "?"])
    def test_other_kinds_cannot_be_mapped(self, fd: int, name: str) -> None:
        with pytest.raises(GeneralFailureError, match="cannot be mapped"):
            view(Memory(name, 4, Handle((fd,))))
