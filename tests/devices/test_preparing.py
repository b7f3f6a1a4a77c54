"""Preparations are work like any other: they stop at boundaries."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, batching
from asyncnn.devices.cache_format import Compiled
from asyncnn.engine import Program
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import ExecutionPreference, Priority
from asyncnn.kernels import registry as kernels
from asyncnn.kernels.kernel import PreparedKernel
from asyncnn.offload import switching_at_least_every
from asyncnn.pacing import Steps
from asyncnn.qos import Policy
from tests.measuring import best_of
from tests.networks import addition, chain
from tests.waits import cancelled, until

pytestmark = pytest.mark.alone

PROMPTLY_S = 0.05
"""What a deadline that passes, or a cancellation, may take to be noticed."""

FAST = ExecutionPreference.FAST_SINGLE_ANSWER, Priority.MEDIUM
LARGE = chain(4000, 4, alike=False)


VERY_LARGE = 8000
"""Operations of what takes a second or so to prepare."""


@pytest.fixture
async def device() -> AsyncIterator[asyncnn.Device]:
    async with asyncnn.open_device() as device:
        yield device


class Kernels:
    """Counts the kernels that are prepared, and takes a while for each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, each_s: float) -> None:
        self.prepared = 0
        self.each_s = each_s
        self._prepare = kernels.prepare
        monkeypatch.setattr(kernels, "prepare", self)

    def __call__(self, operation: BoundOperation) -> PreparedKernel:
        self.prepared += 1
        time.sleep(self.each_s)
        return self._prepare(operation)

    async def begun(self) -> None:
        await until(lambda: self.prepared)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    return Kernels(monkeypatch, 0.001)


async def test_a_high_one_passes_a_low_one_that_is_under_way(
    device: asyncnn.Device, slow: Kernels
) -> None:
    low = asyncio.create_task(device.prepare(LARGE, priority=asyncnn.Priority.LOW))
    await slow.begun()
    await asyncio.wait_for(
        device.prepare(addition(4), priority=asyncnn.Priority.HIGH), 20
    )
    assert slow.prepared < 2000
    assert not low.done()
    slow.each_s = 0
    await low


async def test_a_deadline_is_reported_when_it_passes(
    device: asyncnn.Device, slow: Kernels
) -> None:
    async def late_s() -> float:
        began = time.monotonic()
        with pytest.raises(asyncnn.MissedDeadlineTransientError):
            await device.prepare(LARGE, timeout=0.2)
        late_s = time.monotonic() - began - 0.2
        assert late_s >= 0
        return late_s

    await best_of(4, late_s, PROMPTLY_S)


async def test_a_deadline_is_reported_though_no_boundary_comes(
    device: asyncnn.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    Kernels(monkeypatch, 0.5)

    async def late_s() -> float:
        began = time.monotonic()
        with pytest.raises(asyncnn.MissedDeadlineTransientError):
            await device.prepare(addition(4), timeout=0.1)
        late_s = time.monotonic() - began - 0.1
        await until(lambda: not device.hal.statistics().preparations.running)
        return late_s

    await best_of(4, late_s, PROMPTLY_S)


async def test_a_cancelled_one_stops_computing(
    device: asyncnn.Device, slow: Kernels
) -> None:
    preparing = asyncio.create_task(device.prepare(LARGE))
    await slow.begun()
    await cancelled(preparing)
    before = -1
    while before != slow.prepared:
        before = slow.prepared
        await asyncio.sleep(PROMPTLY_S)
    assert before < 2000


async def test_a_stuck_one_is_given_up_and_the_next_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = threading.Event()
    prepare = kernels.prepare

    def stuck(operation: BoundOperation) -> Any:
        gate.wait(60)
        return prepare(operation)

    settings = asyncnn.DeviceSettings(stuck_after_s=0.05)
    async with asyncnn.open_device(settings=settings) as device:
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "prepare", stuck)
            with pytest.raises(asyncnn.GeneralFailureError):
                await asyncio.wait_for(device.prepare(addition(4)), 20)
        await asyncio.wait_for(device.prepare(addition(4)), 20)
        gate.set()


async def test_a_suspended_one_that_is_cancelled_is_reported_once(
    device: asyncnn.Device, slow: Kernels
) -> None:
    low = asyncio.create_task(device.prepare(LARGE, priority=asyncnn.Priority.LOW))
    await slow.begun()
    high = asyncio.create_task(
        device.prepare(chain(300, 4, alike=False), priority=asyncnn.Priority.HIGH)
    )
    await asyncio.sleep(0.02)
    await cancelled(low)
    await high
    statistics = await device.statistics()
    assert statistics.preparations.ended == 2
    assert not statistics.preparations.queued + statistics.preparations.running


async def test_closing_ends_one_that_is_under_way(slow: Kernels) -> None:
    async with asyncnn.open_device() as device:
        preparing = asyncio.create_task(device.prepare(LARGE))
        await slow.begun()
        began = time.monotonic()
    assert time.monotonic() - began < 0.5
    with pytest.raises(asyncnn.DeviceClosedError):
        await preparing


async def test_a_cancelled_one_that_was_passed_lets_go_of_what_it_has_built(
    device: asyncnn.Device, slow: Kernels
) -> None:
    usual = gc.get_threshold()
    gc.disable()
    try:
        low = asyncio.create_task(device.prepare(LARGE, priority=asyncnn.Priority.LOW))
        await slow.begun()
        high = asyncio.create_task(
            device.prepare(chain(400, 4, alike=False), priority=asyncnn.Priority.HIGH)
        )
        await asyncio.sleep(0.1)  # it is under way
        assert gc.get_threshold() != usual
        await cancelled(low)
        await high
        assert gc.get_threshold() == usual
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["reference", "accelerated"])
async def test_closing_after_a_missed_one_takes_a_fraction_of_it(name: str) -> None:
    if name == "accelerated":
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    model = chain(VERY_LARGE, 4)

    async def whole_s() -> float:
        async with asyncnn.open_device(name) as device:
            began = time.monotonic()
            await device.prepare(model)
            return time.monotonic() - began

    async def share_of_it() -> float:
        """Return the longest that closing has taken, by the time of preparing."""
        took_s = await whole_s()
        longest_s = 0.0
        for part in (0.3, 0.6, 0.8, 0.9):
            device = await asyncnn.open_device(name)
            with contextlib.suppress(asyncnn.MissedDeadlineTransientError):
                await device.prepare(model, timeout=part * took_s)
            began = time.monotonic()
            await device.aclose()
            longest_s = max(longest_s, time.monotonic() - began)
        return longest_s / took_s

    await best_of(4, share_of_it, 0.3)


async def test_what_a_given_up_one_has_built_goes_object_by_object() -> None:
    def longest_share() -> float:
        """Return how much of giving up another thread has spent without a turn."""
        steps = Program(chain(VERY_LARGE, 4).model, is_built=False).building()
        for _ in range(VERY_LARGE):
            next(steps)
        looks, stop, pauses = threading.Event(), threading.Event(), [0.0]

        def look() -> None:
            while not stop.is_set():
                before = time.perf_counter()
                time.sleep(0.0002)
                pauses.append(time.perf_counter() - before)
                looks.set()

        thread = threading.Thread(target=look)
        with switching_at_least_every(0.0005):
            thread.start()
            looks.wait(10)
            pauses.clear()
            began = time.perf_counter()
            steps.close()
            took_s = time.perf_counter() - began
            stop.set()
            thread.join()
        return max(pauses) / took_s

    await best_of(5, partial(asyncio.to_thread, longest_share), 0.5)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the threads of all runs that preparations make, one by one."""
    found: list[int] = []
    run_bound = batching.run_bound

    def noted(*arguments: Any) -> None:
        found.append(threading.get_ident())
        run_bound(*arguments)

    monkeypatch.setattr(batching, "run_bound", noted)
    return found


@pytest.mark.parametrize(
    ("slice_us", "words"),
    [
        (1, "no: a batch takes longer than a time slice"),
        (6, "up to 4, bit-equal"),
        (20, "up to 8, bit-equal"),
    ],
)
async def test_only_batches_that_fit_into_a_time_slice_are_spoken_of(
    monkeypatch: pytest.MonkeyPatch, threads: list[int], slice_us: int, words: str
) -> None:
    def timing(self: batching.BatchPreparations, program: Program) -> Steps[int]:
        yield
        assert program.fixed_plan is not None
        return program.fixed_plan.inputs[0].shape[0] * 1000  # type: ignore[index]

    monkeypatch.setattr(batching.BatchPreparations, "_timing", timing)
    settings = DeviceSettings(batching=8, policy=Policy(slice_ns=slice_us * 1000))
    async with asyncnn.open_device("reference", settings=settings) as device:
        said = await asyncnn.explain(device, chain(3, 1, 4))
    assert said.batching == words
    assert threading.get_ident() not in threads
    assert bool(threads) == (slice_us > 1)


@pytest.mark.parametrize(("most_ns", "most_runs"), [(10**12, 200), (1, 2)])
def test_a_preparation_may_be_left_between_any_two_runs(
    threads: list[int], most_ns: int, most_runs: int
) -> None:
    """And of a model that is too slow for batches there are few."""
    model = chain(3, 1, 4).model

    def prepare() -> Steps[Compiled]:
        program = yield from Program(model, is_built=False).building()
        return Compiled(program, *FAST)

    batches = batching.BatchPreparations(8, most_ns, None, contextlib.nullcontext())
    count = 0
    for _ in batches.preparing(prepare):
        assert len(threads) <= count + 1
        count = len(threads)
    assert 2 <= len(threads) <= most_runs
