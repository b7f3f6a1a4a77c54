"""``asyncnn run``: a model file on every sample of an input file."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from asyncnn.cli import options
from asyncnn.cli.graph import explain as explain_file
from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Priority
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.cli.model_runs import PathReport, RunReport


_OutputFileOption: TypeAlias = Annotated[
    Path | None, typer.Option("--output", help="Write output_K to this .npz file.")
]
_CheckOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Compare with output_K of this .npz file, or an .npy file."),
]
_CheckKeyOption: TypeAlias = Annotated[
    str, typer.Option(help="Compare with KEY_K instead of output_K.")
]
_DeviceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Device to run on, one of asyncnn devices; by default "
        "$ASYNCNN_DEVICE, or the fastest that works, or reference with --check."
    ),
]
_SocketOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="Run in the driver that serves this socket instead."),
]
_StateOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT",
        help="An input that --session keeps, and its next value; repeatable. By "
        "default those whose names leave no doubt.",
    ),
]
_PriorityOption: TypeAlias = Annotated[
    Literal["low", "medium", "high"],
    typer.Option(help="Which runs go first, beside others of the same device."),
]
_DeadlineMsOption: TypeAlias = Annotated[
    float | None,
    typer.Option(help="Deadline of each execution, after so many milliseconds."),
]
_SessionOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--session", help="Keep the model's state from one sample to the next."
    ),
]
_ExplainOption: TypeAlias = Annotated[
    bool,
    typer.Option("--explain", help="Say which operations are supported, and stop."),
]


def run(
    model: options.ModelArgument,
    input_file: options.SamplesOption = None,
    output_file: _OutputFileOption = None,
    check: _CheckOption = None,
    check_key: _CheckKeyOption = "output",
    device: _DeviceOption = None,
    socket: _SocketOption = None,
    extension: options.ExtensionOption = None,
    input_shape: options.InputShapeOption = None,
    constant: options.ConstantOption = None,
    strict: options.StrictOption = False,
    state: _StateOption = None,
    path: options.PathOption = "async",
    priority: _PriorityOption = "medium",
    deadline_ms: _DeadlineMsOption = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of every sample.")] = 1,
    lsb: options.LsbOption = 1,
    rtol: options.RtolOption = None,
    atol: options.AtolOption = None,
    session: _SessionOption = False,
    explain: _ExplainOption = False,
    json: options.JsonOption = False,
) -> None:
    """Run a model file on every sample of an input file, on each path.

    Without --input, one random sample is run. State starts from zero, or what
    the model says, for every sample unless --session is given: then all samples
    of a path are the steps of one session.

    Exits with 1 if --check finds an output out of tolerance, --explain finds an
    operation that is not supported, or an execution fails, misses its deadline,
    runs out of resources or loses its driver; with 2 on bad input.
    """
    loading = (extension or (), input_shape or (), constant or ())
    if explain:
        explain_file(model, device, socket, *loading, strict=strict, json=json)
        return
    _check_repeats(session, repeat)
    _check_deadline(deadline_ms)
    check_writable(output_file)
    import anyio

    from asyncnn.cli.model_runs import PATHS, RunOptions, run_model
    from asyncnn.tools.samples import Tolerance

    asked = RunOptions(
        model=model,
        input_file=input_file,
        output_file=output_file,
        check_file=check,
        check_key=check_key,
        device=device,
        socket=socket,
        extensions=tuple(loading[0]),
        strict=strict,
        input_shapes=tuple(loading[1]),
        constants=tuple(loading[2]),
        states=tuple(state or ()),
        paths=tuple(PATHS[name] for name in options.chosen("path", path, tuple(PATHS))),
        priority=Priority[priority.upper()],
        timeout=None if deadline_ms is None else deadline_ms / 1000,
        repeat=repeat,
        session=session,
        tolerance=Tolerance.asked(lsb, rtol, atol),
    )
    _show(options.rounded(anyio.run(run_model, asked)), json=json)


def _check_repeats(session: bool, repeat: int) -> None:
    if session and repeat > 1:
        raise InvalidArgumentError(
            f"--session with --repeat {repeat}: a session takes one step for each "
            "sample",
            hint="leave out one of them",
        )


def _check_deadline(deadline_ms: float | None) -> None:
    if deadline_ms is not None and not 0 < deadline_ms < math.inf:
        raise InvalidArgumentError(
            f"--deadline-ms {deadline_ms:g} is no time to come",
            hint="give milliseconds, more than 0",
        )


def _show(report: "RunReport", *, json: bool) -> None:
    """Print a report, and exit with 1 if an output is out of tolerance."""
    if json:
        options.print_json(report)
    else:
        typer.echo(f"on {report.device}, version {report.version}")
        for path_report in report.paths:
            _print_path(path_report)
            _print_route(path_report, report.device)
        if report.first_difference:
            typer.echo(report.first_difference)
    if not report.passed:
        raise typer.Exit(1)


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
