"""``asyncnn record``: the last calls of a running driver as a file."""

from pathlib import Path
from typing import Annotated

import typer

from asyncnn.cli.options import CommandOptions, counted


class RecordOptions(CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn record`` is asked to do.

    socket PATH: Where the driver serves; by default this user's path.
    output FILE: File to write, for this user alone.
    """

    socket: Path | None = None
    output: Annotated[Path, typer.Option()] = Path("driver.calls")


def record(asked: RecordOptions) -> None:
    """Write the last calls of a running driver, also of one that hangs, to a file."""
    from asyncnn.output_files import check_writable
    from asyncnn.service.process import default_socket_path, driver_pid
    from asyncnn.service.recorded_memory import open_memory
    from asyncnn.service.recording import save_memory

    check_writable(asked.output)
    fd = open_memory(driver_pid(asked.socket or default_socket_path()))
    written = save_memory(fd, asked.output)
    typer.echo(f"{counted(len(written.calls), 'call')} in {asked.output}")
