"""Runs of a tiny model, counted in the functions of this package that they pass."""

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import numpy as np

import asyncnn
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service.process import driver_process
from tests.networks import addition

ROOT = f"{Path(asyncnn.__file__).parent}/"
WARM_RUNS = 60
COUNTED_RUNS = 15
X = np.arange(4, dtype=np.float32)

Run = Callable[[PreparedModel], Awaitable[object]]


async def run(prepared: PreparedModel) -> object:
    return await prepared.run([X, X])


async def run_fenced(prepared: PreparedModel) -> object:
    return await prepared.run_fenced([X, X])


async def calls_of(run: Run, prepared: PreparedModel) -> list[str]:
    """Return the functions that the shortest of several warm runs enters, in order."""
    calls: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_qualname == "_Asked._thread_id":
            return  # a call that only loops cost that do not tell their thread: uvloop
        if event == "call" and code.co_filename.startswith(ROOT):
            name = code.co_filename.removeprefix(ROOT)
            calls.append(f"{name}:{code.co_qualname}")

    shortest: list[str] | None = None
    for number in range(WARM_RUNS + COUNTED_RUNS):
        calls.clear()
        if number >= WARM_RUNS:
            sys.setprofile(note)
        try:
            await run(prepared)
        finally:
            sys.setprofile(None)
        if calls and (shortest is None or len(calls) < len(shortest)):
            shortest = calls.copy()
    assert shortest is not None
    return shortest


def check(calls: list[str], most: int) -> None:
    assert len(calls) <= most, "\n".join([f"{len(calls)} calls:", *calls])


async def test_a_run_in_process_takes_few_calls() -> None:
    async with open_device() as device:
        prepared = await device.prepare(addition(4))
        check(await calls_of(run, prepared), 22)


async def test_a_run_by_another_process_takes_few_calls() -> None:
    with driver_process() as driver:
        async with connect(driver.path) as device:
            prepared = await device.prepare(addition(4))
            check(await calls_of(run, prepared), 22)


async def test_a_fenced_run_by_another_process_takes_few_calls() -> None:
    with driver_process() as driver:
        async with connect(driver.path) as device:
            prepared = await device.prepare(addition(4))
            check(await calls_of(run_fenced, prepared), 42)
