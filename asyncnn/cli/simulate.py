"""``asyncnn simulate``: what a cluster of any size would do, under a virtual clock."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncnn.cli import options
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.cluster.simulation import ClusterScenario, Outcomes

Duration = Annotated[float, typer.Option(min=0.0)]

simulations = typer.Typer(
    name="simulate",
    help="Simulate what cannot be tried on this machine.",
    no_args_is_help=True,
    add_completion=False,
)


@simulations.callback()
def _below() -> None:
    """Have the command below named, though it is the only one."""


class SimulateOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn simulate cluster`` is asked to do.

    nodes: Nodes, each of which computes one run at a time.
    load SHARE,...: Shares of what all nodes could compute that are asked for.
    policy NAME,...: asyncnn, least-loaded, round-robin, or oracle, which knows what
        each run is going to take; or all of them.
    runs: Runs of each simulation.
    service_ms MS,...: Times of runs on a usual node, each as likely as the others.
    deadline_ms: From arrival; 0 is none.
    skew: Standard deviation of the logarithm of the speeds of nodes.
    stragglers: Share of runs that take longer.
    straggling: How many times as long these take.
    failure_s: Seconds on average from one death of a node to its next; 0 is never.
    restart_s: Seconds until it is back.
    latency_ms: What a message takes.
    safe: Run again elsewhere what a lost node had begun.
    seed: What arrivals, speeds and failures are drawn from.
    against_real: Have as many actors of Ray wait as long as the nodes compute, and
        compare: as quick as real time, so better with few nodes and runs.
    json: Write all outcomes to this file.
    html: Write a page with plots there.
    """

    nodes: options.Positive = 100
    load: str = "0.5,0.8,0.95,1.2"
    policy: str = "all"
    runs: options.Positive = 10_000
    service_ms: str = "20"
    deadline_ms: Duration = 200.0
    skew: Duration = 0.2
    stragglers: Annotated[float, typer.Option(min=0.0, max=1.0)] = 0.01
    straggling: Duration = 10.0
    failure_s: Duration = 0.0
    restart_s: Duration = 2.0
    latency_ms: Duration = 0.5
    safe: bool = False
    seed: options.Natural = 1
    against_real: bool = False
    json: Path | None = None
    html: Path | None = None


@simulations.command("cluster")
@options.flattened
def cluster(asked: SimulateOptions) -> None:
    """Simulate the dispatch of a cluster by each policy, at each load.

    It is the code that dispatches on real clusters. Each policy gets the same
    arrivals and service times. Goodput is the share of runs with a result in
    time; p50 and p99 are of those with a result.

    Exits with 1 if a real cluster differs by more than 15 %, with 2 on bad
    input.
    """
    from asyncnn.cluster.simulation import OURS, POLICIES, Simulation
    from asyncnn.tools.cluster_report import SimulationReport, page_of, real_outcomes

    check_writable(asked.json, asked.html)
    policies: Sequence[str] = POLICIES
    if asked.policy != "all":
        policies = options.chosen("policy", asked.policy, POLICIES)
    scenarios = _scenarios(asked)
    if asked.against_real:
        import anyio

        if asked.policy not in ("all", OURS):
            raise InvalidArgumentError(
                "real clusters are compared by asyncnn's own policy"
            )
        found: list[Outcomes] = []
        for scenario in options.progress(scenarios, "measured"):
            found += anyio.run(real_outcomes, scenario)
    else:
        pairs = [(s, policy) for s in scenarios for policy in policies]
        found = [
            Simulation(*each).run() for each in options.progress(pairs, "simulated")
        ]
    report = options.rounded(SimulationReport(scenarios[0], found))
    options.print_tables([report.table()], report.notes())
    options.write_json(asked.json, report)
    options.write_page(asked.html, lambda: page_of(report))
    if not report.agrees:
        raise typer.Exit(1)


def _scenarios(asked: SimulateOptions) -> "list[ClusterScenario]":
    from asyncnn.cluster.simulation import ClusterScenario

    times = tuple(_numbers("service-ms", asked.service_ms))
    return [
        options.made_of(
            ClusterScenario, asked, load=load, service_ms=times, is_safe=asked.safe
        )
        for load in _numbers("load", asked.load)
    ]


def _numbers(option: str, text: str) -> list[float]:
    """Return the numbers of an option, separated by commas.

    :raises InvalidArgumentError: if one is none, or not above 0.
    """
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < each < float("inf") for each in numbers):
        raise InvalidArgumentError(
            f"--{option} {text} is not numbers above 0", hint="write it as 0.5,0.8"
        )
    return numbers
