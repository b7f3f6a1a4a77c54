"""Whatever a client sends for a pool, the driver survives and keeps nothing of it."""

import ctypes
import fcntl
import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory import Mapper, MappingPolicy, allocate, view
from asyncnn.memory.handles import FIXED_SIZE, seal
from tests.memory.foreign import allocate_unsealed, leaks, pool_of, sent, traces
from tests.memory.peer import Peer

SIZE = 3 * mmap.PAGESIZE


@pytest.fixture(params=["distrusting", "trusting"])
def mapper(request: pytest.FixtureRequest) -> Iterator[Mapper]:
    trust = request.param == "trusting"
    with Mapper(MappingPolicy(trust_same_uid=trust)) as mapper:
        yield mapper


def directory(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY)


def device(_: Path) -> int:
    return os.open("/dev/zero", os.O_RDWR)


def fifo(folder: Path) -> int:
    os.mkfifo(folder / "fifo")
    return os.open(folder / "fifo", os.O_RDWR)


def socket_(_: Path) -> int:
    return socket.socket(socket.AF_UNIX).detach()


def event(_: Path) -> int:
    return os.eventfd(0)


def file(folder: Path, flags: int) -> int:
    (folder / "file").write_bytes(bytes(SIZE))
    return os.open(folder / "file", flags)


def path_only(folder: Path) -> int:
    return file(folder, os.O_PATH)


def write_only(folder: Path) -> int:
    return file(folder, os.O_WRONLY)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (directory, GeneralFailureError),
        (device, GeneralFailureError),
        (fifo, GeneralFailureError),
        (socket_, GeneralFailureError),
        (event, GeneralFailureError),
        (path_only, GeneralFailureError),
        (write_only, GeneralFailureError),
    ],
)
@pytest.mark.parametrize(
    ("name", "ints"), [("ashmem", ()), ("mmap_fd", (1, 0, 0)), ("mmap_fd", (3, 0, 0))]
)
def test_descriptors_of_other_things_are_refused(
    mapper: Mapper,
    tmp_path: Path,
    make: Callable[[Path], int],
    error: type[Exception],
    name: str,
    ints: tuple[int, ...],
) -> None:
    fd = make(tmp_path)
    before = traces()
    with pytest.raises(error):
        mapper.map(pool_of(fd, 10, *ints, name=name))
    assert not leaks(before)
    os.close(fd)


@pytest.mark.parametrize("fd", [-1, -2, 1 << 20, 1 << 31, 1 << 70])
def test_numbers_of_no_descriptor_are_refused(mapper: Mapper, fd: int) -> None:
    with pytest.raises(GeneralFailureError):
        mapper.map(pool_of(fd, 10))


@pytest.mark.parametrize("make", [allocate, allocate_unsealed])
@pytest.mark.parametrize(
    ("size", "low", "high"),
    [
        (1, SIZE, 0),
        (SIZE, 1, 0),
        (SIZE + 1, 0, 0),
        (1, -1, -1),
        (1, 0, 1),
        (1, 0, 1 << 31),
        (1, 0, -(1 << 31)),
        (1 << 63, 0, 0),
        (1 << 64, 0, 0),
        (-1, 0, 0),
        (-SIZE, SIZE, 0),
    ],
)
def test_bytes_outside_of_the_file_are_refused(
    mapper: Mapper, make: Callable[[int], Memory], size: int, low: int, high: int
) -> None:
    pool = make(SIZE)
    before = traces()
    with pytest.raises(GeneralFailureError, match="not within a file"):
        mapper.map(pool_of(pool.handle.fds[0], size, 3, low, high, name="mmap_fd"))
    assert not leaks(before)


@pytest.mark.parametrize("offset", [1, 63, 4095, 4097, SIZE - 1])
def test_offsets_need_no_alignment(mapper: Mapper, offset: int) -> None:
    for pool in (allocate(SIZE), allocate_unsealed(SIZE)):
        view(pool)[offset] = 7
        part = pool_of(pool.handle.fds[0], 1, 1, offset, 0, name="mmap_fd")
        assert bytes(view(mapper.map(part))) == b"\7"


@pytest.mark.parametrize("make", [allocate, allocate_unsealed])
def test_a_reader_cannot_have_the_driver_write(
    mapper: Mapper, make: Callable[[int], Memory]
) -> None:
    pool = make(SIZE)
    fd = os.open(f"/proc/self/fd/{pool.handle.fds[0]}", os.O_RDONLY)
    with pytest.raises(GeneralFailureError, match="Permission denied"):
        mapper.map(pool_of(fd, SIZE, 3, 0, 0, name="mmap_fd"))
    os.close(fd)


@pytest.mark.parametrize("seals", [fcntl.F_SEAL_WRITE, 0x10], ids=["write", "future"])
@pytest.mark.parametrize("size_seals", [0, fcntl.F_SEAL_SHRINK])
def test_a_seal_against_writing_is_honoured(
    mapper: Mapper, unsealed: int, seals: int, size_seals: int
) -> None:
    seal(unsealed, seals | size_seals)
    mapped = mapper.map(pool_of(unsealed, 10_000))
    assert view(mapped).readonly
    assert bytes(view(mapped)) == os.pread(unsealed, 10_000, 0)
    with pytest.raises(GeneralFailureError, match="Permission denied"):
        mapper.map(pool_of(unsealed, 10_000, 3, 0, 0, name="mmap_fd"))


@pytest.mark.parametrize(
    ("pool", "error"),
    [
        (Memory("ashmem", 8), GeneralFailureError),
        (Memory("ashmem", 8, Handle((), (1,))), GeneralFailureError),
        (Memory("mmap_fd", 8, Handle((), (1, 0, 0))), GeneralFailureError),
        (Memory("nonsense", 8), InvalidArgumentError),
        (Memory("hardware_buffer", 0), GeneralFailureError),
        (Memory("hardware_buffer", 0, Handle((), (1, 2))), GeneralFailureError),
    ],
)
def test_a_pool_without_a_descriptor_is_refused(
    mapper: Mapper, pool: Memory, error: type[Exception]
) -> None:
    with pytest.raises(error):
        mapper.map(pool)


@pytest.mark.parametrize(
    ("name", "fds", "ints", "error"),
    [
        ("ashmem", 2, (), GeneralFailureError),
        ("ashmem", 1, (1,), GeneralFailureError),
        ("mmap_fd", 1, (4, 0, 0), GeneralFailureError),
        ("mmap_fd", 1, (0, 0, 0), GeneralFailureError),
        ("hardware_buffer_blob", 1, (), GeneralFailureError),
        ("hardware_buffer", 1, (), GeneralFailureError),
        ("hardware_buffer", 2, (1, 2, 3), GeneralFailureError),
        ("nonsense", 1, (), InvalidArgumentError),
    ],
)
def test_a_malformed_handle_is_refused_even_to_a_mapped_file(
    mapper: Mapper, name: str, fds: int, ints: tuple[int, ...], error: type[Exception]
) -> None:
    for pool in (allocate(8), allocate_unsealed(8)):
        mapped = mapper.map(sent(pool))
        with pytest.raises(error):
            mapper.map(Memory(name, mapped.size, Handle(pool.handle.fds * fds, ints)))


class TestTruncation:
    @pytest.mark.parametrize("is_deep", [True, False], ids=["all", "part"])
    def test_a_file_cut_off_beneath_a_pool_does_not_harm_the_driver(
        self, unsealed: int, is_deep: bool
    ) -> None:
        with Peer(trusting=False) as driver:
            driver.read(pool_of(unsealed, 10_000), 0, 1)
            os.ftruncate(unsealed, 0 if is_deep else 4096)
            assert driver.read_again(9_000, 100) == (bytes(range(250)) * 40)[9000:9100]

    def test_trust_in_a_peer_that_cuts_off_its_file_is_misplaced(
        self, unsealed: int
    ) -> None:
        with Peer(trusting=True) as driver:
            driver.read(pool_of(unsealed, 10_000), 0, 1)
            os.ftruncate(unsealed, 0)
            driver.read_again(9_000, 100)
        assert driver.process.returncode == -signal.SIGBUS

    def test_a_hole_punched_into_a_sealed_file_reads_as_zeros(
        self, mapper: Mapper, unsealed: int
    ) -> None:
        seal(unsealed, FIXED_SIZE)
        mapped = mapper.map(pool_of(unsealed, 10_000))
        punch_hole(unsealed, 4096, 4096)
        assert bytes(view(mapped)[4096:8192]) == bytes(4096)


def punch_hole(fd: int, offset: int, length: int) -> None:
    c = ctypes.CDLL(None, use_errno=True)
    c.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    keep_size_and_punch = 0x03
    assert c.fallocate(fd, keep_size_and_punch, offset, length) == 0


words = st.integers(-(2**31), 2**32 - 1)
handles = st.builds(
    Handle,
    st.lists(st.integers(-3, 200), max_size=3).map(tuple),
    st.lists(words | st.integers(0, 5000), max_size=7).map(tuple),
)
kinds = st.sampled_from(["ashmem", "mmap_fd", "hardware_buffer_blob", "?"]) | st.text()


@pytest.mark.unrecorded
@settings(deadline=None)
@given(kinds, st.integers(-(2**64), 2**64) | st.integers(0, 9000), handles)
def test_any_other_garbage_is_an_error_of_the_hal(
    kind: str, size: int, handle: Handle
) -> None:
    for trust in (False, True):
        with Mapper(MappingPolicy(trust_same_uid=trust)) as mapper:
            try:
                mapped = mapper.map(Memory(kind, size, handle))
            except AsyncnnError:
                continue
            assert len(view(mapped)) == size
