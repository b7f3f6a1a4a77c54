"""``asyncnn bench steps``: functions, files and turns of the loop that a run passes.

A profile function sees each function of the package that a warm run enters, lambdas
and comprehensions of their own frame as well, each entry into the package's native
code, and each turn of the loop. Threads are distinguished: the loop's own, and lanes.
Processor time of the loop is taken without the profile. A driver is a process of its
own, so that its rows have the client's part.
"""

import asyncio
import select
import sys
import threading
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

import asyncnn
from asyncnn.devices import OWN_PROCESS
from asyncnn.runtime.requests import RequestBuilder
from asyncnn.tools.bench import report
from asyncnn.tools.bench.environment import ALL_CPUS, placement
from asyncnn.tools.bench.noop import hal_execution
from asyncnn.tools.bench.rounds import Order

ROOT = f"{Path(asyncnn.__file__).parent}/"
MODEL = "digits_float.asyncnn"

INPROCESS, REMOTE = "inprocess", "remote"
DEVICES = ("accelerated", "reference")

RUN, EXECUTION, FENCED, CALLBACK = "run", "execution", "fenced", "callback"
BURST, BURST_IN_PLACE = "burst", "burst_in_place"

TITLES = {
    RUN: "prepared.run(inputs)",
    EXECUTION: "reusable.run()",
    FENCED: "prepared.run_fenced(inputs)",
    CALLBACK: "execute_1_3 with a callback",
    BURST: "burst.run(inputs)",
    BURST_IN_PLACE: "burst.run_in_place()",
}

GOALS: Mapping[tuple[str, str], int] = {
    (INPROCESS, RUN): 14,
    (INPROCESS, EXECUTION): 10,
    (INPROCESS, FENCED): 18,
    (INPROCESS, BURST_IN_PLACE): 20,
    (REMOTE, RUN): 20,
    (REMOTE, BURST): 18,
}
"""The most functions, on all threads, of the accelerated device."""
MOST_FILES = 10
"""Files of `RUN` in process, on the accelerated device."""
MOST_US = 15.0
"""Processor time of the loop for such a run, beside an empty turn's."""

COUNTS = ("on_loop", "on_lanes", "files", "turns")
"""Functions by thread, files and turns of the loop that one run passes, on average."""

_WARM_RUNS = 60
_COUNTED_RUNS = 10
_BATCHES = 6
_TIMED_RUNS = 200

Way: TypeAlias = Callable[[], Awaitable[object]]


def outcomes(steps: Mapping[str, Any]) -> Iterator[report.Outcome]:
    """Yield functions, files and time of the loop, as cells with their goals."""
    functions = steps["on_loop"] + steps["on_lanes"]
    for value, goal, form in (
        (functions, "most", ".0f"),
        (steps["files"], "most_files", "d"),
        (steps["loop_us"], "most_us", ".1f"),
    ):
        most, text = steps[goal], f"{value:{form}}"
        if most is None:
            yield report.Outcome(text, None)
        else:
            yield report.Outcome(f"{text} <= {most:{form}}", value <= most)


def reported(
    rounds: int,
    where: str,
    steps: Sequence[Mapping[str, Any]],
    turn_us: float,
    refusals: Mapping[str, str],
) -> report.BenchReport:
    """Return the report, with a section for each device and transport.

    ``turn_us`` is the processor time of one empty turn of the loop. ``refusals`` has
    devices that cannot be opened, and why.
    """
    sections: dict[tuple[str, str], list[report.Row]] = {}
    for each in steps:
        place = each["device"], each["transport"]
        functions, files, loop = outcomes(each)
        on_loop, on_lanes, turns = (
            f"{each[name]:.1f}" for name in ("on_loop", "on_lanes", "turns")
        )
        counted = functions, on_loop, on_lanes, files, turns, loop
        sections.setdefault(place, []).append((*place, TITLES[each["way"]], *counted))
    headings = ("device", "transport", "way", "functions", "loop", "lanes", "files")
    table = report.ReportTable(
        f"{MODEL}: what a warm run passes",
        [*headings, "turns", "loop, us"],
        list(sections.values()),
    )
    return report.BenchReport(
        report.documented(
            rounds,
            placement=where,
            model=MODEL,
            turn_us=turn_us,
            steps=steps,
            refusals=refusals,
        ),
        [table],
        [
            f"an empty turn of the loop takes {turn_us:.1f} us of its processor",
            *(f"{name} was not measured: {why}" for name, why in refusals.items()),
        ],
    )


class Passed(NamedTuple):
    """What runs have passed, on average; functions by file and name as well."""

    on_loop: float
    on_lanes: float
    files: int
    turns: float
    by_function: Mapping[tuple[str, str], float]

    @property
    def functions(self) -> float:
        """Functions on all threads."""
        return self.on_loop + self.on_lanes


class _Profile:
    """A profile function that counts what it is called for while it `is_on`.

    Lanes start before a device is open, so that threads get it before.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._loop_thread = threading.get_ident()
        self._turns = 0
        self._calls: Counter[tuple[bool, str, str]] = Counter()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Have each thread that starts inside the block, and this one, call it."""
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Count what ``event`` says if it is one of the package or a turn."""
        if not self.is_on:
            return
        if event == "call":
            name = frame.f_code.co_filename
            if name.startswith(ROOT) and name != __file__:
                self._add(name.removeprefix(ROOT), frame.f_code.co_qualname)
        elif event == "c_call":
            owner = getattr(argument, "__self__", None)
            if isinstance(owner, select.epoll):
                self._turns += getattr(argument, "__name__", "") == "poll"
                return
            module = getattr(argument, "__module__", None) or _module_of(
                type(owner), getattr(argument, "__name__", "")
            )
            if module.startswith("asyncnn."):
                name = f"{module.replace('.', '/').removeprefix('asyncnn/')} (native)"
                self._add(name, getattr(argument, "__qualname__", ""))

    def _add(self, file: str, function: str) -> None:
        is_loop = threading.get_ident() == self._loop_thread
        self._calls[is_loop, file, function] += 1

    def passed(self, runs: int) -> Passed:
        """Return the means of so many runs, and forget them."""
        calls, turns = self._calls, self._turns
        self._calls, self._turns = Counter(), 0
        files: Counter[str] = Counter()
        by_function: Counter[tuple[str, str]] = Counter()
        for (_, file, function), count in calls.items():
            files[file] += count
            by_function[file, function] += count
        on_loop = sum(count for (is_loop, *_), count in calls.items() if is_loop)
        return Passed(
            on_loop / runs,
            (calls.total() - on_loop) / runs,
            # What happens once in a while is no part of a run.
            sum(count * 2 >= runs for count in files.values()),
            turns / runs,
            {name: count / runs for name, count in by_function.items()},
        )


def _module_of(owner: type, method: str) -> str:
    """Return the module of the class that a method in C is of."""
    owners = [each for each in owner.__mro__ if method in each.__dict__]
    return (owners or [owner])[0].__module__


def bench(order: Order) -> report.BenchReport:
    """Count and time each way on each device, in process and to a driver."""
    model = asyncnn.load(asyncnn.bundled_file(MODEL))
    steps: list[dict[str, Any]] = []
    refusals: dict[str, str] = {}
    with placement(ALL_CPUS) as where:
        turn_us = asyncio.run(_least_us(lambda: asyncio.sleep(0), order.rounds))
        for device, transport in product(DEVICES, (INPROCESS, REMOTE)):
            with report.noted(refusals, f"{device}, {transport}"):
                measured = _steps(device, transport, model, order.rounds, turn_us)
                steps += asyncio.run(measured)
    return reported(order.rounds, where, steps, turn_us, refusals)


async def count(
    device: str, transport: str, model: asyncnn.NamedModel
) -> dict[str, Passed]:
    """Return by way what warm runs of ``model`` pass at least; none is inline."""
    profile = _Profile()
    passed: dict[str, Passed] = {}
    with profile.installed():
        async for name, way in _ways(device, transport, model):
            for _ in range(_WARM_RUNS):
                await way()
            batches = [await _batch(profile, way) for _ in range(_BATCHES)]
            # A lane that is kept from its CPU finds the next run in the queue.
            passed[name] = min(batches, key=lambda each: each.functions)
    return passed


async def _batch(profile: _Profile, way: Way) -> Passed:
    profile.is_on = True
    for _ in range(_COUNTED_RUNS):
        await way()
    profile.is_on = False
    return profile.passed(_COUNTED_RUNS)


async def _steps(
    device: str, transport: str, model: asyncnn.NamedModel, rounds: int, turn_us: float
) -> list[dict[str, Any]]:
    """Return what one run of each way passes, and its goals, None where there is none.

    ``loop_us`` is the loop's processor time.
    """
    passed = await count(device, transport, model)
    ways = _ways(device, transport, model)
    times = {name: await _least_us(way, rounds) async for name, way in ways}
    goals = GOALS if device == DEVICES[0] else {}
    has_all = (device, transport) == (DEVICES[0], INPROCESS)
    return [
        {
            "device": device,
            "transport": transport,
            "way": way,
            **{name: getattr(seen, name) for name in COUNTS},
            "loop_us": times[way],
            "most": goals.get((transport, way)),
            "most_files": MOST_FILES if has_all and way == RUN else None,
            "most_us": MOST_US + turn_us if has_all and way == RUN else None,
        }
        for way, seen in passed.items()
    ]


async def _least_us(way: Way, rounds: int) -> float:
    """Return the processor time of this thread for one run: others only add to it."""
    for _ in range(_WARM_RUNS):
        await way()
    least_ns = sys.maxsize
    for _ in range(rounds):
        started = time.thread_time_ns()
        for _ in range(_TIMED_RUNS):
            await way()
        least_ns = min(least_ns, time.thread_time_ns() - started)
    return least_ns / _TIMED_RUNS / 1000


async def _ways(
    device: str, transport: str, model: asyncnn.NamedModel
) -> AsyncIterator[tuple[str, Way]]:
    """Open a device and yield each way to run the model, while all is open."""
    settings = msgspec.structs.replace(OWN_PROCESS, inline_below_us=0)
    opening: Callable[..., AbstractAsyncContextManager[asyncnn.Device]]
    opening = partial(asyncnn.open_device, device)
    if transport == REMOTE:
        opening = partial(asyncnn.connect, device=device)
    async with opening(settings=settings) as opened:
        prepared = await opened.prepare(model)
        inputs: dict[str, Any] = {
            tensor.name: np.zeros(tensor.dimensions, tensor.dtype)
            for tensor in prepared.inputs
        }
        yield RUN, lambda: prepared.run(inputs)
        reusable = prepared.reusable(inputs)
        yield EXECUTION, reusable.run
        yield FENCED, lambda: prepared.run_fenced(inputs)
        outputs = [np.empty(t.dimensions, t.dtype) for t in prepared.outputs]
        build = RequestBuilder(prepared.inputs, prepared.outputs)
        request = build(list(inputs.values()), outputs)
        yield CALLBACK, hal_execution(prepared, request)
        async with prepared.burst() as burst:
            await burst.run(inputs)
            yield BURST, lambda: burst.run(inputs)
            yield BURST_IN_PLACE, burst.run_in_place
