"""How commands end when they are interrupted, and when nobody takes what they print."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer

import asyncnn
from asyncnn.cli.ending import Interruption
from tests.cli.conftest import Ran
from tests.processes import executed

Command = Callable[..., Ran]
ASYNCNN = [sys.executable, "-m", "asyncnn"]
MODEL = str(asyncnn.bundled_file("digits_int8.asyncnn"))

PRINTING = (["--version"], ["--help"], ["inspect", MODEL], ["graph", MODEL])


def without_readers(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose output nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as nobody:
        return subprocess.run(
            [*ASYNCNN, *words], stdout=nobody, stderr=subprocess.PIPE, check=False
        )


@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_a_reader_that_has_gone_is_no_failure(words: list[str]) -> None:
    ran = without_readers(words)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("words", PRINTING, ids=" ".join)
def test_output_that_is_lost_is_a_failure_in_one_line(words: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [*ASYNCNN, *words], stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert ran.returncode == 1
    assert ran.stderr == b"asyncnn: standard output: No space left on device\n"


def test_errors_keep_their_status_where_nobody_reads() -> None:
    ran = without_readers(["inspect", "nowhere.tflite"])
    assert ran.returncode == 2
    assert ran.stderr.startswith(b"asyncnn: nowhere.tflite: No such file")


def test_a_trace_that_cannot_be_joined_is_refused_in_one_line(tmp_path: Path) -> None:
    trace = tmp_path / "none" / "trace"
    ran = executed(
        *ASYNCNN, "inspect", MODEL, env={**os.environ, "ASYNCNN_TRACE": str(trace)}
    )
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert str(trace) in ran.stderr


def test_a_terminal_without_columns_is_one_of_80(
    asyncnn_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    lines = asyncnn_command("inspect", MODEL).out.splitlines()
    assert 40 < max(map(len, lines)) <= 80


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Undo that the shell of tests in the background ignores interrupts for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
class TestInterruption:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_first_signal_cancels_and_is_the_exit_status(self, number: int) -> None:
        cleaned_up = False

        async def work() -> int:
            nonlocal cleaned_up
            os.kill(os.getpid(), number)
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned_up = True
            return 1

        before = signal.getsignal(number)
        with Interruption() as interruption:
            assert asyncio.run(interruption.cancelling(work)) is None
            assert cleaned_up
            assert signal.getsignal(number) is signal.SIG_DFL
        assert signal.getsignal(number) == before
        with pytest.raises(typer.Exit) as ended:
            interruption.exit()
        assert ended.value.exit_code == 128 + number

    def test_without_a_task_it_ends_the_block(self) -> None:
        with pytest.raises(typer.Exit) as ended, Interruption():
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.exit_code == 143

    def test_a_result_is_returned_and_nothing_has_come(self) -> None:
        async def work() -> int:
            return 3

        with Interruption() as interruption:
            assert asyncio.run(interruption.cancelling(work)) == 3
        assert interruption.signal is None
        interruption.exit()

    def test_cancelling_by_others_goes_on(self) -> None:
        async def work() -> None:
            raise asyncio.CancelledError

        with Interruption() as interruption, pytest.raises(asyncio.CancelledError):
            asyncio.run(interruption.cancelling(work))

    def test_what_is_ignored_stays_so(self) -> None:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with Interruption() as interruption:
                os.kill(os.getpid(), signal.SIGINT)
            assert interruption.signal is None
        finally:
            signal.signal(signal.SIGINT, before)

    def test_the_second_signal_ends_the_process_at_once(self) -> None:
        code = (
            "import asyncio, os, signal, time\n"
            "from asyncnn.cli.ending import Interruption\n"
            "async def work():\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "    try:\n"
            "        await asyncio.Event().wait()\n"
            "    finally:\n"
            "        os.kill(os.getpid(), signal.SIGTERM)\n"
            "        time.sleep(60)\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
            "with Interruption() as interruption:\n"
            "    asyncio.run(interruption.cancelling(work))\n"
        )
        ran = subprocess.run([sys.executable, "-c", code], check=False, timeout=30)
        assert ran.returncode == -signal.SIGTERM
