"""Pools that cannot be mapped safely are copied, there and back."""

import os
import threading
from collections.abc import Iterator

import pytest

from asyncnn.hal.errors import (
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
)
from asyncnn.memory import Mapper, allocate, view
from asyncnn.memory import pages as copying_module
from tests.memory.foreign import allocate_unsealed, leaks, pool_of, sent, traces

DATA = bytes(range(250)) * 40


@pytest.fixture
def mapper() -> Iterator[Mapper]:
    with Mapper() as mapper:
        yield mapper


def contents(fd: int) -> bytes:
    return os.pread(fd, 20_000, 0)


class TestReading:
    @pytest.mark.parametrize(
        ("offset", "size"), [(0, 10_000), (0, 1), (1, 9_999), (4097, 5000), (9_999, 1)]
    )
    def test_a_copy_holds_exactly_the_span(
        self, mapper: Mapper, unsealed: int, offset: int, size: int
    ) -> None:
        copy = mapper.map(pool_of(unsealed, size, 3, offset, 0, name="mmap_fd"))
        assert bytes(view(copy)) == DATA[offset : offset + size]

    def test_a_copy_is_a_snapshot(self, mapper: Mapper, unsealed: int) -> None:
        copy = mapper.map(pool_of(unsealed, 10_000))
        os.pwrite(unsealed, b"later", 0)
        assert bytes(view(copy)) == DATA

    def test_every_request_gets_a_copy_of_its_own(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        first = mapper.map(pool_of(unsealed, 10_000))
        os.pwrite(unsealed, b"later", 0)
        second = mapper.map(pool_of(unsealed, 10_000))
        assert bytes(view(second)[:5]) == b"later"
        assert bytes(view(first)[:5]) == DATA[:5]

    def test_a_copy_can_be_renewed_without_the_clients_descriptor(
        self, mapper: Mapper
    ) -> None:
        fd = os.memfd_create("client")
        os.write(fd, b"first")
        copy = mapper.map(pool_of(fd, 5))
        os.pwrite(fd, b"later", 0)
        os.close(fd)
        renewed = mapper.map(mapper.map(copy))
        assert bytes(view(renewed)) == b"later"

    def test_a_read_that_comes_back_short_is_continued(
        self, mapper: Mapper, unsealed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read_some(fd: int, buffers: list[memoryview], offset: int) -> int:
            return preadv(fd, [buffers[0][:777]], offset)

        preadv = os.preadv
        monkeypatch.setattr(copying_module.os, "preadv", read_some)
        assert bytes(view(mapper.map(pool_of(unsealed, 10_000)))) == DATA

    def test_a_file_that_has_lost_bytes_is_an_error(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        copy = mapper.map(pool_of(unsealed, 10_000))
        os.ftruncate(unsealed, 9_000)
        with pytest.raises(GeneralFailureError, match="ends 1000 bytes early"):
            mapper.map(copy)

    def test_a_file_that_is_too_short_is_an_error(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        before = traces()
        with pytest.raises(GeneralFailureError, match="not within a file of 10000"):
            mapper.map(pool_of(unsealed, 10_001))
        assert not leaks(before)


class TestWriting:
    def test_only_what_is_flushed_reaches_the_client(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        copy = mapper.map(pool_of(unsealed, 9_000, 3, 1_000, 0, name="mmap_fd"))
        view(copy)[:] = b"x" * 9_000
        assert contents(unsealed) == DATA
        mapper.flush(copy, 100, 50)
        assert contents(unsealed) == DATA[:1100] + b"x" * 50 + DATA[1150:]

    def test_everything_is_flushed_by_default(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        copy = mapper.map(pool_of(unsealed, 10_000))
        view(copy)[:] = b"x" * 10_000
        mapper.flush(copy)
        assert contents(unsealed) == b"x" * 10_000

    def test_requests_do_not_undo_each_others_work(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        one, other = (mapper.map(pool_of(unsealed, 10_000)) for _ in range(2))
        view(one)[:4], view(other)[4:8] = b"one!", b"two!"
        mapper.flush(one, 0, 4)
        mapper.flush(other, 4, 4)
        assert contents(unsealed)[:8] == b"one!two!"

    def test_another_mapping_sees_what_was_flushed(self, mapper: Mapper) -> None:
        pool = allocate_unsealed(100)
        copy = mapper.map(sent(pool))
        view(copy)[50:55] = b"hello"
        mapper.flush(copy, 50, 5)
        assert bytes(view(pool)[50:55]) == b"hello"

    def test_a_write_that_comes_back_short_is_continued(
        self, mapper: Mapper, unsealed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def write_some(fd: int, buffers: list[memoryview], offset: int) -> int:
            return pwritev(fd, [buffers[0][:777]], offset)

        pwritev = os.pwritev
        monkeypatch.setattr(copying_module.os, "pwritev", write_some)
        copy = mapper.map(pool_of(unsealed, 10_000))
        view(copy)[:] = b"x" * 10_000
        mapper.flush(copy)
        assert contents(unsealed) == b"x" * 10_000

    def test_a_read_only_pool_is_never_written(self, mapper: Mapper) -> None:
        pool = allocate_unsealed(10)
        reader = pool_of(pool.handle.fds[0], 10, 1, 0, 0, name="mmap_fd")
        copy = mapper.map(reader)
        assert view(copy).readonly
        with pytest.raises(InvalidArgumentError, match="read-only"):
            mapper.flush(copy)

    @pytest.mark.parametrize(
        ("offset", "length"), [(-1, 2), (0, 101), (101, 0), (50, 51), (5, -1)]
    )
    def test_bytes_outside_of_the_pool_are_refused(
        self, mapper: Mapper, unsealed: int, offset: int, length: int
    ) -> None:
        copy = mapper.map(pool_of(unsealed, 100))
        with pytest.raises(InvalidArgumentError, match="not within a pool of 100"):
            mapper.flush(copy, offset, length)
        assert contents(unsealed) == DATA

    def test_a_mapped_pool_needs_no_flush(self, mapper: Mapper) -> None:
        pool = allocate(8)
        mapped = mapper.map(sent(pool))
        view(mapped)[:] = b"12345678"
        mapper.flush(mapped, 0, 4)
        assert bytes(view(pool)) == b"12345678"

    def test_a_file_that_can_no_longer_be_written_is_an_error(
        self, mapper: Mapper, unsealed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> int:
            raise OSError(28, "No space left on device")

        copy = mapper.map(pool_of(unsealed, 100))
        monkeypatch.setattr(copying_module.os, "pwritev", fail)
        with pytest.raises(ResourceExhaustedTransientError, match="No space left"):
            mapper.flush(copy)

    def test_closing_waits_for_no_flush_and_breaks_none(
        self, unsealed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def write_slowly(fd: int, buffers: list[memoryview], offset: int) -> int:
            is_writing.set()
            assert is_closed.wait(10)
            return pwritev(fd, buffers, offset)

        is_writing, is_closed, pwritev = (
            threading.Event(),
            threading.Event(),
            os.pwritev,
        )
        monkeypatch.setattr(copying_module.os, "pwritev", write_slowly)
        mapper = Mapper()
        copy = mapper.map(pool_of(unsealed, 10_000))
        view(copy)[:4] = b"done"
        lane = threading.Thread(target=mapper.flush, args=(copy, 0, 4))
        lane.start()
        assert is_writing.wait(10)
        mapper.close()
        is_closed.set()
        lane.join()
        assert contents(unsealed)[:4] == b"done"


class TestLifetime:
    def test_a_copy_goes_with_its_last_view(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        before = traces()
        copy = mapper.map(pool_of(unsealed, 100))
        data = view(copy)
        assert mapper.statistics().copied_bytes == 100
        del copy
        assert traces() == before
        assert mapper.statistics().copied == 1
        del data
        assert mapper.statistics().copied == 0

    def test_a_failed_copy_leaves_nothing_behind(
        self, mapper: Mapper, unsealed: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> int:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(copying_module.os, "preadv", fail)
        before = traces()
        with pytest.raises(GeneralFailureError, match="Input/output"):
            mapper.map(pool_of(unsealed, 100))
        assert not leaks(before)
        assert mapper.statistics().copied == 0
