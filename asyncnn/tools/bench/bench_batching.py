"""``asyncnn bench batching``: 64 clients of one model, with batches and without.

The peer is the same device as it comes, which runs one request after the other. The
model is bound by what each run costs, whatever it is given: dense layers, which read
all of their weights for one vector. Clients repeat their requests, each with a share of
its own in this process, or a connection of its own to a driver.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from itertools import cycle, islice
from typing import Any

from msgspec.structs import replace

import asyncnn
from asyncnn.devices import OWN_PROCESS
from asyncnn.qos import Client, acting_for
from asyncnn.service.process import running_driver
from asyncnn.tools.bench import environment
from asyncnn.tools.bench.benches import Place, measure_workload
from asyncnn.tools.bench.made_models import dense
from asyncnn.tools.bench.measured_models import inputs_of
from asyncnn.tools.bench.report import BenchReport, Goal, Measured, Subjects
from asyncnn.tools.bench.rounds import Figures, Once, Order, Started, percentile

BATCHED, ALONE = "batched", "alone"
TITLES = {BATCHED: "in batches of up to 8", ALONE: "one by one"}
MODEL = dense(layers=24, width=256, rows=1)

_SIZES = {BATCHED: 8, ALONE: 1}
_CLIENTS = 64
_WARM_S, _LASTS_S = 0.3, 1.0

REQUEST, P99 = "request", "p99"
GOALS = {REQUEST: 1 / 1.5, P99: 1.0}
"""Largest ratios to the peer: 1.5 times the rate, and no later at the end."""

PLACES = {"inprocess": "one process", "driver": "a driver"}
UNITS = {REQUEST: ("time for each request", "us"), P99: ("99th percentile", "ms")}

_Run = Callable[[], Awaitable[Any]]


async def _of_process(place: Place, size: int) -> list[_Run]:
    """Return runs of one prepared model for clients that have shares of their own."""
    settings = replace(OWN_PROCESS, batching=size)
    device = await place.device(settings, name=None)
    prepared = await device.prepare(MODEL.build())
    return [partial(prepared.run, inputs_of(prepared))]


async def _of_driver(place: Place, size: int) -> list[_Run]:
    """Return runs of clients that have prepared the same model of one driver."""
    settings = replace(OWN_PROCESS, batching=size)
    driver = await place.enter(running_driver(settings=settings))
    runs: list[_Run] = []
    for _ in range(_CLIENTS):
        device = await place.enter(asyncnn.connect(driver.path))
        prepared = await device.prepare(MODEL.build())
        runs.append(partial(prepared.run, inputs_of(prepared)))
    return runs


_STARTS = {"inprocess": _of_process, "driver": _of_driver}


async def start(where: str, place: Place) -> Started:
    """Start both contenders in one of `PLACES`."""

    async def taken(name: str, runs: list[_Run]) -> Mapping[str, float]:
        found = await _served(runs)
        return {f"{row} {name}": each for row, each in found.items()}

    return {
        name: Once(partial(taken, name, await _STARTS[where](place, size)))
        for name, size in _SIZES.items()
    }


async def _served(runs: list[_Run]) -> dict[str, float]:
    """Have all clients repeat their runs; return the figures of `UNITS`."""
    taken_ms: list[float] = []
    begins_s = time.perf_counter() + _WARM_S
    ends_s = begins_s + _LASTS_S

    async def repeat(run: _Run) -> None:
        while (started_s := time.perf_counter()) < ends_s:
            await run()
            if started_s >= begins_s:
                taken_ms.append((time.perf_counter() - started_s) * 1000)

    async with asyncio.TaskGroup() as tasks:
        for number, run in enumerate(islice(cycle(runs), _CLIENTS)):
            with acting_for(Client(f"client {number}")):
                tasks.create_task(repeat(run))
    request_us = _LASTS_S * 1e6 / max(len(taken_ms), 1)
    return {REQUEST: request_us, P99: percentile(taken_ms, 0.99)}


BATCHES = Subjects(
    TITLES,
    {"/ one by one": lambda row: row.cell(BATCHED, ALONE)},
    field="rows",
    named=True,
    title=f"{_CLIENTS} clients of one model; smaller is better",
    label=lambda row: f"{row.facts['title']}, {row.facts['unit']}",
)


def bench(order: Order) -> BenchReport:
    """Measure wherever the system puts threads."""
    rows: list[Measured] = []
    with environment.placement(environment.ALL_CPUS) as placed:
        for where in PLACES:
            figures, _ = asyncio.run(measure_workload(start, where, order.rounds))
            rows += rows_of(where, figures)
    return reported(order.rounds, placed, rows)


def rows_of(where: str, measured: Figures) -> list[Measured]:
    """Return the rows of what was measured in one of `PLACES`."""
    rows = []
    for row, (title, unit) in UNITS.items():
        figures = {name: measured[f"{row} {name}"] for name in TITLES}
        title, goal = f"{PLACES[where]}: {title}", Goal(BATCHED, ALONE, GOALS[row])
        name = f"{where} {row}"
        rows.append(Measured.judged(name, figures, [goal], title=title, unit=unit))
    return rows


def reported(rounds: int, placed: str, rows: list[Measured]) -> BenchReport:
    """Return the report, which has no chart, as units differ."""
    return BATCHES.report(rounds, placed, rows)._replace(bars={})
