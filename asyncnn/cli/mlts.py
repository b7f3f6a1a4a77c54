"""``asyncnn mlts``: the benchmark of the Machine Learning Test Suite, with reports."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asyncnn.cli import options
from asyncnn.cli.ending import Interruption
from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable, write_file

if TYPE_CHECKING:
    from asyncnn.tools.mlts import Suite
    from asyncnn.tools.mlts.datasets import Published
    from asyncnn.tools.mlts.suite_models import Wanted
    from asyncnn.tools.mlts.suite_records import Preparation, SuiteReport, SuiteRow

_WIDTH = 80
_NOT_REACHED = "not measured"
_CLEAR_LINE = "\r\x1b[2K"


class MltsOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn mlts`` is asked to do.

    folder: Folder of .tflite, .onnx and .asyncnn files, or one of them.
    builtin: Add MobileNets, speech recognition and synthesis.
    pattern --filter GLOB: Models whose names match.
    device NAME,...: Devices to measure, of asyncnn devices, or all; repeatable. By
        default all but samples.
    path PATH,...: HAL calls to use: async, sync, burst or fenced, and session for
        models with state.
    peers: Measure LiteRT and ONNX Runtime beside them.
    dataset F.npz|KIND=FOLDER: Inputs and labels, for top-k; or a data set as it is
        published: open-images, cmu-arctic or librispeech.
    accuracy: Insist on outputs being judged, or judge none; by default those that there
        is something for.
    runs: Runs of a model on each way, at most.
    seconds: Seconds of these runs, at most.
    json: Write all figures to this file.
    csv: Write the suite's columns there.
    html: Write a page with plots there.
    opens --open: Show the page of --html in a browser.
    history: An earlier JSON file, for the page; repeatable.
    source --from: Report on this JSON file, measuring nothing.
    """

    folder: Annotated[Path | None, typer.Argument(show_default=False)] = None
    builtin: bool = False
    pattern: str = "*"
    device: list[str] | None = None
    socket: Path | None = None
    path: Annotated[str, typer.Option(show_default="all")] = (
        "async,sync,burst,fenced,session"
    )
    transport: str = "inprocess,remote"
    peers: bool = True
    dataset: str | None = None
    accuracy: Annotated[bool | None, typer.Option(show_default=False)] = None
    lsb: options.Natural = 1
    rtol: float | None = None
    atol: float | None = None
    runs: options.Positive = 100
    seconds: Annotated[float, typer.Option(min=0.0)] = 1.0
    json: Path | None = None
    csv: Path | None = None
    html: Path | None = None
    opens: bool = False
    history: list[Path] | None = None
    source: Path | None = None


def mlts(asked: MltsOptions) -> None:
    """Measure each model of a folder on every device, path and transport.

    Latency, preparation with and without a cache, memory, energy where the
    machine shows it, and accuracy, beside LiteRT and ONNX Runtime, interleaved
    in one run. Outputs are judged by the .npz file beside a model, or by a
    labelled data set.

    With --socket, the driver that serves it is measured, and of the devices those
    that --device names.

    Exits with 1 if outputs of a device are off, with 2 on bad input. A model
    that a device refuses is a line that says why.

    Ctrl-C ends it: what was measured is reported, and the status is 130.
    """
    from asyncnn.tools.mlts.suite_records import read_report

    if asked.history and asked.html is None:
        raise InvalidArgumentError("a history is drawn on a page", hint="give --html")
    if asked.opens and asked.html is None:
        raise InvalidArgumentError("--open shows a page", hint="give --html")
    check_writable(asked.json, asked.csv, asked.html)
    earlier = [read_report(each) for each in asked.history or ()]
    if asked.source is not None:
        if asked.folder is not None or asked.builtin or asked.socket is not None:
            raise InvalidArgumentError(
                "--from measures nothing", hint="leave out the models and --socket"
            )
    elif asked.folder is None and not asked.builtin:
        raise InvalidArgumentError(
            "there is nothing to measure",
            hint="give a folder of models, --builtin, or --from",
        )
    with Interruption() as interruption:
        if asked.source is not None:
            report: SuiteReport | None = read_report(asked.source)
        else:
            report = _measured(_wanted(asked), _suite(asked), interruption)
        if report is not None:
            _print(report)
            _write(report, earlier, asked)
            if asked.opens and asked.html is not None:
                _open(asked.html)
    interruption.exit()
    if report is not None and not report.passed:
        raise typer.Exit(1)


def _wanted(asked: MltsOptions) -> "Wanted":
    from msgspec.structs import replace

    from asyncnn.tools.mlts.suite_models import Wanted
    from asyncnn.tools.samples import Tolerance

    needs = {None: False, True: True, False: None}[asked.accuracy]
    tolerance = Tolerance.asked(asked.lsb, asked.rtol, asked.atol)
    return options.made_of(
        Wanted,
        asked,
        dataset=None if asked.dataset is None else _dataset(asked.dataset),
        needs_accuracy=needs,
        tolerance=replace(tolerance, scales_atol=True),
    )


def _dataset(text: str) -> "Path | Published":
    """Return the file that an option names, or the data set like ``KIND=FOLDER``."""
    from asyncnn.tools.mlts.datasets import KINDS, Published

    kind, is_one, folder = text.partition("=")
    if not is_one or Path(text).exists():
        return Path(text)
    (known,) = options.chosen("data set", kind, [*KINDS])
    return Published(known, Path(folder))


def _suite(asked: MltsOptions) -> "Suite":
    from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE
    from asyncnn.tools.mlts import ALL, Suite, chosen_devices
    from asyncnn.tools.mlts.contenders import PATHS, PEERS

    names = [name.strip() for each in asked.device or () for name in each.split(",")]
    devices = [name for name in names if name]
    if not devices and asked.socket is None:
        devices = [ALL]
    return options.made_of(
        Suite,
        asked,
        devices=chosen_devices(devices),
        paths=options.chosen("path", asked.path, PATHS),
        transports=options.chosen("transport", asked.transport, (IN_PROCESS, REMOTE)),
        peers=PEERS if asked.peers else (),
    )


def _measured(
    wanted: "Wanted", suite: "Suite", interruption: Interruption
) -> "SuiteReport | None":
    """Return what was measured, until a signal came; None if that is nothing."""
    from functools import partial

    import anyio

    from asyncnn.tools.mlts import run_suite
    from asyncnn.tools.mlts.suite_models import suite_models

    kept: list[SuiteReport] = []
    with suite_models(wanted) as models:
        progress = _Progress()
        work = partial(run_suite, models, suite, progress, kept.append)
        try:
            whole = anyio.run(interruption.cancelling, work)
        finally:
            progress.end()
    return whole or next(iter(kept), None)


def _open(page: Path) -> None:
    """Show a page in the browser that the user has, if there is one."""
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        typer.echo(f"there is no browser to show {page}", err=True)


class _Progress:
    """Shows on a terminal what was done last, and how long the rest is going to take.

    No thread draws meanwhile, which would disturb what is measured.
    """

    def __init__(self) -> None:
        self._screen = options.console(stderr=True)
        self._started = time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        """Show that ``done`` of ``total`` steps are done."""
        spent = time.monotonic() - self._started
        left = format_duration(spent * 1e6 / done * (total - done), 2)
        self._show(f"{done / total:4.0%}  {what}; about {left} left")

    def end(self) -> None:
        """Leave nothing on the terminal."""
        self._show("")

    def _show(self, line: str) -> None:
        if self._screen.is_terminal:
            line = options.printable(line)
            self._screen.file.write(f"{_CLEAR_LINE}{line[: self._screen.width - 1]}")
            self._screen.file.flush()


def _print(report: "SuiteReport") -> None:
    out = options.console()
    if not out.is_terminal and "COLUMNS" not in os.environ:
        out.width = _WIDTH
    for model in report.models:
        rows = report.of_model(model.name)
        size = f"{_kilobytes(model.weights_bytes)} of weights"
        out.print(
            f"{model.name}: {model.problem or (size if rows else _NOT_REACHED)}"
            + (f", judged by {model.evaluator}" if model.evaluator else ""),
            highlight=False,
        )
        measured = [row for row in rows if row.latency is not None]
        if measured:
            out.print(_table(measured))
        for line in _lines(rows):
            out.print(f"  {line}", highlight=False)
    how_far = filter(None, [report.interrupted])
    for line in (*report.notes, report.settings, str(report.environment), *how_far):
        out.print(line, highlight=False, soft_wrap=True)


def _table(rows: "Sequence[SuiteRow]") -> Any:
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    table.add_column("  system", overflow="fold")  # rather than figures
    table.add_column("way", no_wrap=True)
    for heading in ("p50", "p90", "p99", "first", "ready"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("outputs", no_wrap=True)
    for row in rows:
        latency, preparation = row.latency, row.preparation
        assert latency is not None
        first = None if preparation is None else preparation.first_us
        ready = None if preparation is None else min(preparation.us)
        remote = "remote " if row.transport == "remote" else ""
        times = (latency.p50_us, latency.p90_us, latency.p99_us, first, ready)
        table.add_row(
            f"  {row.system}", f"{remote}{row.path}", *map(_time, times), _outcome(row)
        )
    return table


def _time(us: float | None) -> str:
    return "-" if us is None else format_duration(us)


def _kilobytes(count: float) -> str:
    kilobytes = count / 1e3
    return f"{kilobytes:.3g} kB" if kilobytes < 1000 else f"{kilobytes:,.0f} kB"


def _outcome(row: "SuiteRow") -> str:
    accuracy = row.accuracy
    if accuracy is None:
        return "-"
    top_1 = accuracy.figures.get("top_1")
    if not accuracy.passed:
        return "OFF" if top_1 is None else f"{top_1:.1%} OFF"
    return "accurate" if top_1 is None else f"{top_1:.1%}"


def _lines(rows: "Sequence[SuiteRow]") -> Iterator[str]:
    """Yield what a model needs on each device, what is off, and what was refused."""
    needs: dict[str, str] = {}
    for row in rows:
        if row.latency is not None and row.preparation is not None:
            remote = " remote" if row.transport == "remote" else ""
            needs.setdefault(f"{row.system}{remote}", _needs(row, row.preparation))
    for system, text in needs.items():
        if text:
            yield f"{system}: {text}"
    for row in rows:
        if row.accuracy is not None:
            for problem in row.accuracy.problems:
                yield f"{row.way}: {problem}"
        if row.refusal:
            yield f"{row.way.strip()}: not measured: {row.refusal}"


def _needs(row: "SuiteRow", preparation: "Preparation") -> str:
    found = []
    if preparation.resident_kib is not None:
        found.append(f"{preparation.resident_kib / 1024:.1f} MiB of memory")
    if preparation.cached_us:
        found.append(
            f"ready in {format_duration(min(preparation.cached_us))} from "
            f"{_kilobytes(preparation.cache_bytes)} of cache"
        )
    if row.joules is not None:
        found.append(f"{row.joules * 1e3:.3g} mJ a run")
    return ", ".join(found)


def _write(
    report: "SuiteReport", earlier: "Sequence[SuiteReport]", asked: MltsOptions
) -> None:
    from asyncnn.tools.mlts.suite_page import page_of

    if asked.json is not None:
        report.write(asked.json)
    if asked.csv is not None:
        from asyncnn.tools.mlts.suite_csv import csv_of

        write_file(asked.csv, csv_of(report))
    options.write_page(asked.html, lambda: page_of(report, earlier))
    written = [str(each) for each in (asked.json, asked.csv, asked.html) if each]
    if written:
        count = options.counted(len(report.rows), "row")
        typer.echo(f"{count} in {', '.join(written)}")
