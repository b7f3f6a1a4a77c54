"""``asyncnn serve``: the driver as a process of its own."""

import os
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Annotated

import anyio
import typer

from asyncnn.cli.console import console
from asyncnn.cli.extending import ExtensionOption
from asyncnn.cli.metrics import metrics_served
from asyncnn.errors import InvalidArgumentError
from asyncnn.extensions import load_extension
from asyncnn.hal.interfaces import IDevice
from asyncnn.runtime.device import Device, open_device
from asyncnn.service.driver.server import Server
from asyncnn.service.paths import default_socket_path, socket_address


def serve(
    socket: Annotated[
        Path | None,
        typer.Option(help="Where clients connect; by default a path of this user."),
    ] = None,
    device: Annotated[str, typer.Option(help="Device to publish.")] = "reference",
    allow_uid: Annotated[
        list[int] | None,
        typer.Option(help="Another user whose processes may connect; repeatable."),
    ] = None,
    trust_same_uid: Annotated[
        bool,
        typer.Option(
            "--trust-same-uid",
            help="Map files of this user that could be truncated instead of copying.",
        ),
    ] = False,
    extension: ExtensionOption = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve metrics for Prometheus on this port of 127.0.0.1; 0 is any.",
        ),
    ] = None,
    until_eof: Annotated[
        bool,
        typer.Option(
            "--until-eof",
            help="End when standard input does: with the process that started this.",
        ),
    ] = False,
) -> None:
    """Publish a device on a Unix-domain socket until interrupted."""
    path = socket or default_socket_path()
    socket_address(path)
    if until_eof and not stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        raise InvalidArgumentError("--until-eof needs a pipe as standard input")
    extensions = [load_extension(place) for place in extension or ()]
    opened = open_device(device, extensions=extensions)
    publish = partial(
        Server,
        path=path,
        allowed_uids=tuple(allow_uid or ()),
        trust_same_uid=trust_same_uid,
    )
    anyio.run(_serve, path, opened, publish, metrics_port, until_eof)


async def _serve(
    path: Path,
    opened: AbstractAsyncContextManager[Device],
    publish: Callable[[IDevice], Server],
    metrics_port: int | None,
    until_eof: bool,
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            opened as device,
            publish(device.hal),
            metrics_served(device, metrics_port),
            anyio.create_task_group() as group,
        ):
            console().print(f"serving {device.name} at {path}", soft_wrap=True)
            if until_eof:
                group.start_soon(_standard_input_ended, group.cancel_scope)
            async for _ in signals:
                group.cancel_scope.cancel()


async def _standard_input_ended(scope: anyio.CancelScope) -> None:
    descriptor = sys.stdin.fileno()
    while True:
        await anyio.wait_readable(descriptor)
        if not os.read(descriptor, 4096):
            scope.cancel()
            return
