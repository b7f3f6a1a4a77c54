"""Files from outside are opened without waiting, by threads that may be left behind."""

import asyncio
import errno
import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from asyncnn import input_files
from asyncnn.deadlines import deadline_after
from asyncnn.hal.errors import (
    InvalidArgumentError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.input_files import (
    MOST_ABANDONED,
    NoRegularFileError,
    abandonable_steps,
    call_abandonable,
    in_one,
    offload_abandonable,
    open_input,
    patience,
    read_input,
    send_away,
)
from asyncnn.pacing import Steps, Stepwise, completed
from tests.forks import in_child
from tests.processes import python
from tests.waits import cancelled, until

THREADS = "asyncnn-files"


def hanging_threads() -> int:
    return sum(thread.name == THREADS for thread in threading.enumerate())


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What calls hang at; open in the end, when all threads have gone."""
    gate = threading.Event()
    yield gate
    gate.set()
    for thread in threading.enumerate():
        if thread.name == THREADS:
            thread.join(20)
            assert not thread.is_alive()


class TestOpening:
    @pytest.mark.parametrize("kind", ["a FIFO", "a directory", "a socket", "a device"])
    def test_what_is_no_regular_file_is_refused_at_once(
        self, tmp_path: Path, kind: str
    ) -> None:
        path = tmp_path / "file"
        with socket.socket(socket.AF_UNIX) as listener:
            if kind == "a FIFO":
                os.mkfifo(path)
            elif kind == "a directory":
                path.mkdir()
            elif kind == "a socket":
                listener.bind(str(path))
            else:
                path = Path("/dev/null")
            for function in (open_input, read_input):
                with pytest.raises(NoRegularFileError, match=f"^{path}: {kind}, not"):
                    function(path)

    def test_both_kinds_of_errors_catch_it(self, tmp_path: Path) -> None:
        for kind in (OSError, InvalidArgumentError):
            with pytest.raises(kind, match="a directory, not a file"):
                open_input(tmp_path)

    def test_a_file_that_another_process_has_a_lease_on_is_not_waited_for(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "leased"
        path.touch()
        code = (
            "import fcntl, os, signal, sys\n"
            "signal.signal(signal.SIGIO, signal.SIG_IGN)\n"
            f"fd = os.open({os.fspath(path)!r}, os.O_RDWR)\n"
            "fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)\n"
            "print('leased', flush=True)\n"
            "sys.stdin.read()\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"leased\n"
            with pytest.raises(OSError, match="another process holds a lease") as told:
                open_input(path)
            assert told.value.filename == str(path)
            owner.kill()

    def test_what_is_opened_goes_to_no_child_and_blocks_nobody(
        self, tmp_path: Path
    ) -> None:
        fd = open_input(tmp_path / "new", os.O_RDWR | os.O_CREAT)
        assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
        os.close(fd)


class TestAwaiting:
    async def test_it_has_a_result_or_an_error_from_another_thread(self) -> None:
        here = threading.get_ident()
        assert await offload_abandonable("", in_one(threading.get_ident)) != here
        with pytest.raises(ZeroDivisionError):
            await offload_abandonable("", in_one(lambda: 1 / 0))

    async def test_the_thread_ends_with_the_call(self, gate: threading.Event) -> None:
        thread = await offload_abandonable("", in_one(threading.current_thread))
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()

    async def test_cancelling_leaves_it_at_once(self, gate: threading.Event) -> None:
        begun = asyncio.Event()
        loop = asyncio.get_running_loop()

        def hang() -> None:
            loop.call_soon_threadsafe(begun.set)
            gate.wait()

        task = asyncio.create_task(offload_abandonable("", in_one(hang)))
        await begun.wait()
        await cancelled(task)
        assert hanging_threads() == 1

    async def test_the_deadline_leaves_it_and_names_it(
        self, gate: threading.Event
    ) -> None:
        steps = in_one(gate.wait)
        with pytest.raises(MissedDeadlineTransientError, match=r"^opening F was not"):
            await offload_abandonable("opening F", steps, deadline=deadline_after(0.01))
        assert hanging_threads() == 1

    async def test_what_it_brings_then_is_dropped_on_its_thread(
        self, gate: threading.Event
    ) -> None:
        class Opened:
            pass

        dropped_by: list[int] = []

        def opened() -> Opened:
            gate.wait()
            thing = Opened()
            weakref.finalize(thing, lambda: dropped_by.append(threading.get_ident()))
            return thing

        gc.disable()
        try:
            with pytest.raises(MissedDeadlineTransientError):
                await offload_abandonable(
                    "", in_one(opened), deadline=deadline_after(0.01)
                )
            gate.set()
            await until(lambda: dropped_by)
        finally:
            gc.enable()
        assert dropped_by != [threading.get_ident()]

    async def test_no_further_step_is_taken(self, gate: threading.Event) -> None:
        closed = threading.Event()

        def steps() -> Steps[None]:
            try:
                gate.wait()
                yield
                pytest.fail("another step")
            finally:
                closed.set()

        with pytest.raises(MissedDeadlineTransientError):
            await offload_abandonable("", steps(), deadline=deadline_after(0.5))
        gate.set()
        assert await asyncio.to_thread(closed.wait, 20)

    async def test_as_many_as_may_hang_are_refused_more_which_are_told_why(
        self, gate: threading.Event
    ) -> None:
        limit = deadline_after(1.0)
        late = await asyncio.gather(
            *(
                offload_abandonable(f"opening {n}", in_one(gate.wait), deadline=limit)
                for n in range(MOST_ABANDONED + 20)
            ),
            return_exceptions=True,
        )
        assert hanging_threads() == MOST_ABANDONED
        kinds = {type(error) for error in late}
        assert kinds <= {MissedDeadlineTransientError, ResourceExhaustedTransientError}
        refused = pytest.raises(
            ResourceExhaustedTransientError, match=r"^opening F was not begun: 32 thr"
        )
        with refused:
            await offload_abandonable("opening F", in_one(int))
        with refused:
            call_abandonable("opening F", in_one(int))
        with refused:
            completed(abandonable_steps("opening F", in_one(int)))
        send_away("opening F", in_one(pytest.fail))  # type: ignore[arg-type]
        gate.set()
        await until(lambda: not hanging_threads())
        assert await offload_abandonable("opening F", in_one(int)) == 0

    async def test_more_than_there_are_threads_take_turns(
        self, gate: threading.Event
    ) -> None:
        count = 3 * MOST_ABANDONED
        at_once: list[int] = []

        def work(number: int) -> int:
            at_once.append(hanging_threads())
            return number

        calls = (offload_abandonable("", in_one(work, n)) for n in range(count))
        assert await asyncio.gather(*calls) == list(range(count))
        assert max(at_once) <= MOST_ABANDONED

    async def test_what_waits_for_its_turn_can_be_cancelled(
        self, gate: threading.Event
    ) -> None:
        hanging = [
            asyncio.create_task(offload_abandonable("", in_one(gate.wait)))
            for _ in range(MOST_ABANDONED)
        ]
        waiting = asyncio.create_task(offload_abandonable("", in_one(pytest.fail)))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await cancelled(waiting)
        gate.set()
        assert await asyncio.gather(*hanging) == [True] * MOST_ABANDONED

    async def test_what_a_call_needs_does_not_wait_for_other_calls(
        self, gate: threading.Event
    ) -> None:
        def outer() -> int:
            limit = deadline_after(20)
            return call_abandonable("", in_one(int), deadline=limit)

        calls = (offload_abandonable("", in_one(outer)) for _ in range(MOST_ABANDONED))
        async with asyncio.timeout(15):
            assert set(await asyncio.gather(*calls)) == {0}


WAYS: dict[str, Callable[[Steps[int]], int]] = {
    "called": lambda steps: call_abandonable("", steps),
    "in steps": lambda steps: completed(abandonable_steps("", steps)),
    "awaited": lambda steps: asyncio.run(offload_abandonable("", steps)),
}


@pytest.mark.parametrize("way", WAYS)
def test_where_no_thread_can_be_started_steps_are_taken_here(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        assert WAYS[way](in_one(threading.get_ident)) == threading.get_ident()
    assert WAYS[way](in_one(threading.get_ident)) != threading.get_ident()


class TestBlocking:
    @pytest.mark.parametrize("in_a_task", [False, True])
    def test_an_interrupt_ends_the_waiting(
        self, gate: threading.Event, in_a_task: bool
    ) -> None:
        """In a task of `asyncio.run` nothing is raised where it blocks."""

        def hang() -> None:
            os.kill(os.getpid(), signal.SIGINT)
            gate.wait()

        async def main() -> None:
            call_abandonable("", in_one(hang))

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(main()) if in_a_task else call_abandonable("", in_one(hang))
        finally:
            signal.signal(signal.SIGINT, before)

    async def test_a_task_that_was_cancelled_before_may_call_it(self) -> None:
        async def main() -> int:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return call_abandonable("", in_one(int))
            return -1

        task = asyncio.create_task(main())
        await asyncio.sleep(0)
        task.cancel()
        assert await task == 0

    def test_the_deadline_ends_it(self, gate: threading.Event) -> None:
        limit = deadline_after(0.01)
        missed = pytest.raises(
            MissedDeadlineTransientError, match=r"^opening F was not"
        )
        with missed:
            call_abandonable("opening F", in_one(gate.wait), deadline=limit)
        with missed:
            steps = abandonable_steps("opening F", in_one(gate.wait), deadline=limit)
            completed(steps)

    def test_steps_can_be_left_in_between(self, gate: threading.Event) -> None:
        steps = Stepwise(abandonable_steps("", in_one(gate.wait)))
        assert not steps.advance(lambda: True)
        steps.close()
        assert hanging_threads() == 1

    def test_what_hangs_is_not_asked_again_if_it_can_be_gone_without(
        self, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(input_files, "PATIENCE_S", 0.01)
        with pytest.raises(MissedDeadlineTransientError):
            call_abandonable("using F", in_one(gate.wait), deadline=patience("using F"))
        with pytest.raises(TimeoutError, match="using F: no answer"):
            patience("using F")
        assert patience("using G") is not None
        gate.set()
        for thread in threading.enumerate():
            if thread.name == THREADS:
                thread.join(20)
        assert patience("using F") is not None


async def test_a_forked_child_begins_anew(gate: threading.Event) -> None:
    limit = deadline_after(0.02)
    calls = [
        offload_abandonable("", in_one(gate.wait), deadline=limit)
        for _ in range(MOST_ABANDONED)
    ]
    await asyncio.gather(*calls, return_exceptions=True)
    assert await in_child(lambda: call_abandonable("", in_one(int))) == 0


HANGING = """
import asyncio, threading
from asyncnn.deadlines import deadline_after
from asyncnn.hal.errors import MissedDeadlineTransientError
from asyncnn.input_files import in_one, offload_abandonable

async def main():
    hanging = in_one(threading.Event().wait)
    try:
        await offload_abandonable("", hanging, deadline=deadline_after(0.01))
    except MissedDeadlineTransientError:
        print("left")

asyncio.run(main())
"""


def test_the_end_of_the_interpreter_waits_for_none() -> None:
    ran = python("-c", HANGING)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "left\n", "")


def test_errors_of_the_system_keep_their_numbers(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as told:
        read_input(tmp_path / "none")
    assert told.value.errno == errno.ENOENT
