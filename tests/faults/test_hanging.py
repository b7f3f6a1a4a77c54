"""A driver that hangs without dying, and clients that are supervised."""

import asyncio
import logging
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncnn import Supervision, connect
from asyncnn.hal.errors import DriverDiedError, InvalidArgumentError
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service.client.remote_device import RemoteDevice
from asyncnn.service.process import driver_process
from asyncnn.service.supervision import watch_for_hanging
from tests.mappings import children
from tests.networks import FOREVER, addition, counting_up
from tests.service.limited import limited_driver

X = np.arange(4, dtype=np.float32)
SOON = Supervision(hang_after=0.6, wait=60.0)

Run = Callable[[PreparedModel], Awaitable[Any]]


async def in_a_burst(model: PreparedModel) -> Any:
    async with model.burst() as burst:
        await burst.run([X, X])
        return await burst.run([X, X])


WAYS: dict[str, Run] = {
    "run": lambda model: model.run([X, X]),
    "fenced": lambda model: model.run([X, X], path="fenced"),
    "burst": in_a_burst,
}


async def test_one_of_our_own_is_ended_and_another_started(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "asyncnn")
    before = set(children())
    async with connect(supervised=SOON) as device:
        model = await device.prepare(addition(4))
        (pid,) = set(children()) - before
        os.kill(pid, signal.SIGSTOP)
        calls = [run(model) for run in WAYS.values()]
        calls.append(device.prepare(addition(4)))
        calls.append(device.statistics())
        ends = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(end) for end in ends] == [DriverDiedError] * len(ends), ends
        assert all(f"process {pid} has answered nobody" in str(end) for end in ends)
        assert np.array_equal((await model.run([X, X]))["z"], 2 * X)
        (other,) = set(children()) - before
        assert other != pid
    assert "hangs or is stopped" in caplog.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", WAYS)
async def test_one_that_goes_on_is_connected_to_again(way: str, tmp_path: Path) -> None:
    with driver_process(tmp_path / "driver.sock") as driver:
        async with connect(driver.path, supervised=SOON) as device:
            model = await device.prepare(addition(4))
            await WAYS[way](model)
            os.kill(driver.pid, signal.SIGSTOP)
            started = time.monotonic()
            try:
                with pytest.raises(DriverDiedError, match="answered nobody"):
                    await WAYS[way](model)
                assert time.monotonic() - started >= SOON.hang_after / 2
            finally:
                os.kill(driver.pid, signal.SIGCONT)
            await model.run([X, X])  # which waits; until then fenced runs are refused
            assert np.array_equal((await WAYS[way](model))["z"], 2 * X)


async def for_ever(model: PreparedModel) -> None:
    async with asyncio.timeout(20):
        while True:
            await model.run([X, X])


STUCK = "import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: time.sleep(600))"


@pytest.mark.exhaustive
async def test_one_whose_loop_is_stuck_is_like_one_that_is_stopped(
    tmp_path: Path,
) -> None:
    with limited_driver(tmp_path, before=STUCK) as driver:
        async with connect(driver.path, supervised=SOON) as device:
            model = await device.prepare(addition(4))
            os.kill(driver.pid, signal.SIGUSR1)
            with pytest.raises(DriverDiedError, match="answered nobody"):
                await for_ever(model)  # or until it is in the middle of that
            assert driver.process.poll() is None
            driver.kill()


@pytest.mark.exhaustive
async def test_one_that_computes_for_long_is_left_alone(tmp_path: Path) -> None:
    patience = Supervision(hang_after=2.0)
    async with connect(device="reference", supervised=patience) as device:
        model = await device.prepare(counting_up())
        first = device.hal.label  # type: ignore[attr-defined]
        run = asyncio.create_task(model.run(FOREVER, loop_timeout=10.0))
        await asyncio.wait({run}, timeout=3 * patience.hang_after)
        assert not run.done()
        assert device.hal.label == first  # type: ignore[attr-defined]
        run.cancel()


async def test_one_that_answers_while_the_loop_is_busy_is_heard(tmp_path: Path) -> None:
    with driver_process(tmp_path / "driver.sock") as driver:
        async with RemoteDevice(driver.path) as device:
            answering = asyncio.create_task(device.answers(0.2))
            for _ in range(3):
                await asyncio.sleep(0)
                time.sleep(0.25)  # noqa: ASYNC251
            assert await answering
            os.kill(driver.pid, signal.SIGSTOP)
            assert not await device.answers(0.2)
            os.kill(driver.pid, signal.SIGCONT)


class AskedDriver:
    """A driver that answers as it is told to, each time that it is asked."""

    def __init__(self, *answers: bool, awaited: bool = True) -> None:
        self.is_awaited = awaited
        self.reasons: list[str] = []
        self.left = list(answers)

    async def answers(self, within_s: float) -> bool:
        if not self.left:
            raise EOFError
        return self.left.pop(0)

    def give_up(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize(
    ("answers", "is_lost"),
    [
        pytest.param((False, False, False), True, id="none"),
        pytest.param((True, False, False, False), True, id="none-any-more"),
        pytest.param((False, False, True, False, False), False, id="some"),
    ],
)
async def test_only_silence_that_lasts_counts(
    answers: tuple[bool, ...], is_lost: bool
) -> None:
    driver: Any = AskedDriver(*answers)
    try:
        await watch_for_hanging(driver, 1e-3)
    except EOFError:
        assert not is_lost
    else:
        assert "750 us" in driver.reasons[0]
    assert not driver.left


@pytest.mark.parametrize(("hang_after", "awaited"), [(math.inf, True), (1e-3, False)])
async def test_nobody_is_asked_where_nobody_waits(
    hang_after: float, awaited: bool
) -> None:
    driver: Any = AskedDriver(awaited=awaited)
    watch = asyncio.create_task(watch_for_hanging(driver, hang_after))
    await asyncio.wait({watch}, timeout=0.02)
    assert not driver.reasons
    assert not watch.done() or watch.exception() is None
    watch.cancel()


@pytest.mark.parametrize("hang_after", [0.0, -1.0, math.nan])
def test_the_time_is_positive(hang_after: float) -> None:
    with pytest.raises(InvalidArgumentError, match="hang_after"):
        Supervision(hang_after=hang_after)
