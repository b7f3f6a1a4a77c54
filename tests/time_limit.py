"""Tells where threads and tasks were when a test's time is up: a pytest plugin.

`pytest-timeout` counts the time of each test, ``timeout`` in pyproject.toml or what the
test's mark ``timeout`` says; this says what happens in the end. The test fails, and its
report shows the stack of each thread and what each asyncio task awaits. A thread that
never returns from C cannot be failed: `BACKSTOP_S` later its process is ended, with the
stacks of its threads on stderr.
"""

import asyncio
import faulthandler
import gc
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from pytest_timeout import Settings, is_debugging

BACKSTOP_S = 60.0
"""How long a test may go on after it was told to fail, in seconds."""

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        config.stash[_stderr] = os.dup(2)  # not that of the file that captures it


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_stderr])


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Settings) -> bool:
    """Set the timer; pytest-timeout asks the first plugin that returns something."""
    limit_s = settings.timeout

    def end(_number: int, _frame: FrameType | None) -> None:
        __tracebackhide__ = True
        if is_debugging():
            return
        item.add_report_section("call", "threads and tasks", report())
        pytest.fail(f"not done within {limit_s:g} s; where it was is told below")

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    if not is_debugging():
        faulthandler.dump_traceback_later(
            limit_s + BACKSTOP_S, file=item.config.stash[_stderr], exit=True
        )
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Stop the timer of `pytest_timeout_set_timer`."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.cancel_dump_traceback_later()
    return True


def report() -> str:
    """Return the stacks of all threads, and of all tasks of loops that run."""
    return "\n".join((*_threads(), *_tasks()))


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        yield f"thread {names.get(ident, 'not of Python')!r}"
        yield "".join(traceback.format_stack(frame))


def _tasks() -> Iterator[str]:
    for loop in _running_loops():
        for task in sorted(asyncio.all_tasks(loop), key=asyncio.Task.get_name):
            yield f"task {task.get_name()!r} of {loop!r}"
            yield "".join(traceback.format_list(list(_suspended(task.get_coro()))))


def _running_loops() -> list[asyncio.AbstractEventLoop]:
    """Return those of all threads; a loop is known only to its own one."""
    return [
        found
        for found in gc.get_objects()
        if issubclass(type(found), asyncio.AbstractEventLoop) and found.is_running()
    ]


def _suspended(awaited: Any) -> Iterator[traceback.FrameSummary]:
    """Yield the frames of a task from the outermost one to where it waits.

    `asyncio.Task.get_stack` has only the outermost one.
    """
    while awaited is not None:
        for prefix, onward in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = getattr(awaited, f"{prefix}_frame", None)
            if frame is not None:
                yield from traceback.StackSummary.extract([(frame, frame.f_lineno)])
                awaited = getattr(awaited, f"{prefix}_{onward}")
                break
        else:
            return
