"""Runs the command line in this process."""

import sys
from collections.abc import Callable

import msgspec
import pytest

from asyncnn.cli import main


class Ran(msgspec.Struct, frozen=True):
    """How a command ended and what it printed."""

    status: int
    out: str
    err: str


@pytest.fixture
def asyncnn_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    def command(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["asyncnn", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as exit_:
            status = (
                exit_.code if isinstance(exit_.code, int) else int(bool(exit_.code))
            )
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return command
