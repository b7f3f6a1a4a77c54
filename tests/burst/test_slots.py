"""Slots of pools."""

import gc

import pytest

from asyncnn.burst import slots as slots_module
from asyncnn.burst.slots import PoolSlots
from asyncnn.hal.errors import ResourceExhaustedPersistentError
from asyncnn.hal.types import ErrorStatus, Memory
from asyncnn.memory.pools import from_buffer


def pool() -> Memory:
    return from_buffer(bytearray(8))


@pytest.fixture
def gone() -> list[int]:
    return []


@pytest.fixture
def slots(gone: list[int]) -> PoolSlots:
    return PoolSlots(gone.append)


def test_a_pool_keeps_its_slot(slots: PoolSlots) -> None:
    first, second = pool(), pool()
    assert slots.of((first, second, first)) == (0, 1, 0)
    assert slots.of((second,)) == (1,)


async def test_the_driver_gets_the_pools_of_taken_slots(slots: PoolSlots) -> None:
    first, second = pool(), pool()
    slots.of((first, second))
    assert await slots.get_memories((1, 0)) == (ErrorStatus.NONE, (second, first))


@pytest.mark.parametrize("unknown", [2, -1, 2**31 - 1])
async def test_one_unknown_slot_is_an_invalid_argument(
    slots: PoolSlots, unknown: int
) -> None:
    pools = (pool(), pool())
    slots.of(pools)
    answer = await slots.get_memories((0, unknown, 1))
    assert answer == (ErrorStatus.INVALID_ARGUMENT, ())


async def test_a_freed_slot_is_unknown(slots: PoolSlots) -> None:
    memory = pool()
    slots.of((memory,))
    assert slots.free(memory) == 0
    assert slots.free(memory) is None
    assert await slots.get_memories((0,)) == (ErrorStatus.INVALID_ARGUMENT, ())


def test_the_slot_freed_last_is_taken_first_under_another_number(
    slots: PoolSlots,
) -> None:
    pools = [pool() for _ in range(4)]
    slots.of(pools[:3])
    freed = [slots.free(memory) for memory in (pools[2], pools[0])]
    again = slots.of((pools[3], pools[0]))
    assert [slot % 65536 for slot in again] == [0, 2]
    assert not set(again) & set(freed)


def test_a_pool_that_is_gone_frees_its_slot(slots: PoolSlots, gone: list[int]) -> None:
    memory = pool()
    slots.of((memory,))
    del memory
    gc.collect()
    assert gone == [0]
    assert len(slots) == 0


def test_a_freed_pool_is_not_told_of_again(slots: PoolSlots, gone: list[int]) -> None:
    memory = pool()
    slots.of((memory,))
    slots.free(memory)
    del memory
    gc.collect()
    assert gone == []


def test_no_slot_is_the_largest_number() -> None:
    slots = PoolSlots(lambda slot: None)
    memory = pool()
    numbers = set()
    for _ in range(40_000):
        numbers.update(slots.of((memory,)))
        slots.free(memory)
    assert len(numbers) == 32767
    assert max(numbers) < 2**31 - 1


def test_slots_run_out(slots: PoolSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots_module, "_PLACES", 2)
    with pytest.raises(ResourceExhaustedPersistentError, match="2 pools"):
        slots.of((pool(), pool(), pools := pool()))
    assert pools
