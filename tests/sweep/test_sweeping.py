"""The sweep finds what it is for, and nothing where there is nothing."""

import asyncio
import logging
import os
from contextlib import suppress

import pytest

from asyncnn.callbacks import ExecutionFuture
from tests.sweep import sweeping
from tests.sweep.cutting import Order
from tests.sweep.sweeping import Play, Swept, sweep
from tests.sweep.witness import Witness

pytestmark = pytest.mark.usefixtures("thawed")


async def usable() -> None:
    pass


async def swept(play: Play, order: Order = Order.AT_ONCE) -> Swept:
    witness = Witness()
    with witness.watching():
        return await sweep(play, order, witness, usable)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "LIMIT_S", 0.2)
    monkeypatch.setattr("tests.sweep.witness.SETTLE_S", 0.05)


@pytest.fixture(params=Order)
def order(request: pytest.FixtureRequest) -> Order:
    return request.param


async def harmless() -> None:
    await asyncio.sleep(0)
    try:
        await asyncio.sleep(0.001)
    finally:
        await asyncio.sleep(0)


async def test_each_suspension_is_cancelled_and_cleaning_up_too(order: Order) -> None:
    result = await swept(harmless, order)
    assert result.faults == []
    assert result.cancellations == 1 + 2 + 1


async def test_what_swallows_its_cancellation_is_found() -> None:
    async def swallowing() -> None:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    (fault,) = (await swept(swallowing)).faults
    assert "cancelled at suspension 1: was not cancelled, but ended" in fault
    assert "in test_what_swallows_its_cancellation_is_found" in fault


async def test_what_hangs_is_found_with_the_place() -> None:
    async def hanging() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            await asyncio.get_running_loop().create_future()

    (fault,) = (await swept(hanging)).faults
    assert "hangs in" in fault


async def test_what_only_a_notified_waiter_leaves_is_found_in_that_order() -> None:
    left: list[int] = []

    async def forgetting() -> None:
        notice = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(
            lambda: notice.done() or notice.set_result(None)
        )
        try:
            await notice
        except asyncio.CancelledError:
            if not notice.cancelled():
                left.append(os.dup(0))
            raise

    assert not (await swept(forgetting, Order.AT_ONCE)).faults
    (fault,) = (await swept(forgetting, Order.WHEN_DONE)).faults
    assert "left behind: descriptor" in fault
    for fd in left:
        os.close(fd)


async def test_tasks_and_timers_that_are_left_are_found() -> None:
    tasks: list[asyncio.Task[None]] = []

    def named(faults: list[str]) -> bool:
        return any("left behind: task" in fault for fault in faults)

    async def leaving() -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        tasks.append(task)
        await asyncio.sleep(0)
        task.cancel()

    assert named((await swept(leaving)).faults)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def test_callbacks_that_nobody_notifies_are_found() -> None:
    kept: list[ExecutionFuture] = []

    async def launching() -> None:
        kept.append(ExecutionFuture())
        await asyncio.sleep(0)
        kept.pop().notify_1_3(0, (), None)  # type: ignore[arg-type]

    faults = (await swept(launching)).faults
    assert any("never notified: ExecutionFuture" in fault for fault in faults)


async def test_what_is_logged_as_an_error_is_found() -> None:
    async def logging_it() -> None:
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            logging.getLogger("asyncnn.part").error("it broke")
            raise

    (fault,) = (await swept(logging_it)).faults
    assert "logged by asyncnn.part: it broke" in fault
