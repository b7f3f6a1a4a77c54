"""Handles say which bytes of which file a pool is; malformed ones say nothing."""

from enum import IntFlag

import pytest

from asyncnn.hal.errors import GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory.handles import (
    READ,
    READ_WRITE,
    WRITE,
    MappedSpan,
    blob_handle,
    file_handle,
    span_of,
)
from tests.memory.foreign import pool_of

BLOB = "hardware_buffer_blob"
USAGE = 0x33


@pytest.mark.parametrize("offset", [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 + 5])
@pytest.mark.parametrize("protection", [READ, READ_WRITE])
def test_the_handle_of_a_span_stands_for_it(offset: int, protection: int) -> None:
    span = MappedSpan(7, protection, offset, 100)
    assert span_of(Memory("mmap_fd", 100, file_handle(span))) == span


def test_offset_words_may_arrive_as_signed_integers() -> None:
    handle = Handle((3,), (1, -1, -2))
    assert span_of(Memory("mmap_fd", 9, handle)).offset == 0xFFFFFFFE_FFFFFFFF


def test_an_ashmem_pool_is_what_its_descriptor_allows() -> None:
    assert span_of(pool_of(4, 50)) == MappedSpan(4, 0, 0, 50)


def test_memory_to_write_may_be_read() -> None:
    pool = pool_of(4, 50, WRITE, 0, 0, name="mmap_fd")
    assert span_of(pool).protection == READ_WRITE


def test_memory_that_may_not_be_touched_is_of_no_use() -> None:
    with pytest.raises(GeneralFailureError, match="neither read nor written"):
        span_of(pool_of(4, 50, 0, 0, 0, name="mmap_fd"))


@pytest.mark.parametrize("size", [0, 1, 2**31, 2**32 - 1])
def test_the_handle_of_a_blob_stands_for_all_of_it(size: int) -> None:
    assert span_of(Memory(BLOB, size, blob_handle(5, size))) == MappedSpan(
        5, READ_WRITE, 0, size
    )


def test_a_width_may_arrive_as_a_signed_integer() -> None:
    size = 2**32 - 1
    pool = pool_of(5, size, -1, 1, 1, 0x21, USAGE, 0, name=BLOB)
    assert span_of(pool).length == size


def test_a_blob_that_the_processor_only_reads_is_read_only() -> None:
    pool = pool_of(5, 8, 8, 1, 1, 0x21, 0x2, 0, name=BLOB)
    assert span_of(pool).protection == READ


@pytest.mark.parametrize("usage", [(0x30, 0), (0, 1), (1 << 24, 0)])
def test_a_blob_that_the_processor_may_not_read_is_of_no_use(
    usage: tuple[int, int],
) -> None:
    with pytest.raises(GeneralFailureError, match="may not read"):
        span_of(pool_of(5, 8, 8, 1, 1, 0x21, *usage, name=BLOB))


@pytest.mark.parametrize(
    "ints",
    [
        (9, 1, 1, 0x21, USAGE, 0),
        (8, 2, 1, 0x21, USAGE, 0),
        (8, 1, 0, 0x21, USAGE, 0),
        (8, 1, 1, 0x1, USAGE, 0),
        (8, 1, 1, 0x21, USAGE),
        (8, 1, 1, 0x21, USAGE, 0, 0),
        (),
    ],
)
def test_another_description_is_not_a_blob(ints: tuple[int, ...]) -> None:
    with pytest.raises(GeneralFailureError):
        span_of(pool_of(5, 8, *ints, name=BLOB))


@pytest.mark.parametrize("protection", [4, 7, 8, -1, 1 << 31])
def test_other_bits_are_no_protection(protection: int) -> None:
    with pytest.raises(GeneralFailureError, match="not a protection"):
        span_of(pool_of(4, 50, protection, 0, 0, name="mmap_fd"))


@pytest.mark.parametrize(
    ("name", "fds", "ints"),
    [
        ("ashmem", 0, 0),
        ("ashmem", 2, 0),
        ("ashmem", 1, 1),
        ("mmap_fd", 0, 3),
        ("mmap_fd", 2, 3),
        ("mmap_fd", 1, 0),
        ("mmap_fd", 1, 4),
        (BLOB, 0, 6),
    ],
)
def test_other_counts_make_a_handle_malformed(name: str, fds: int, ints: int) -> None:
    with pytest.raises(GeneralFailureError, match=f"{fds} descriptors and {ints} int"):
        span_of(Memory(name, 4, Handle((3,) * fds, (1,) * ints)))


@pytest.mark.parametrize("word", [1 << 32, -(1 << 31) - 1, 1 << 70, 1.0, "1", None])
def test_integers_of_a_handle_have_32_bits(word: int) -> None:
    with pytest.raises(GeneralFailureError, match="32 bits"):
        span_of(pool_of(4, 50, 1, word, 0, name="mmap_fd"))


def test_integers_of_a_handle_may_be_of_an_enum() -> None:
    class Protection(IntFlag):  # a range would be searched through for one
        READ = READ
        WRITE = WRITE

    both = Protection.READ | Protection.WRITE
    span = span_of(Memory("mmap_fd", 4, Handle((3,), (both, 0, 0))))
    assert span.protection == READ_WRITE


@pytest.mark.parametrize("name", ["", "Ashmem", "ashmem\0", "x" * 10_000])
def test_unknown_kinds_are_refused_briefly(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a kind of pool") as caught:
        span_of(Memory(name, 4, Handle((3,))))
    assert len(str(caught.value)) < 80


@pytest.mark.parametrize("handle", [Handle(), Handle((3,)), Handle((3,), (1,) * 6)])
def test_general_hardware_buffers_are_a_general_failure(handle: Handle) -> None:
    with pytest.raises(GeneralFailureError, match="BLOB"):
        span_of(Memory("hardware_buffer", 0, handle))
