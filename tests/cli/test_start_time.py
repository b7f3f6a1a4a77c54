"""How long one waits for the version, and for the first result of a driver process.

Both beside what no program in Python can do without, in interleaved rounds; ``-s``
shows the figures.
"""

import os
import time
from collections.abc import Callable
from statistics import median

import pytest

from tests.processes import python

pytestmark = [pytest.mark.exhaustive, pytest.mark.alone]

ROUNDS = 9

INTERPRETER = "pass"
LIBRARIES = "import asyncio, msgspec, numpy"
VERSION = (
    "from asyncnn.cli import main; import sys; sys.argv[1:] = ['--version']; main()"
)
FIRST_RESULT = """
import asyncio, time
import asyncnn
import numpy as np

async def main():
    model = asyncnn.load(asyncnn.bundled_file("digits_float.asyncnn"))
    image = np.zeros((1, 8, 8, 1), np.float32)
    started = time.perf_counter()
    async with asyncnn.connect() as device:
        prepared = await device.prepare(model)
        await prepared.run(image)
        print(time.perf_counter() - started)

asyncio.run(main())
"""


def run(code: str) -> str:
    # Bytecode is kept, as it is of what is installed.
    kept = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    return python("-c", code, env=kept, check=True).stdout


def seconds_of(code: str) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        run(code)
        return time.perf_counter() - started

    return measure


def until_first_result() -> float:
    return float(run(FIRST_RESULT))


@pytest.mark.parametrize(
    ("measure", "least", "limit"),
    [
        pytest.param(seconds_of(VERSION), INTERPRETER, 2.0, id="version"),
        pytest.param(until_first_result, LIBRARIES, 3.0, id="first result"),
    ],
)
def test_one_does_not_wait_long(
    measure: Callable[[], float], least: str, limit: float
) -> None:
    others = seconds_of(least)
    measure(), others()
    rounds = [(measure(), others()) for _ in range(ROUNDS)]
    ours, theirs = (median(times) * 1000 for times in zip(*rounds, strict=True))
    ratio = median(mine / other for mine, other in rounds)
    print(f"{ours:.0f} ms, {least!r} {theirs:.0f} ms, ratio {ratio:.2f}")  # noqa: T201
    assert ratio < limit
