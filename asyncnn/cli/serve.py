"""``asyncnn serve``: the driver as a process of its own."""

import os
import signal
import stat
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer

from asyncnn.cli.console import console
from asyncnn.errors import InvalidArgumentError
from asyncnn.runtime.device import open_device
from asyncnn.service.paths import default_socket_path, socket_address
from asyncnn.service.server import Server


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
    anyio.run(_serve, path, device, tuple(allow_uid or ()), until_eof)


async def _serve(
    path: Path, name: str, allowed_uids: tuple[int, ...], until_eof: bool
) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            open_device(name) as device,
            Server(device.hal, path, allowed_uids=allowed_uids),
            anyio.create_task_group() as group,
        ):
            console().print(f"serving {name} at {path}", soft_wrap=True)
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
