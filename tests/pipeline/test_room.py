"""Places go to those who wait, in order, and never get lost."""

import asyncio

import pytest

from asyncnn.pipeline.flow import Room


async def waiting(room: Room, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(room.take()) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def test_places_are_taken_until_none_is_free() -> None:
    room = Room(2)
    assert room.take_nowait()
    await room.take()
    assert not room.take_nowait()
    room.give()
    assert room.take_nowait()


async def test_who_waits_longest_is_first() -> None:
    room = Room(1)
    await room.take()
    first, second = await waiting(room, 2)
    room.give()
    assert not room.take_nowait()
    await asyncio.sleep(0)
    assert first.done()
    assert not second.done()
    room.give()
    await second


@pytest.mark.parametrize("is_granted", [False, True])
async def test_the_place_of_one_who_is_cancelled_goes_to_the_next(
    is_granted: bool,
) -> None:
    room = Room(1)
    await room.take()
    first, second = await waiting(room, 2)
    if is_granted:
        room.give()
    first.cancel()
    await asyncio.sleep(0)
    if not is_granted:
        room.give()
    await asyncio.wait_for(second, 20)
    assert first.cancelled()
    assert not room.take_nowait()
    room.give()
    assert room.take_nowait()


async def test_a_place_that_is_given_right_after_a_cancellation_is_not_lost() -> None:
    room = Room(1)
    await room.take()
    (only,) = await waiting(room, 1)
    only.cancel()
    room.give()
    await asyncio.sleep(0)
    assert only.cancelled()
    assert room.take_nowait()


async def test_opening_lets_everyone_in() -> None:
    room = Room(1)
    await room.take()
    tasks = await waiting(room, 3)
    tasks[0].cancel()
    room.open()
    await asyncio.wait_for(asyncio.gather(*tasks[1:]), 20)
    await asyncio.wait_for(room.take(), 20)  # who comes too late to wait
