"""Pools that are dma-bufs: real ones where the kernel makes them, and stand-ins."""

import errno
import fcntl
import mmap
import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn.callbacks import ExecutionFuture, PreparedModelFuture
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import (
    ErrorStatus,
    ExecutionPreference,
    Handle,
    MeasureTiming,
    Memory,
    Priority,
)
from asyncnn.memory import pages as dma_buf
from asyncnn.memory import view
from asyncnn.memory.handles import BLOB_FORMAT, CPU_READ_OFTEN, CPU_WRITE_OFTEN
from asyncnn.memory.limits import MappingPolicy
from asyncnn.memory.mapping import Mapper
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.service import RemoteDevice, Server
from tests.memory.foreign import leaks, traces
from tests.networks import addition
from tests.waits import until

SIZE = mmap.PAGESIZE
READ, READ_WRITE = 1, 3
UDMABUF = Path("/dev/udmabuf")
CREATE = 0x4018_7542

_calls: list[tuple[int, int]] = []


def sealed() -> int:
    fd = os.memfd_create("below", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


@pytest.fixture(params=["stand-in", "udmabuf"])
def make(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], int]]:
    """What makes dma-bufs of a page; `_calls` has what the kernel was told of them."""
    made: list[int] = []
    real = fcntl.ioctl
    _calls.clear()

    def ioctl(fd: int, number: int, argument: bytes, *rest: object) -> object:
        if number != dma_buf.SYNC:
            return real(fd, number, argument, *rest)
        (flags,) = struct.unpack("Q", argument)
        _calls.append((os.fstat(fd).st_ino, flags))
        return 0 if request.param == "stand-in" else real(fd, number, argument)

    monkeypatch.setattr(dma_buf.fcntl, "ioctl", ioctl)
    if request.param == "stand-in":
        # A file in memory that is taken for a dma-buf, and as unsafe as any file.
        found = dma_buf.is_dma_buf
        inodes: set[int] = set()
        monkeypatch.setattr(
            dma_buf,
            "is_dma_buf",
            lambda fd, status: status.st_ino in inodes or found(fd, status),
        )
    elif not os.access(UDMABUF, os.R_OK | os.W_OK):
        pytest.skip(f"there is no {UDMABUF}")

    def new() -> int:
        fd = sealed()
        if request.param == "stand-in":
            inodes.add(os.fstat(fd).st_ino)
            made.append(fd)
            return fd
        with UDMABUF.open("r+b", buffering=0) as device:
            created = struct.pack("IIQQ", fd, 1, 0, SIZE)
            made.append(real(device.fileno(), CREATE, created))
        os.close(fd)
        return made[-1]

    yield new
    for fd in made:
        os.close(fd)


def lasting() -> int:
    """Return how many accesses have begun, and not ended."""
    ends = [bool(flags & dma_buf.SYNC_END) for _, flags in _calls]
    return ends.count(False) - ends.count(True)


def filled(fd: int, data: bytes) -> int:
    with mmap.mmap(fd, SIZE) as pages:
        pages[: len(data)] = data
    return fd


def contents(fd: int, size: int) -> bytes:
    with mmap.mmap(fd, SIZE) as pages:
        return pages[:size]


def pools(fd: int, size: int) -> list[Memory]:
    """Return the kinds of pools that a dma-buf can be."""
    usage = CPU_READ_OFTEN | CPU_WRITE_OFTEN
    blob = (size, 1, 1, BLOB_FORMAT, usage, 0)
    return [
        Memory("ashmem", size, Handle((fd,))),
        Memory("mmap_fd", size, Handle((fd,), (3, 0, 0))),
        Memory("hardware_buffer_blob", size, Handle((fd,), blob)),
    ]


def test_it_is_told_from_other_descriptors_by_its_name() -> None:
    for fd in (sealed(), os.eventfd(0), *os.pipe()):
        assert not dma_buf.is_dma_buf(fd, os.fstat(fd))
        os.close(fd)


def test_it_is_copied_within_accesses(make: Callable[[], int]) -> None:
    fd = filled(make(), b"before")
    before = traces()
    with Mapper(MappingPolicy(trust_same_uid=True)) as mapper:
        for pool in pools(fd, 100):
            _calls.clear()
            assert mapper.map_nowait(pool) is None
            copy = mapper.map(pool)
            assert bytes(view(copy)[:6]) == b"before"
            inode = os.fstat(fd).st_ino
            assert _calls == [(inode, READ_WRITE), (inode, READ_WRITE | 4)]
            view(copy)[50:56] = b"behind"
            mapper.flush(copy, 50, 6)
            assert _calls[2:] == _calls[:2]
            assert contents(fd, 56)[50:] == b"behind"
            filled(fd, bytes(60))
            assert not any(view(mapper.map(copy)))  # once more, for the next request
            filled(fd, b"before")
            del copy
    assert not leaks(before)


def test_what_is_mapped_here_is_accessed_until_the_last_view_goes(
    make: Callable[[], int],
) -> None:
    fd = make()
    for pool in pools(fd, 100):
        _calls.clear()
        data = view(pool)
        part = data[10:20]
        part[:] = b"0123456789"
        del data
        assert [flags for _, flags in _calls] == [READ_WRITE]
        del part
        assert [flags for _, flags in _calls] == [READ_WRITE, READ_WRITE | 4]
        assert contents(fd, 20)[10:] == b"0123456789"
    _calls.clear()
    del pool
    read = Memory("mmap_fd", 100, Handle((fd,), (1, 0, 0)))
    assert view(read).readonly
    assert [flags for _, flags in _calls] == [READ, READ | 4]


def test_a_pool_larger_than_the_buffer_is_a_failure(make: Callable[[], int]) -> None:
    pool = Memory("ashmem", SIZE + 1, Handle((make(),)))
    with Mapper() as mapper, pytest.raises(GeneralFailureError, match="not within"):
        mapper.map(pool)
    assert not _calls


def test_an_exporter_that_fails_is_a_failure_of_the_call(
    make: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fd, tries = make(), Counter[str]()

    def ioctl(*_: object) -> int:
        tries["all"] += 1
        if tries["all"] < 3:
            raise OSError((errno.EINTR, errno.EAGAIN)[tries["all"] - 1], "again")
        raise OSError(errno.EIO, "the device is gone")

    monkeypatch.setattr(dma_buf.fcntl, "ioctl", ioctl)
    before = traces()
    pool = Memory("ashmem", 100, Handle((fd,)))
    with Mapper() as mapper, pytest.raises(GeneralFailureError, match="is gone"):
        mapper.map(pool)
    assert tries["all"] == 3
    with pytest.raises(GeneralFailureError, match="is gone"):
        view(pool)
    assert not leaks(before)


@pytest.mark.parametrize("is_remote", [False, True], ids=["inprocess", "remote"])
async def test_executions_read_and_write_them(
    make: Callable[[], int], is_remote: bool, tmp_path: Path
) -> None:
    async with ReferenceDevice() as device:
        if not is_remote:
            await check_sum(make, device)
            return
        path = tmp_path / "driver.sock"
        async with Server(device, path), RemoteDevice(path) as remote:
            await check_sum(make, remote)


async def check_sum(make: Callable[[], int], device: IDevice) -> None:
    named = addition(4)
    told = PreparedModelFuture()
    fast, medium = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM
    device.prepare_model_1_3(named.model, fast, medium, None, (), (), bytes(32), told)
    prepared = await told
    x, y, z = (np.full(4, value, np.float32) for value in (1, 2, 0))
    plain = RequestBuilder(named.inputs, named.outputs)([x, y], [z])
    fds = [filled(make(), x.tobytes()), filled(make(), y.tobytes()), make()]
    for kind in range(3):
        _calls.clear()
        filled(fds[2], bytes(16))
        given = tuple(pools(fd, 16)[kind] for fd in fds)
        for _ in range(2):
            callback = ExecutionFuture()
            prepared.execute_1_3(
                replace(plain, pools=given), MeasureTiming.NO, None, None, callback
            )
            result = await callback
            assert result.status is ErrorStatus.NONE, result.reason
            assert np.frombuffer(contents(fds[2], 16), np.float32).tolist() == [3] * 4
            assert len({inode for inode, _ in _calls}) == 3
            # In this process, it ends as the device lets go of the arrays.
            await until(lambda: not lasting())
