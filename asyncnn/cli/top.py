"""``asyncnn top``: what a running driver does."""

from pathlib import Path
from typing import Annotated

import typer

from asyncnn.cli.options import console, print_json
from asyncnn.hal.errors import InvalidArgumentError


def top(
    socket: Annotated[
        Path | None,
        typer.Option(help="Where the driver is; by default a path of this user."),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two snapshots.")
    ] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Look once, as is done in a pipe.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, once.")] = False,
    as_openmetrics: Annotated[
        bool, typer.Option("--openmetrics", help="Print OpenMetrics text, once.")
    ] = False,
) -> None:
    """Show what a running driver does: work, latencies, clients and models."""
    import anyio

    from asyncnn.cli.serving import openmetrics
    from asyncnn.cli.top_report import TopReport
    from asyncnn.cli.top_view import print_once, statistics_of, watch
    from asyncnn.service.process import default_socket_path

    if json and as_openmetrics:
        raise InvalidArgumentError("--json and --openmetrics are two formats")
    path = socket or default_socket_path()
    if json:
        print_json(TopReport.of(anyio.run(statistics_of, path)))
    elif as_openmetrics:
        typer.echo(openmetrics(anyio.run(statistics_of, path)), nl=False)
    elif once or not console().is_terminal:
        print_once(anyio.run(statistics_of, path))
    else:
        anyio.run(watch, path, interval)
