"""Pools that one client announced and cache files that it sent, on the driver's side.

Pools whose files cannot shrink are mapped when they are announced. All others are
copied for each call that names them, on a thread and one at a time for each client: the
file system beneath them may be slow, or the client's, and then only it waits.
"""

import logging
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from asyncnn.devices.cache_files import check_empty, file_of, replace_together
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedTransientError,
    error_for,
)
from asyncnn.hal.refusals import CacheArguments
from asyncnn.hal.types import BufferToken, ErrorStatus, Handle, Memory, RequestArgument
from asyncnn.memory.descriptors import (
    Descriptor,
    close_received,
    duplicated,
    handles_of,
)
from asyncnn.memory.handles import FIXED_SIZE, access_of, create_file, seal
from asyncnn.memory.mapping import Mapper
from asyncnn.memory.pages import copy_bytes, os_errors
from asyncnn.memory.pools import map_file, view
from asyncnn.offload import SerialOffload
from asyncnn.qos.watching import IdleTimer
from asyncnn.service import wire
from asyncnn.service.driver.quotas import CountedTable, Quota
from asyncnn.service.driver.reporting import explained, log
from asyncnn.service.wire import PoolInfo, PoolsRefused

_KEEP_S = 2.0
"""How long mappings outlast their pools, in case the client announces them anew."""

P = TypeVar("P", Memory, Memory | BufferToken)


class Unusable(msgspec.Struct, frozen=True, gc=False):
    """Why something that a client calls by number cannot be used.

    The collector does not look at these, of which clients can have many.
    """

    status: ErrorStatus
    reason: str


def are_mapped(pools: Iterable[Memory | BufferToken]) -> bool:
    """Return whether none of these pools has to be copied."""
    return all(isinstance(p, BufferToken) or p.buffer is not None for p in pools)


class AnnouncedPools:
    """Pools by their numbers, which keep as many ``descriptors`` open.

    What takes long for the client is done ``on_thread``, one at a time.

    All methods belong to the event loop.
    """

    def __init__(
        self, mapper: Mapper, quota: Quota, send: Callable[[PoolsRefused], None]
    ) -> None:
        self._send = send
        self._mapper = mapper
        self._quota = quota
        self._pools: CountedTable[Memory | Unusable] = quota.table()
        self._buffers: dict[int, BufferToken] = {}
        self.descriptors = 0
        self.on_thread = SerialOffload()
        self._forgotten = IdleTimer(_KEEP_S, mapper.trim)

    @property
    def mappings(self) -> int:
        """How many mappings there are of them."""
        return self._mapper.mappings

    def announce(self, infos: Sequence[PoolInfo], fds: Sequence[int]) -> None:
        """Take in pools; one that cannot be used fails the calls that name it.

        The descriptors stay the caller's.

        :raises InvalidArgumentError: if the announcement contradicts itself.
        """
        if any(info.fds < 0 for info in infos) or len(fds) != sum(
            info.fds for info in infos
        ):
            raise InvalidArgumentError("pools and descriptors do not match")
        start = 0
        for info in infos:
            # One by one: a message may announce a number twice.
            self._check_new(info)
            handle = Handle(tuple(fds[start : start + info.fds]), info.ints)
            start += info.fds
            try:
                self._pools[info.number] = memory = self._admit(info, handle)
                self.descriptors += len(memory.handle.fds)
            except AsyncnnError as error:
                self._refuse(info, explained(error))

    def decline(self, infos: Sequence[PoolInfo], error: AsyncnnError) -> None:
        """Take in pools that the driver has no room for: calls that name them fail."""
        for info in infos:
            self._check_new(info)
            self._refuse(info, error)

    def forget(self, numbers: Sequence[int]) -> None:
        """Let go of pools; calls under way keep theirs."""
        for number in numbers:
            memory = self._pools.pop(number, None)
            if isinstance(memory, Memory):
                self.descriptors -= len(memory.handle.fds)
            self._buffers.pop(number, None)
        self._forgotten.note_activity()

    def adopt(self, number: int, token: BufferToken) -> None:
        """Let requests name a buffer of the client's like one of its pools."""
        self._buffers[number] = token

    def find_for_request(
        self, numbers: Sequence[int]
    ) -> tuple[Memory | BufferToken, ...]:
        """Return pools and buffers; otherwise like `find`."""
        buffers = self._buffers
        if not buffers or buffers.keys().isdisjoint(numbers):
            return self.find(numbers)
        return tuple([buffers.get(n) or self.find((n,))[0] for n in numbers])

    def find(self, numbers: Sequence[int]) -> tuple[Memory, ...]:
        """Return pools, which are not all mapped; see `copied`.

        :raises InvalidArgumentError: if one was not announced.
        :raises AsyncnnError: if one could not be used when it was announced.
        """
        found: list[Memory] = []
        for number in numbers:
            memory = self._pools.get(number)
            if isinstance(memory, Memory):
                found.append(memory)
            elif memory is None:
                raise InvalidArgumentError(f"there is no pool {number}")
            else:
                raise error_for(memory.status, memory.reason)
        return tuple(found)

    def find_mapped(self, numbers: Sequence[int]) -> tuple[Memory | BufferToken, ...]:
        """Return buffers, and pools that stay mapped, mapping those that were not.

        :raises InvalidArgumentError: if one was not announced, or its file can shrink.
        :raises ResourceExhaustedTransientError: if it exceeds the limits for now.
        :raises AsyncnnError: if one could not be used when it was announced.
        """
        found = self.find_for_request(numbers)
        for number, memory in zip(numbers, found, strict=True):
            if isinstance(memory, Memory) and memory.buffer is None:
                mapped = self._mapper.map_nowait(memory)
                if mapped is None:
                    raise InvalidArgumentError(
                        "the memory of a burst must be mapped, and a file of this can "
                        "shrink",
                        hint="seal it, as asyncnn.memory.shared.allocate does",
                    )
                self._pools[number] = mapped
                self.descriptors -= len(memory.handle.fds)
        return self.find_for_request(numbers)

    async def copied(self, pools: Sequence[P]) -> tuple[P, ...]:
        """Return pools with copies of those that are not mapped.

        :raises AsyncnnError: if one cannot be copied.
        """
        return await self.on_thread(_copies, self._mapper, tuple(pools))

    async def write_back(
        self, pools: Sequence[Memory | BufferToken], outputs: Sequence[RequestArgument]
    ) -> None:
        """Hand outputs that lie in copies to the client.

        :raises AsyncnnError: if a file does not take them.
        """
        await self.on_thread(_write_back, self._mapper, tuple(pools), tuple(outputs))

    def close(self) -> None:
        """Give everything back."""
        self._forgotten.close()
        self._pools.clear()
        self.descriptors = 0
        self._buffers.clear()
        self._mapper.close()

    def _check_new(self, info: PoolInfo) -> None:
        if info.number in self._pools:
            raise InvalidArgumentError(f"pool {info.number} is announced twice")
        if len(self._pools) >= 2 * self._quota.most_each:
            raise InvalidArgumentError("too many pools are announced")

    def _refuse(self, info: PoolInfo, error: AsyncnnError) -> None:
        log.log(logging.INFO, "pool %d of a client is refused: %s", info.number, error)
        self._pools[info.number] = Unusable(error.status, str(error))
        if isinstance(error, ResourceExhaustedTransientError):
            self._send(PoolsRefused((info.number,)))

    def _admit(self, info: PoolInfo, handle: Handle) -> Memory:
        self._quota.check(self._pools)
        memory = Memory(info.name, info.size, handle)
        # If it exceeds the limits for now, it is copied or tried again later.
        with suppress(ResourceExhaustedTransientError):
            mapped = self._mapper.map_nowait(memory)
            if mapped is not None:
                return mapped
        # The descriptor closes with the pool, not with the message it came beside.
        (fd,) = handle.fds
        try:
            kept = Handle((os.dup(fd),), info.ints)
        except OSError as error:
            raise ResourceExhaustedTransientError(str(error.strerror)) from error
        kept_memory = Memory(info.name, info.size, kept)
        weakref.finalize(kept_memory, close_received, kept.fds)
        return kept_memory


def _copies(mapper: Mapper, pools: tuple[P, ...]) -> tuple[P, ...]:
    return tuple([p if isinstance(p, BufferToken) else mapper.map(p) for p in pools])


def _write_back(
    mapper: Mapper,
    pools: tuple[Memory | BufferToken, ...],
    outputs: tuple[RequestArgument, ...],
) -> None:
    for output in outputs:
        at = output.location
        pool = None if output.has_no_value else pools[at.pool_index]
        if isinstance(pool, Memory):
            mapper.flush(pool, at.offset, at.length)


class ReceivedCache:
    """Cache arguments that a client sent; ``fds`` stay the caller's.

    The files may be slow, or change at any moment, and their owner is not trusted. So a
    device gets copies in memory, which `read` makes before and `write` takes back
    afterwards: on a thread, as either may block.

    :raises InvalidArgumentError: if the descriptors do not match.
    :raises ResourceExhaustedTransientError: if descriptors have run out.
    """

    def __init__(self, info: wire.CacheInfo, fds: Sequence[int]) -> None:
        if min(info.model_files, info.data_files) < 0 or len(fds) != (
            info.model_files + info.data_files
        ):
            raise InvalidArgumentError("cache files and descriptors do not match")
        self._files = duplicated(fds)
        self._model_files = info.model_files
        self._copies: list[Descriptor] = []
        self._sources: list[tuple[int, int]] = []
        self._token = info.token

    @property
    def descriptors(self) -> int:
        """How many it keeps open: of the files and of their copies."""
        return 2 * len(self._files)

    @property
    def arguments(self) -> CacheArguments:
        """What a device is given: copies of the files, none before they are made.

        Each that was read says of which file it is.
        """
        handles, split = handles_of(self._copies), self._model_files
        if self._sources:
            sources = zip(handles, self._sources, strict=True)
            handles = [Handle(handle.fds, source) for handle, source in sources]
        return CacheArguments(handles[:split], handles[split:], self._token)

    def prepare_to_write(self) -> bool:
        """Make empty copies; False, and none, if nothing can or is to be written."""
        if not self._files or any(
            access_of(file.fd) != os.O_RDWR for file in self._files
        ):
            return False
        self._copies = [_copy() for _ in self._files]
        return True

    def prepare_to_save(self) -> None:
        """Make empty copies.

        :raises InvalidArgumentError: if the files cannot be written, or are not empty.
        :raises GeneralFailureError: if one is no file.
        """
        # The copies are: what a device checks of its files is checked of the client's.
        with os_errors("a cache file"):
            check_empty(self._files)
        self.prepare_to_write()

    def read(self, most_bytes: int) -> None:
        """Copy the files, which must not have more bytes altogether.

        :raises GeneralFailureError: if one cannot be read.
        """
        for file in self._files:
            copy = _copy()
            with os_errors("a cache file"):
                size = _copy_contents(file.fd, copy.fd, most_bytes)
                # So that the device maps it, instead of copying it once more.
                seal(copy.fd, FIXED_SIZE)
                source = file_of(file.fd)
            most_bytes -= size
            self._copies.append(copy)
            self._sources.append(source)

    def write(self) -> None:
        """Write all copies back, or empty the files; keep them if nothing was saved.

        The first one decides: a device may have had no use for others.

        :raises GeneralFailureError: if that fails.
        """
        sizes = [os.fstat(copy.fd).st_size for copy in self._copies]
        if not sizes[0]:
            return
        contents = [
            [(0, view(map_file(copy.fd)))] if size else []
            for copy, size in zip(self._copies, sizes, strict=True)
        ]
        replace_together(self._files, contents)


def _copy() -> Descriptor:
    with os_errors("a copy of a cache file"):
        return Descriptor(create_file("asyncnn-cache"))


def _copy_contents(source: int, target: int, most_bytes: int) -> int:
    status = os.fstat(source)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most_bytes:
        raise GeneralFailureError("a cache file is none, or is too large")
    # One byte more than there is: what is appended meanwhile is not overlooked.
    return copy_bytes(source, target, status.st_size + 1)
