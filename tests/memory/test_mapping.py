"""A connection's pools are mapped once, and given back with it."""

import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory import (
    Mapper,
    MappingPolicy,
    allocate,
    allocate_blob,
    as_array,
    from_buffer,
    map_file,
    part_of,
    shareable,
    view,
)
from asyncnn.memory.handles import FIXED_SIZE, seal
from asyncnn.memory.mapping import LARGE_BYTES
from tests.memory.foreign import allocate_unsealed, leaks, pool_of, sent, traces

TRUSTING = MappingPolicy(trust_same_uid=True)
Make = Callable[[int], Memory]


def sealed_constants(size: int) -> Memory:
    return shareable(from_buffer(bytes(size)))


def inner_part(size: int) -> Memory:
    return part_of(allocate(size + 5000), 4100, size)


SEALED: list[Make] = [allocate, allocate_blob, sealed_constants, inner_part]


@pytest.fixture(params=["distrusting", "trusting"])
def mapper(request: pytest.FixtureRequest) -> Iterator[Mapper]:
    with Mapper(TRUSTING if request.param == "trusting" else None) as mapper:
        yield mapper


@pytest.fixture
def trusting() -> Iterator[Mapper]:
    with Mapper(TRUSTING) as mapper:
        yield mapper


@pytest.mark.parametrize("make", SEALED)
class TestSealedPools:
    def test_they_are_mapped_not_copied(self, mapper: Mapper, make: Make) -> None:
        pool = make(5000)
        mapped = mapper.map(sent(pool))
        assert mapper.statistics().mapped == 1
        assert mapper.statistics().copied == 0
        assert (mapped.name, mapped.size) == (pool.name, 5000)
        assert bytes(view(mapped)) == bytes(view(pool))

    def test_they_are_mapped_once(self, mapper: Mapper, make: Make) -> None:
        pool = make(100)
        fd = os.dup(pool.handle.fds[0])
        again = pool_of(fd, 100, *pool.handle.ints, name=pool.name)
        assert mapper.map(sent(pool)) is mapper.map(again)
        os.close(fd)

    def test_they_need_no_waiting(self, mapper: Mapper, make: Make) -> None:
        pool = make(100)
        assert mapper.map_nowait(sent(pool)) is mapper.map(sent(pool))

    def test_they_outlive_the_client(self, mapper: Mapper, make: Make) -> None:
        pool = make(100)
        expected = bytes(view(pool))
        mapped = mapper.map(sent(pool))
        del pool
        assert bytes(view(mapped)) == expected

    def test_they_carry_no_descriptor(self, mapper: Mapper, make: Make) -> None:
        pool = make(100)
        assert mapper.map(sent(pool)).handle == Handle()

    def test_an_array_keeps_them_mapped(self, mapper: Mapper, make: Make) -> None:
        pool = make(400)
        array = as_array(mapper.map(sent(pool)), np.float32, (100,))
        mapper.close()
        assert not array.any()
        assert mapper.statistics().mapped == 1
        del array
        assert mapper.statistics().mapped == 0


@pytest.mark.parametrize("make", [allocate, allocate_blob, inner_part])
def test_both_sides_share_the_bytes(mapper: Mapper, make: Make) -> None:
    pool = make(5000)
    mapped = mapper.map(sent(pool))
    view(pool)[4990:] = b"to driver!"
    assert bytes(view(mapped)[4990:]) == b"to driver!"
    view(mapped)[:6] = b"answer"
    assert bytes(view(pool)[:6]) == b"answer"


class TestIdentity:
    def test_a_descriptor_number_may_stand_for_another_pool(
        self, mapper: Mapper
    ) -> None:
        pool = allocate(8)
        number = pool.handle.fds[0]
        first = sent(pool)
        mapped = mapper.map(first)
        del pool
        other = allocate(8)
        assert other.handle.fds[0] == number
        assert mapper.map(first) is not mapped

    def test_parts_of_one_file_are_pools_of_their_own(self, mapper: Mapper) -> None:
        whole = allocate(100)
        view(whole)[:] = bytes(range(100))
        parts = [part_of(whole, offset, 10) for offset in (0, 10, 50)]
        mapped = [mapper.map(sent(part)) for part in parts]
        assert [view(memory)[0] for memory in mapped] == [0, 10, 50]

    def test_a_longer_pool_of_the_same_file_is_mapped_anew(
        self, mapper: Mapper
    ) -> None:
        fd = allocate(100)
        short, long = pool_of(fd.handle.fds[0], 10), pool_of(fd.handle.fds[0], 100)
        assert [len(view(mapper.map(pool))) for pool in (short, long)] == [10, 100]

    def test_a_reader_does_not_get_the_writers_mapping(self, mapper: Mapper) -> None:
        pool = allocate(100)
        fd = os.open(f"/proc/self/fd/{pool.handle.fds[0]}", os.O_RDONLY)
        assert not view(mapper.map(sent(pool))).readonly
        assert view(mapper.map(pool_of(fd, 100))).readonly
        os.close(fd)

    def test_a_protection_is_kept_to(self, mapper: Mapper) -> None:
        pool = allocate(100)
        fd = pool.handle.fds[0]
        pools = [pool_of(fd, 100, bits, 0, 0, name="mmap_fd") for bits in (1, 2, 3)]
        mapped = [view(mapper.map(pool)).readonly for pool in pools]
        assert mapped == [True, False, False]

    def test_memory_of_the_process_is_taken_as_it_is(self, mapper: Mapper) -> None:
        pool = from_buffer(bytearray(8))
        assert mapper.map(pool) is mapper.map_nowait(pool) is pool

    def test_what_was_mapped_stays_what_it_is(self, mapper: Mapper) -> None:
        pool = allocate(8)
        mapped = mapper.map(sent(pool))
        assert mapper.map(mapped) is mapped


class TestTrust:
    def test_a_file_of_the_same_user_is_mapped_on_request(
        self, trusting: Mapper, unsealed: int
    ) -> None:
        mapped = trusting.map_nowait(pool_of(unsealed, 10_000))
        assert mapped is not None
        os.pwrite(unsealed, b"later", 0)
        assert bytes(view(mapped)[:5]) == b"later"

    @pytest.mark.parametrize("make", [allocate_unsealed, allocate])
    def test_pools_made_here_are_mapped(self, trusting: Mapper, make: Make) -> None:
        pool = make(100)
        assert trusting.map_nowait(sent(pool)) is not None

    def test_a_model_file_is_mapped(self, trusting: Mapper, tmp_path: Path) -> None:
        path = tmp_path / "model"
        path.write_bytes(bytes(10_000))
        pool = map_file(path, 100, 5000)
        assert trusting.map_nowait(sent(pool)) is not None

    def test_without_a_request_its_file_system_is_not_even_asked(
        self, unsealed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def note(fd: int) -> os.stat_result:
            asked.append(fd)
            return fstat(fd)

        asked: list[int] = []
        fstat = os.fstat
        monkeypatch.setattr(os, "fstat", note)
        with Mapper() as mapper:
            assert mapper.map_nowait(pool_of(unsealed, 10_000)) is None
        assert unsealed not in asked

    def test_a_file_of_another_user_is_not(
        self, trusting: Mapper, unsealed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert trusting.map_nowait(pool_of(unsealed, 10_000)) is None

    @pytest.mark.parametrize(
        ("mode", "is_trusted"), [(0o600, True), (0o644, True), (0o620, False)]
    )
    def test_a_file_that_others_may_open_for_writing_is_not(
        self, trusting: Mapper, tmp_path: Path, mode: int, is_trusted: bool
    ) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(100))
        path.chmod(mode)
        pool = map_file(path)
        assert (trusting.map_nowait(sent(pool)) is not None) == is_trusted

    def test_huge_pages_are_not_even_if_sealed(self) -> None:
        try:
            flags = os.MFD_HUGETLB | os.MFD_ALLOW_SEALING
            fd = os.memfd_create("huge", flags)
        except OSError as error:
            pytest.skip(f"no huge pages: {error}")
        os.ftruncate(fd, os.fstat(fd).st_blksize)
        seal(fd, FIXED_SIZE)
        with Mapper() as mapper:
            assert mapper.map_nowait(pool_of(fd, 100)) is None
        os.close(fd)


class TestClosing:
    def test_nothing_stays_behind(self, mapper: Mapper, unsealed: int) -> None:
        pools = [make(5000) for make in (*SEALED, allocate_unsealed)]
        before = traces()
        mapped = [mapper.map(sent(pool)) for pool in pools]
        mapped.append(mapper.map(pool_of(unsealed, 100)))
        assert traces() > before
        mapped.clear()
        mapper.close()
        assert traces() == before

    def test_descriptors_of_copies_are_closed_at_once(self, unsealed: int) -> None:
        mapper = Mapper()
        before = traces()
        copy = mapper.map(pool_of(unsealed, 100))
        assert traces() > before
        mapper.close()
        assert traces() == before
        assert len(view(copy)) == 100

    def test_it_is_final(self, mapper: Mapper, unsealed: int) -> None:
        pool = allocate(100)
        kept = mapper.map(sent(pool))
        mapper.close()
        mapper.close()
        for memory in (pool, pool_of(unsealed, 100)):
            with pytest.raises(DeviceUnavailableError, match="closed"):
                mapper.map(sent(memory))
        with pytest.raises(DeviceUnavailableError, match="closed"):
            mapper.flush(kept)

    def test_a_forgotten_mapper_leaves_nothing_behind(self, unsealed: int) -> None:
        pool = allocate(100)
        before = traces()
        mapper = Mapper()
        mapper.map(sent(pool))
        mapper.map(pool_of(unsealed, 100))
        del mapper
        assert not leaks(before)


class TestTrimming:
    def test_unused_mappings_are_given_back(self, mapper: Mapper) -> None:
        pool = allocate(100)
        mapper.map(sent(pool))
        mapper.trim()
        assert mapper.statistics().mapped == 0

    def test_a_mapping_in_use_is_not_made_twice(self, mapper: Mapper) -> None:
        pool = allocate(100)
        mapped = mapper.map(sent(pool))
        mapper.trim()
        assert mapper.map(sent(pool)) is mapped
        assert mapper.statistics().cached == 1

    @pytest.mark.parametrize("how", ["trimmed", "evicted", "closed"])
    def test_large_mappings_are_unmapped_on_a_thread(self, how: str) -> None:
        with Mapper(MappingPolicy(max_cached_bytes=0)) as mapper:
            unmapped_on: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()

            def note() -> None:
                unmapped_on.put(threading.current_thread())

            large, small = allocate(LARGE_BYTES), allocate(100)
            mapped = mapper.map(sent(large))
            assert mapped.buffer is not None
            weakref.finalize(mapped.buffer.obj, note)
            del mapped
            if how == "trimmed":
                mapper.trim()
            elif how == "evicted":
                mapper.map(sent(small))
            else:
                mapper.close()
            thread = unmapped_on.get(timeout=60)
            assert thread is not threading.current_thread()
            thread.join()


def test_an_empty_pool_is_empty(mapper: Mapper, unsealed: int) -> None:
    empty = allocate(0)
    for pool in (empty, pool_of(unsealed, 0)):
        assert len(view(mapper.map(sent(pool)))) == 0
