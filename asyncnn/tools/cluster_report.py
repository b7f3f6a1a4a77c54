"""Reports of `asyncnn simulate cluster`, and what real actors do in the same scenario.

A node of the real cluster is an actor of Ray that waits as long as the simulated one
computes: so many fit on one machine, and its processors do not decide the outcome.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from statistics import median
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.cluster import ClusterSettings
from asyncnn.cluster.cluster_device import ClusterDevice
from asyncnn.cluster.exchange import Answer, RunOrder, Sent
from asyncnn.cluster.hosting import ReplicaHost
from asyncnn.cluster.links import Cluster, ReplicaLink
from asyncnn.cluster.simulation import ClusterScenario, Outcomes, Simulation
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.device import Device
from asyncnn.tools import pages
from asyncnn.tools.bench.made_models import wide_model
from asyncnn.tools.bench.report import Cell, ReportTable, limited

REAL = "Ray"
"""The policy of runs on a real cluster."""

_MOST_OFF = 0.15
_WARMING = 20


class SimulationReport(msgspec.Struct, frozen=True):
    """The JSON document: a scenario, and how runs ended at each load by each policy.

    ``scenario`` has the first of the loads. What a real cluster has done follows the
    simulation of it.
    """

    scenario: ClusterScenario
    outcomes: Sequence[Outcomes]

    @property
    def agrees(self) -> bool:
        """Whether real clusters, if there are any, are as they were simulated."""
        return all(off <= _MOST_OFF for _, off in self._differences())

    def table(self) -> ReportTable:
        """Return a row for each policy, in a section for each load."""
        sections: dict[float, list[Sequence[Cell]]] = {}
        off = dict(self._differences())
        for number, each in enumerate(self.outcomes):
            row: list[Cell] = [
                f"{each.load:g} {each.policy}",
                f"{each.p50_ms:.1f}",
                f"{each.p99_ms:.1f}",
                f"{each.goodput:.4f}",
            ]
            if number in off:
                text = f"{off[number]:.3f}"
                row.append(limited(text, f"<= {_MOST_OFF}", off[number] <= _MOST_OFF))
            sections.setdefault(each.load, []).append(row)
        headings = ["load", "p50 ms", "p99 ms", "goodput", *(["off by"] if off else ())]
        return ReportTable("runs on simulated nodes", headings, [*sections.values()])

    def notes(self) -> Iterator[str]:
        """Yield what was simulated, and how those ended that have no result."""
        asked = self.scenario
        times = ", ".join(f"{each:g}" for each in asked.service_ms)
        yield (
            f"{asked.nodes} nodes, {asked.runs:,} runs of {times} ms, "
            f"deadline {asked.deadline_ms:g} ms, seed {asked.seed}"
        )
        for each in self.outcomes:
            others = {k: v for k, v in each.statuses.items() if k != "NONE"}
            if others:
                counts = ", ".join(f"{n:,} {status}" for status, n in others.items())
                yield f"load {each.load:g}, {each.policy}: {counts}"

    def _differences(self) -> Iterator[tuple[int, float]]:
        """Yield each real cluster's place, and how far it is from the simulation."""
        for number, each in enumerate(self.outcomes):
            if each.policy == REAL:
                pairs = [
                    (getattr(each, name), getattr(self.outcomes[number - 1], name))
                    for name in ("p50_ms", "p99_ms", "goodput")
                ]
                yield number, max(abs(real / (other or 1) - 1) for real, other in pairs)


def page_of(report: SimulationReport) -> pages.Page:
    """Return the page of a report: p99 and goodput against load, and the table."""
    loads = list(dict.fromkeys(each.load for each in report.outcomes))
    policies = list(dict.fromkeys(each.policy for each in report.outcomes))
    found = {(each.load, each.policy): each for each in report.outcomes}

    def plot(title: str, unit: str, name: str, note: str) -> pages.History:
        series = {
            policy: [getattr(found.get((load, policy)), name, None) for load in loads]
            for policy in policies
        }
        runs = [f"load {load:g}" for load in loads]
        return pages.History(
            title=title, unit=unit, runs=runs, series=series, note=note
        )

    return pages.Page(
        title="asyncnn simulate cluster",
        parts=[
            plot("Goodput", "", "goodput", "Share of runs with a result in time."),
            plot("p99", "ms", "p99_ms", "Of runs with a result, from their arrival."),
            pages.SortableTable(
                title="Outcomes",
                columns=[
                    pages.Column(each)
                    for each in ("load", "policy", "p50 ms", "p99 ms", "goodput")
                ],
                rows=[
                    (f"{e.load:g}", e.policy, e.p50_ms, e.p99_ms, e.goodput)
                    for e in report.outcomes
                ],
            ),
        ],
        circumstances=[*report.notes()],
    )


class WaitingHost(ReplicaHost):
    """Waits for each run, before that, as many milliseconds as its input says.

    One run waits at a time, ``slowness`` times as long.
    """

    def __init__(self, slowness: str, *lane_nice: int) -> None:
        super().__init__("reference", *lane_nice)
        self._slowness = float(slowness)
        self._lane = asyncio.Lock()

    async def run(self, order: RunOrder, inputs: Sent) -> Answer:
        """Run an order, unless it is too late; see `ReplicaHost.run`."""
        async with self._lane:
            (cost_ms,) = inputs
            assert cost_ms is not None
            if order.deadline is None or order.deadline > time.monotonic_ns():
                await asyncio.sleep(float(cost_ms[0]) * self._slowness / 1e3)
                order = order._replace(deadline=None)  # begun, it ends as simulated
            return await super().run(order, inputs)


class WaitingCluster(Cluster):
    """A cluster on this machine, whose actors wait rather than compute."""

    host = WaitingHost

    def __init__(self, replicas: int) -> None:
        super().__init__("local", ClusterSettings(replicas=replicas, cpus=0.1))


async def real_outcomes(
    scenario: ClusterScenario, kind: Callable[[int], Any] = WaitingCluster
) -> tuple[Outcomes, Outcomes]:
    """Return how runs end in a simulation, and on actors of a cluster of a ``kind``.

    The simulation has their latency.

    :raises InvalidArgumentError: if nodes are to die.
    :raises EngineUnavailableError: if Ray is not installed.
    :raises NoDriverError: if it does not start.
    """
    if scenario.failure_s:
        raise InvalidArgumentError("a real cluster is compared without failures")
    simulation = Simulation(scenario)
    settings = ClusterSettings(replicas=scenario.nodes)
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(kind(scenario.nodes))

        def link(number: int) -> ReplicaLink:
            slowness = str(simulation.nodes[number].slowness)
            return ReplicaLink(cluster, slowness, settings.hang_after, number)

        hal = ClusterDevice(cluster, settings, link)
        device = Device("cluster", await stack.enter_async_context(hal))
        prepared = await device.prepare(wide_model((1,)))

        async def run(cost_ms: float, timeout_s: float | None = None) -> ErrorStatus:
            try:
                await prepared.run([np.array([cost_ms], np.float32)], timeout=timeout_s)
            except AsyncnnError as error:
                return error.status
            return ErrorStatus.NONE

        taken_ms = []
        for _ in range(_WARMING * scenario.nodes):
            begun = time.perf_counter()
            await run(0.0)
            taken_ms.append((time.perf_counter() - begun) * 1e3)
        begun_ns = time.monotonic_ns()

        async def arrive(number: int, at_ns: int) -> None:
            timeout_s = scenario.deadline_ms / 1e3 or None
            status = await run(simulation.costs_ns[number] / 1e6, timeout_s)
            ended = status, time.monotonic_ns() - begun_ns
            simulation.ended[number] = [ended]

        async with asyncio.TaskGroup() as running:
            for at_ns, work in simulation.works:
                left_s = (begun_ns + at_ns - time.monotonic_ns()) / 1e9
                if left_s > 0:
                    await asyncio.sleep(left_s)
                running.create_task(arrive(work.number, at_ns))
    real = replace(simulation.outcomes(), policy=REAL)
    alike = replace(scenario, latency_ms=median(taken_ms) / 2)
    return Simulation(alike).run(), real
