"""Copies from and to device-managed buffers: rows MC1 to MC7, and what may go wrong."""

import asyncio
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory import allocate, allocate_blob, as_array, from_buffer
from tests.devices.domains import (
    F32,
    FAILURE,
    INVALID,
    KINDS,
    NONE,
    SHAPE,
    Buffer,
    Kind,
    additions,
    allocated,
    convolutions,
    role,
)
from tests.devices.test_execution import prepare
from tests.waits import cancelled

OPEN = (0, 4, 4, 2)

FilePool = Callable[[Path], Memory]


async def buffer_of(
    device: IDevice, kind: Kind, dimensions: tuple[int, ...] = SHAPE
) -> Buffer:
    prepared = await prepare(device, convolutions(kind, dimensions=dimensions))
    return await allocated(device, [prepared], [role()], [role()])


@pytest.fixture(params=KINDS, ids=lambda kind: kind.type.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    return request.param


@pytest.fixture
def file_pool() -> Iterator[FilePool]:
    """Makes pools of files that nobody has mapped yet, and that could shrink."""
    with ExitStack() as stack:

        def pool(path: Path) -> Memory:
            file = stack.enter_context(path.open("r+b"))
            ints = (mmap.PROT_READ | mmap.PROT_WRITE, 0, 0)
            handle = Handle((file.fileno(),), ints)
            return Memory("mmap_fd", path.stat().st_size, handle)

        yield pool


async def test_contents_come_back_as_they_were(device: IDevice, kind: Kind) -> None:
    buffer = await buffer_of(device, kind)
    for seed in (1, 2):
        x = kind.data(seed)
        assert await buffer.fill(x) is NONE
        np.testing.assert_array_equal(await buffer.contents(x), x)


async def test_pools_to_copy_from_have_the_size_of_the_buffer(
    device: IDevice, kind: Kind
) -> None:
    buffer, x = await buffer_of(device, kind), kind.data(1)
    assert await buffer.fill(x[:, :2]) is INVALID
    assert await buffer.fill(np.concatenate([x, x])) is INVALID


async def test_pools_to_copy_from_have_the_size_of_what_is_given(
    device: IDevice, kind: Kind
) -> None:
    buffer, x = await buffer_of(device, kind, OPEN), kind.data(1)
    assert await buffer.fill(x[:, :2], SHAPE) is INVALID
    assert await buffer.fill(np.concatenate([x, x]), SHAPE) is INVALID
    assert await buffer.fill(x, SHAPE) is NONE
    assert await buffer.fill(x, (2, 4, 4, 2)) is INVALID


@pytest.mark.parametrize(
    ("dimensions", "status"),
    [
        ((4, 4, 2), INVALID),
        ((2, 4, 4, 2), INVALID),
        ((0, 4, 4, 2), INVALID),
        ((-1, 4, 4, 2), INVALID),
        ((2**40, 4, 4, 2), INVALID),
        (("1", 4, 4, 2), INVALID),
        ((), NONE),
        (SHAPE, NONE),
    ],
)
async def test_dimensions_of_what_is_copied_are_those_of_the_buffer(
    device: IDevice, kind: Kind, dimensions: tuple[int, ...], status: object
) -> None:
    buffer = await buffer_of(device, kind)
    assert await buffer.fill(kind.data(1), dimensions) is status


@pytest.mark.parametrize(
    ("dimensions", "status"),
    [
        ((4, 4, 2), INVALID),
        ((2, 4, 4, 4), INVALID),
        ((1, 4, 4, 0), INVALID),
        ((), INVALID),
        (SHAPE, NONE),
    ],
)
async def test_dimensions_that_were_left_open_are_given(
    device: IDevice, kind: Kind, dimensions: tuple[int, ...], status: object
) -> None:
    buffer = await buffer_of(device, kind, OPEN)
    assert await buffer.fill(kind.data(1), dimensions) is status


async def test_an_uninitialised_buffer_cannot_be_read(
    device: IDevice, kind: Kind
) -> None:
    size = kind.data(1).nbytes
    assert await (await buffer_of(device, kind)).read(size) is FAILURE
    assert await (await buffer_of(device, kind, OPEN)).read(size) is FAILURE


async def test_a_wrong_size_is_reported_before_a_lack_of_contents(
    device: IDevice, kind: Kind
) -> None:
    size = kind.data(1).nbytes
    assert await (await buffer_of(device, kind)).read(size // 2) is INVALID


@pytest.mark.parametrize("dimensions", [SHAPE, OPEN])
async def test_pools_to_copy_to_have_the_size_of_the_contents(
    device: IDevice, kind: Kind, dimensions: tuple[int, ...]
) -> None:
    buffer, x = await buffer_of(device, kind, dimensions), kind.data(1)
    assert await buffer.fill(x, SHAPE) is NONE
    assert await buffer.read(x.nbytes // 2) is INVALID
    assert await buffer.read(x.nbytes * 2) is INVALID
    assert await buffer.read(x.nbytes) is NONE


async def test_contents_of_open_dimensions_change_their_size(device: IDevice) -> None:
    buffer = await buffer_of(device, F32, OPEN)
    for count in (1, 3, 2):
        x = F32.data(count, (count, 4, 4, 2))
        assert await buffer.fill(x, x.shape) is NONE
        np.testing.assert_array_equal(await buffer.contents(x), x)


async def test_a_scalar_is_copied_without_dimensions(device: IDevice) -> None:
    prepared = await prepare(device, additions(F32))
    buffer = await allocated(device, [prepared], [role(index=2)])
    assert await buffer.fill(np.array(3, np.int32), (1,)) is INVALID
    assert await buffer.fill(np.array(3, np.int32)) is NONE
    assert await buffer.contents(np.array(0, np.int32)) == 3


async def test_a_copy_that_fails_leaves_the_buffer_uninitialised(
    device: IDevice,
) -> None:
    buffer, x = await buffer_of(device, F32), F32.data(1)
    assert await buffer.fill(x) is NONE
    assert await buffer.fill(x, (2, 4, 4, 2)) is INVALID
    assert await buffer.read(x.nbytes) is FAILURE
    assert await buffer.fill(x) is NONE
    np.testing.assert_array_equal(await buffer.contents(x), x)


@pytest.mark.parametrize("make", [allocate, allocate_blob])
async def test_pools_of_every_kind_are_copied(
    device: IDevice, make: Callable[[int], Memory]
) -> None:
    buffer, x = await buffer_of(device, F32), F32.data(1)
    source, target = make(x.nbytes), make(x.nbytes)
    as_array(source, x.dtype, x.shape)[...] = x
    assert await buffer.hal.copy_from(source, ()) is NONE
    assert await buffer.hal.copy_to(target) is NONE
    np.testing.assert_array_equal(as_array(target, x.dtype, x.shape), x)


@pytest.mark.parametrize("elements", [32, 2**18])
async def test_files_are_copied_in_and_out(
    device: IDevice, tmp_path: Path, file_pool: FilePool, elements: int
) -> None:
    prepared = await prepare(device, additions(F32, (elements,)))
    buffer = await allocated(device, [prepared], [role()])
    x = np.arange(elements, dtype=np.float32)
    path = tmp_path / "data"
    path.write_bytes(x.tobytes())
    assert await buffer.hal.copy_from(file_pool(path), ()) is NONE
    path.write_bytes(bytes(x.nbytes))
    assert await buffer.hal.copy_to(file_pool(path)) is NONE
    np.testing.assert_array_equal(np.fromfile(path, np.float32), x)


async def test_a_file_that_is_too_short_is_refused(
    device: IDevice, tmp_path: Path, file_pool: FilePool
) -> None:
    buffer, x = await buffer_of(device, F32), F32.data(1)
    path = tmp_path / "data"
    path.write_bytes(bytes(x.nbytes))
    pool = file_pool(path)
    os.truncate(path, 8)
    assert await buffer.hal.copy_from(pool, ()) in (INVALID, FAILURE)
    assert await buffer.fill(x) is NONE
    assert await buffer.hal.copy_to(pool) in (INVALID, FAILURE)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        Memory("ashmem", 128),
        Memory("socket", 128, Handle((0,))),
        Memory("ashmem", 128, Handle((987_654,))),
        Memory("ashmem", 128, Handle((), ()), memoryview(b"short")),
        Memory(["ashmem"], 128, Handle((0,))),  # type: ignore[arg-type]
    ],
)
async def test_what_is_no_pool_is_refused(device: IDevice, bad: Memory) -> None:
    buffer = await buffer_of(device, F32)
    assert await buffer.hal.copy_from(bad, ()) in (INVALID, FAILURE)
    assert await buffer.fill(F32.data(1)) is NONE
    assert await buffer.hal.copy_to(bad) in (INVALID, FAILURE)


async def test_a_pool_that_is_read_only_is_not_written(device: IDevice) -> None:
    buffer, x = await buffer_of(device, F32), F32.data(1)
    assert await buffer.fill(x) is NONE
    data = bytes(x.nbytes)
    assert await buffer.hal.copy_to(from_buffer(data)) is INVALID
    assert data == bytes(x.nbytes)


class TestLongCopies:
    """Copies that take a thread, so that others come in between."""

    SHAPE = (1, 512, 512, 2)

    async def buffer(self, device: IDevice) -> tuple[Buffer, np.ndarray]:
        prepared = await prepare(device, additions(F32, self.SHAPE))
        buffer = await allocated(device, [prepared], [role()], [role()])
        return buffer, F32.data(1, self.SHAPE)

    async def test_contents_come_back(self, device: IDevice) -> None:
        buffer, x = await self.buffer(device)
        assert await buffer.fill(x) is NONE
        np.testing.assert_array_equal(await buffer.contents(x), x)

    async def test_many_read_at_a_time(self, device: IDevice) -> None:
        buffer, x = await self.buffer(device)
        assert await buffer.fill(x) is NONE
        for copy in await asyncio.gather(*[buffer.contents(x) for _ in range(4)]):
            np.testing.assert_array_equal(copy, x)

    async def test_writing_excludes_all_others(self) -> None:
        async with ReferenceDevice() as device:
            buffer, x = await self.buffer(device)
            statuses = await asyncio.gather(
                buffer.fill(x), buffer.fill(x + 1), buffer.read(x.nbytes)
            )
            assert statuses == [NONE, FAILURE, FAILURE]
            np.testing.assert_array_equal(await buffer.contents(x), x)

    async def test_reading_excludes_who_writes(self) -> None:
        async with ReferenceDevice() as device:
            buffer, x = await self.buffer(device)
            assert await buffer.fill(x) is NONE
            copy, status = await asyncio.gather(buffer.contents(x), buffer.fill(x + 1))
            np.testing.assert_array_equal(copy, x)
            assert status is FAILURE
            np.testing.assert_array_equal(await buffer.contents(x), x)

    async def test_a_copy_that_nobody_awaits_ends_all_the_same(
        self, device: IDevice
    ) -> None:
        buffer, x = await self.buffer(device)
        task = asyncio.create_task(buffer.fill(x))
        await asyncio.sleep(0)
        await cancelled(task)
        other, _ = await self.buffer(device)
        assert await other.fill(x) is NONE  # one copy after the other
        np.testing.assert_array_equal(await buffer.contents(x), x)
