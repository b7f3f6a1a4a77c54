"""``asyncnn serve``: the driver as a process of its own."""

import signal
from pathlib import Path
from typing import Annotated

import anyio
import typer

from asyncnn.cli.console import console
from asyncnn.runtime.device import open_device
from asyncnn.service.paths import default_socket_path
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
) -> None:
    """Publish a device on a Unix-domain socket until interrupted."""
    anyio.run(_serve, socket or default_socket_path(), device, tuple(allow_uid or ()))


async def _serve(path: Path, name: str, allowed_uids: tuple[int, ...]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with (
            open_device(name) as device,
            Server(device.hal, path, allowed_uids=allowed_uids),
        ):
            console().print(f"serving {name} at {path}", soft_wrap=True)
            async for _ in signals:
                break
