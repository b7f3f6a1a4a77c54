"""``asyncnn run`` and ``asyncnn demo``: a model file, or bundled ones, on samples."""

import math
from typing import TYPE_CHECKING

import typer

from asyncnn.cli import options
from asyncnn.cli.graph import explain as explain_file
from asyncnn.cli.run_options import RunOptions
from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.cli.model_runs import PathReport, RunReport


def run(asked: RunOptions) -> None:
    """Run a model file on every sample of an input file, on each path.

    Without --input, one random sample is run. State starts from zero, or what
    the model says, for every sample unless --session is given: then all samples
    of a path are the steps of one session.

    Exits with 1 if --check finds an output out of tolerance, --explain finds an
    operation that is not supported, or an execution fails, misses its deadline,
    runs out of resources or loses its driver; with 2 on bad input.
    """
    if asked.explain:
        explain_file(asked)
        return
    if asked.session and asked.repeat > 1:
        raise InvalidArgumentError(
            f"--session with --repeat {asked.repeat}: a session takes one step for "
            "each sample",
            hint="leave out one of them",
        )
    deadline_ms = asked.deadline_ms
    if deadline_ms is not None and not 0 < deadline_ms < math.inf:
        raise InvalidArgumentError(
            f"--deadline-ms {deadline_ms:g} is no time to come",
            hint="give milliseconds, more than 0",
        )
    asked.tolerance()
    check_writable(asked.output_file)
    import anyio

    from asyncnn.cli.model_runs import run_model

    report = options.rounded(anyio.run(run_model, asked))
    options.show(report, _print, json=asked.json, passed=report.passed)


def _print(report: "RunReport") -> None:
    typer.echo(f"on {report.device}, version {report.version}")
    for path_report in report.paths:
        _print_path(path_report)
        _print_route(path_report, report.device)
    if report.first_difference:
        typer.echo(report.first_difference)


def _print_path(report: "PathReport") -> None:
    verdicts = {True: ", all within tolerance", False: ", OUT OF TOLERANCE", None: ""}
    typer.echo(
        f"{report.path}: {options.counted(report.samples, 'sample')}"
        f"{_times(report)}{verdicts[report.passed]}"
    )
    for line in report.mismatches:
        typer.echo(f"  {line}")


def _print_route(report: "PathReport", device: str) -> None:
    """Print who has computed, unless that was who was named."""
    named = device.partition(":")[2].split(",")
    if report.fell_back or any(step.device not in named for step in report.route):
        for line in dict.fromkeys(map(str, report.route)):
            typer.echo(f"  {line}")


def _times(report: "PathReport") -> str:
    """Return the time of the only run, or the first one's apart from the others."""
    first, p50, p99 = map(
        format_duration,
        (report.first_run_us, report.latency_us_p50, report.latency_us_p99),
    )
    if report.runs == 1:
        return f" in {first}"
    others = p50 if report.runs == 2 else f"p50 {p50}, p99 {p99}"
    return f", first run {first}, then {others}"


class DemoOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn demo`` is asked to do."""

    json: bool = False


def demo(asked: DemoOptions) -> None:
    """Classify handwritten digits with a float and a quantised model.

    Prints accuracy, a confusion picture and latency for every path; fails if the
    accuracy is below its floor.
    """
    import anyio

    from asyncnn.tools.demo import run_demo

    result = anyio.run(run_demo, options.console(), asked.json)
    if asked.json:
        options.print_json(result)
    if not result.passed:
        raise typer.Exit(1)
