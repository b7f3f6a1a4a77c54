"""``asyncnn bench qos``: urgent executions, deadlines, and what scheduling costs.

The peer is what one would write without a driver: a thread that takes the same plans
first come, first served. Urgent executions beside long ones are measured on the default
device as well, in one process and beside another client of a driver, with and without
other programs that compete for the CPUs; there the peer is the idle device.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain, count
from math import inf
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from asyncnn.deadlines import format_duration
from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.own_devices import usual_device_name
from asyncnn.engine import PlanExecution, Program
from asyncnn.hal.types import Priority
from asyncnn.qos import Scheduler
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service.process import driver_process
from asyncnn.tools.bench import environment, qos_load
from asyncnn.tools.bench.benches import Started
from asyncnn.tools.bench.processes import Pipe, hogs, process
from asyncnn.tools.bench.qos_load import (
    BACKGROUND,
    DETECTOR,
    SMALL,
    URGENT,
    Layers,
    Run,
    dense,
    detecting,
    longest_step_us,
    saturated,
)
from asyncnn.tools.bench.report import Bars, Outcome, ReportTable, SingleReport
from asyncnn.tools.bench.rounds import Once, Order, in_rounds, measure, percentile

LOADS = (0.7, 0.9, 1.1)

_DEPTH = 4
_URGENT_RUNS = 40
_PAUSE_S = 0.01
_DATED_RUNS = 400
_QUEUED_RUNS = 100
_OVERHEAD_BATCHES = 10

IDLE = "idle"
SATURATED = "saturated"
POOL = "pool"

CONTENDERS = {
    IDLE: "HIGH on an idle device",
    SATURATED: "HIGH while LOW executions saturate it",
    POOL: "the same load through a thread pool, first come, first served",
}

IN_PROCESS = "in_process"
DRIVER = "driver"
WHERE = {IN_PROCESS: "one process", DRIVER: "two clients of a driver"}
"""Whose the LOW executions are that an urgent one runs beside."""

PROGRAMS = "programs"
LOW = "low"
LOW_AND_PROGRAMS = "low_and_programs"
BESIDE = {
    IDLE: "idle",
    PROGRAMS: "beside other programs",
    LOW: "beside LOW",
    LOW_AND_PROGRAMS: "beside both",
}
"""What keeps the device and the CPUs busy meanwhile."""

_BESIDE_RUNS = 15

P99_TO_IDLE = 1.5
POOL_TO_P99 = 5.0
OVERHEAD_LIMIT = 0.25
LOST_LIMIT = 0.05
P50_BESIDE = 1.1
P99_BESIDE = {50_000.0: 1.3, inf: 1.5}
"""Largest ratio to idleness beside LOW executions of so many microseconds at most."""


class UrgentLatency(msgspec.Struct, frozen=True):
    """Microseconds of urgent executions."""

    p50_us: float
    p99_us: float


class Beside(UrgentLatency, frozen=True, kw_only=True):
    """The same in a process of ``where`` beside a ``load``, and ratios to idleness."""

    where: str
    load: str
    p50_ratio: float
    p99_ratio: float

    @property
    def title(self) -> str:
        """What it is in words."""
        return f"{WHERE[self.where]}, {BESIDE[self.load]}"


class Misses(msgspec.Struct, frozen=True):
    """Share of the deadlines that were missed under an offered load."""

    load: float
    by_deadline: float
    by_arrival: float


class Overhead(msgspec.Struct, frozen=True):
    """Processor time that is added to an execution of which 100 are pending.

    By the scheduler, and by `asyncio.to_thread`, in microseconds; the ratio is the
    median of one for each batch.
    """

    scheduled_us: float
    to_thread_us: float
    ratio: float


class QosVerdict(msgspec.Struct, frozen=True):
    """A goal, in words, and what was measured of it."""

    goal: str
    value: float
    limit: float
    met: bool


class QosReport(SingleReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench qos --json``.

    ``lost`` is the share of time that preemptions add to a mix of executions.
    ``device`` is ``beside``'s, and ``low_us`` what its LOW executions take alone.
    """

    latencies: dict[str, UrgentLatency]
    longest_operation_us: float
    misses: tuple[Misses, ...]
    overhead: Overhead
    lost: float
    verdicts: tuple[QosVerdict, ...]
    device: str
    low_us: dict[str, float]
    beside: tuple[Beside, ...]

    def tables(self) -> Iterator[ReportTable]:
        """Yield tables of latencies, one of missed deadlines, and one of the goals."""
        latencies = [
            (CONTENDERS[name], f"{each.p50_us:.0f}", f"{each.p99_us:.0f}")
            for name, each in self.latencies.items()
        ]
        title = "microseconds of an urgent execution"
        yield ReportTable(title, ("", "p50", "p99"), [latencies])
        beside = [
            (
                each.title,
                *(f"{us:.0f}" for us in (each.p50_us, each.p99_us)),
                *(f"{ratio:.1f}" for ratio in (each.p50_ratio, each.p99_ratio)),
            )
            for each in self.beside
        ]
        title = f"microseconds of an urgent execution, {self.device} device"
        yield ReportTable(
            title, ("", "p50", "p99", "p50 / idle", "p99 / idle"), [beside]
        )
        misses = [
            (f"{miss.load:.0%}", f"{miss.by_deadline:.1%}", f"{miss.by_arrival:.1%}")
            for miss in self.misses
        ]
        headings = ("offered load", "by deadline", "thread pool, by arrival")
        yield ReportTable("share of deadlines missed", headings, [misses])
        goals = [
            (each.goal, f"{each.value:.4g}", Outcome(f"{each.limit:.4g}", each.met))
            for each in self.verdicts
        ]
        yield ReportTable("goals", ("", "measured", "at most"), [goals])

    def notes(self) -> Iterator[str]:
        """Yield what the LOW executions take that urgent ones run beside."""
        for where, us in self.low_us.items():
            yield f"{WHERE[where]}: LOW executions take {format_duration(us)} alone"

    def bars(self) -> Bars:
        """Return a group for each contender, with both percentiles."""
        named = [(CONTENDERS[name], each) for name, each in self.latencies.items()]
        return {
            title: {"p50": each.p50_us, "p99": each.p99_us}
            for title, each in (*named, *((each.title, each) for each in self.beside))
        }


def bench(order: Order) -> QosReport:
    """Measure with threads wherever the system puts them."""
    rounds = order.rounds
    with environment.placement(environment.ALL_CPUS) as where:
        longest_us, latencies = asyncio.run(_measure_latencies(rounds))
        misses = asyncio.run(_measure_misses(rounds))
        lost = asyncio.run(_measure_loss(rounds))
    with environment.placement(environment.ONE_CPU) as pinned:
        overhead = asyncio.run(_measure_overhead(rounds))
    device, low_us, beside = _measure_beside(rounds)
    verdicts = judge_qos(latencies, longest_us, misses, overhead, lost)
    return QosReport(
        environment=environment.describe_environment(),
        placement=f"{where}; what scheduling costs, {pinned}",
        rounds=rounds,
        latencies=latencies,
        longest_operation_us=longest_us,
        misses=misses,
        overhead=overhead,
        lost=lost,
        verdicts=(*verdicts, *judge_beside(low_us, beside)),
        device=device,
        low_us=low_us,
        beside=tuple(beside),
    )


async def _latencies(
    contenders: Mapping[str, Sequence[Any]], count: int, rounds: int
) -> dict[str, UrgentLatency]:
    """Measure urgent runs, each beside a background and programs, of all rounds."""

    async def samples(
        run: Run,
        background: Callable[[], Any] = nullcontext,
        programs: Callable[[], Any] = nullcontext,
    ) -> list[float]:
        async with background():
            with programs():
                return await qos_load.latencies_us(run, count, _PAUSE_S)

    turns = {name: partial(samples, *each) for name, each in contenders.items()}
    taken = await in_rounds(turns, rounds)
    return {
        name: UrgentLatency(
            *(percentile(list(chain(*each)), share) for share in (0.5, 0.99))
        )
        for name, each in taken.items()
    }


async def _measure_latencies(rounds: int) -> tuple[float, dict[str, UrgentLatency]]:
    async with open_device("reference", settings=OWN_PROCESS) as device:
        program = Program(BACKGROUND.build().model)
        longest_us = longest_step_us(program, [BACKGROUND.input()])
        low = await _run_of(device, BACKGROUND, Priority.LOW)
        high = await _run_of(device, URGENT, Priority.HIGH)
        with qos_load.fifo_pool() as pool:
            contenders = {
                IDLE: (high,),
                SATURATED: (high, partial(saturated, low, _DEPTH)),
                POOL: (pool(URGENT), partial(saturated, pool(BACKGROUND), _DEPTH)),
            }
            return longest_us, await _latencies(contenders, _URGENT_RUNS, rounds)


async def _run_of(device: Device, model: Layers, priority: Priority) -> Run:
    prepared = await device.prepare(model.build(), priority=priority)
    return partial(prepared.run, [model.input()])


def _measure_beside(rounds: int) -> tuple[str, dict[str, float], list[Beside]]:
    """Measure urgent executions beside LOW ones of this process, and of another one."""
    name = asyncio.run(usual_device_name())
    with hogs(os.sched_getaffinity(0)) as programs:

        async def measured(path: str, other: "Pipe | None") -> Any:
            opened = connect(path) if other else open_device(name, settings=OWN_PROCESS)
            where = DRIVER if other else IN_PROCESS
            async with opened as device:
                return await _beside(where, device, other, programs, rounds)

        found = {IN_PROCESS: asyncio.run(measured("", None))}
        with driver_process(device=name) as driver:
            path = os.fspath(driver.path)
            with process(None, qos_load.detect, path, DETECTOR, _DEPTH) as other:
                found[DRIVER] = asyncio.run(measured(path, other))
    low_us = {where: us for where, (us, _) in found.items()}
    return name, low_us, [each for _, those in found.values() for each in those]


async def _median_us(run: Run) -> float:
    await run()
    return median(await qos_load.latencies_us(run, 3, _PAUSE_S))


async def _beside(
    where: str,
    device: Device,
    other: "Pipe | None",
    programs: Callable[[], AbstractContextManager[None]],
    rounds: int,
) -> tuple[float, list[Beside]]:
    """Return what a LOW execution takes, and urgent ones: beside ``other``'s."""
    long = await _run_of(device, DETECTOR, Priority.LOW)
    run = await _run_of(device, SMALL, Priority.HIGH)
    low_us = await _median_us(long)
    await _median_us(run)
    detects = partial(detecting, other) if other else partial(saturated, long, _DEPTH)
    contenders = {
        IDLE: (run,),
        PROGRAMS: (run, nullcontext, programs),
        LOW: (run, detects),
        LOW_AND_PROGRAMS: (run, detects, programs),
    }
    found = await _latencies(contenders, _BESIDE_RUNS, rounds)
    idle = found[IDLE]
    return low_us, [
        Beside(
            **structs.asdict(each),
            where=where,
            load=load,
            p50_ratio=each.p50_us / idle.p50_us,
            p99_ratio=each.p99_us / idle.p99_us,
        )
        for load, each in found.items()
    ]


async def _measure_misses(rounds: int) -> tuple[Misses, ...]:
    settings = structs.replace(OWN_PROCESS, inline_below_us=0)
    async with open_device(
        "reference", settings=settings, max_in_flight=4096
    ) as device:
        prepared, x = await device.prepare(URGENT.build()), URGENT.input()
        with qos_load.fifo_pool() as pool:
            in_pool = pool(URGENT)
            contenders: dict[str, qos_load.RunUntil] = {
                "device": qos_load.within(
                    lambda budget_s: prepared.run([x], timeout=budget_s)
                ),
                "pool": qos_load.within(lambda budget_s: in_pool()),
            }
            await asyncio.gather(*(prepared.run([x]) for _ in range(50)))
            # What one takes of which many are pending.
            started = time.perf_counter()
            await asyncio.gather(*(in_pool() for _ in range(_QUEUED_RUNS)))
            service_s = (time.perf_counter() - started) / _QUEUED_RUNS

            async def share(load: float, name: str, seeds: Iterator[int]) -> float:
                run, runs = contenders[name], _DATED_RUNS // rounds
                return await qos_load.share_missed(
                    run, service_s, load, runs, next(seeds)
                )

            turns = {
                (load, name): partial(share, load, name, count())
                for load in LOADS
                for name in contenders
            }
            shares = await in_rounds(turns, rounds)
    return tuple(
        Misses(load, mean(shares[load, "device"]), mean(shares[load, "pool"]))
        for load in LOADS
    )


async def _measure_overhead(rounds: int) -> Overhead:
    """Measure the processor time that handing plans over adds to running them in turn.

    Nothing waits meanwhile, so that it is the time that passes on an idle machine.
    """
    tiny = dense(layers=1, width=4, rows=1)
    program, x = Program(tiny.build().model), tiny.input()
    plan = program.plan((x.shape,))
    call = qos_load.direct(program, x)
    scheduler = Scheduler("asyncnn-bench", max_pending=_QUEUED_RUNS)

    async def direct() -> None:
        for _ in range(_QUEUED_RUNS):
            call()

    async def scheduled() -> None:
        await qos_load.run_scheduled(
            scheduler, lambda: PlanExecution(program, plan, [x], [None]), _QUEUED_RUNS
        )

    async def threaded() -> None:
        await asyncio.gather(*(asyncio.to_thread(call) for _ in range(_QUEUED_RUNS)))

    async def processor_us(work: Callable[[], Awaitable[None]]) -> float:
        started = time.process_time_ns()
        await work()
        return (time.process_time_ns() - started) / 1000 / _QUEUED_RUNS

    turns = {
        work: partial(processor_us, work) for work in (direct, scheduled, threaded)
    }
    taken = await in_rounds(turns, rounds * _OVERHEAD_BATCHES)
    await scheduler.aclose()
    alone, scheduled_us, threaded_us = map(np.array, taken.values())
    added_us, to_thread_us = scheduled_us - alone, threaded_us - alone
    every = added_us, to_thread_us, added_us / to_thread_us
    return Overhead(*(float(median(each)) for each in every))


async def _measure_loss(rounds: int) -> float:
    """Return the share of time that a mix takes longer with priorities than without."""
    async with open_device("reference", settings=OWN_PROCESS) as device:
        low = await _run_of(device, BACKGROUND, Priority.LOW)
        mixes: Started = {}
        for name in (Priority.LOW, Priority.HIGH):
            run = await _run_of(device, URGENT, name)
            mixes[name.name] = Once(partial(_mixed_us, low, run))
        figures = await measure(mixes, rounds=rounds)
    return figures["HIGH"].ratio_to(figures["LOW"]) - 1


async def _mixed_us(large: Run, small: Run) -> float:
    """Return what a saturated lane needs for a mix of executions."""

    async def trickle() -> None:
        for _ in range(20):
            await asyncio.gather(small(), asyncio.sleep(0.004))

    started = time.perf_counter()
    await asyncio.gather(trickle(), *(large() for _ in range(12)))
    return (time.perf_counter() - started) * 1e6


def judge_qos(
    latencies: dict[str, UrgentLatency],
    longest_us: float,
    misses: tuple[Misses, ...],
    overhead: Overhead,
    lost: float,
) -> tuple[QosVerdict, ...]:
    """Hold what was measured against the goals."""
    idle, busy, pool = (latencies[name].p99_us for name in (IDLE, SATURATED, POOL))
    to_idle = f"saturated p99 within {P99_TO_IDLE:g} x idle and one operation, us"
    to_pool = f"saturated p99 a {POOL_TO_P99:g}th of the pool's, us"
    to_thread = "scheduling an execution, to asyncio.to_thread"
    figures = [
        (to_idle, busy, P99_TO_IDLE * idle + longest_us),
        (to_pool, busy, pool / POOL_TO_P99),
        (to_thread, overhead.ratio, OVERHEAD_LIMIT),
        ("time lost to preemption", lost, LOST_LIMIT),
    ]
    for each in misses:
        goal = f"misses at {each.load:.0%} load, by deadline"
        figures.append((goal, each.by_deadline, each.by_arrival))
    return tuple(QosVerdict(goal, v, limit, v <= limit) for goal, v, limit in figures)


def judge_beside(
    low_us: Mapping[str, float], beside: Sequence[Beside]
) -> Iterator[QosVerdict]:
    """Hold urgent executions beside LOW ones against those on an idle device."""
    for each in beside:
        if each.load == LOW:
            most = next(m for us, m in P99_BESIDE.items() if low_us[each.where] <= us)
            p50, p99 = each.p50_ratio, each.p99_ratio
            for name, value, limit in ("p50", p50, P50_BESIDE), ("p99", p99, most):
                goal = f"{each.title}, {name} / idle"
                yield QosVerdict(goal, value, limit, value <= limit)
