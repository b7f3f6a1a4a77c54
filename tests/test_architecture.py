"""docs/architecture.md says what is so: the run that it follows, floors, places."""

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import numpy as np

import asyncnn
from asyncnn.devices import DeviceSettings
from tests.test_contributing import ARCHITECTURE, MENTIONED
from tests.test_floors import FLOORS

FEWEST_PLACES = 30
PACKAGE = Path(asyncnn.__file__).parent


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading, without its head."""
    _, _, text = ARCHITECTURE.partition(f"## {heading}\n")
    lines = re.findall(r"^\| .*", text.partition("\n## ")[0], re.M)
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines][
        1:
    ]


@contextmanager
def entered() -> Iterator[list[tuple[str, str]]]:
    """Collect the functions of the package that are entered, of new threads as well."""
    passed: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        path = Path(code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            passed.append((f"asyncnn/{path.relative_to(PACKAGE)}", code.co_qualname))

    before, of_threads = sys.getprofile(), threading.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield passed
    finally:
        sys.setprofile(before)
        threading.setprofile(of_threads)


async def test_a_run_passes_these_functions_in_this_order() -> None:
    model = asyncnn.load(asyncnn.bundled_file("digits_float.asyncnn"))
    image = np.zeros((1, 8, 8, 1), np.float32)
    settings = DeviceSettings(inline_below_us=0)
    with entered() as passed:
        async with asyncnn.open_device("reference", settings=settings) as device:
            prepared = await device.prepare(model)
            for _ in range(5):
                await prepared.run(image)
            passed.clear()
            await prepared.run(image)
            steps = iter(tuple(passed))
    said = re.findall(MENTIONED, str(rows("The life of a request")))
    assert len(said) >= 10
    assert [each for each in said if each not in steps] == []  # in this order


def test_each_part_is_on_its_floor() -> None:
    floors = {
        path.removeprefix("asyncnn/").removesuffix("/").removesuffix(".py"): int(floor)
        for floor, parts, *_ in rows("What may import what")
        for path, _ in re.findall(MENTIONED, parts)
    }
    assert floors == FLOORS


def test_each_change_has_a_place() -> None:
    changes = rows("I want to change")
    assert len(changes) >= FEWEST_PLACES
    assert all(re.findall(MENTIONED, place) for _, place in changes)
