"""The ``asyncnn`` command and the border where errors become one line."""

import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

from asyncnn import __version__
from asyncnn.cli.compare import compare
from asyncnn.cli.conformance import conformance
from asyncnn.cli.demo import demo
from asyncnn.cli.devices import capabilities, devices
from asyncnn.cli.graph import graph
from asyncnn.cli.inspecting import inspect
from asyncnn.cli.run import run
from asyncnn.cli.serve import serve
from asyncnn.cli.top import top
from asyncnn.hal.errors import (
    DriverDiedError,
    MissedDeadlineError,
    ResourceExhaustedError,
)
from asyncnn.logs import errors_as_lines
from asyncnn.tracing import join_recording, recording

_FAILURES = (MissedDeadlineError, ResourceExhaustedError, DriverDiedError)
"""Errors of executions that may succeed another time; others are of bad input."""


class _Benchmarks(TyperGroup):
    """Imports the benchmarks, and what they measure, when their names are asked for."""

    @property
    def commands(self) -> MutableMapping[str, Any]:
        """The benchmarks by name."""
        from asyncnn.cli.bench import bench_app

        return get_group(bench_app).commands

    @commands.setter
    def commands(self, commands: MutableMapping[str, Any]) -> None:
        """Ignore that none are known at first."""


app = typer.Typer(
    name="asyncnn",
    help="An asyncio-native driver for the Android Neural Networks HAL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(demo)
app.command()(run)
app.command()(inspect)
app.command()(compare)
app.command()(serve)
app.command()(top)
app.command()(devices)
app.command()(capabilities)
app.command()(conformance)
app.command()(graph)
app.add_typer(
    typer.Typer(
        cls=_Benchmarks, help="Measure beside peers, in one run.", no_args_is_help=True
    ),
    name="bench",
)


def _show_version(value: bool) -> None:
    if value:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show version."
    ),
    trace: Annotated[
        Path | None,
        typer.Option(
            help="Write where the time goes to this file, to be opened in Perfetto."
        ),
    ] = None,
) -> None:
    """Apply options that hold for every command."""
    if trace is not None:
        name = f"asyncnn {context.invoked_subcommand}"
        context.with_resource(recording(trace, name))


def main() -> None:
    """Run the command line; errors of the family become one line.

    The status is 1 if an execution failed on its way, and 2 otherwise.
    """
    join_recording(" ".join(["asyncnn", *sys.argv[1:2]]))
    with errors_as_lines(_FAILURES):
        app()
