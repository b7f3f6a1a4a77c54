"""What the driver knows of a burst's slots."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence

from msgspec.structs import replace

from asyncnn.callbacks import IBurstCallback
from asyncnn.errors import AsyncnnError, GeneralFailureError, error_for
from asyncnn.hal.types import ErrorStatus, Memory
from asyncnn.sparse_log import SparseLogger

MAX_CACHED_SLOTS = 1024
"""Slots remembered besides those of the last request; others are asked for again."""

GET_MEMORIES_TIMEOUT_S = 5.0
"""How long an application may take to say what is in its slots."""


class SlotCache:
    """Remembers the memories of slots, and asks the application for others."""

    def __init__(self, callback: IBurstCallback, log: SparseLogger) -> None:
        self._callback = callback
        self._log = log
        self._memories: OrderedDict[int, Memory] = OrderedDict()
        self._awaited: set[int] = set()

    def find(self, slots: Sequence[int]) -> tuple[Memory, ...] | None:
        """Return the memories of ``slots``; None if not all are known."""
        memories = self._memories
        try:
            found = [memories[slot] for slot in slots]
        except KeyError:
            return None
        for slot in slots:
            memories.move_to_end(slot)
        return tuple(found)

    async def fetch(self, slots: Sequence[int]) -> tuple[Memory, ...]:
        """Return the memories of ``slots``, asking once for all that are unknown.

        A slot that is freed meanwhile is not remembered.

        :raises AsyncnnError: if the application does not name as many; nothing is
            remembered then.
        """
        known = self._memories
        found = {slot: known[slot] for slot in slots if slot in known}
        unknown = [slot for slot in dict.fromkeys(slots) if slot not in found]
        self._awaited = set(unknown)
        found.update(zip(unknown, await self._ask(unknown), strict=True))
        for slot in self._awaited:
            known[slot] = found[slot]
        while len(known) > max(MAX_CACHED_SLOTS, len(slots)):
            known.popitem(last=False)
        return tuple([found[slot] for slot in slots])

    def free(self, slot: int) -> None:
        """Forget the memory of a slot, if there is one or will be."""
        self._memories.pop(slot, None)
        self._awaited.discard(slot)

    def clear(self) -> None:
        """Forget all memories."""
        self._memories.clear()
        self._awaited.clear()

    async def _ask(self, slots: Sequence[int]) -> tuple[Memory, ...]:
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
        return tuple(map(_apart, memories))


def _apart(memory: Memory) -> Memory:
    """Return another pool over the same bytes, if they are mapped.

    In one process it is the application's own object that a slot stands for, and its
    end frees the slot.
    """
    return memory if memory.buffer is None else replace(memory)
