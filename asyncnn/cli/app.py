"""The ``asyncnn`` command and the border where errors become one line."""

import signal
import sys
from collections.abc import MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from asyncnn import __version__, hal
from asyncnn.cli.ending import INTERRUPTED, handling_interrupts, output_ending
from asyncnn.cli.options import flattened, naming_options
from asyncnn.hal.errors import ExecutionFailedError, PreparationFailedError
from asyncnn.logs import EXIT_BAD_INPUT, EXIT_FAILED, errors_as_lines
from asyncnn.tracing import join_recording, recording

_FAILURES = (
    ExecutionFailedError,
    hal.MissedDeadlineError,
    hal.ResourceExhaustedError,
    hal.DriverDiedError,
    PreparationFailedError,
)
"""Errors of devices at work; others are of bad input."""


COMMANDS = {
    name: f"asyncnn.cli.{module}:{function}"
    for name, (module, function) in {
        "demo": ("run", "demo"),
        "run": ("run", "run"),
        "inspect": ("inspecting", "inspect"),
        "compare": ("compare", "compare"),
        "diff": ("diff", "diff"),
        "serve": ("serve", "serve"),
        "record": ("replay", "record"),
        "replay": ("replay", "replay"),
        "top": ("top", "top"),
        "devices": ("devices", "devices"),
        "capabilities": ("devices", "capabilities"),
        "conformance": ("conformance", "conformance"),
        "mlts": ("mlts", "mlts"),
        "graph": ("graph", "graph"),
        "profile": ("profile", "profile"),
        "fuzz": ("fuzz", "fuzz"),
        "bench": ("app", "benchmarks"),
        "loadgen": ("loadgen", "loadgen"),
        "stress": ("stress", "stress"),
        "simulate": ("simulate", "simulations"),
    }.items()
}
"""Where the function of each command is, or the `typer.Typer` of those below it."""


class _Commands(TyperGroup):
    """Imports a command when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, None if there is none of the name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].partition(":")
        found: Any = getattr(import_module(module), attribute)
        if isinstance(found, typer.Typer):
            return _group_raising_interrupts(get_group(found))
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(flattened(found))
        return _raising_interrupts(get_command(alone))


def _raising_interrupts(command: Any) -> Any:
    """Have interrupts raised once a command has begun, so that it can clean up."""
    invoke = command.invoke

    def invoke_raising(context: Any) -> Any:
        with handling_interrupts(signal.default_int_handler):
            return invoke(context)

    command.invoke = invoke_raising
    return command


def _group_raising_interrupts(group: Any) -> Any:
    """Do so for each of its commands."""
    find = group.get_command

    def find_raising(context: Any, name: str) -> Any:
        command = find(context, name)
        return None if command is None else _raising_interrupts(command)

    group.get_command = find_raising
    return group


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


benchmarks = typer.Typer(
    name="bench",
    cls=_Benchmarks,
    help="Measure beside peers, in one run.",
    no_args_is_help=True,
    add_completion=False,
)
app = typer.Typer(
    name="asyncnn",
    cls=_Commands,
    help="An asyncio-native driver for the Android Neural Networks HAL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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

    The status is 1 if a device failed at its work, and 2 otherwise.
    """
    with errors_as_lines(_FAILURES), naming_options(), output_ending():
        join_recording(" ".join(["asyncnn", *sys.argv[1:2]]))
        try:
            # Typer asks the file system for each path, which may never answer.
            with handling_interrupts(signal.SIG_DFL):
                status = app(standalone_mode=False)
        except typer.Abort:
            status = EXIT_FAILED
        except _UsageError as error:
            status = _refused(error)
    if status in INTERRUPTED:
        typer.echo("interrupted", err=True)
    sys.exit(status if isinstance(status, int) else 0)


_UsageError: Any = typer.BadParameter.__base__
"""Of a command line that cannot be understood; typer has it under no name."""


def _refused(error: Any) -> int:
    """Say in one line what is wrong with the command line; return the exit status."""
    message = " ".join(error.format_message().split()).removesuffix(".")
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return EXIT_BAD_INPUT
    message = message.replace("Value error, ", "")
    path = "asyncnn" if error.ctx is None else error.ctx.command_path
    path = path.replace("python -m asyncnn", "asyncnn")
    typer.echo(f"asyncnn: {message} ({path} -h shows what there is)", err=True)
    return EXIT_BAD_INPUT
