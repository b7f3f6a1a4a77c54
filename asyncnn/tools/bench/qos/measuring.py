"""Measures urgent executions, deadlines, and what scheduling costs."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from statistics import median

from msgspec.structs import replace

from asyncnn.devices import OWN_PROCESS
from asyncnn.engine import Execution, Program
from asyncnn.engine.workspace import Frame
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import Pause, Scheduler, Work
from asyncnn.runtime.device import open_device
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.placement import ALL_CPUS, ONE_CPU, placement
from asyncnn.tools.bench.qos.load import (
    BACKGROUND,
    URGENT,
    FifoPool,
    Run,
    RunUntil,
    Stack,
    direct,
    latencies_us,
    percentile,
    saturated,
    share_missed,
    within,
)
from asyncnn.tools.bench.qos.report import (
    IDLE,
    POOL,
    SATURATED,
    Latency,
    Misses,
    Overhead,
    QosReport,
    judge,
)
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS

LOADS = (0.7, 0.9, 1.1)

_DEPTH = 4
_URGENT_RUNS = 40
_PAUSE_S = 0.01
_DATED_RUNS = 400
_QUEUED_RUNS = 100
_OVERHEAD_BATCHES = 10


def bench_qos(*, rounds: int = DEFAULT_ROUNDS) -> QosReport:
    """Measure with threads wherever the system puts them."""
    with placement(ALL_CPUS) as where:
        longest_us, latencies = asyncio.run(_measure_latencies(rounds))
        misses = asyncio.run(_measure_misses(rounds))
        lost = asyncio.run(_measure_loss(rounds))
    with placement(ONE_CPU) as pinned:
        overhead = asyncio.run(_measure_overhead(rounds))
    return QosReport(
        environment=describe_environment(),
        placement=f"{where}; what scheduling costs, {pinned}",
        rounds=rounds,
        latencies=latencies,
        longest_operation_us=longest_us,
        misses=misses,
        overhead=overhead,
        lost=lost,
        verdicts=judge(latencies, longest_us, misses, overhead, lost),
    )


def longest_operation_us(model: Stack) -> float:
    """Return the median time of the longest operation of ``model``."""
    program = Program(model.build().model)
    x = model.input()
    frame = Frame(program.acquire(program.plan((x.shape,))), [x], [None])
    samples: dict[int, list[int]] = defaultdict(list)
    for _ in range(20):
        for position, call in enumerate(frame.calls):
            assert call is not None
            run, inputs, outputs = call
            started = time.perf_counter_ns()
            run(inputs, outputs)
            samples[position].append(time.perf_counter_ns() - started)
    return max(median(each) for each in samples.values()) / 1000


async def _measure_latencies(rounds: int) -> tuple[float, dict[str, Latency]]:
    samples: dict[str, list[float]] = defaultdict(list)
    async with AsyncExitStack() as stack:
        device = await stack.enter_async_context(open_device(settings=OWN_PROCESS))
        longest_us = longest_operation_us(BACKGROUND)
        low = await device.prepare(BACKGROUND.build(), priority=Priority.LOW)
        high = await device.prepare(URGENT.build(), priority=Priority.HIGH)
        pool = FifoPool()
        stack.callback(pool.close)
        pool_low, pool_high = pool.run(BACKGROUND), pool.run(URGENT)
        large, small = BACKGROUND.input(), URGENT.input()

        device_low, device_high = partial(low.run, [large]), partial(high.run, [small])
        contenders: dict[str, tuple[Run, Run | None]] = {
            IDLE: (device_high, None),
            SATURATED: (device_high, device_low),
            POOL: (pool_high, pool_low),
        }
        for _ in range(rounds):
            for name, (urgent, background) in contenders.items():
                samples[name] += await _latencies(urgent, background)
    return longest_us, {
        name: Latency(percentile(each, 0.5), percentile(each, 0.99))
        for name, each in samples.items()
    }


async def _latencies(urgent: Run, background: Run | None) -> list[float]:
    if background is None:
        return await latencies_us(urgent, _URGENT_RUNS, _PAUSE_S)
    async with saturated(background, _DEPTH):
        return await latencies_us(urgent, _URGENT_RUNS, _PAUSE_S)


async def _measure_misses(rounds: int) -> tuple[Misses, ...]:
    shares: dict[tuple[float, str], list[float]] = defaultdict(list)
    settings = replace(OWN_PROCESS, inline_below_us=0)
    async with open_device(settings=settings, max_in_flight=4096) as device:
        prepared = await device.prepare(URGENT.build())
        x = URGENT.input()
        pool = FifoPool()
        in_pool = pool.run(URGENT)
        contenders: dict[str, RunUntil] = {
            "device": within(lambda budget_s: prepared.run([x], timeout=budget_s)),
            "pool": within(lambda budget_s: in_pool()),
        }
        await asyncio.gather(*(prepared.run([x]) for _ in range(50)))
        service_s = await _service_s(in_pool)
        for number in range(rounds):
            for load in LOADS:
                for name, run in contenders.items():
                    share = await share_missed(
                        run, service_s, load, _DATED_RUNS // rounds, number
                    )
                    shares[load, name].append(share)
        pool.close()
    return tuple(
        Misses(load, _mean(shares[load, "device"]), _mean(shares[load, "pool"]))
        for load in LOADS
    )


async def _service_s(run: Run) -> float:
    """Return the seconds of an execution, of which many are pending."""
    count = 100
    started = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(count)))
    return (time.perf_counter() - started) / count


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


class _PlanWork(Work):
    """An execution of a plan without a request."""

    def __init__(self, execution: Execution, ended: Callable[[], None]) -> None:
        super().__init__(Priority.MEDIUM)
        self._execution = execution
        self._ended = ended

    def advance(self, pause: Pause) -> bool:
        return self._execution.advance(pause)

    def abort(self, status: ErrorStatus) -> None:
        self._execution.abort(status)

    def finish(self) -> ErrorStatus:
        self._ended()
        return ErrorStatus.NONE


async def _measure_overhead(rounds: int) -> Overhead:
    """Measure the processor time that handing plans over adds to running them in turn.

    Nothing waits meanwhile, so that it is the time that passes on an idle machine.
    """
    tiny = Stack(layers=1, width=4, rows=1)
    program, x = Program(tiny.build().model), tiny.input()
    plan = program.plan((x.shape,))
    call = direct(program, x)
    scheduler = Scheduler("asyncnn-bench", max_pending=_QUEUED_RUNS)
    scheduled_ns, threaded_ns, ratios = [], [], []
    for _ in range(rounds * _OVERHEAD_BATCHES):
        started = time.process_time_ns()
        for _ in range(_QUEUED_RUNS):
            call()
        direct_ns = time.process_time_ns() - started
        added_ns = -direct_ns + await _scheduled_ns(
            scheduler, lambda: Execution(program, plan, [x], [None])
        )
        to_thread_ns = await _threaded_ns(call) - direct_ns
        scheduled_ns.append(added_ns)
        threaded_ns.append(to_thread_ns)
        ratios.append(added_ns / to_thread_ns)
    await scheduler.aclose()
    return Overhead(
        scheduled_us=median(scheduled_ns) / _QUEUED_RUNS / 1000,
        to_thread_us=median(threaded_ns) / _QUEUED_RUNS / 1000,
        ratio=median(ratios),
    )


async def _scheduled_ns(scheduler: Scheduler, make: Callable[[], Execution]) -> int:
    is_over = asyncio.get_running_loop().create_future()
    left = _QUEUED_RUNS

    def ended() -> None:
        nonlocal left
        left -= 1
        if not left:
            is_over.set_result(None)

    started = time.process_time_ns()
    for _ in range(_QUEUED_RUNS):
        scheduler.submit(_PlanWork(make(), ended))
    await is_over
    return time.process_time_ns() - started


async def _threaded_ns(call: Callable[[], object]) -> int:
    started = time.process_time_ns()
    await asyncio.gather(*(asyncio.to_thread(call) for _ in range(_QUEUED_RUNS)))
    return time.process_time_ns() - started


async def _measure_loss(rounds: int) -> float:
    """Return the share of time that a mix takes longer with priorities than without."""
    ratios = []
    async with open_device(settings=OWN_PROCESS) as device:
        large, small = BACKGROUND.input(), URGENT.input()
        low = await device.prepare(BACKGROUND.build(), priority=Priority.LOW)
        urgent = {
            priority: await device.prepare(URGENT.build(), priority=priority)
            for priority in (Priority.LOW, Priority.HIGH)
        }
        for _ in range(rounds):
            took = {
                priority: await _mixed_s(
                    partial(low.run, [large]), partial(prepared.run, [small])
                )
                for priority, prepared in urgent.items()
            }
            ratios.append(took[Priority.HIGH] / took[Priority.LOW])
    return median(ratios) - 1


async def _mixed_s(large: Run, small: Run) -> float:
    """Return the seconds that a saturated lane needs for a mix of executions."""

    async def trickle() -> None:
        for _ in range(20):
            await asyncio.gather(small(), asyncio.sleep(0.004))

    started = time.perf_counter()
    await asyncio.gather(trickle(), *(large() for _ in range(12)))
    return time.perf_counter() - started
