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
    web: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve a page to watch it by in a browser, on this port; 0 is any.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Where --web listens: an address or name of this machine."),
    ] = None,
) -> None:
    """Show what a running driver does: work, latencies, clients and models."""
    import anyio

    from asyncnn.cli.serving import openmetrics
    from asyncnn.cli.top_changes import statistics_of
    from asyncnn.cli.top_report import TopReport
    from asyncnn.cli.top_terminal import watch
    from asyncnn.cli.top_view import print_once
    from asyncnn.service.process import default_socket_path

    _refuse_contradictions(json, as_openmetrics, once, web, host)
    path = socket or default_socket_path()
    if web is not None:
        from asyncnn.cli.top_web import serve_page
        from asyncnn.http_server import LOOPBACK

        anyio.run(serve_page, path, interval, web, host or LOOPBACK)
    elif json:
        print_json(TopReport.of(anyio.run(statistics_of, path)))
    elif as_openmetrics:
        typer.echo(openmetrics(anyio.run(statistics_of, path)), nl=False)
    elif once or not console().is_terminal:
        print_once(anyio.run(statistics_of, path))
    else:
        anyio.run(watch, path, interval)


def _refuse_contradictions(
    json: bool, as_openmetrics: bool, once: bool, web: int | None, host: str | None
) -> None:
    """Refuse options that have no meaning together.

    :raises InvalidArgumentError: if there are any.
    """
    if json and as_openmetrics:
        raise InvalidArgumentError("--json and --openmetrics are two formats")
    if web is not None and (json or as_openmetrics or once):
        raise InvalidArgumentError(
            "--web goes on; --once, --json and --openmetrics look once"
        )
    if host is not None and web is None:
        raise InvalidArgumentError("--host is where --web listens, which is missing")
