"""Pools over memory of the process and over files."""

import gc
import itertools
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory.pools import as_array, from_buffer, map_file, part_of, view
from asyncnn.memory.shared import allocate, allocate_blob
from tests.memory.foreign import leaks, pool_of, sent, traces

DATA = bytes(range(256)) * 40
OUTSIDE = InvalidArgumentError, "not within a file"
PARTS_OUTSIDE = ((0, len(DATA) + 1), (9, len(DATA)), (-1, 5), (0, -1))


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
        before = traces()
        pool = map_file(file)
        data = view(pool)
        del pool
        assert data == DATA
        del data
        assert not leaks(before)

    @pytest.mark.parametrize(
        ("asked", "options", "error", "words"),
        [
            *(
                ("data", {"offset": offset, "length": length}, *OUTSIDE)
                for offset, length in PARTS_OUTSIDE
            ),
            ("data", {"offset": len(DATA) + 1}, *OUTSIDE),
            ("nothing", {}, GeneralFailureError, "nothing: No such file"),
            (".", {}, InvalidArgumentError, "a directory"),
            ("fifo", {}, InvalidArgumentError, "not a regular file"),
            ("closed", {}, GeneralFailureError, "Bad file descriptor"),
            ("fd", {"writable": True}, GeneralFailureError, "Permission denied"),
        ],
    )
    def test_what_cannot_be_mapped_is_refused(
        self, file: Path, fd: int, asked: str, options: Any, error: Any, words: str
    ) -> None:
        os.mkfifo(file.parent / "fifo")
        closed = os.dup(fd)
        os.close(closed)
        place = {"closed": closed, "fd": fd}.get(asked, file.parent / asked)
        before = traces()
        with pytest.raises(error, match=words):
            map_file(place, **options)
        assert not leaks(before)


class TestPartOf:
    def test_a_part_has_the_bytes_and_a_handle_of_its_own(self, file: Path) -> None:
        part = part_of(map_file(file, 100), 28, 10)
        elsewhere = Memory("mmap_fd", part.size, part.handle)
        assert view(part) == view(elsewhere) == DATA[128:138]

    def test_a_part_keeps_the_whole_alive(self, file: Path) -> None:
        before = traces()
        part = part_of(map_file(file), 0, 5)
        gc.collect()
        assert view(Memory("mmap_fd", 5, part.handle)) == DATA[:5]
        del part
        assert not leaks(before)

    @pytest.mark.parametrize("make", [allocate, allocate_blob])
    def test_a_part_of_shared_memory_can_be_shared(
        self, make: Callable[[int], Memory]
    ) -> None:
        part = part_of(make(5000), 4500, 100)
        view(sent(part))[:5] = b"hello"
        assert view(part)[:5] == b"hello"
        assert part.name == "mmap_fd"

    def test_a_part_of_read_only_memory_is_read_only(self, file: Path) -> None:
        part = part_of(map_file(file), 4, 4)
        assert view(part).readonly
        assert view(sent(part)).readonly

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
        with pytest.raises(GeneralFailureError, match="not within a file"):
            view(Memory("mmap_fd", len(DATA) + 1, handle))

    def test_offset_words_are_unsigned(self, fd: int) -> None:
        handle = Handle((fd,), (mmap.PROT_READ, -1, -1))
        with pytest.raises(GeneralFailureError, match=str(2**64 - 1)):
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
        with pytest.raises(GeneralFailureError):
            view(Memory(name, 4, Handle((fd,) * fds, ints)))

    def test_memory_that_may_not_be_touched_is_not_mapped(self, fd: int) -> None:
        with pytest.raises(GeneralFailureError, match="neither read nor written"):
            view(pool_of(fd, 4, 0, 0, 0, name="mmap_fd"))


class TestAsArray:
    def test_the_array_is_the_pool_itself(self) -> None:
        pool = from_buffer(bytearray(64))
        array = as_array(pool, np.int16, (2, 3), 8)
        array[1, 2] = 0x0102
        assert view(pool)[18:20] == b"\2\1"
        assert (array.shape, array.dtype) == ((2, 3), np.int16)

    def test_the_array_of_a_read_only_pool_is_read_only(self) -> None:
        assert not as_array(from_buffer(bytes(8)), np.float32, (2,)).flags.writeable

    def test_the_array_keeps_the_mapping_alive(self, file: Path) -> None:
        array = as_array(map_file(file), np.uint8, (len(DATA),))
        gc.collect()
        assert array.tobytes() == DATA

    def test_any_offset_will_do(self) -> None:
        pool = from_buffer(bytes(range(16)))
        array = as_array(pool, np.uint32, (3,), 1)
        assert array[0] == 0x04030201
        assert not array.flags.aligned

    @pytest.mark.parametrize(
        ("shape", "expected"), [((), 1), ((0,), 0), ((3, 0, 2), 0)], ids=str
    )
    def test_scalars_and_empty_arrays_are_arrays(
        self, shape: tuple[int, ...], expected: int
    ) -> None:
        assert as_array(from_buffer(bytes(4)), np.float32, shape).size == expected

    def test_an_empty_pool_has_an_empty_array(self) -> None:
        assert as_array(from_buffer(b""), np.float32, (0, 5)).shape == (0, 5)

    @pytest.mark.parametrize(
        ("shape", "offset"),
        [
            ((5,), 0),
            ((1,), 13),
            ((1,), -4),
            ((0,), 17),
            ((-1,), 0),
            ((-1, -1), 0),
            ((0, -1), 0),
            ((2**40, 2**40), 0),
            ((0, 2**62, 2**62), 0),
            ((1,), 2**70),
        ],
        ids=str,
    )
    def test_bytes_outside_of_the_pool_are_refused(
        self, shape: tuple[int, ...], offset: int
    ) -> None:
        with pytest.raises(InvalidArgumentError):
            as_array(from_buffer(bytes(16)), np.float32, shape, offset)

    def test_bytes_beyond_the_size_of_the_pool_are_refused(self) -> None:
        pool = Memory("ashmem", 8, buffer=memoryview(bytes(16)))
        with pytest.raises(InvalidArgumentError, match="pool of 8 bytes"):
            as_array(pool, np.float32, (3,))

    def test_pointers_are_never_taken_from_a_pool(self) -> None:
        with pytest.raises(InvalidArgumentError, match="objects"):
            as_array(from_buffer(bytes(16)), object, (1,))
