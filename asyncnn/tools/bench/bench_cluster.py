"""``asyncnn bench cluster``: a device on a local cluster beside bare calls of an actor.

All actors share this machine: two compute twice what one does only where each has a
processor that nothing else uses.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

import asyncnn
from asyncnn import Priority
from asyncnn.cluster import ClusterSettings
from asyncnn.hal.operations.bound import Array
from asyncnn.tools.bench.benches import HERE, Group, Place, PlacedBench, Start
from asyncnn.tools.bench.made_models import dense, wide_model
from asyncnn.tools.bench.qos_load import Run, latencies_us, p99_us, saturated
from asyncnn.tools.bench.report import Goal
from asyncnn.tools.bench.rounds import Once, Runs, percentile

_SMALL, _LARGE = 256, 262_144
"""Floats of 1 kB and of 1 MB."""

_LAYERS = 16
_LONG = dense(layers=_LAYERS, width=512, rows=128)
_RUNS, _URGENT, _DEPTH = 24, 300, 6
_LOW = Priority.LOW  # which waits for others of its priority

RUN, BARE = "run", "bare"
ONE, TWO = "one", "two"
CANCEL, SEGMENT = "cancel", "segment"
BESIDE, ALONE = "beside", "alone"
TITLES = {
    f"{RUN}_1kb": "awaited run on a device of one actor, 1 kB",
    f"{BARE}_1kb": "bare call of an actor with the same array",
    f"{RUN}_1mb": "awaited run on a device of one actor, 1 MB",
    f"{BARE}_1mb": "bare call of an actor with the same array",
    ONE: "one of many runs at once, one actor",
    TWO: "the same, two actors",
    CANCEL: "from a cancel until the actor has run another, p95",
    SEGMENT: "the longest segment, and that other run alone",
    BESIDE: "HIGH while LOW runs saturate the actor, p99",
    ALONE: "HIGH alone, p99",
}
GOALS = (
    Goal(f"{RUN}_1kb", f"{BARE}_1kb", 1.15),
    Goal(f"{RUN}_1mb", f"{BARE}_1mb", 1.05),
    Goal(TWO, ONE, 1 / 1.9),
    Goal(CANCEL, SEGMENT, 1.3),
    Goal(BESIDE, ALONE, 1.5),
)


class Echo:
    """What a bare actor does: it computes what the model of a run does."""

    async def run(self, array: Array) -> Array:
        """Return the greater of each number and 0."""
        return np.maximum(array, 0)


def _device(replicas: int) -> Any:
    settings = ClusterSettings(replicas=replicas, cpus=0.25)
    return asyncnn.open_device("ray://local", replicas=settings, device="reference")


def _run(length: int) -> Start:
    async def start(place: Place) -> Runs:
        device = await place.shared(_device, 1)
        prepared = await device.prepare(wide_model((length,)))
        x = np.ones(length, np.float32)
        return lambda: prepared.run([x])

    return start


def _bare(length: int) -> Start:
    async def start(place: Place) -> Runs:
        await place.shared(_device, 1)  # the cluster is its
        actor = import_module("ray").remote(Echo).options(num_cpus=0.25).remote()
        x = np.ones(length, np.float32)
        return lambda: actor.run.remote(x)

    return start


def _offline(replicas: int) -> Start:
    async def start(place: Place) -> Runs:
        device = await place.shared(_device, replicas)
        prepared, x = await device.prepare(_LONG.build()), _LONG.input()

        async def take() -> float:
            begun = time.perf_counter()
            await asyncio.gather(*(prepared.run([x]) for _ in range(_RUNS)))
            return (time.perf_counter() - begun) * 1e6 / _RUNS

        return Once(take)

    return start


def _urgent(
    measure: Callable[[Run, Run], Awaitable[float]], priority: Priority = Priority.HIGH
) -> Start:
    """Return what starts a contender of a long run, LOW, and a tiny one."""

    async def start(place: Place) -> Runs:
        device = await place.shared(_device, 1)
        low = await device.prepare(_LONG.build(), priority=Priority.LOW)
        high = await device.prepare(wide_model((_SMALL,)), priority=priority)
        x, tiny = _LONG.input(), np.ones(_SMALL, np.float32)
        return Once(lambda: measure(lambda: low.run([x]), lambda: high.run([tiny])))

    return start


async def _cancel(low: Run, high: Run) -> float:
    taken = []
    for number in range(_RUNS):
        running = asyncio.ensure_future(low())
        await asyncio.sleep(0.004 + 0.001 * (number % 7))
        begun = time.perf_counter()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await high()
        taken.append((time.perf_counter() - begun) * 1e6)
    return percentile(taken, 0.95)


async def _segment(low: Run, high: Run) -> float:
    longs = await latencies_us(low, 5, 0)
    shorts = await latencies_us(high, _RUNS, 0)
    return percentile(longs, 0.95) / _LAYERS + percentile(shorts, 0.95)


async def _alone(low: Run, high: Run) -> float:
    return await p99_us(high, _URGENT, 0)


async def _beside(low: Run, high: Run) -> float:
    async with saturated(low, _DEPTH):
        return await _alone(low, high)


bench = PlacedBench(
    TITLES,
    [
        Group({f"{RUN}_1kb": _run(_SMALL), f"{BARE}_1kb": _bare(_SMALL)}),
        Group({f"{RUN}_1mb": _run(_LARGE), f"{BARE}_1mb": _bare(_LARGE)}),
        Group({ONE: _offline(1), TWO: _offline(2)}),
        Group({CANCEL: _urgent(_cancel, _LOW), SEGMENT: _urgent(_segment, _LOW)}),
        Group({BESIDE: _urgent(_beside), ALONE: _urgent(_alone)}),
    ],
    GOALS,
    packages=("ray",),
    notes=("all actors are on this machine, and share its processors",),
    places=lambda: iter([("one machine", HERE)]),
)
