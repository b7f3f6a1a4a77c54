"""What names of strangers can do to a terminal: nothing."""

import pytest
from msgspec.structs import replace
from rich.console import Group
from rich.table import Table

from asyncnn.cli.options import console, printable
from asyncnn.cli.top_changes import Changes, LiveDevice
from asyncnn.cli.top_view import picture
from asyncnn.devices import ReferenceDevice

HOSTILE = "x\x1b]0;title\x07\x1b[2J\r\x9b31my\u202e"
SHOWN = "x ]0;title  [2J  31my"


@pytest.mark.parametrize("markup", [False, True])
def test_tables_and_lines_show_names_and_obey_none(
    markup: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Table(HOSTILE, title=HOSTILE)
    table.add_row(HOSTILE)
    out = console(markup=markup, width=60)
    out.print(table)
    out.print(HOSTILE, Group(HOSTILE), highlight=False)
    printed = capsys.readouterr().out
    assert printed.count(SHOWN) == 5
    assert not {"\x1b", "\x07", "\r", "\x9b", "\u202e"}.intersection(printed)


def test_a_text_that_can_be_printed_is_as_it_was() -> None:
    assert printable("two\nlines, naïve \u4e16") == "two\nlines, naïve \u4e16"
    assert printable("not\ttext\udcff") == "not text "


async def test_top_obeys_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    async with ReferenceDevice() as device:
        statistics = replace(device.statistics(), device=HOSTILE)
    changes = Changes()
    changes.look(0.0)
    console(width=120).print(picture(LiveDevice.of(statistics, changes)))
    printed = capsys.readouterr().out
    assert SHOWN in printed
    assert "\x1b" not in printed
