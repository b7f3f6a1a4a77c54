"""``asyncnn bench``: benchmarks beside their peers, with goals that can be checked."""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from asyncnn.bench.awaiting import (
    DESCRIPTIONS,
    RUN,
    TO_THREAD,
    AwaitingReport,
    PlacementReport,
    bench_awaiting,
)
from asyncnn.bench.burst import BurstReport, bench_burst
from asyncnn.bench.burst_table import burst_notes, burst_table
from asyncnn.bench.cache import CachesReport, bench_cache
from asyncnn.bench.cache_table import cache_table
from asyncnn.bench.collection import model_files
from asyncnn.bench.fence import FenceReport, bench_fence
from asyncnn.bench.fence_table import fence_table
from asyncnn.bench.goals import LITERT, LITERT_REF, Verdict
from asyncnn.bench.kernel_cases import Case
from asyncnn.bench.kernels import KernelsReport, bench_kernels
from asyncnn.bench.kernels_table import kernels_table
from asyncnn.bench.models import (
    AWAITED,
    DEVICE,
    ModelReport,
    ModelsReport,
    bench_models,
)
from asyncnn.bench.page import draw_page
from asyncnn.bench.qos import QosReport, bench_qos
from asyncnn.bench.qos_table import qos_tables
from asyncnn.bench.rounds import DEFAULT_ROUNDS, MIN_ROUNDS
from asyncnn.bench.service import ServiceReport, bench_service
from asyncnn.bench.service_table import service_notes, service_table
from asyncnn.cli.console import console, progress

bench_app = typer.Typer(help="Measure beside peers, in one run.", no_args_is_help=True)

_PIPE_WIDTH = 130
_PEER_NAMES = {LITERT: "LiteRT", LITERT_REF: "REF"}

Report = (
    ModelsReport
    | AwaitingReport
    | KernelsReport
    | ServiceReport
    | FenceReport
    | QosReport
    | BurstReport
    | CachesReport
)

JsonOption = Annotated[
    Path | None, typer.Option("--json", help="Write the report to this file.")
]
RoundsOption = Annotated[int, typer.Option(min=MIN_ROUNDS, help="Interleaved rounds.")]
CheckOption = Annotated[
    bool, typer.Option("--check", help="Exit with 1 if a goal is missed.")
]


@bench_app.command()
def models(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of .tflite files; ../shared/models if left out.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonOption = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", help="Write a page with a chart.")
    ] = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    pattern: Annotated[
        str, typer.Option("--filter", help="Names of models to measure.")
    ] = "*",
    mobilenet: Annotated[
        bool, typer.Option(help="Add generated MobileNets v1 of 224 x 224.")
    ] = True,
    check: CheckOption = False,
) -> None:
    """Measure the reference device beside LiteRT, with one thread each.

    Needs LiteRT: pip install asyncnn[bench]. It may crash on damaged files.
    """
    with model_files(folder, pattern, mobilenet=mobilenet) as paths:
        report = anyio.run(
            partial(bench_models, paths, rounds=rounds, progress=_progress)
        )
    _print_models(_wide_console(), report)
    if html_file is not None:
        html_file.write_text(draw_page(report), encoding="utf-8")
    _conclude(report, json_file, check)


@bench_app.command()
def awaiting(
    json_file: JsonOption = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    check: CheckOption = False,
) -> None:
    """Measure awaiting a tiny addition beside asyncio.to_thread."""
    report = bench_awaiting(rounds=rounds)
    _print_awaiting(_wide_console(), report)
    _conclude(report, json_file, check)


@bench_app.command()
def kernels(
    json_file: JsonOption = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    pattern: Annotated[
        str, typer.Option("--filter", help="Names of kernels to measure.")
    ] = "*",
    check: CheckOption = False,
) -> None:
    """Measure single operations beside LiteRT, with one thread each.

    Needs LiteRT: pip install asyncnn[bench].
    """
    report = anyio.run(
        partial(bench_kernels, pattern, rounds=rounds, progress=_kernels_progress)
    )
    out = _wide_console()
    out.print(kernels_table(report))
    _print_circumstances(out, report, report.placement)
    _conclude(report, json_file, check)


@bench_app.command()
def service(
    json_file: JsonOption = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    check: CheckOption = False,
) -> None:
    """Measure a driver process beside other ways to call another process.

    Needs grpcio for one of them: pip install asyncnn[bench].
    """
    report = bench_service(rounds=rounds)
    out = _wide_console()
    out.print(service_table(report))
    for line in service_notes(report):
        _print_line(out, line)
    _print_circumstances(out, report, "in each placement")
    _conclude(report, json_file, check)


@bench_app.command()
def burst(
    json_file: JsonOption = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    check: CheckOption = False,
    gates: Annotated[
        bool, typer.Option("--gates", help="Judge by what any machine has to reach.")
    ] = False,
) -> None:
    """Measure bursts and their queues beside other ways to call another process.

    Peers that are not installed are left out: grpcio, iceoryx2, pyzmq, uvloop.
    """
    report = bench_burst(rounds=rounds, gates=gates)
    out = _wide_console()
    out.print(burst_table(report))
    for line in burst_notes(report):
        _print_line(out, line)
    _print_circumstances(out, report, "in each placement")
    _conclude(report, json_file, check)


@bench_app.command()
def fence(
    json_file: JsonOption = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    check: CheckOption = False,
) -> None:
    """Measure waiting for fences beside other ways to wait."""
    report = bench_fence(rounds=rounds)
    out = _wide_console()
    out.print(fence_table(report))
    _print_circumstances(out, report, "in each placement")
    _conclude(report, json_file, check)


@bench_app.command()
def cache(
    folder: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of .tflite files; ../shared/models if left out.",
            show_default=False,
        ),
    ] = None,
    json_file: JsonOption = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    pattern: Annotated[
        str, typer.Option("--filter", help="Names of models to measure.")
    ] = "*",
    mobilenet: Annotated[
        bool, typer.Option(help="Add generated MobileNets v1 of 224 x 224.")
    ] = True,
    check: CheckOption = False,
) -> None:
    """Measure loading models from cache files beside preparing them anew."""
    with model_files(folder, pattern, mobilenet=mobilenet) as paths:
        report = bench_cache(paths, rounds=rounds, progress=_progress)
    out = _wide_console()
    out.print(cache_table(report))
    _print_circumstances(out, report, report.placement)
    _conclude(report, json_file, check)


@bench_app.command()
def qos(
    json_file: JsonOption = None,
    rounds: RoundsOption = DEFAULT_ROUNDS,
    check: CheckOption = False,
) -> None:
    """Measure priorities and deadlines beside a thread pool, and what they cost."""
    report = bench_qos(rounds=rounds)
    out = _wide_console()
    for table in qos_tables(report):
        out.print(table)
    _print_circumstances(out, report, report.placement)
    _conclude(report, json_file, check)


def _wide_console() -> Console:
    out = console()
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
    return out


def _progress(paths: Sequence[Path]) -> Iterable[Path]:
    return progress(paths, "models", len(paths))


def _kernels_progress(cases: Sequence[Case]) -> Iterable[Case]:
    return progress(cases, "kernels", len(cases))


def _conclude(report: Report, json_file: Path | None, check: bool) -> None:
    """Write the report where it is asked for; fail the command if goals have to hold.

    :raises typer.Exit: if ``check`` and a goal was missed.
    """
    if json_file is not None:
        json_file.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    if check and not report.met:
        raise typer.Exit(1)


def _print_models(out: Console, report: ModelsReport) -> None:
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("model", no_wrap=True)
    for heading in ("device", "awaited", "LiteRT", "REF", "/ LiteRT", "/ REF"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("differs", justify="right", no_wrap=True)
    table.add_column("goals")
    for model in report.models:
        table.add_row(*_model_cells(model))
    out.print(table)
    for model in report.models:
        for line in _refusals(model):
            _print_line(out, line)
    _print_circumstances(out, report, report.placement)


def _refusals(model: ModelReport) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for contender, reason in model.refusals.items():
        name = _PEER_NAMES.get(contender, "the device")
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"{model.model}: {' and '.join(names)} cannot run it: {reason}"


def _model_cells(model: ModelReport) -> list[str]:
    times = (DEVICE, AWAITED, LITERT, LITERT_REF)
    difference = model.difference_to_ref
    return [
        model.model,
        *(_microseconds(model.us.get(name)) for name in times),
        *(_ratio(model.ratios.get(peer)) for peer in _PEER_NAMES),
        "-" if difference is None else str(difference),
        ", ".join(_verdict(verdict) for verdict in model.verdicts) or "-",
    ]


def _microseconds(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _verdict(verdict: Verdict) -> str:
    outcome = "[green]met[/]" if verdict.met else "[bold red]MISSED[/]"
    return f"{_PEER_NAMES[verdict.peer]} <= {verdict.limit:g} {outcome}"


def _print_circumstances(out: Console, report: Report, where: str) -> None:
    _print_line(out, f"{report.rounds} rounds, {where}")
    _print_line(out, str(report.environment))


def _print_line(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)


def _print_awaiting(out: Console, report: AwaitingReport) -> None:
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("", no_wrap=True)
    for placed in report.placements:
        table.add_column(placed.placement, justify="right")
    for name, description in DESCRIPTIONS.items():
        cells = (f"{placed.us[name]:.1f}" for placed in report.placements)
        table.add_row(escape(description), *cells)
    table.add_section()
    table.add_row(
        f"{RUN} / {TO_THREAD}", *(_awaiting_verdict(p) for p in report.placements)
    )
    out.print(table)
    _print_circumstances(out, report, "in each placement")


def _awaiting_verdict(placed: PlacementReport) -> str:
    outcome = "[green]met[/]" if placed.met else "[bold red]MISSED[/]"
    return f"{placed.ratio:.3f} <= {placed.limit:g} {outcome}"
