"""Bursts whose driver's side is in another process, on the client's side."""

import asyncio
import itertools
import logging
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from asyncnn.callbacks import CallbackObject, IBurstCallback
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.interfaces import IBurstContext
from asyncnn.hal.types import (
    BufferToken,
    ErrorStatus,
    Handle,
    Memory,
    Request,
    RequestArgument,
)
from asyncnn.memory.slabs import Part
from asyncnn.service import wire
from asyncnn.service.client.pools import OfferedPools
from asyncnn.service.client.unanswered import Line
from asyncnn.service.limits import OwnedTasks

logger = logging.getLogger(__name__)

_MAX_ANSWERS = 256
"""Questions of the driver that are being answered at a time."""

MAX_CANDIDATES = 64
"""Requests seen once that are remembered; the one seen first is forgotten first."""

_Key: TypeAlias = tuple[int, ...]


class _Binding(msgspec.Struct, frozen=True, eq=False):
    """A number, and what keeps the identities in its key from meaning other things.

    Arguments are held. Pools are watched, since they are to go when nobody uses them,
    here or in the driver, which is told to forget the binding then.
    """

    number: int
    arguments: tuple[Sequence[RequestArgument], Sequence[RequestArgument]]
    pools: tuple[weakref.ref[Memory], ...]


class Bindings:
    """Numbers of requests, up to ``most`` of them.

    When there are that many, further requests get none, rather than others losing
    theirs: that would cost more than it saves.

    ``call_forgotten`` is called, on any thread, when there is something for
    `take_forgotten`. ``epoch`` is another object whenever a number was forgotten: until
    then all that were found still stand.
    """

    def __init__(
        self, most: int = 0, call_forgotten: Callable[[], None] = lambda: None
    ) -> None:
        self.most = most
        self._call_forgotten = call_forgotten
        self._forgotten: deque[int] = deque()
        self._bound: dict[_Key, _Binding] = {}
        self._candidates: dict[_Key, None] = {}
        self.epoch = object()

    def __len__(self) -> int:
        return len(self._bound)

    def number_of(self, prepared: int, request: Request) -> int | None:
        """Return the number of a request to a prepared model, None if it has none."""
        if not self._bound:
            return None
        try:
            binding = self._bound.get(_key(prepared, request))
        except (AttributeError, TypeError):  # it is no request at all
            return None
        return None if binding is None else binding.number

    def is_worth_binding(self, prepared: int, request: Request) -> bool:
        """Tell whether a valid request without a number was seen before."""
        if not type(request.inputs) is type(request.outputs) is tuple:
            return False  # a list may have other arguments the next time
        key = _key(prepared, request)
        if key in self._candidates:
            return len(self._bound) < self.most
        if len(self._candidates) == MAX_CANDIDATES:
            del self._candidates[next(iter(self._candidates))]
        self._candidates[key] = None
        return False

    def add(self, number: int, prepared: int, request: Request) -> None:
        """Remember the number that the driver knows a request by."""
        key = _key(prepared, request)
        gone: Callable[[Any], None] = partial(self._lose, key)
        pools = [pool for pool in request.pools if isinstance(pool, Memory)]
        self._candidates.pop(key, None)
        self._bound[key] = _Binding(
            number,
            (request.inputs, request.outputs),
            tuple([weakref.ref(pool, gone) for pool in pools]),
        )

    def take_forgotten(self) -> tuple[int, ...]:
        """Return the numbers of requests whose pools have gone since the last call."""
        gone = self._forgotten
        return tuple([gone.popleft() for _ in range(len(gone))])

    def release(self, prepared: int) -> None:
        """Forget the requests to a prepared model, as the driver does."""
        # Of a copy: the collector may pop others in the midst of any statement.
        for key in [key for key in list(self._bound) if key[0] == prepared]:
            self._bound.pop(key, None)
        self.epoch = object()

    def forget_buffer(self, token: int) -> None:
        """Forget the requests that name a buffer, as the driver does."""
        for key in [key for key in list(self._bound) if -token in key]:
            self._bound.pop(key, None)
        self.epoch = object()

    def forget_pool(self, memory: Memory) -> None:
        """Forget the requests that name a pool, or a part of it, as the driver does."""
        for key, binding in list(self._bound.items()):
            pools = [pool() for pool in binding.pools]
            slabs = [pool.slab for pool in pools if type(pool) is Part]
            if any(pool is memory for pool in (*pools, *slabs)):
                self._bound.pop(key, None)
        self.epoch = object()

    def clear(self) -> None:
        """Forget everything: the driver is gone."""
        self.epoch = object()
        self._bound.clear()
        self._candidates.clear()
        self._forgotten.clear()

    def _lose(self, key: _Key, _: object) -> None:
        """Forget a request, one of whose pools has gone, on any thread."""
        binding = self._bound.pop(key, None)
        if binding is not None:
            self.epoch = object()
            self._forgotten.append(binding.number)
            self._call_forgotten()


def _key(prepared: int, request: Request) -> _Key:
    pools = request.pools
    if BufferToken not in map(type, pools):
        return (prepared, id(request.inputs), id(request.outputs), *map(id, pools))
    # A token is a value, and no identity is negative.
    ids = [-p.token if type(p) is BufferToken else id(p) for p in pools]
    return (prepared, id(request.inputs), id(request.outputs), *ids)


_Answer: TypeAlias = "tuple[ErrorStatus, RemoteBurst | None]"


class RemoteBurst(CallbackObject):
    """The `IBurstContext` of burst ``number`` of a connection."""

    def __init__(self, bursts: "RemoteBursts", number: int) -> None:
        super().__init__()
        self._bursts = bursts
        self._number = number

    def free_memory(self, slot: int) -> None:
        """Have the driver forget the memory of a slot."""
        self._bursts.tell(wire.FreeMemory(self._number, slot))

    def cancel(self, request: int) -> None:
        """Have the driver stop an execution."""
        self._bursts.tell(wire.CancelBurstRequest(self._number, request))

    def close(self) -> None:
        """Have the driver release the burst."""
        self.unlink_to_death()
        self._bursts.release(self._number)


class RemoteBursts:
    """The bursts of a connection by number, and the callbacks that the driver may ask.

    Belongs to the event loop.
    """

    def __init__(self, line: Line, pools: OfferedPools) -> None:
        self._send = line.send
        self.tell = line.send_if_open
        self._pools = pools
        self._numbers = itertools.count(1)
        self._callbacks: dict[int, IBurstCallback] = {}
        self._tasks = OwnedTasks(_MAX_ANSWERS)
        self._opening: dict[int, asyncio.Future[_Answer]] = {}
        self._open: dict[int, RemoteBurst] = {}

    def serve(self, callback: IBurstCallback) -> int:
        """Let the driver ask ``callback``; return the number to do so by."""
        number = next(self._numbers)
        self._callbacks[number] = callback
        return number

    def forget(self, number: int) -> None:
        """Let the driver ask a callback no more."""
        self._callbacks.pop(number, None)

    def answer(self, message: wire.GetMemories) -> None:
        """Answer a question of the driver soon."""
        callback = self._callbacks.get(message.burst)
        try:
            if callback is None:
                raise InvalidArgumentError(f"there is no burst {message.burst}")
            self._tasks.check_room()
        except AsyncnnError as error:
            self.tell(wire.Memories(message.call, error.status, ()))
        else:
            self._tasks.start(self._answer(message, callback))

    async def configure(
        self,
        prepared: int,
        callback: IBurstCallback,
        request_channel: Handle,
        result_channel: Handle,
    ) -> tuple[ErrorStatus, IBurstContext | None]:
        """Open a burst of a prepared model; cancelling the call releases it."""
        number = self.serve(callback)
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._opening[number] = answer
        burst: IBurstContext | None = None
        try:
            self._send(
                wire.ConfigureBurst(
                    number,
                    prepared,
                    request_channel.ints,
                    result_channel.ints,
                    len(request_channel.fds),
                ),
                (*request_channel.fds, *result_channel.fds),
            )
            status, burst = await answer
        except AsyncnnError as error:
            status = error.status
        except asyncio.CancelledError:
            # The answer may have come in this very turn, and nobody has the burst.
            self._open.pop(number, None)
            self.tell(wire.ReleaseBurst(number))
            raise
        finally:
            self._opening.pop(number, None)
            if burst is None:
                self.forget(number)
        return status, burst

    def configured(self, number: int, status: ErrorStatus) -> None:
        """Take the driver's answer to `configure`."""
        answer = self._opening.get(number)
        if answer is None or answer.done():
            return
        burst = None
        if status is ErrorStatus.NONE:
            # Here, not in `configure`: the next message may tell that it has ended.
            burst = self._open[number] = RemoteBurst(self, number)
        answer.set_result((status, burst))

    def ended(self, number: int) -> None:
        """Learn that the driver has ended a burst."""
        self.forget(number)
        burst = self._open.pop(number, None)
        if burst is not None:
            burst.die()

    def release(self, number: int) -> None:
        """Have the driver release a burst, unless it has ended."""
        self.forget(number)
        if self._open.pop(number, None) is not None:
            self.tell(wire.ReleaseBurst(number))

    def close(self) -> None:
        """Let all bursts end, and forget what is about to be answered."""
        self._tasks.cancel()
        self._callbacks.clear()
        for answer in self._opening.values():
            if not answer.done():
                answer.set_result((ErrorStatus.DEVICE_UNAVAILABLE, None))
        for number in tuple(self._open):
            self.ended(number)

    async def _answer(
        self, message: wire.GetMemories, callback: IBurstCallback
    ) -> None:
        status = ErrorStatus.GENERAL_FAILURE
        numbers: tuple[int, ...] = ()
        try:
            found, memories = await callback.get_memories(message.slots)
            if not all(
                isinstance(memory, BufferToken) or memory.handle.fds
                for memory in memories
            ):
                raise InvalidArgumentError(
                    "a pool of a burst is memory of this process alone",
                    hint="asyncnn.shared_array makes memory that the driver shares",
                )
            # Both or none of them: an answer that is a failure names no pool.
            status, numbers = ErrorStatus(found), self._pools.numbers_of(memories)
        except AsyncnnError as error:
            status = error.status
        except Exception:
            logger.exception("a burst callback failed")
        self.tell(wire.Memories(message.call, status, numbers))
