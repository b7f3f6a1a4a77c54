"""Work on threads of their own."""

import asyncio
import gc
import sys
import threading
import time
import weakref

import pytest

from asyncnn import offload as offload_module
from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.offload import (
    SerialOffload,
    call_on_thread,
    offload,
    offload_steps,
    switching_at_least_every,
)
from asyncnn.pacing import Pace, Steps
from tests.processes import executed
from tests.waits import cancelled, until


async def test_the_result_comes_from_another_thread() -> None:
    assert await offload(threading.get_ident) != threading.get_ident()


async def test_what_is_raised_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        await offload(lambda: 1 / 0)


async def test_the_thread_ends_with_the_call() -> None:
    thread = await offload(threading.current_thread)
    thread.join(1)
    assert not thread.is_alive()


async def test_cancelling_waits_for_the_end() -> None:
    may_end, ended = threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(20)
        ended.set()

    task = asyncio.create_task(offload(work))
    await asyncio.sleep(0.005)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0.005)
        assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_steps_are_taken_to_the_end() -> None:
    def steps(until_s: float) -> Steps[int]:
        started = time.perf_counter()
        while time.perf_counter() - started < until_s:
            yield
        return threading.get_ident()

    assert await offload_steps(steps(0.02)) != threading.get_ident()
    # What takes a moment is not worth a thread.
    assert await offload_steps(steps(0)) == threading.get_ident()


async def test_cancelled_steps_stop_before_the_next_one_and_are_closed() -> None:
    is_open = threading.Event()
    is_open.set()

    def steps() -> Steps[None]:
        try:
            while True:
                time.sleep(0.001)
                yield
        finally:
            is_open.clear()

    task = asyncio.create_task(offload_steps(steps()))
    await asyncio.sleep(0.01)
    assert is_open.is_set()
    await cancelled(task)
    assert not is_open.is_set()


class Endless:
    """Executions that long work makes way for."""

    is_busy = True


async def test_cancelled_steps_that_rest_beside_executions_stop_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pace, executions, is_resting = Pace(), Endless(), asyncio.Event()
    pace.watch(executions)
    monkeypatch.setattr(offload_module, "long_work", pace.long_work)
    monkeypatch.setattr(offload_module, "make_way", pace.make_way)
    loop = asyncio.get_running_loop()

    def steps() -> Steps[None]:
        yield
        until_s = time.thread_time() + 0.25  # to rest four times as long
        while time.thread_time() < until_s:
            pass
        loop.call_soon_threadsafe(is_resting.set)
        yield

    monkeypatch.setattr(offload_module, "_MOMENT_NS", 0)
    task = asyncio.create_task(offload_steps(steps()))
    await is_resting.wait()
    task.cancel()
    cancelled_s = time.monotonic()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - cancelled_s < 0.6


async def test_calls_that_take_turns_do_not_overlap() -> None:
    in_turn = SerialOffload()
    lock = threading.Lock()

    def work() -> None:
        assert lock.acquire(blocking=False)
        time.sleep(0.002)
        lock.release()

    await asyncio.gather(*(in_turn(work) for _ in range(5)))


async def test_no_thread_is_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ResourceExhaustedTransientError, match="can't start new"):
        await offload(time.monotonic)


def test_the_least_switch_interval_counts_and_the_first_comes_back() -> None:
    before = sys.getswitchinterval()
    with switching_at_least_every(before / 2):
        with switching_at_least_every(before / 8), switching_at_least_every(before):
            assert sys.getswitchinterval() == pytest.approx(before / 8)
        assert sys.getswitchinterval() == pytest.approx(before / 2)
    assert sys.getswitchinterval() == pytest.approx(before)


async def test_an_error_that_nobody_takes_is_not_kept() -> None:
    class Held:
        pass

    may_end = threading.Event()
    gone: list[weakref.ref[Held]] = []

    def fail() -> None:
        held = Held()
        gone.append(weakref.ref(held))
        assert may_end.wait(20)
        raise ValueError(held)

    gc.disable()
    try:
        task = asyncio.create_task(offload(fail))
        await asyncio.sleep(0)
        task.cancel()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        await until(lambda: gone[0]() is None)
    finally:
        gc.enable()


async def test_what_frees_much_is_called_on_a_thread_or_here_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[int] = []

    def call() -> None:
        called.append(threading.get_ident())

    thread = call_on_thread(call)
    assert thread is not None
    thread.join(5)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert call_on_thread(call) is None
    here = threading.get_ident()
    assert [ident == here for ident in called] == [False, True]


STARTING = """
import resource, signal, threading
from pathlib import Path
from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.offload import start_thread

signal.alarm(20)
gate, started = threading.Event(), 0
stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
for pages in range(24):
    thread = threading.Thread(target=gate.wait)
    pages_now = int(Path("/proc/self/statm").read_text().split()[0])
    most = 4096 * (pages_now + pages) + stack
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
    try:
        start_thread(thread)
        started += 1
    except ResourceExhaustedTransientError:
        pass
    unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_AS, unlimited)
start_thread(threading.Thread(target=gate.set))
print("ended")
"""


def test_a_thread_that_gets_a_stack_and_no_more_is_not_waited_for() -> None:
    """Whose first allocation fails, that is, at some of these limits of memory."""
    ran = executed(
        "/bin/sh",
        "-c",
        'ulimit -s 1024; exec "$@"',
        "sh",
        sys.executable,
        "-c",
        STARTING,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "ended\n", "")
