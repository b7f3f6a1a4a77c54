"""The slots of a burst: what the application calls its pools.

A slot that is free is taken again first, the latest before all others. Its number has
changed by then: the driver may still know the old one, because the message that frees a
slot and the packet that uses it take different ways.

Source: HAL 1.2/IBurstCallback.hal, 1.2/IBurstContext.hal.
"""

import weakref
from collections.abc import Callable, Sequence

from asyncnn.callbacks import IBurstCallback
from asyncnn.errors import ResourceExhaustedPersistentError
from asyncnn.hal.types import ErrorStatus, Memory

_PLACE_BITS = 16
_PLACES = 1 << _PLACE_BITS
_GENERATIONS = (1 << 31 - _PLACE_BITS) - 1
"""So that no slot is the largest number there is, which is known to be invalid."""


class PoolSlots(IBurstCallback):
    """Gives slots to pools, and tells the driver which pool is in a slot.

    A slot lasts until `free`, or until its pool is gone: ``gone`` is called with it,
    on whichever thread the pool went.
    """

    def __init__(self, gone: Callable[[int], None]) -> None:
        self._gone = gone
        self._slots: dict[weakref.ref[Memory], int] = {}
        self._pools: dict[int, weakref.ref[Memory]] = {}
        self._free: list[int] = []
        self._taken = 0

    def __len__(self) -> int:
        return len(self._slots)

    def of(self, pools: Sequence[Memory]) -> tuple[int, ...]:
        """Return the slots of ``pools``, taking new ones where there are none.

        :raises ResourceExhaustedPersistentError: if all are taken.
        """
        slots = []
        for memory in pools:
            slot = self._slots.get(weakref.ref(memory))
            slots.append(self._take(memory) if slot is None else slot)
        return tuple(slots)

    def free(self, memory: Memory) -> int | None:
        """Take the slot of a pool back and return it; None if it has none."""
        return self._discard(weakref.ref(memory))

    async def get_memories(
        self, slots: Sequence[int]
    ) -> tuple[ErrorStatus, tuple[Memory, ...]]:
        """Return the pools of ``slots``; INVALID_ARGUMENT if one is not taken."""
        pools = []
        for slot in slots:
            reference = self._pools.get(slot)
            memory = None if reference is None else reference()
            if memory is None:
                return ErrorStatus.INVALID_ARGUMENT, ()
            pools.append(memory)
        return ErrorStatus.NONE, tuple(pools)

    def _take(self, memory: Memory) -> int:
        if self._free:
            slot = self._free.pop()
        elif self._taken < _PLACES:
            slot = self._taken
            self._taken += 1
        else:
            raise ResourceExhaustedPersistentError(
                f"a burst knows {_PLACES} pools at most", hint="free some of them"
            )
        reference = weakref.ref(memory, self._lost)
        self._slots[reference] = slot
        self._pools[slot] = reference
        return slot

    def _lost(self, reference: weakref.ref[Memory]) -> None:
        slot = self._discard(reference)
        if slot is not None:
            self._gone(slot)

    def _discard(self, reference: weakref.ref[Memory]) -> int | None:
        slot = self._slots.pop(reference, None)
        if slot is not None:
            del self._pools[slot]
            self._free.append(_renewed(slot))
        return slot


def _renewed(slot: int) -> int:
    """Return the number that the place of ``slot`` has the next time."""
    generation, place = divmod(slot, _PLACES)
    return (generation + 1) % _GENERATIONS << _PLACE_BITS | place
