"""``asyncnn top``: what a running driver does."""

from pathlib import Path
from typing import Annotated

import typer

from asyncnn.cli.options import CommandOptions, console, print_json
from asyncnn.hal.errors import InvalidArgumentError


class TopOptions(CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn top`` is asked to do.

    socket: Where the driver is; by default a path of this user.
    interval: Seconds between two snapshots.
    once: Look once, as is done in a pipe.
    json: Print JSON, once.
    as_openmetrics --openmetrics: Print OpenMetrics text, once.
    web PORT: Serve a page to watch it by in a browser, on this port; 0 is any.
    host: Where --web listens, an address or name of this machine; 127.0.0.1 unless
        given.
    """

    socket: Path | None = None
    interval: Annotated[float, typer.Option(min=0.1)] = 1.0
    once: bool = False
    json: bool = False
    as_openmetrics: bool = False
    web: Annotated[int | None, typer.Option(min=0, max=65535)] = None
    host: str | None = None


def top(asked: TopOptions) -> None:
    """Show what a running driver does: work, latencies, clients and models."""
    import anyio

    from asyncnn.cli.serving import openmetrics
    from asyncnn.cli.top_changes import TopReport, statistics_of
    from asyncnn.cli.top_terminal import watch
    from asyncnn.cli.top_view import print_once
    from asyncnn.service.process import default_socket_path

    _refuse_contradictions(asked)
    path = asked.socket or default_socket_path()
    if asked.web is not None:
        from asyncnn.cli.top_web import serve_page
        from asyncnn.http_server import LOOPBACK

        anyio.run(serve_page, path, asked.interval, asked.web, asked.host or LOOPBACK)
    elif asked.json:
        print_json(TopReport.of(anyio.run(statistics_of, path)))
    elif asked.as_openmetrics:
        typer.echo(openmetrics(anyio.run(statistics_of, path)), nl=False)
    elif asked.once or not console().is_terminal:
        print_once(anyio.run(statistics_of, path))
    else:
        anyio.run(watch, path, asked.interval)


def _refuse_contradictions(asked: TopOptions) -> None:
    """Refuse options that have no meaning together.

    :raises InvalidArgumentError: if there are any.
    """
    if asked.json and asked.as_openmetrics:
        raise InvalidArgumentError("--json and --openmetrics are two formats")
    looks_once = asked.json or asked.as_openmetrics or asked.once
    if asked.web is not None and looks_once:
        raise InvalidArgumentError(
            "--web goes on; --once, --json and --openmetrics look once"
        )
    if asked.host is not None and asked.web is None:
        raise InvalidArgumentError("--host is where --web listens, which is missing")
