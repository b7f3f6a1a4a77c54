"""The work behind ``asyncnn run --explain``."""

from pathlib import Path

import typer
from rich.table import Table

from asyncnn.cli.console import console
from asyncnn.runtime.device import connect, open_device
from asyncnn.runtime.explain import Explanation, OperationReport, explain
from asyncnn.runtime.loading import load


async def explain_file(path: Path, device: str, socket: Path | None) -> Explanation:
    """Explain the model at ``path`` to be run by a device, or by a driver.

    :raises AsyncnnError: if the file is bad, or the device cannot be asked.
    """
    model = load(path)
    async with open_device(device) if socket is None else connect(socket) as opened:
        return await explain(opened, model)


def print_explanation(explanation: Explanation) -> None:
    """Print a table of all operations, and how many are supported."""
    if explanation.problem:
        typer.echo(f"the model is refused: {explanation.problem}")
    table = Table("operation", "", "type", "needs", "support")
    for report in explanation.operations:
        table.add_row(
            _number(report),
            report.type,
            report.main_type,
            report.since,
            "yes" if report.is_supported else f"no, {report.cause}: {report.reason}",
        )
    console().print(table)
    supported = sum(report.is_supported for report in explanation.operations)
    total = len(explanation.operations)
    typer.echo(f"{explanation.device} supports {supported} of {total} operations")


def _number(report: OperationReport) -> str:
    if report.subgraph is None:
        return str(report.index)
    return f"{report.index} of {report.subgraph}"
