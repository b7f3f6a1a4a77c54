"""Shared arrays that other processes find by name.

A name is an address of a Unix-domain socket in the kernel's abstract name space, which
ends with the process that made it, however that ends: nothing is left behind in a file
system. A process that connects to it gets the descriptor of the array's memory file. As
that cannot shrink, a driver maps it like any other shared array.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import numpy as np
from numpy.typing import DTypeLike

from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Handle, Memory
from asyncnn.memory.descriptors import Descriptor
from asyncnn.memory.handles import SHRINK, seals_of
from asyncnn.memory.pages import failure, os_errors
from asyncnn.memory.pools import owning, view
from asyncnn.memory.slabs import array_in, place_of, shared_array
from asyncnn.service.process import Listener, new_socket, peer_of
from asyncnn.turn import require_loop

MAX_NAME_BYTES = 64
_RETRY_S = 0.005
_MAX_BYTES = 1024


class _Description(msgspec.Struct, frozen=True, array_like=True):
    """What an array is, beside the descriptor of its memory."""

    dtype: str
    shape: tuple[int, ...]


@asynccontextmanager
async def named_array(
    name: str, shape: int | tuple[int, ...], dtype: DTypeLike = np.float32
) -> AsyncIterator[Array]:
    """Yield a new array of zeros that `open_named_array` finds by its name.

    It is like one of `shared_array`, in memory of its own. Processes of this user can
    open it until the block ends or this process does, however that happens; those that
    have it by then keep it. They are answered by this event loop.

    Nothing shows a reader that what it reads is complete: agree with it on whose turn
    it is, by a pipe or a socket, say.

    :raises InvalidArgumentError: if there cannot be such a name or array.
    :raises GeneralFailureError: if the name is taken.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    :raises WrongLoopError: if no event loop of asyncio runs here.
    """
    require_loop()
    address = _address(name)
    array = shared_array(shape, dtype, isolated=True)
    with _Publication(name, address, array):
        yield array


async def open_named_array(
    name: str,
    *,
    timeout: float = 5.0,  # noqa: ASYNC109 - of a process that may be stopped
) -> Array:
    """Return the array that another process of this user has made by `named_array`.

    Both work on the same memory, and so does a driver that is given the array.

    :param timeout: seconds that the other process may take to answer.
    :raises InvalidArgumentError: if there cannot be such a name.
    :raises GeneralFailureError: if nobody has made one of that name, or its owner is
        another user, does not answer in time, or answers with what is no such array.
    :raises ResourceExhaustedTransientError: if memory or descriptors have run out.
    :raises WrongLoopError: if no event loop of asyncio runs here.
    """
    require_loop()
    address = _address(name)
    with os_errors(f"named array {name!r}"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with connection:
        connection.setblocking(False)
        try:
            async with asyncio.timeout(timeout):
                await _connect(connection, name, address)
                await anyio.wait_readable(connection)
        except TimeoutError:
            raise GeneralFailureError(
                f"the owner of the named array {name!r} does not answer",
                hint="its event loop has to run",
            ) from None
        return _received(connection, name)


class _Publication:
    """Serves a named array on the running event loop, inside a ``with`` block."""

    def __init__(self, name: str, address: bytes, array: Array) -> None:
        place = place_of(array)
        assert place is not None
        self._memory, _ = place
        self._packet = msgspec.msgpack.encode(
            _Description(array.dtype.str, array.shape)
        )
        with new_socket(f"named array {name!r}") as self._socket:
            self._socket.bind(address)

    def __enter__(self) -> None:
        self._listener = Listener(self._socket, self._serve)

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.setblocking(False)
            if peer_of(connection).uid == os.geteuid():
                fds = list(self._memory.handle.fds)
                socket.send_fds(connection, [self._packet], fds)


def _address(name: str) -> bytes:
    """Return the address that a name of this user stands for."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        encoded = b""
    if not 0 < len(encoded) <= MAX_NAME_BYTES:
        raise InvalidArgumentError(
            f"{name[:40]!r} is no name of an array",
            hint=f"take 1 to {MAX_NAME_BYTES} bytes",
        )
    return b"\0asyncnn-array-%d-%s" % (os.geteuid(), encoded)


async def _connect(connection: socket.socket, name: str, address: bytes) -> None:
    """Connect to the owner of a name."""
    while True:
        try:
            connection.connect(address)
            break
        except BlockingIOError:
            # Its backlog is full; a socket of this family cannot be waited for.
            await asyncio.sleep(_RETRY_S)
        except ConnectionRefusedError:
            raise GeneralFailureError(
                f"there is no named array {name!r}",
                hint="the process that makes it has to run",
            ) from None
        except OSError as error:
            raise failure(error, f"named array {name!r}") from error
    uid = peer_of(connection).uid
    if uid != os.geteuid():
        raise GeneralFailureError(f"the named array {name!r} belongs to user {uid}")


def _received(connection: socket.socket, name: str) -> Array:
    """Return the array that the other end describes."""
    with os_errors(f"named array {name!r}"):
        try:
            data, fds, _, _ = socket.recv_fds(
                connection, _MAX_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except ConnectionResetError:
            data, fds = b"", []
        descriptors = [Descriptor(fd) for fd in fds]
        if not data:
            raise GeneralFailureError(
                f"there is no named array {name!r} any more: its owner has hung up"
            )
        if len(fds) != 1 or not seals_of(fds[0]) & SHRINK:
            raise GeneralFailureError(f"{name!r} has no memory that can be mapped")
        size = os.fstat(fds[0]).st_size
        memory = Memory("ashmem", size, Handle((os.dup(fds[0]),)))
        memory = owning(msgspec.structs.replace(memory, buffer=view(memory)))
    del descriptors
    try:
        found = msgspec.msgpack.decode(data, type=_Description)
        return array_in(memory, np.dtype(found.dtype), found.shape)
    except (msgspec.MsgspecError, TypeError, ValueError, AsyncnnError) as error:
        raise GeneralFailureError(f"{name!r} is no array: {error}") from error
