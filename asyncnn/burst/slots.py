"""The slots of a burst: the numbers that its packets name pools by.

`PoolSlots` gives them out on the application's side. On the driver's side a `Binder`
turns packets into requests, for which it remembers the memories of slots and asks the
application for those it does not know.

A slot that is free is taken again first, the latest before all others. Its number has
changed by then: the driver may still know the old one, because the message that frees a
slot and the packet that uses it take different ways.

Source: HAL 1.2/IBurstCallback.hal, 1.2/IBurstContext.hal.
"""

import asyncio
import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from msgspec.structs import replace

from asyncnn.burst.packets import Decoded, decode_request
from asyncnn.callbacks import IBurstCallback
from asyncnn.execution import reusable
from asyncnn.hal.errors import (
    AsyncnnError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
    error_for,
)
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import BufferToken, ErrorStatus, MeasureTiming, Memory, Request
from asyncnn.logs import SparseLogger

MAX_CACHED_SLOTS = 1024
"""Slots remembered besides bound requests' own; others are asked for."""

GET_MEMORIES_TIMEOUT_S = 5.0
"""How long an application may take to say what is in its slots."""

Pool: TypeAlias = Memory | BufferToken
"""What a slot stands for."""

MAX_BOUND = 4
"""Packets whose requests are kept; all are forgotten at once."""

# A slot is the generation of a place, then the number of the place.
_PLACE_BITS = 16
_PLACES = 1 << _PLACE_BITS
_GENERATIONS = (1 << 31 - _PLACE_BITS) - 1
"""One fewer than fit in, as the HAL reserves the largest number as invalid."""


class PoolSlots(IBurstCallback):
    """Gives slots to pools, and reports to the driver which pool is in a slot.

    A slot lasts until `free`, or until its pool is collected: ``gone`` is called with
    the slot then, on whichever thread that happens.
    """

    carries_deadlines = True

    def __init__(self, gone: Callable[[int], None]) -> None:
        self._gone = gone
        self._slots: dict[weakref.ref[Pool], int] = {}
        self._pools: dict[int, weakref.ref[Pool]] = {}
        self._free: list[int] = []
        self._taken = 0

    def __len__(self) -> int:
        return len(self._slots)

    def of(self, pools: Sequence[Pool]) -> tuple[int, ...]:
        """Return the slots of ``pools``, taking new ones where there are none.

        :raises InvalidArgumentError: if the token of a buffer is not the object that
            has its slot, with which that ends.
        :raises ResourceExhaustedPersistentError: if all are taken.
        """
        slots = []
        for memory in pools:
            slot = self._slots.get(weakref.ref(memory))
            if slot is None:
                slot = self._take(memory)
            elif type(memory) is BufferToken and self._pools[slot]() is not memory:
                raise InvalidArgumentError(
                    f"buffer {memory.token} is named by several tokens"
                )
            slots.append(slot)
        return tuple(slots)

    def free(self, memory: Pool) -> int | None:
        """Take the slot of a pool back and return it; None if it has none."""
        return self._discard(weakref.ref(memory))

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Pool, ...]]:
        """Return the pools of ``slots``; INVALID_ARGUMENT if one is not taken."""
        pools = []
        for slot in slots:
            reference = self._pools.get(slot)
            memory = None if reference is None else reference()
            if memory is None:
                return ErrorStatus.INVALID_ARGUMENT, ()
            pools.append(memory)
        return ErrorStatus.NONE, tuple(pools)

    def _take(self, memory: Pool) -> int:
        if self._free:
            slot = self._free.pop()
        elif self._taken < _PLACES:
            slot = self._taken
            self._taken += 1
        else:
            raise ResourceExhaustedPersistentError(
                f"a burst knows {_PLACES} pools at most", hint="free some of them"
            )
        reference: weakref.ref[Pool] = weakref.ref(memory, self._lost)
        self._slots[reference] = slot
        self._pools[slot] = reference
        return slot

    def _lost(self, reference: weakref.ref[Pool]) -> None:
        slot = self._discard(reference)
        if slot is not None:
            self._gone(slot)

    def _discard(self, reference: weakref.ref[Pool]) -> int | None:
        # This decides who gives it back, if a pool is freed and collected at once.
        slot = self._slots.pop(reference, None)
        if slot is not None:
            del self._pools[slot]
            self._free.append(_next_generation(slot))
        return slot


class IBurstNote(Protocol):
    """Notes executions of one request; ``call`` is the number of the last one."""

    call: int

    def begin(self, began_ns: int, /) -> None:
        """Note that one began at a time of the steady clock."""

    def end(self, status: int, /) -> None:
        """Note that it has ended."""


class IBurstRecorder(Protocol):
    """Notes the executions of a burst for later. Not in the HAL."""

    def request(self, request: Request, measure: int) -> Any:
        """Keep a request; return what notes are about, for as long as it is used."""

    def note(self, about: Any, deadline: int | None = None) -> IBurstNote:
        """Return what notes executions of a request."""

    def cancelled(self, call: int) -> None:
        """Note that an execution was cancelled."""


class BoundRequest(NamedTuple):
    """The request that a packet stands for."""

    request: Request
    measure: MeasureTiming
    note: IBurstNote | None = None
    noted: Any = None
    """What a recorder notes its executions by, and what that is about."""


class Binder:
    """Turns the packets of one burst into requests with their memories.

    It remembers the memories of slots, and asks the application for others. A packet
    that is equal to one of the last `MAX_BOUND` yields the request that ``prepared``
    had checked and bound for it; a session's take turns. All are forgotten when
    the application frees a slot.
    """

    def __init__(
        self, prepared: IPreparedModel, callback: IBurstCallback, log: SparseLogger
    ) -> None:
        self._prepared = prepared
        self._callback = callback
        self._log = log
        self._memories: OrderedDict[int, Pool] = OrderedDict()
        self._awaited: set[int] = set()
        self._bound: dict[bytes, BoundRequest] = {}

    def bind_nowait(self, packet: bytes) -> BoundRequest | None:
        """Return the request of a packet; None if `bind` has to ask for memories.

        :raises PacketError: if the packet is malformed.
        :raises InvalidArgumentError: if the request breaks a rule.
        """
        bound = self._bound.get(packet)
        if bound is None:
            decoded = decode_request(packet)
            if self._memories.keys() >= set(decoded[2]):
                bound = self._bound_by(packet, decoded, self._memories)
        return bound

    async def bind(self, packet: bytes) -> BoundRequest:
        """Return the request of a packet, asking once for memories that are unknown.

        :raises PacketError: if the packet is malformed.
        :raises AsyncnnError: if the application does not provide the memories, of which
            none is remembered then, or the request breaks a rule.
        """
        decoded, known = decode_request(packet), self._memories
        slots = dict.fromkeys(decoded[2])
        found = {slot: known[slot] for slot in slots if slot in known}
        for slot in found:
            known.move_to_end(slot)
        unknown = [slot for slot in slots if slot not in found]
        # What is freed while the application is asked must not be remembered after.
        self._awaited = set(unknown)
        found.update(zip(unknown, await self._ask(unknown), strict=True))
        known.update((slot, found[slot]) for slot in unknown if slot in self._awaited)
        # Bounded, as an application can name slots without end.
        while len(known) > max(MAX_CACHED_SLOTS, len(slots)):
            known.popitem(last=False)
        return self._bound_by(packet, decoded, found)

    def free(self, slot: int) -> None:
        """Forget the memory of a slot, also one that is being asked for."""
        self._memories.pop(slot, None)
        self._awaited.discard(slot)
        self._bound.clear()

    def clear(self) -> None:
        """Forget everything that keeps memories alive."""
        self._memories.clear()
        self._awaited.clear()
        self._bound.clear()

    def _bound_by(
        self, packet: bytes, decoded: Decoded, found: Mapping[int, Pool]
    ) -> BoundRequest:
        inputs, outputs, slots, measure = decoded
        request = Request(inputs, outputs, tuple([found[slot] for slot in slots]))
        bound = BoundRequest(reusable(self._prepared, request), measure)
        recorder: IBurstRecorder | None = self._callback.recorder
        if recorder is not None:
            noted = recorder.request(request, measure)
            bound = bound._replace(note=recorder.note(noted), noted=noted)
        known = self._memories
        if known.keys() >= set(slots):  # none was freed meanwhile
            for slot in slots:
                known.move_to_end(slot)
            if len(self._bound) == MAX_BOUND:
                self._bound.clear()
            self._bound[packet] = bound
        return bound

    async def _ask(self, slots: Sequence[int]) -> tuple[Pool, ...]:
        try:
            async with asyncio.timeout(GET_MEMORIES_TIMEOUT_S):
                status, memories = await self._callback.get_memories(slots)
        except AsyncnnError:
            raise
        except Exception as error:
            self._log.log(logging.ERROR, "the callback of a burst failed", error=error)
            raise GeneralFailureError(
                f"asking for slots failed: {type(error).__name__}: {error}"
            ) from error
        if status is not ErrorStatus.NONE:
            raise error_for(status, f"the application does not know slots {slots}")
        if len(memories) != len(slots):
            raise GeneralFailureError(
                f"{len(memories)} memories for {len(slots)} slots"
            )
        return tuple(map(_private_pool, memories))


def _next_generation(slot: int) -> int:
    """Return the number under which the place of ``slot`` is taken the next time."""
    generation, place = divmod(slot, _PLACES)
    return (generation + 1) % _GENERATIONS << _PLACE_BITS | place


def _private_pool(memory: Pool) -> Pool:
    """Return another pool over the same bytes, if they are mapped.

    In one process the callback returns the application's own pool, whose end frees the
    slot: the cache must not keep that alive. The same goes for tokens.
    """
    if isinstance(memory, BufferToken):
        return BufferToken(memory.token)
    return memory if memory.buffer is None else replace(memory)
