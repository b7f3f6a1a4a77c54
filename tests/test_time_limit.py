"""Tests that hang are failed, and told where they hang."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.processes import python

ROOT = Path(__file__).parents[1]

CONFTEST = 'pytest_plugins = ["tests.time_limit"]'

HANGS_IN_TASKS = """
import asyncio, threading

async def never_comes():
    await asyncio.get_running_loop().create_future()

async def waits_for_it():
    await never_comes()

async def with_a_thread_and_a_task():
    gate = threading.Event()
    threading.Thread(target=gate.wait, name="the idle thread", daemon=True).start()
    task = asyncio.create_task(waits_for_it(), name="the idle task")
    await task

def test_hangs():
    asyncio.run(with_a_thread_and_a_task())

def test_that_follows():
    pass
"""

HANGS_IN_A_THREADS_LOOP = """
import asyncio, threading

async def sleeps_long():
    await asyncio.sleep(3600)

def test_hangs():
    loop = threading.Thread(
        target=lambda: asyncio.run(sleeps_long()), name="the loop's", daemon=True
    )
    loop.start()
    loop.join()
"""

HANGS_IN_C = """
from collections import deque
from itertools import repeat

def test_hangs():
    deque(repeat(0), maxlen=0)  # neither gives up the lock nor minds signals
"""


FEW_PLUGINS = {
    "PYTEST_ADDOPTS": "",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout",
}
"""So that pytest starts sooner."""


def run(folder: Path, test: str, *options: str) -> "subprocess.CompletedProcess[str]":
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(test)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **FEW_PLUGINS}
    command = ["-m", "pytest", "--timeout=1", *options, folder]
    return python(*command, cwd=folder, env=environment, timeout=60)


@pytest.mark.parametrize("options", [[], ["-n1"]], ids=["here", "in a worker"])
def test_the_report_names_threads_and_what_tasks_await(
    tmp_path: Path, options: list[str]
) -> None:
    ended = run(tmp_path, HANGS_IN_TASKS, *options)
    assert ended.returncode == 1
    assert "1 failed, 1 passed" in ended.stdout
    assert "not done within 1 s" in ended.stdout
    assert "thread 'the idle thread'" in ended.stdout
    assert "task 'the idle task'" in ended.stdout
    _, shown = ended.stdout.split("task 'the idle task'")
    assert shown.index("in waits_for_it") < shown.index("in never_comes")


def test_tasks_of_loops_of_other_threads_are_shown(tmp_path: Path) -> None:
    ended = run(tmp_path, HANGS_IN_A_THREADS_LOOP)
    assert "1 failed" in ended.stdout
    assert 'thread "the loop\'s"' in ended.stdout
    assert "in sleeps_long" in ended.stdout.split("task 'Task-1'")[1]


def test_what_never_returns_from_c_ends_its_process(tmp_path: Path) -> None:
    backstop = "\nimport tests.time_limit\ntests.time_limit.BACKSTOP_S = 0.5\n"
    ended = run(tmp_path, HANGS_IN_C + backstop, "-n1")
    assert ended.returncode == 1
    assert "1 failed" in ended.stdout
    assert "crashed while running 'test_it.py::test_hangs'" in ended.stdout
    assert "in test_hangs" in ended.stderr
