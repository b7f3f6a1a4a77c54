"""``asyncnn loadgen``: MLPerf's LoadGen with this project as the system under test."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from asyncnn.cli import EXIT_INTERRUPTED, options
from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.input_files import call_abandonable, in_one
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.tools.loadgen.judge import JudgedRunReport

_RUN = "run"
_SCENARIOS = "SingleStream", "MultiStream", "Server", "Offline"

_MOST = 10**9
"""The largest of each number for LoadGen, which has them in 64 bits of nanoseconds."""


class _ModelOrCompare(TyperGroup):
    """Takes what is no name of a command for the model of a run."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that arguments are for."""
        if args and args[0] not in self.commands:
            args = [_RUN, *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let options come before the model."""
        if args and args[0].startswith("-") and args[0] not in ("-h", "--help"):
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


loadgen = typer.Typer(
    name="loadgen",
    cls=_ModelOrCompare,
    help="Have MLPerf's LoadGen judge a model's executions.\n\n"
    "asyncnn loadgen MODEL --scenario S runs a model; asyncnn loadgen MODEL --help\n"
    "has its options. Needs LoadGen: pip install asyncnn\\[loadgen].",
    no_args_is_help=True,
    add_completion=False,
)


class LoadgenOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn loadgen MODEL`` is asked to do.

    scenario: One of SingleStream, MultiStream, Server, Offline.
    device: Device to run on; by default $ASYNCNN_DEVICE or the best.
    transport: Ways to the device: inprocess, remote; or grpc://HOST:PORT/NAME, a model
        of a server that speaks the Open Inference Protocol.
    path: How queries get there: threadsafe, async, sync, burst, ...
    target_qps: Rate of Server queries; what to expect of Offline.
    latency_bound_ms: What 99 % of Server queries may take.
    queries: Queries at least.
    seconds: Duration at least.
    accuracy: Judge answers, not times.
    input_file --input: An .npz file: input_K, labels or output_K.
    log_dir: Keep LoadGen's own logs in this folder.
    """

    model: options.FileArgument
    scenario: str = "SingleStream"
    device: str | None = None
    transport: str = "inprocess"
    path: str = "threadsafe"
    target_qps: float | None = None
    latency_bound_ms: float = 100.0
    queries: Annotated[int, typer.Option(min=1, max=_MOST)] = 100
    seconds: Annotated[float, typer.Option(min=0, max=_MOST)] = 10.0
    accuracy: bool = False
    input_file: Path | None = None
    log_dir: Path | None = None
    extension: list[str] | None = None
    input_shape: list[str] | None = None
    json: bool = False


@loadgen.command(_RUN)
@options.flattened
def run(asked: LoadgenOptions) -> None:
    """Have LoadGen run a scenario on a model, by each transport and path.

    Samples are random without --input. Results are LoadGen's own, by its rules.
    With --accuracy, answers are compared with labels or output_K of the file.

    Exits with 1 if a result is invalid or an execution failed, with 2 on bad
    input.
    """
    _check_rates(asked)
    import anyio

    from asyncnn.tools.loadgen import Scenario, loadgen_module
    from asyncnn.tools.loadgen.judge import JudgedRunOptions, check_log_folder, run_all
    from asyncnn.tools.loadgen.library import Library
    from asyncnn.tools.loadgen.ways import PATHS, SERVED, TRANSPORTS, check_model

    loadgen_module()
    if asked.transport.startswith(SERVED):
        transports, paths = [asked.transport], ["async"]
    else:
        transports = options.chosen("transport", asked.transport, TRANSPORTS)
        paths = options.chosen("path", asked.path, PATHS)
    if asked.log_dir is not None:
        check_log_folder(asked.log_dir)
    loading = options.Loading(extension=asked.extension, input_shape=asked.input_shape)
    named, extensions = loading.load(asked.model, strict=False)
    check_model(named)
    library = (
        Library.random(named)
        if asked.input_file is None
        else Library.read(named, asked.input_file)
    )
    if asked.accuracy:
        library.check_judged()
    order = options.made_of(
        JudgedRunOptions,
        asked,
        model=str(asked.model),
        named=named,
        extensions=extensions,
        extension_places=tuple(asked.extension or ()),
        library=library,
        scenario=Scenario(asked.scenario),
        ways=tuple((each, p) for each in transports for p in paths),
        latency_bound_s=asked.latency_bound_ms / 1000,
    )
    with _interruptible():
        report = options.rounded(anyio.run(run_all, order))
    options.show(report, _print_run, json=asked.json, passed=report.valid)


def _check_rates(asked: LoadgenOptions) -> None:
    options.chosen("scenario", asked.scenario, _SCENARIOS)
    needs_rate = asked.scenario == "Server" and not asked.accuracy
    if needs_rate and asked.target_qps is None:
        raise InvalidArgumentError(
            "a Server run needs the rate of its queries", hint="give --target-qps"
        )
    for value, option in (
        (asked.target_qps, "--target-qps"),
        (asked.latency_bound_ms, "--latency-bound-ms"),
    ):
        if value is not None and not 0 < value <= _MOST:
            raise InvalidArgumentError(
                f"{option} must be positive, and at most {_MOST:,}"
            )


def _print_run(report: "JudgedRunReport") -> None:
    for each in report.runs:
        verdict = each.verdict
        state = "VALID" if verdict.valid else "INVALID"
        line = f"{each.transport}, {each.path}: {verdict.scenario} {state}"
        if each.accuracy is not None:
            found = each.accuracy
            line += (
                f", {found.metric} {found.share:.2%} ({found.right} of {found.answers})"
            )
        else:
            line += (
                f", {verdict.rate:,.1f} samples/s, "
                f"p50 {format_duration(verdict.p50_us)}, "
                f"p90 {format_duration(verdict.p90_us)}, "
                f"p99 {format_duration(verdict.p99_us)}, {verdict.queries:,} queries"
            )
        typer.echo(line)
        for reason in verdict.reasons:
            typer.echo(f"  {reason}")


class LoadgenCompareOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn loadgen compare`` is asked to do.

    models: TFLite files; MobileNets v1 of 96 x 96 if left out.
    scenario NAME,...: What to measure.
    system NAME,...: Systems to measure, or all of them.
    device: Device to run on, one of asyncnn devices.
    queries: Queries of each run.
    passes: Interleaved passes.
    rounds: Passes of SingleStream.
    check: Exit with 1 if a goal is missed.
    json_file --json: Write the report here.
    """

    models: Annotated[list[Path] | None, typer.Argument()] = None
    scenario: str = "SingleStream,Offline,Server,tiny"
    system: str = "all"
    device: str = "accelerated"
    queries: options.Positive = 3000
    passes: options.Positive = 3
    rounds: options.Positive = 5
    check: bool = False
    json_file: Path | None = None


@loadgen.command("compare")
@options.flattened
def compare(asked: LoadgenCompareOptions) -> None:
    """Compare with systems that a user would write, judged by LoadGen.

    Executors around LiteRT, asyncio.to_thread around ONNX Runtime, plain
    threads, and systems that answer at once. Of a Server scenario, the highest
    rate that LoadGen calls valid is searched, with a bound of 20 and 40 times
    what the model takes by itself. Takes minutes.
    """
    import anyio

    from asyncnn.tools.loadgen import loadgen_module
    from asyncnn.tools.loadgen.comparing import SystemsComparison, compared
    from asyncnn.tools.loadgen.comparison_report import SECTIONS, TITLES

    check_writable(asked.json_file)
    loadgen_module()
    names = options.chosen("scenario", asked.scenario, tuple(SECTIONS))
    systems = (
        ()
        if asked.system == "all"
        else tuple(options.chosen("system", asked.system, tuple(TITLES)))
    )
    with ExitStack() as stack:
        files = (
            _files(asked.models) if asked.models else stack.enter_context(_mobilenets())
        )
        comparison = options.made_of(
            SystemsComparison,
            asked,
            models=files,
            sections=tuple(each for name in names for each in SECTIONS[name]),
            systems=systems,
        )
        with _interruptible():
            report = options.rounded(anyio.run(compared, comparison, options.announced))
    where = f"LoadGen {report.loadgen}", str(report.environment)
    options.print_tables(report.tables(), (*report.notes(), *where))
    options.write_json(asked.json_file, report)
    if asked.check and not report.met:
        raise typer.Exit(1)


def _files(models: Sequence[Path]) -> dict[str, Path]:
    for path in models:
        if not call_abandonable(f"looking for {path}", in_one(path.is_file)):
            raise InvalidArgumentError(f"there is no file {path}")
    stems = [path.stem for path in models]
    return {p.stem if stems.count(p.stem) == 1 else str(p): p for p in models}


@contextmanager
def _mobilenets() -> Iterator[dict[str, Path]]:
    """Make small MobileNets, float and quantised."""
    from asyncnn.tools.bench.processes import temporary_folder
    from asyncnn.tools.mobilenets import mobilenet_v1

    with temporary_folder() as folder:
        files = {}
        for kind in ("float", "int8"):
            path = folder / f"mobilenet_v1_96_{kind}.tflite"
            path.write_bytes(
                mobilenet_v1(quantized=kind == "int8", size=96, width=0.25)
            )
            files[path.stem] = path
        yield files


@contextmanager
def _interruptible() -> Iterator[None]:
    """End the process if LoadGen still runs after an interrupt: nothing can stop it."""
    try:
        yield
    except KeyboardInterrupt:
        from asyncnn.tools.loadgen.judge import is_running

        if is_running():
            typer.echo("interrupted", err=True)
            os._exit(EXIT_INTERRUPTED)
        raise
