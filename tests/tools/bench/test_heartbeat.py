"""A heartbeat hears what holds its loop."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings
from asyncnn.runtime.opening_devices import connect
from asyncnn.tools.bench import activities
from asyncnn.tools.bench.activities import (
    Heartbeat,
    beating_driver,
    every_due_tick,
    pulse_of,
)
from tests.networks import addition

HELD_S = 0.05


@pytest.fixture
async def heart() -> AsyncIterator[Heartbeat]:
    with closing(Heartbeat()) as heart:
        yield heart


def test_a_beat_stands_for_all_that_were_due_meanwhile() -> None:
    samples = every_due_tick(np.array([0.0002, 0.0035, 0.0]))
    assert samples == pytest.approx([0.0002, 0.0035, 0.0025, 0.0015, 0.0005, 0.0])


def test_a_beat_before_its_time_is_not_late() -> None:
    assert every_due_tick(np.array([-1e-9])) == pytest.approx([0.0])


def test_one_long_gap_decides_the_percentiles_of_a_while() -> None:
    late_s = np.zeros(100)
    late_s[50] = 0.2
    pulse = pulse_of(late_s, np.zeros(100, np.int64))
    assert pulse.longest_ms == pytest.approx(200)
    assert pulse.p50_ms == pytest.approx(50, abs=2)
    assert pulse.p99_ms > 190


def test_the_longest_wait_for_a_cpu_is_told() -> None:
    waited_ns = np.array([5_000_000, 5_000_000, 12_000_000, 13_000_000])
    assert pulse_of(np.zeros(4), waited_ns).waited_ms == pytest.approx(7)


def test_a_single_beat_has_no_wait() -> None:
    pulse = pulse_of(np.array([0.001]), np.array([7]))
    assert (pulse.beats, pulse.waited_ms) == (1, 0.0)


async def test_a_loop_that_is_held_is_heard(heart: Heartbeat) -> None:
    heart.start()
    await asyncio.sleep(0.01)
    time.sleep(HELD_S)  # noqa: ASYNC251 - what the heart is to hear
    await asyncio.sleep(0.01)
    pulse = heart.stop()
    assert pulse.longest_ms > (HELD_S - 2 * activities.TICK_S) * 1000


async def test_a_loop_that_is_held_until_the_stop_is_heard(heart: Heartbeat) -> None:
    heart.start()
    time.sleep(HELD_S)  # noqa: ASYNC251 - likewise
    assert heart.stop().longest_ms > (HELD_S - 2 * activities.TICK_S) * 1000


async def test_beats_before_a_start_are_forgotten(heart: Heartbeat) -> None:
    heart.start()
    time.sleep(HELD_S)  # noqa: ASYNC251 - likewise
    held = heart.stop()
    heart.start()
    assert heart.stop().longest_ms < held.longest_ms


async def test_beats_beyond_the_room_are_left_out(
    heart: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities, "_ROOM", 3)
    heart.start()
    await asyncio.sleep(0.02)
    assert heart.stop().beats == 3


async def test_a_system_that_tells_no_waits_is_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(activities, "_SCHEDULING", "/proc/no such file")
    with closing(Heartbeat()) as heart:
        heart.start()
        await asyncio.sleep(0.005)
        assert heart.stop().waited_ms == 0.0


async def test_a_driver_serves_clients_while_its_heart_beats(tmp_path: Path) -> None:
    path = tmp_path / "driver.sock"
    with beating_driver(path, DeviceSettings()) as driver:
        for _ in range(2):
            driver.start()
            async with connect(path) as device:
                await device.prepare(addition(4))
            pulse = driver.stop()
            assert pulse.beats > 0
            assert 0 <= pulse.p50_ms <= pulse.p99_ms <= pulse.longest_ms
