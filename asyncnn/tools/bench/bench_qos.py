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
from statistics import mean, median
from typing import Any, TypeAlias

import msgspec
import numpy as np
from msgspec.structs import replace

import asyncnn
from asyncnn import Priority
from asyncnn.deadlines import format_duration
from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.own_devices import usual_device_name
from asyncnn.engine import PlanExecution, Program
from asyncnn.qos import Scheduler
from asyncnn.service.process import driver_process
from asyncnn.tools.bench import environment, qos_load
from asyncnn.tools.bench.made_models import Layers, convolutions, dense
from asyncnn.tools.bench.processes import Pipe, hogs, process
from asyncnn.tools.bench.qos_load import Run, saturated
from asyncnn.tools.bench.report import BenchReport, Outcome, ReportTable, documented
from asyncnn.tools.bench.rounds import Once, Order, in_rounds, measure, percentile

LOADS = (0.7, 0.9, 1.1)

BACKGROUND = dense(layers=24, width=512, rows=128)
URGENT = dense(layers=6, width=512, rows=32)

DETECTOR = convolutions(layers=70, side=64)
"""Takes some 200 ms on one CPU."""

SMALL = convolutions(layers=13, side=16)
"""Takes some 3 ms."""

_DEPTH = 4
_URGENT_RUNS = 40
_BESIDE_RUNS = 15
_PAUSE_S = 0.01
_DATED_RUNS = 400
_QUEUED_RUNS = 100
_OVERHEAD_BATCHES = 10

IDLE, SATURATED, POOL = "idle", "saturated", "pool"
CONTENDERS = {
    IDLE: "HIGH on an idle device",
    SATURATED: "HIGH while LOW executions saturate it",
    POOL: "the same load through a thread pool, first come, first served",
}

IN_PROCESS, DRIVER = "in_process", "driver"
WHERE = {IN_PROCESS: "one process", DRIVER: "two clients of a driver"}
"""Whose the LOW executions are that an urgent one runs beside."""

BESIDE = {
    IDLE: "idle",
    "programs": "beside other programs",
    "low": "beside LOW",
    "low_and_programs": "beside both",
}
"""What keeps the device and the CPUs busy meanwhile."""

Times: TypeAlias = Mapping[str, float]
"""Figures in microseconds, or ratios of them, by name."""


class QosVerdict(msgspec.Struct, frozen=True):
    """A goal, in words, and what was measured of it."""

    goal: str
    value: float
    limit: float
    met: bool


def bench(order: Order) -> BenchReport:
    """Measure with threads wherever the system puts them."""
    rounds = order.rounds
    with environment.placement(environment.ALL_CPUS) as where:
        measured = asyncio.run(_measure_latencies(rounds))
        measured["misses"] = asyncio.run(_measure_misses(rounds))
        measured["lost"] = asyncio.run(_measure_loss(rounds))
    with environment.placement(environment.ONE_CPU) as pinned:
        measured["overhead"] = asyncio.run(_measure_overhead(rounds))
    measured |= _measure_beside(rounds)
    return reported(rounds, f"{where}; what scheduling costs, {pinned}", measured)


def reported(rounds: int, where: str, measured: dict[str, Any]) -> BenchReport:
    """Return the report on what was measured, by the fields of the document.

    ``lost`` is the share of time that preemptions add to a mix of executions.
    ``device`` is ``beside``'s, and ``low_us`` what its LOW executions take alone.
    """
    verdicts = [*judge_qos(measured)]
    named = {CONTENDERS[name]: each for name, each in measured["latencies"].items()}
    beside = {title(each): each for each in measured["beside"]}
    percentiles, ratios = ("p50_us", "p99_us"), ("p50_ratio", "p99_ratio")

    def us(each: Times) -> list[str]:
        return [f"{each[name]:.0f}" for name in percentiles]

    urgent = "microseconds of an urgent execution"
    headings = ("", "p50", "p99")
    latencies = [(name, *us(each)) for name, each in named.items()]
    others = [
        (name, *us(each), *(f"{each[ratio]:.1f}" for ratio in ratios))
        for name, each in beside.items()
    ]
    shares = [
        (
            f"{miss['load']:.0%}",
            f"{miss['by_deadline']:.1%}",
            f"{miss['by_arrival']:.1%}",
        )
        for miss in measured["misses"]
    ]
    goals = [
        (each.goal, f"{each.value:.4g}", Outcome(f"{each.limit:.4g}", each.met))
        for each in verdicts
    ]
    by_whom = ("offered load", "by deadline", "thread pool, by arrival")
    return BenchReport(
        documented(rounds, placement=where, **measured, verdicts=verdicts),
        [
            ReportTable(urgent, headings, [latencies]),
            ReportTable(
                f"{urgent}, {measured['device']} device",
                (*headings, "p50 / idle", "p99 / idle"),
                [others],
            ),
            ReportTable("share of deadlines missed", by_whom, [shares]),
            ReportTable("goals", ("", "measured", "at most"), [goals]),
        ],
        [
            f"{WHERE[where]}: LOW executions take {format_duration(us)} alone"
            for where, us in measured["low_us"].items()
        ],
        {
            name: {"p50": each["p50_us"], "p99": each["p99_us"]}
            for name, each in (named | beside).items()
        },
    )


def title(beside: Mapping[str, Any]) -> str:
    """Return in words where and beside what urgent executions were."""
    return f"{WHERE[beside['where']]}, {BESIDE[beside['load']]}"


def judge_qos(measured: Mapping[str, Any]) -> Iterator[QosVerdict]:
    """Hold what was measured against the goals; beside programs there are none."""
    latencies = measured["latencies"]
    idle, busy, pool = (latencies[n]["p99_us"] for n in (IDLE, SATURATED, POOL))
    to_idle = "saturated p99 within 1.5 x idle and one operation, us"
    to_thread = "scheduling an execution, to asyncio.to_thread"
    figures = [
        (to_idle, busy, 1.5 * idle + measured["longest_operation_us"]),
        ("saturated p99 a 5th of the pool's, us", busy, pool / 5),
        (to_thread, measured["overhead"]["ratio"], 0.25),
        ("time lost to preemption", measured["lost"], 0.05),
    ]
    for miss in measured["misses"]:
        goal = f"misses at {miss['load']:.0%} load, by deadline"
        figures.append((goal, miss["by_deadline"], miss["by_arrival"]))
    for each in measured["beside"]:
        if each["load"] == "low":
            is_short = measured["low_us"][each["where"]] <= 50_000
            limits = {"p50": 1.1, "p99": 1.3 if is_short else 1.5}
            for name, limit in limits.items():
                goal = f"{title(each)}, {name} / idle"
                figures.append((goal, each[f"{name}_ratio"], limit))
    for goal, value, limit in figures:
        yield QosVerdict(goal, value, limit, value <= limit)


async def _latencies(
    contenders: Mapping[str, Sequence[Any]], count: int, rounds: int
) -> dict[str, dict[str, float]]:
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
    shares = {"p50_us": 0.5, "p99_us": 0.99}
    return {
        name: {key: percentile([*chain(*each)], share) for key, share in shares.items()}
        for name, each in taken.items()
    }


async def _measure_latencies(rounds: int) -> dict[str, Any]:
    async with asyncnn.open_device("reference", settings=OWN_PROCESS) as device:
        program = Program(BACKGROUND.build().model)
        longest_us = qos_load.longest_step_us(program, [BACKGROUND.input()])
        low = await _run_of(device, BACKGROUND, Priority.LOW)
        high = await _run_of(device, URGENT, Priority.HIGH)
        with qos_load.fifo_pool() as pool:
            contenders = {
                IDLE: (high,),
                SATURATED: (high, partial(saturated, low, _DEPTH)),
                POOL: (pool(URGENT), partial(saturated, pool(BACKGROUND), _DEPTH)),
            }
            latencies = await _latencies(contenders, _URGENT_RUNS, rounds)
    return {"latencies": latencies, "longest_operation_us": longest_us}


async def _run_of(device: asyncnn.Device, model: Layers, priority: Priority) -> Run:
    prepared = await device.prepare(model.build(), priority=priority)
    return partial(prepared.run, [model.input()])


def _measure_beside(rounds: int) -> dict[str, Any]:
    """Measure urgent executions beside LOW ones of this process, and of another one."""
    name = asyncio.run(usual_device_name())
    with hogs(os.sched_getaffinity(0)) as programs:

        async def measured(path: str, other: "Pipe | None") -> Any:
            opened = (
                asyncnn.connect(path)
                if other
                else asyncnn.open_device(name, settings=OWN_PROCESS)
            )
            async with opened as device:
                return await _beside(device, other, programs, rounds)

        found = {IN_PROCESS: asyncio.run(measured("", None))}
        with driver_process(device=name) as driver:
            path = os.fspath(driver.path)
            with process(None, qos_load.detect, path, DETECTOR, _DEPTH) as other:
                found[DRIVER] = asyncio.run(measured(path, other))
    return {
        "device": name,
        "low_us": {where: us for where, (us, _) in found.items()},
        "beside": [
            {"where": where, "load": load, **each}
            for where, (_, loads) in found.items()
            for load, each in loads.items()
        ],
    }


async def _median_us(run: Run) -> float:
    await run()
    return median(await qos_load.latencies_us(run, 3, _PAUSE_S))


async def _beside(
    device: asyncnn.Device,
    other: "Pipe | None",
    programs: Callable[[], AbstractContextManager[None]],
    rounds: int,
) -> tuple[float, dict[str, Times]]:
    """Return what a LOW execution takes, and urgent ones: beside ``other``'s."""
    long = await _run_of(device, DETECTOR, Priority.LOW)
    run = await _run_of(device, SMALL, Priority.HIGH)
    low_us = await _median_us(long)
    await _median_us(run)
    detects = (
        partial(qos_load.detecting, other)
        if other
        else partial(saturated, long, _DEPTH)
    )
    contenders = {
        IDLE: (run,),
        "programs": (run, nullcontext, programs),
        "low": (run, detects),
        "low_and_programs": (run, detects, programs),
    }
    found = await _latencies(contenders, _BESIDE_RUNS, rounds)
    return low_us, {
        load: {
            **each,
            "p50_ratio": each["p50_us"] / found[IDLE]["p50_us"],
            "p99_ratio": each["p99_us"] / found[IDLE]["p99_us"],
        }
        for load, each in found.items()
    }


async def _measure_misses(rounds: int) -> list[Times]:
    settings = replace(OWN_PROCESS, inline_below_us=0)
    opened = asyncnn.open_device("reference", settings=settings, max_in_flight=4096)
    async with opened as device:
        prepared, x = await device.prepare(URGENT.build()), URGENT.input()
        with qos_load.fifo_pool() as pool:
            in_pool = pool(URGENT)
            contenders: dict[str, qos_load.RunUntil] = {
                "by_deadline": qos_load.within(
                    lambda budget_s: prepared.run([x], timeout=budget_s)
                ),
                "by_arrival": qos_load.within(lambda budget_s: in_pool()),
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
    return [
        {"load": load, **{name: mean(shares[load, name]) for name in contenders}}
        for load in LOADS
    ]


async def _measure_overhead(rounds: int) -> Times:
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

    works = (direct, scheduled, threaded)
    turns = {work: partial(processor_us, work) for work in works}
    taken = await in_rounds(turns, rounds * _OVERHEAD_BATCHES)
    await scheduler.aclose()
    alone, scheduled_us, threaded_us = map(np.array, taken.values())
    added_us, to_thread_us = scheduled_us - alone, threaded_us - alone
    return {
        "scheduled_us": float(median(added_us)),
        "to_thread_us": float(median(to_thread_us)),
        "ratio": float(median(added_us / to_thread_us)),
    }


async def _measure_loss(rounds: int) -> float:
    """Return the share of time that a mix takes longer with priorities than without."""
    async with asyncnn.open_device("reference", settings=OWN_PROCESS) as device:
        low = await _run_of(device, BACKGROUND, Priority.LOW)
        same = await _run_of(device, URGENT, Priority.LOW)
        high = await _run_of(device, URGENT, Priority.HIGH)
        mixes = {"same": Once(partial(_mixed_us, low, same))}
        mixes["higher"] = Once(partial(_mixed_us, low, high))
        figures = await measure(mixes, rounds=rounds)
    return figures["higher"].ratio_to(figures["same"]) - 1


async def _mixed_us(large: Run, small: Run) -> float:
    """Return what a saturated lane needs for a mix of executions."""

    async def trickle() -> None:
        for _ in range(20):
            await asyncio.gather(small(), asyncio.sleep(0.004))

    started = time.perf_counter()
    await asyncio.gather(trickle(), *(large() for _ in range(12)))
    return (time.perf_counter() - started) * 1e6
