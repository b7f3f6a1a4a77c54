"""Settings of devices as options of commands."""

from typing import Annotated

import typer

SettingOption = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        metavar="NAME=VALUE",
        help="A setting of the device; repeatable. Goes before those of a file.",
    ),
]
