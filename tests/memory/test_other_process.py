"""Pools mean the same bytes in another process, whatever kind they are of."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn.hal.types import Memory
from asyncnn.memory import (
    allocate,
    allocate_blob,
    from_buffer,
    map_file,
    part_of,
    shareable,
    view,
)
from tests.memory.foreign import allocate_unsealed
from tests.memory.peer import Peer


@pytest.fixture(scope="module", params=["distrusting", "trusting"])
def peer(request: pytest.FixtureRequest) -> Iterator[Peer]:
    with Peer(trusting=request.param == "trusting") as peer:
        yield peer


def writable_copy(size: int) -> Memory:
    return shareable(from_buffer(bytearray(size)))


def inner_part(size: int) -> Memory:
    return part_of(allocate(size + 9000), 4567, size)


def part_of_unsealed(size: int) -> Memory:
    return part_of(allocate_unsealed(size + 9000), 4567, size)


def unsealed_file(size: int) -> Memory:
    fd = os.memfd_create("file")
    try:
        os.ftruncate(fd, size + 77)
        return map_file(fd, 77, size, writable=True)
    finally:
        os.close(fd)


WRITABLE: list[Callable[[int], Memory]] = [
    allocate,
    allocate_blob,
    allocate_unsealed,
    writable_copy,
    inner_part,
    part_of_unsealed,
    unsealed_file,
]


@st.composite
def spans(draw: st.DrawFn) -> tuple[int, int, bytes]:
    size = draw(st.integers(1, 20_000))
    offset = draw(st.integers(0, size - 1))
    seed = draw(st.binary(min_size=1, max_size=7))
    length = draw(st.integers(1, size - offset))
    return size, offset, (seed * length)[:length]


@pytest.mark.parametrize("make", WRITABLE)
class TestWritablePools:
    @given(spans())
    @settings(max_examples=20, deadline=None)
    def test_what_one_writes_the_other_reads(
        self, peer: Peer, make: Callable[[int], Memory], span: tuple[int, int, bytes]
    ) -> None:
        size, offset, data = span
        pool = make(size)
        view(pool)[offset : offset + len(data)] = data
        assert peer.read(pool, offset, len(data)) == data

    @given(spans())
    @settings(max_examples=20, deadline=None)
    def test_what_the_other_writes_is_here_and_nothing_else(
        self, peer: Peer, make: Callable[[int], Memory], span: tuple[int, int, bytes]
    ) -> None:
        size, offset, data = span
        pool = make(size)
        view(pool)[:] = b"\xa5" * size
        assert peer.write(pool, offset, data) == ""
        end = offset + len(data)
        expected = b"\xa5" * offset + data + b"\xa5" * (size - end)
        assert bytes(view(pool)) == expected


class TestReadOnlyPools:
    def test_constants_are_read_but_not_written(self, peer: Peer) -> None:
        pool = shareable(from_buffer(bytes(range(200))))
        assert peer.read(pool, 10, 100) == bytes(range(10, 110))
        assert "read-only" in peer.write(pool, 10, b"new")
        assert bytes(view(pool)) == bytes(range(200))

    def test_a_file_is_read_but_not_written(self, peer: Peer, tmp_path: Path) -> None:
        path = tmp_path / "weights"
        path.write_bytes(bytes(range(200)))
        pool = map_file(path, 50, 100)
        assert peer.read(pool, 0, 100) == bytes(range(50, 150))
        assert "read-only" in peer.write(pool, 10, b"new")
        assert path.read_bytes() == bytes(range(200))


def test_memory_outlives_the_process_that_made_it(peer: Peer) -> None:
    pool = allocate(100)
    view(pool)[:5] = b"hello"
    peer.read(pool, 0, 1)
    del pool
    assert peer.read_again(0, 5) == b"hello"
