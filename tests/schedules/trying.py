"""Tries one schedule of a scenario after the other, and tells which seeds fail."""

import argparse
import asyncio
import gc
import logging
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from asyncnn.qos import alarms
from tests.schedules import devices, pieces
from tests.schedules.planted import PLANTED
from tests.schedules.world import SeededLoop, World, adopt

Scenario = Callable[[World], Coroutine[Any, Any, list[str]]]

SCENARIOS: dict[str, tuple[Scenario, int]] = {
    "scheduler": (pieces.scheduler, 5),
    "fences": (pieces.fences, 5),
    "here": (devices.here, 2),
    "remote": (devices.remote, 1),
    "supervised": (devices.supervised, 1),
}
"""By name, with how many parts of all schedules it has."""

MOST_SHOWN = 5


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is told, but for what pieces of work raise on purpose."""
        if "as it is meant to" not in str(record.exc_info):
            self.told.append(record.getMessage())

    def raised(self, error: Any) -> None:
        """Keep what a thread or a finaliser has raised, that nobody else hears of."""
        self.told.append(f"nobody hears of {error.exc_value!r}")


def faults_of(scenario: Scenario, world: World) -> list[str]:
    """Run a scenario in a world; return what was wrong, and what it has left."""
    errors, loop = _Errors(), SeededLoop(world)
    loggers = [logging.getLogger(name) for name in ("asyncnn", "asyncio")]
    for logger in loggers:
        logger.addHandler(errors)
    threading.excepthook = sys.unraisablehook = errors.raised
    faults: list[str] = []
    task: asyncio.Task[list[str]] | None = None
    try:
        with world.entered():
            task = loop.create_task(scenario(world))
            faults += loop.run_until_complete(task)
            left = asyncio.all_tasks(loop)
            faults += [f"a task is left: {each!r}" for each in left]
            faults += [f"a thread is left: {each.thread}" for each in world.strands]
            watched = len(loop._selector.get_map()) - 1  # type: ignore[attr-defined]
            faults += [f"{watched} descriptors are watched"] * (watched > 0)
            loop.close()
    except Exception as error:
        faults.append("".join(traceback.format_exception(error)[-3:]))
        faults += [f"waits in {frame}" for frame in (task.get_stack() if task else ())]
    finally:
        for logger in loggers:
            logger.removeHandler(errors)
    return faults + errors.told


def try_all(name: str, first: int, count: int, enough: float) -> list[int]:
    """Try so many seeds of a scenario, print what fails; return those that do.

    It is ``enough`` if so many have failed.
    """
    scenario, failed, begun = SCENARIOS[name][0], list[int](), time.monotonic()
    for seed in range(first, first + count):
        adopt()
        world = World(seed)
        faults = faults_of(scenario, world)
        if faults:
            failed.append(seed)
            if len(failed) <= MOST_SHOWN:
                again = (
                    f"python -m tests.schedules --only {name} --seed {seed} --count 1"
                )
                print(f"{again}\n  " + "\n  ".join(faults))  # noqa: T201
        if len(failed) >= enough:
            break
        if seed % 100 == 0:
            gc.collect()
    rate = count / (time.monotonic() - begun)
    drawn = f"; the last one has drawn {world.chance.random()}"
    print(  # noqa: T201
        f"{name}: {count} schedules, {rate:.0f} a second, {len(failed)} failed{drawn}"
    )
    return failed


def main(arguments: Sequence[str]) -> int:
    """Try as many schedules as asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.schedules")
    parser.add_argument("--count", type=int, default=10_000, help="of all scenarios")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--only", choices=SCENARIOS, help="one scenario")
    parser.add_argument("--plant", choices=PLANTED, help="a fault to be found once")
    asked = parser.parse_args(arguments)
    for logger in ("asyncnn", "asyncio"):
        logging.getLogger(logger).propagate = False
        logging.getLogger(logger).addHandler(logging.NullHandler())
    alarms._new_timer = lambda: -1  # else alarms would be of the real clock
    gc.disable()  # it would come whenever it likes
    gc.freeze()
    # One thread goes on at a time: to another processor, it would be handed over late.
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[os.getpid() % len(processors)]})
    if asked.plant:
        PLANTED[asked.plant][1]()
    chosen = (
        {asked.only: 1} if asked.only else {n: p for n, (_, p) in SCENARIOS.items()}
    )
    failed = 0
    for name, parts in chosen.items():
        count = max(1, asked.count * parts // sum(chosen.values()))
        enough = 1 if asked.plant else math.inf
        failed += len(try_all(name, asked.seed, count, enough))
    return int(failed > 0)
