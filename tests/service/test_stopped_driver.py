"""A driver that is stopped holds no call for longer than its deadline and a grace."""

import asyncio
import errno
import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import numpy as np
import pytest

from asyncnn import (
    AsyncnnError,
    Device,
    InvalidArgumentError,
    MissedDeadlinePersistentError,
    MissedDeadlineTransientError,
    PreparedModel,
    ResourceExhaustedTransientError,
    Supervision,
    connect,
    shared_array,
)
from asyncnn.deadlines import DEADLINE_GRACE_S
from asyncnn.fences import SyncFence
from asyncnn.hal.operations.bound import Array
from asyncnn.service.channel import Channel
from asyncnn.service.client import unanswered as overdue
from asyncnn.service.process import DriverProcess
from tests.fences.test_processes import peer
from tests.memory.foreign import leaks, traces
from tests.networks import addition, chain
from tests.places import driver_of
from tests.waits import until

TIMEOUT_S = 0.05
TIMER_S = 0.002
"""How much earlier the timers of uvloop may fire."""
SOON_S = 3.0
"""Far beyond the grace, for slow machines; a stopped driver takes for ever."""

MISSED = MissedDeadlinePersistentError, MissedDeadlineTransientError
X = np.arange(4, dtype=np.float32)
LARGE = np.ones(2**17, np.float32)

Run = Callable[[Array], Awaitable[object]]


driver = driver_of()


@contextmanager
def stopped(driver: DriverProcess) -> Iterator[None]:
    os.kill(driver.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(driver.pid, signal.SIGCONT)


@pytest.fixture(params=[False, True], ids=["plain", "supervised"])
async def device(
    driver: DriverProcess, request: pytest.FixtureRequest
) -> AsyncIterator[Device]:
    supervised = request.param and Supervision()
    async with connect(driver.path, supervised=supervised) as device:
        yield device


async def gives_up(run: Callable[[], Awaitable[object]]) -> str:
    """Check that a call ends with a missed deadline, and return its message."""
    started = time.monotonic()
    async with asyncio.timeout(SOON_S):
        with pytest.raises(MissedDeadlineTransientError) as raised:
            await run()
    assert time.monotonic() - started >= TIMEOUT_S - TIMER_S
    return str(raised.value)


async def by_run(model: PreparedModel, stack: AsyncExitStack) -> Run:
    return lambda x: model.run([x], timeout=TIMEOUT_S)


async def by_run_on_shared_arrays(model: PreparedModel, stack: AsyncExitStack) -> Run:
    x, z = (shared_array(model.inputs[0].dimensions, np.float32) for _ in range(2))
    for _ in range(3):  # from then on the driver knows it by number
        await model.run([x], out=[z])
    return lambda _: model.run([x], out=[z], timeout=TIMEOUT_S)


async def by_fenced(model: PreparedModel, stack: AsyncExitStack) -> Run:
    return lambda x: model.run([x], path="fenced", timeout=TIMEOUT_S)


async def by_run_fenced(model: PreparedModel, stack: AsyncExitStack) -> Run:
    async def run(x: Array) -> object:
        return await model.run_fenced([x], timeout=TIMEOUT_S)

    return run


async def by_reusable(model: PreparedModel, stack: AsyncExitStack) -> Run:
    execution = model.reusable()
    return lambda _: execution.run(timeout=TIMEOUT_S)


async def by_burst(model: PreparedModel, stack: AsyncExitStack) -> Run:
    burst = await stack.enter_async_context(model.burst())
    return lambda x: burst.run([x], timeout=TIMEOUT_S)


async def by_burst_in_place(model: PreparedModel, stack: AsyncExitStack) -> Run:
    burst = await stack.enter_async_context(model.burst(spins=False))
    return lambda _: burst.run_in_place(timeout=TIMEOUT_S)


async def by_reusable_in_burst(model: PreparedModel, stack: AsyncExitStack) -> Run:
    burst = await stack.enter_async_context(model.burst())
    execution = burst.reusable()
    return lambda _: execution.run(timeout=TIMEOUT_S)


@pytest.mark.parametrize(
    "way",
    [
        by_run,
        by_run_on_shared_arrays,
        by_fenced,
        by_run_fenced,
        by_reusable,
        by_burst,
        by_burst_in_place,
        by_reusable_in_burst,
    ],
)
@pytest.mark.parametrize(
    "x",
    [
        pytest.param(X, id="small"),
        pytest.param(LARGE, id="large", marks=pytest.mark.exhaustive),
    ],
)
async def test_every_path_ends_and_works_again(
    driver: DriverProcess,
    device: Device,
    way: Callable[[PreparedModel, AsyncExitStack], Awaitable[Run]],
    x: Array,
) -> None:
    model = await device.prepare(chain(1, x.size))
    async with AsyncExitStack() as stack:
        run = await way(model, stack)
        await run(x)
        for attempt in range(3):
            with stopped(driver):
                assert "has not answered" in await gives_up(lambda: run(x))
                assert "has not answered" in await gives_up(lambda: run(x))
            await goes_on(run, x)
            if not attempt:
                before = traces()  # with as many slabs as there were calls at a time
        await until(lambda: not leaks(before))


async def goes_on(run: Run, x: Array) -> None:
    """Wait until the driver, which has only just gone on, keeps a deadline again."""
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                await run(x)
            except MISSED:
                continue
            return


async def test_the_synchronous_call_ends_too(
    driver: DriverProcess, device: Device
) -> None:
    model = await device.prepare(addition(4))
    with stopped(driver):
        # The HAL's call returns a status and no words.
        await gives_up(lambda: model.run([X, X], path="sync", timeout=TIMEOUT_S))


@pytest.mark.parametrize("length", [7, 60], ids=["small", "large"])
async def test_a_preparation_ends(
    driver: DriverProcess, device: Device, length: int
) -> None:
    model = chain(length, 4)
    with stopped(driver):
        message = await gives_up(lambda: device.prepare(model, timeout=TIMEOUT_S))
    assert "has not answered" in message
    prepared = await device.prepare(model, timeout=30)
    outputs = await prepared.run(X)
    assert np.array_equal(outputs["z"], X + length)
    async with asyncio.timeout(SOON_S):
        while True:  # the one that nobody waits for is dropped
            models = (await device.statistics()).models
            if [each.operations for each in models].count(length) == 1:
                break


async def test_a_late_answer_changes_nothing(
    driver: DriverProcess, device: Device
) -> None:
    """The slab of an unanswered call is no other's, and its result is nobody's."""
    model = await device.prepare(chain(1, 4))
    z = np.full(4, -1, np.float32)
    await model.run(X)
    with stopped(driver):
        await gives_up(lambda: model.run([X], out=[z], timeout=TIMEOUT_S))
        others = [asyncio.create_task(model.run(X + n)) for n in range(1, 4)]
        await asyncio.sleep(0)
    for n, other in enumerate(others, 1):
        assert np.array_equal((await other)["z"], X + n + 1)
    assert np.array_equal(z, np.full(4, -1))


async def test_fences_end_for_every_waiter(
    driver: DriverProcess, device: Device
) -> None:
    """For tasks, for what follows, by a descriptor, and in another process."""
    model = await device.prepare(addition(4))
    with peer() as waiter, stopped(driver):
        run = model.run_fenced([X, X], timeout=TIMEOUT_S)
        follows = model.run_fenced([X, X], wait_for=[run], timeout=TIMEOUT_S)
        exported = SyncFence.from_fd(run.fence.fileno())
        waiter.waits_for(run.fence)
        async with asyncio.timeout(SOON_S):
            for fence in (run.fence, follows.fence, exported):
                with pytest.raises(MissedDeadlineTransientError):
                    await fence
        assert waiter.report()[0] is MissedDeadlineTransientError.status
        late = model.run_fenced([X, X], wait_for=[run])
        with pytest.raises(AsyncnnError, match="has not answered"):
            await late
    # The driver hears of the end, and of what it has to forget.
    assert np.array_equal((await model.run_fenced([X, X]))["z"], 2 * X)
    assert SyncFence.from_fd(run.fence.fileno()).status is run.status
    assert exported.status is MissedDeadlineTransientError.status


async def test_more_calls_are_refused_while_too_many_are_unanswered(
    driver: DriverProcess, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overdue, "MAX_UNANSWERED", 4)
    model = await device.prepare(addition(4))
    with stopped(driver):
        calls = [model.run([X, X], timeout=TIMEOUT_S) for _ in range(2)]
        runs = [model.run_fenced([X, X], timeout=TIMEOUT_S) for _ in range(2)]
        for call in (*calls, *runs):
            with pytest.raises(MissedDeadlineTransientError):
                await call
        with pytest.raises(ResourceExhaustedTransientError, match="4 calls"):
            await model.run([X, X], timeout=TIMEOUT_S)
        with pytest.raises(ResourceExhaustedTransientError):
            model.run_fenced([X, X])
    async with asyncio.timeout(SOON_S):
        while True:
            try:
                outputs = await model.run([X, X])
            except ResourceExhaustedTransientError:
                await asyncio.sleep(0.01)
            else:
                break
    assert np.array_equal(outputs["z"], 2 * X)


@pytest.mark.alone
async def test_answers_that_a_busy_loop_has_not_read_yet_count(device: Device) -> None:
    model = await device.prepare(addition(4))
    await model.run([X, X])
    runs = [
        asyncio.create_task(model.run([X, X], timeout=TIMEOUT_S)) for _ in range(200)
    ]
    await asyncio.sleep(0)
    time.sleep(2 * TIMEOUT_S + DEADLINE_GRACE_S)  # noqa: ASYNC251 - that is the point
    outcomes = await asyncio.gather(*runs, return_exceptions=True)
    # On a slow machine, the driver itself may have found that they came too late.
    assert not [each for each in outcomes if "has not answered" in str(each)]


async def test_the_grace_is_a_setting(driver: DriverProcess) -> None:
    async with connect(driver.path, deadline_grace=math.inf) as device:
        model = await device.prepare(addition(4))
        with stopped(driver):
            patient = asyncio.create_task(model.run([X, X], timeout=0.01))
            await asyncio.wait({patient}, timeout=0.5)
            assert not patient.done()
        with pytest.raises(AsyncnnError):
            await patient
    for wrong in (-1.0, math.nan):
        with pytest.raises(InvalidArgumentError, match="grace"):
            async with connect(driver.path, deadline_grace=wrong):
                pytest.fail("connected")


async def test_a_deadline_that_has_passed_waits_for_the_grace_alone(
    driver: DriverProcess, device: Device
) -> None:
    model = await device.prepare(addition(4))
    async with model.burst() as burst:
        with stopped(driver):
            for call in (
                model.run([X, X], timeout=-1),
                model.run([X, X], path="sync", timeout=-1),
                model.run([X, X], path="fenced", timeout=-1),
                burst.run([X, X], timeout=-1),
                device.prepare(addition(4), timeout=-1),
            ):
                async with asyncio.timeout(SOON_S):
                    with pytest.raises(MISSED):
                        await call


async def test_the_connection_of_a_stopped_driver_closes_at_once(
    driver: DriverProcess,
) -> None:
    async def use() -> None:
        async with AsyncExitStack() as stack:
            device = await stack.enter_async_context(connect(driver.path))
            model = await device.prepare(addition(4))
            with stopped(driver):
                await gives_up(lambda: model.run([X, X], timeout=TIMEOUT_S))
                async with asyncio.timeout(SOON_S):
                    await stack.aclose()

    before = traces()
    await use()
    await until(lambda: not leaks(before))


@pytest.mark.parametrize("path", ["async", "fenced"])
async def test_calls_end_at_deadlines_that_the_driver_cannot_be_told_of(
    driver: DriverProcess, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: object) -> bool:
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    async with connect(driver.path, supervised=False) as device:
        model = await device.prepare(addition(4))
        await model.run([X, X], path=path)
        with stopped(driver), monkeypatch.context() as patched:
            calls = [
                asyncio.ensure_future(model.run([X, X], path=path, timeout=timeout))
                for timeout in (TIMEOUT_S, 2 * TIMEOUT_S)
            ]
            await asyncio.sleep(TIMEOUT_S / 2)
            patched.setattr(Channel, "_send_now", exhausted)
            async with asyncio.timeout(SOON_S):
                ends = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(end, MISSED) for end in ends), ends
