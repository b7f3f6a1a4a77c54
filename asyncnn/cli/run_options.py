"""The options of ``asyncnn run``, as its arguments and for its work."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from asyncnn.cli import options


class RunOptions(options.LoadingToCompare, frozen=True, kw_only=True):
    """What ``asyncnn run`` is asked to do."""

    model: options.ModelArgument
    input_file: options.SamplesOption = None
    output_file: Annotated[
        Path | None, typer.Option("--output", help="Write output_K to this .npz file.")
    ] = None
    check: Annotated[
        Path | None,
        typer.Option(help="Compare with output_K of this .npz file, or an .npy file."),
    ] = None
    check_key: Annotated[
        str, typer.Option(help="Compare with KEY_K instead of output_K.")
    ] = "output"
    device: Annotated[
        str | None,
        typer.Option(
            help="Device to run on, one of asyncnn devices; by default "
            "$ASYNCNN_DEVICE, or the fastest that works, or reference with --check."
        ),
    ] = None
    socket: Annotated[
        Path | None,
        typer.Option(help="Run in the driver that serves this socket instead."),
    ] = None
    strict: options.StrictOption = False
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="INPUT=OUTPUT",
            help="An input that --session keeps, and its next value; repeatable. By "
            "default those whose names leave no doubt.",
        ),
    ] = None
    path: options.PathOption = "async"
    priority: Annotated[
        Literal["low", "medium", "high"],
        typer.Option(help="Which runs go first, beside others of the same device."),
    ] = "medium"
    deadline_ms: Annotated[
        float | None,
        typer.Option(help="Deadline of each execution, after so many milliseconds."),
    ] = None
    repeat: Annotated[int, typer.Option(min=1, help="Runs of every sample.")] = 1
    session: Annotated[
        bool,
        typer.Option(
            "--session", help="Keep the model's state from one sample to the next."
        ),
    ] = False
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Say which operations are supported, and stop."),
    ] = False
    json: options.JsonOption = False

    @property
    def timeout_s(self) -> float | None:
        """Seconds that each execution has."""
        return None if self.deadline_ms is None else self.deadline_ms / 1000
