"""The work behind ``asyncnn run --explain``."""

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Column, Table

from asyncnn.cli.console import console
from asyncnn.cli.extending import load_extended
from asyncnn.runtime.device import connect, open_device
from asyncnn.runtime.explain import Explanation, OperationReport, explain


async def explain_file(
    path: Path, device: str, socket: Path | None, places: Sequence[str] = ()
) -> Explanation:
    """Explain the model at ``path`` to be run by a device, or by a driver.

    :raises AsyncnnError: if the file is bad, or the device cannot be asked.
    """
    model, extensions = load_extended(path, places)
    opened = (
        open_device(device, extensions=extensions)
        if socket is None
        else connect(socket)
    )
    async with opened as asked:
        return await explain(asked, model, extensions=extensions)


def print_explanation(explanation: Explanation) -> None:
    """Print a table of all operations, why some are not supported, and how many are."""
    if explanation.problem:
        typer.echo(f"the model is refused: {explanation.problem}")
    # Names of extensions can be long: they are folded rather than cut.
    headers = ("", "operation", "type", "needs", "support")
    table = Table(*(Column(header, overflow="fold") for header in headers))
    for report in explanation.operations:
        table.add_row(
            _number(report),
            _in_lines(report.type),
            _in_lines(report.main_type),
            report.since,
            "yes" if report.is_supported else f"no, {report.cause}",
        )
    console().print(table)
    for report in explanation.operations:
        if not report.is_supported:
            typer.echo(f"{report.place}: {report.reason}")
    supported = sum(report.is_supported for report in explanation.operations)
    total = len(explanation.operations)
    typer.echo(f"{explanation.device} supports {supported} of {total} operations")


def _in_lines(name: str) -> str:
    """Return a name of an extension with what it stands in on a line of its own."""
    return name.replace("/", "/\n")


def _number(report: OperationReport) -> str:
    if report.subgraph is None:
        return str(report.index)
    return f"{report.index} of {report.subgraph}"
