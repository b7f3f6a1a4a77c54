"""``asyncnn stress``: cases that try to break devices and drivers, and a soak."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncnn.cli import options
from asyncnn.cli.ending import Interruption
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.tools.stress import Stress, StressReport


class StressOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn stress`` is asked to do.

    names NAME,...: Cases to try, all of them, or soak.
    device NAME,...: Devices to try, of asyncnn devices; by default $ASYNCNN_DEVICE, or
        reference.
    minutes: How long all of that takes, about; cases share it.
    width: Processes, or threads, of a case.
    seed: What cases draw from.
    patience: Seconds without a result after which a process hangs.
    folder: Where failures leave what repeats them; a temporary folder by default.
    json: Write all rows to this file.
    html: Write a page with plots there.
    """

    names: Annotated[str, typer.Argument(metavar="NAME|all|soak")]
    device: str | None = None
    transport: str = "inprocess,remote"
    minutes: Annotated[float, typer.Option(min=0.0)] = 5.0
    width: options.Positive = 4
    seed: options.Natural = 0
    patience: Annotated[float, typer.Option(min=1.0)] = 60.0
    folder: Path | None = None
    json: Path | None = None
    html: Path | None = None


def stress(asked: StressOptions) -> None:
    """Try cases that are to break devices, each in processes of its own.

    All results are looked at, and that each callback comes once. The outcome of
    a case is SUCCESS, FAILURE, HANG or CRASH; what failed leaves a folder with
    logs, stacks, and the command that repeats it.

    soak runs mixed work for long instead, beside clients that come and die. It
    fails if memory, descriptors, threads, mappings, names in /dev/shm or the
    99th percentile beside a bare engine grow beyond noise.

    Exits with 1 if anything failed, with 2 on bad input.

    Ctrl-C ends it: what was tried is reported, and the status is 130.
    """
    from asyncnn.tools.stress import run_stress
    from asyncnn.tools.stress.stress_report import page_of

    wanted = _wanted(asked)
    check_writable(asked.json, asked.html)
    kept: list[StressReport] = []
    with Interruption() as interruption:
        try:
            report = run_stress(wanted, options.announced, kept.append)
        except KeyboardInterrupt:
            if not kept:
                raise
            report = kept[0]
        _print(report)
        options.write_json(asked.json, report)
        options.write_page(asked.html, lambda: page_of(report))
    interruption.exit()
    if not report.passed:
        raise typer.Exit(1)


def _wanted(asked: StressOptions) -> "Stress":
    from asyncnn.devices.own_devices import default_device_name
    from asyncnn.runtime.framework.device_registry import opener_of
    from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
    from asyncnn.tools.stress import Stress
    from asyncnn.tools.stress.stress_cases import chosen_cases

    devices = [name.strip() for name in (asked.device or "").split(",") if name.strip()]
    devices = devices or [default_device_name(exact=True)]
    for name in devices:
        opener_of(name)
    return Stress(
        cases=chosen_cases(asked.names),
        devices=devices,
        transports=options.chosen("transport", asked.transport, (IN_PROCESS, REMOTE)),
        minutes=asked.minutes,
        width=asked.width,
        seed=asked.seed,
        folder=asked.folder,
        patience_s=asked.patience,
    )


def _print(report: "StressReport") -> None:
    from rich.table import Table

    from asyncnn.tools.stress.stress_report import OUTCOMES, growth_text

    out = options.console()
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("case", "device", "transport", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("verified", "processes", "killed", "s"):
        table.add_column(heading, justify="right")
    for row in report.rows:
        verified = f"{sum(row.counts.values()):,}"
        names = (row.case, row.device, row.transport, row.outcome)
        numbers = (verified, str(row.processes), str(row.kills), f"{row.seconds:.0f}")
        table.add_row(*names, *numbers)
    out.print(table)
    for growth in report.growth:
        out.print(growth_text(growth), highlight=False, soft_wrap=True)
    for row in report.rows:
        if row.reason:
            where = f"{row.case}, {row.device}, {row.transport}"
            out.print(
                f"{row.outcome}: {where}: {row.reason}", highlight=False, soft_wrap=True
            )
        if row.folder:
            out.print(
                f"  {row.folder} has what repeats it", highlight=False, soft_wrap=True
            )
    outcomes = [row.outcome for row in report.rows]
    counts = [f"{outcomes.count(each)} {each}" for each in OUTCOMES if each in outcomes]
    out.print(", ".join(counts) or "nothing was tried", highlight=False, soft_wrap=True)
