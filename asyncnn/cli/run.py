"""``asyncnn run``: a model file on every sample of an input file."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, get_args

import anyio
import typer

from asyncnn.cli.checking import HAL_RTOL, Tolerance
from asyncnn.cli.console import print_json
from asyncnn.cli.explaining import explain_file, print_explanation
from asyncnn.cli.extending import ExtensionOption
from asyncnn.cli.running import PathReport, RunOptions, run_model
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Priority
from asyncnn.runtime.prepared import AnyPath
from asyncnn.runtime.prepared import Path as HalPath

_PATHS: dict[str, AnyPath] = {"burst": "burst"}
_PATHS.update((path, path) for path in get_args(HalPath))


class PriorityName(StrEnum):
    """Names of `Priority` on the command line."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


def run(
    model: Annotated[Path, typer.Argument(help="A .tflite or .asyncnn file.")],
    input_file: Annotated[
        Path | None,
        typer.Option("--input", help="An .npz file with input_K or input_K.NAME."),
    ] = None,
    output_file: Annotated[
        Path | None, typer.Option("--output", help="Write output_K to this .npz file.")
    ] = None,
    check: Annotated[
        Path | None, typer.Option(help="Compare with output_K of this .npz file.")
    ] = None,
    check_key: Annotated[
        str, typer.Option(help="Compare with KEY_K instead of output_K.")
    ] = "output",
    device: Annotated[str, typer.Option(help="Device to run on.")] = "reference",
    socket: Annotated[
        Path | None,
        typer.Option(help="Run in the driver that serves this socket instead."),
    ] = None,
    extension: ExtensionOption = None,
    path: Annotated[
        str, typer.Option(help="HAL calls to use, separated by commas.")
    ] = "async",
    priority: Annotated[PriorityName, typer.Option()] = PriorityName.MEDIUM,
    deadline_ms: Annotated[
        float | None, typer.Option(help="Deadline of each execution.")
    ] = None,
    repeat: Annotated[int, typer.Option(min=1, help="Runs of every sample.")] = 1,
    lsb: Annotated[
        int, typer.Option(min=0, help="Steps that quantised outputs may be off.")
    ] = 1,
    rtol: Annotated[
        float, typer.Option(help="Relative tolerance of float outputs.")
    ] = HAL_RTOL,
    atol: Annotated[
        float | None,
        typer.Option(help="Absolute tolerance, times the largest output beyond 1."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say which operations are supported, and stop."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a model file on every sample of an input file, on each path.

    Exits with 1 if --check finds an output out of tolerance, or --explain an operation
    that is not supported; with 2 on bad input.
    State starts from zero for every sample. Without --input, one random sample is run.
    """
    if explain:
        _explain(model, device, socket, extension or (), json=json)
        return
    options = RunOptions(
        model=model,
        input_file=input_file,
        output_file=output_file,
        check_file=check,
        check_key=check_key,
        device=device,
        socket=socket,
        extensions=tuple(extension or ()),
        paths=_paths(path),
        priority=Priority[priority.name],
        timeout=None if deadline_ms is None else deadline_ms / 1000,
        repeat=repeat,
        tolerance=(
            Tolerance(lsb, rtol)
            if atol is None
            else Tolerance(lsb, rtol, atol, scales_atol=True)
        ),
    )
    report = anyio.run(run_model, options)
    if json:
        print_json(report)
    else:
        for path_report in report.paths:
            _print_path(path_report)
        if report.first_difference:
            typer.echo(report.first_difference)
    if not report.passed:
        raise typer.Exit(1)


def _explain(
    model: Path,
    device: str,
    socket: Path | None,
    extensions: Sequence[str],
    *,
    json: bool,
) -> None:
    explanation = anyio.run(explain_file, model, device, socket, extensions)
    if json:
        print_json(explanation)
    else:
        print_explanation(explanation)
    if not explanation.is_supported:
        raise typer.Exit(1)


def _paths(names: str) -> tuple[AnyPath, ...]:
    asked = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if name not in _PATHS]
    if unknown or not asked:
        raise InvalidArgumentError(
            f"there is no path {', '.join(unknown) or repr(names)}",
            hint=f"known: {', '.join(_PATHS)}",
        )
    return tuple(_PATHS[name] for name in asked)


def _print_path(report: PathReport) -> None:
    typer.echo(
        f"{report.path}: {report.samples} samples, "
        f"p50 {report.latency_us_p50:.0f} us, p99 {report.latency_us_p99:.0f} us"
        + ("" if report.passed is None else _verdict(report))
    )
    for line in report.mismatches:
        typer.echo(f"  {line}")


def _verdict(report: PathReport) -> str:
    return ", all within tolerance" if report.passed else ", OUT OF TOLERANCE"
