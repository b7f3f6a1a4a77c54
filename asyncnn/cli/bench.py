"""``asyncnn bench``: benchmarks beside their peers, with goals that can be checked."""

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import msgspec
import typer
from rich.console import Console

from asyncnn.cli.console import announced, console, progress
from asyncnn.cli.options import SettingOption
from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.device_settings import with_options
from asyncnn.tools.bench.awaiting.measuring import bench_awaiting
from asyncnn.tools.bench.awaiting.report import AwaitingReport
from asyncnn.tools.bench.awaiting.table import awaiting_table
from asyncnn.tools.bench.burst.measuring import bench_burst
from asyncnn.tools.bench.burst.report import BurstReport
from asyncnn.tools.bench.burst.table import burst_notes, burst_table
from asyncnn.tools.bench.cache.measuring import bench_cache
from asyncnn.tools.bench.cache.report import CachesReport
from asyncnn.tools.bench.cache.table import cache_table
from asyncnn.tools.bench.fence.measuring import bench_fence
from asyncnn.tools.bench.fence.report import FenceReport
from asyncnn.tools.bench.fence.table import fence_table
from asyncnn.tools.bench.kernels.cases import Case
from asyncnn.tools.bench.kernels.measuring import bench_kernels
from asyncnn.tools.bench.kernels.report import KernelsReport
from asyncnn.tools.bench.kernels.table import kernels_table
from asyncnn.tools.bench.models.measuring import bench_models
from asyncnn.tools.bench.models.page import draw_page
from asyncnn.tools.bench.models.report import ModelsReport
from asyncnn.tools.bench.models.table import models_notes, models_table
from asyncnn.tools.bench.qos.measuring import bench_qos
from asyncnn.tools.bench.qos.report import QosReport
from asyncnn.tools.bench.qos.table import qos_tables
from asyncnn.tools.bench.responsiveness.measuring import (
    DEFAULT_ROUNDS as RESPONSIVENESS_ROUNDS,
)
from asyncnn.tools.bench.responsiveness.measuring import bench_responsiveness
from asyncnn.tools.bench.responsiveness.report import ResponsivenessReport
from asyncnn.tools.bench.responsiveness.table import (
    responsiveness_notes,
    responsiveness_table,
)
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, MIN_ROUNDS
from asyncnn.tools.bench.service.measuring import bench_service
from asyncnn.tools.bench.service.report import ServiceReport
from asyncnn.tools.bench.service.table import service_notes, service_table
from asyncnn.tools.bench.tflite.collection import model_files

bench_app = typer.Typer(help="Measure beside peers, in one run.", no_args_is_help=True)

_PIPE_WIDTH = 130

Report = (
    ModelsReport
    | AwaitingReport
    | KernelsReport
    | ServiceReport
    | FenceReport
    | QosReport
    | BurstReport
    | CachesReport
    | ResponsivenessReport
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
    out = _wide_console()
    out.print(models_table(report))
    for line in models_notes(report):
        _print_line(out, line)
    _print_circumstances(out, report, report.placement)
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
    out = _wide_console()
    out.print(awaiting_table(report))
    _print_circumstances(out, report, "in each placement")
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


@bench_app.command()
def responsiveness(
    json_file: JsonOption = None,
    rounds: Annotated[
        int, typer.Option(min=1, help="How often each activity is watched.")
    ] = RESPONSIVENESS_ROUNDS,
    pattern: Annotated[
        str, typer.Option("--filter", help="Glob of names of activities to watch.")
    ] = "*",
    setting: SettingOption = None,
    check: CheckOption = False,
) -> None:
    """Measure the lag of event loops beside long models and large inputs."""
    report = bench_responsiveness(
        rounds=rounds,
        pattern=pattern,
        settings=with_options(OWN_PROCESS, setting or ()),
        progress=announced,
    )
    out = _wide_console()
    out.print(responsiveness_table(report))
    for line in responsiveness_notes(report):
        _print_line(out, line)
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


def _print_circumstances(out: Console, report: Report, where: str) -> None:
    _print_line(out, f"{report.rounds} rounds, {where}")
    _print_line(out, str(report.environment))


def _print_line(out: Console, text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
