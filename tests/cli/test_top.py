import asyncio
import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from rich.console import Console

from asyncnn.cli.top_changes import Changes, LiveDevice
from asyncnn.cli.top_view import MAX_ROWS, WIDE, picture
from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.qos import WorkAccounting, WorkStatistics
from asyncnn.qos.accounting import count_end
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect
from asyncnn.service.process import DriverProcess, driver_process
from tests.cli.conftest import Ran
from tests.networks import chain
from tests.service.test_stopped_driver import stopped

Command = Callable[..., Ran]
ENTERS_SCREEN, LEAVES_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"
MISSED = ErrorStatus.MISSED_DEADLINE_TRANSIENT


def work(count: int, latency_ns: int = 3_000_000, misses: int = 0) -> WorkStatistics:
    accounting = WorkAccounting()
    for _ in range(count):
        count_end((accounting,), latency_ns)
    for _ in range(misses):
        count_end((accounting,), latency_ns, MISSED)
    return accounting.statistics()


def statistics(
    executions: WorkStatistics, models: int = 1, clients: int = 1
) -> DeviceStatistics:
    return DeviceStatistics(
        device="tested",
        threads=2,
        resident_bytes=70_000_000,
        preparations=work(models),
        executions=executions,
        models=tuple(
            ModelStatistics(number, 1, 3, Priority.HIGH, work(number), 640)
            for number in range(1, models + 1)
        ),
        clients=tuple(
            ClientStatistics(number, f"pid {number}", 1.0, work(number), 320)
            for number in range(1, clients + 1)
        ),
    )


class TestChanges:
    def test_the_first_look_is_at_all_there_was(self) -> None:
        changes = Changes()
        changes.look(100.0)
        recent = changes.of("x", work(3))
        assert (recent.ended, recent.per_s) == (3, None)
        assert recent.p50_us is not None
        assert recent.p50_us >= 3000

    def test_a_later_one_is_at_what_came_since(self) -> None:
        changes, accounting = Changes(), WorkAccounting()
        for looked_at, count, latency_ns in ((100.0, 3, 3_000_000), (102.0, 4, 100)):
            for _ in range(count):
                count_end((accounting,), latency_ns)
            changes.look(looked_at)
            recent = changes.of("x", accounting.statistics())
        assert (recent.ended, recent.per_s, recent.succeeded) == (4, 2.0, 7)
        assert recent.p99_us is not None
        assert recent.p99_us < 2

    def test_what_is_new_began_since(self) -> None:
        changes = Changes()
        changes.look(100.0)
        changes.look(104.0)
        assert changes.of("new", work(8)).per_s == 2.0

    def test_what_has_gone_is_forgotten(self) -> None:
        changes = Changes()
        changes.look(1.0)
        changes.of("x", work(8))
        changes.look(2.0)
        changes.look(3.0)
        assert changes.of("x", work(8)).ended == 8


class TestPicture:
    def drawn(
        self,
        record: DeviceStatistics,
        width: int = WIDE,
        height: int | None = None,
        earlier: DeviceStatistics | None = None,
    ) -> list[str]:
        changes = Changes()
        if earlier is not None:
            changes.look(-1.0)
            LiveDevice.of(earlier, changes)
        changes.look(0.0)
        console = Console(width=width)
        with console.capture() as capture:
            console.print(
                picture(LiveDevice.of(record, changes), width, height, "q quits")
            )
        return capture.get().splitlines()

    def row(self, lines: list[str], name: str) -> list[str]:
        (line,) = (line for line in lines if line.startswith(name))
        return line.split()

    def test_executions_are_told_with_latencies(self) -> None:
        lines = self.drawn(statistics(work(10, misses=2)))
        assert lines[0] == "tested: 2 threads, 70.0 MB resident, 320 bytes in buffers"
        latency = ["4.2ms"] * 3
        expected = ["executions", "0", "0", *latency, "10", "2", "2", "0"]
        assert self.row(lines, "executions") == expected
        assert "failed: MISSED_DEADLINE_TRANSIENT 2" in lines

    def test_nothing_failed_if_nothing_is_said_of_it(self) -> None:
        lines = self.drawn(statistics(work(10)))
        assert not any(line.startswith("failed:") for line in lines)

    def test_clients_and_models_are_told_with_their_facts(self) -> None:
        lines = self.drawn(statistics(work(1)))
        assert self.row(lines, "1: pid")[-3:] == ["1", "320", "bytes"]
        assert self.row(lines, "1: 3 ops")[-4:] == ["1", "HIGH", "640", "bytes"]

    def test_figures_fit_into_80_columns(self) -> None:
        busy = statistics(work(0, 100_000_000, misses=12_345))
        lines = self.drawn(busy, 80, earlier=statistics(work(0)))
        assert self.row(lines, "executions")[3:] == [
            *("12345", "134ms", "134ms", "134ms"),
            *("0", "12345", "12345", "0"),
        ]
        assert "…" not in "".join(lines)
        assert max(map(len, lines[:-1])) <= 80

    @pytest.mark.parametrize(
        ("count", "shown"),
        [
            (99_999, "99999"),
            (123_456, "123k"),
            (1_234_567, "1.2M"),
            (12_345_678, "12.3M"),
            (123_456_789, "123M"),
            (1_234_567_890, "1.2G"),
            (10**13, "10.0T"),
        ],
    )
    def test_no_count_is_wider_than_its_column(self, count: int, shown: str) -> None:
        done = msgspec.structs.replace(work(1), done={ErrorStatus.NONE: count})
        lines = self.drawn(statistics(done), 80)
        assert self.row(lines, "executions")[-4] == shown

    @pytest.mark.parametrize(
        ("width", "last", "left"),
        [
            (119, "preempt", "weight, buffers, client, priority, idle"),
            (80, "preempt", "weight, buffers, client, priority, idle"),
            (79, "missed", "preempt, weight, buffers, client, priority, idle"),
            (60, "failed", "p90, missed, preempt, weight, buffers, client, priority"),
            (40, "p99", "p50, p90, done, failed, missed, preempt, weight, buffers,"),
        ],
    )
    def test_narrow_ones_have_what_matters_and_say_what_is_left_out(
        self, width: int, last: str, left: str
    ) -> None:
        lines = self.drawn(statistics(work(10)), width)
        assert self.row(lines, "device")[:4] == ["device", "queue", "run", "per"]
        assert self.row(lines, "device")[-1] == last
        text = " ".join(line.strip() for line in lines)
        assert f"q quits; left out below {WIDE} columns: {left}" in text

    def test_wide_ones_leave_nothing_out(self) -> None:
        assert self.drawn(statistics(work(10)))[-1] == "q quits"

    @pytest.mark.parametrize("width", [40, 80])
    @pytest.mark.parametrize(
        ("models", "clients"), [(1, 1), (40, 40), (40, 2), (2, 40)]
    )
    def test_low_ones_have_fewer_rows_and_say_how_many_are_left(
        self, models: int, clients: int, width: int
    ) -> None:
        record = statistics(work(3, misses=1), models, clients)
        lines = self.drawn(record, width, 24)
        assert len(lines) <= 24
        for count, word, what in (
            (models, "3 ops", "model"),
            (clients, "pid", "client"),
        ):
            shown = sum(word in line for line in lines)
            assert shown >= min(count, 2)
            told = f"and {count - shown} more {what}s" in lines
            assert told == (shown < count)
        if max(models, clients) > 2:
            assert len(lines) > 18

    def test_only_the_busiest_are_shown(self) -> None:
        lines = self.drawn(statistics(work(1), models=MAX_ROWS + 5))
        shown = [line for line in lines if "3 ops" in line]
        assert len(shown) == MAX_ROWS
        assert shown[0].startswith(f"{MAX_ROWS + 5}: ")
        assert "and 5 more models" in lines


@pytest.fixture(scope="module")
def driver() -> Iterator[DriverProcess]:
    """A driver that has executed something."""
    with driver_process() as driver:
        asyncio.run(_use(driver.path))
        yield driver


@contextmanager
def on_a_terminal(
    path: Path, *, controls: bool = False, keys: int | None = None
) -> Iterator[tuple["subprocess.Popen[bytes]", int]]:
    """Run the command on a terminal, maybe one that is told of its end by a signal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "asyncnn", "top", "--interval", "0.1"]
    with subprocess.Popen(
        [*command, "--socket", path],
        stdin=theirs if keys is None else keys,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env=os.environ | {"COLUMNS": "140", "LINES": "40", "TERM": "xterm"},
        start_new_session=controls,
        preexec_fn=partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0) if controls else None,
    ) as process:
        os.close(theirs)
        try:
            yield process, ours
        finally:
            process.kill()
            with suppress(OSError):
                os.close(ours)


def handles_hang_ups(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(status.partition("SigCgt:")[2].split()[0], 16)
    return bool(caught & 1 << (signal.SIGHUP - 1))


def read_until(terminal: int, words: bytes, times: int = 1) -> bytes:
    shown = b""
    while shown.count(words) < times:
        assert select.select([terminal], [], [], 30)[0], shown
        shown += os.read(terminal, 1 << 16)
    return shown


async def _use(path: Path) -> None:
    async with connect(path) as device:
        prepared = await device.prepare(chain(2, 8))
        for _ in range(3):
            await prepared.run({"x": np.zeros(8, np.float32)})


class TestCommand:
    @pytest.mark.parametrize("options", [(), ("--once",)], ids=["in a pipe", "once"])
    def test_one_look_is_printed(
        self, asyncnn_command: Command, driver: DriverProcess, options: tuple[str, ...]
    ) -> None:
        ran = asyncnn_command("top", "--socket", driver.path, *options)
        assert ran.status == 0
        assert ran.out.startswith("asyncnn-reference: ")
        assert "executions" in ran.out
        assert "left out below 120 columns" in ran.out
        assert max(map(len, ran.out.splitlines())) <= 80

    def test_a_wide_pipe_has_all(
        self,
        asyncnn_command: Command,
        driver: DriverProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setenv("COLUMNS", str(WIDE))
        ran = asyncnn_command("top", "--socket", driver.path, "--once")
        assert "weight" in ran.out
        assert "left out" not in ran.out

    def test_json_has_names_and_microseconds(
        self, asyncnn_command: Command, driver: DriverProcess
    ) -> None:
        ran = asyncnn_command("top", "--socket", driver.path, "--json")
        report = json.loads(ran.out)
        assert report["executions"]["done"] == {"NONE": 3}
        assert report["executions"]["latency_us"]["p99"] >= 1
        assert report["preparations"]["done"] == {"NONE": 1}
        assert report["models"] == []
        assert report["clients"] == []  # whoever had work has gone

    def test_openmetrics_are_those_of_the_driver(
        self, asyncnn_command: Command, driver: DriverProcess
    ) -> None:
        ran = asyncnn_command("top", "--socket", driver.path, "--openmetrics")
        families = {each.name for each in text_string_to_metric_families(ran.out)}
        assert "asyncnn_executions_latency_seconds" in families

    def test_a_terminal_shows_look_after_look_until_it_is_interrupted(
        self, driver: DriverProcess
    ) -> None:
        with on_a_terminal(driver.path) as (process, terminal):
            shown = read_until(terminal, b"executions", 3)  # a rate needs two looks
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0
        assert b"0.0" in shown

    @pytest.mark.parametrize("state", ["shown", "connecting"])
    def test_an_interrupt_ends_it_while_the_driver_is_stopped(
        self, driver: DriverProcess, state: str
    ) -> None:
        with on_a_terminal(driver.path) as (process, terminal):
            if state == "shown":
                read_until(terminal, b"executions")
            with stopped(driver):
                if state == "connecting":
                    with on_a_terminal(driver.path) as (late, _):
                        while not handles_hang_ups(late.pid):
                            time.sleep(0.01)  # then it waits to be greeted
                        late.send_signal(signal.SIGINT)
                        assert late.wait(3) == 0
                time.sleep(0.3)  # a look is under way
                process.send_signal(signal.SIGINT)
                assert process.wait(3) == 0

    @pytest.mark.parametrize("end", [b"q", b"xyQ", b"\x03", signal.SIGTERM])
    def test_the_terminal_is_as_it_was_whatever_ends_it(
        self, driver: DriverProcess, end: bytes | signal.Signals
    ) -> None:
        with on_a_terminal(driver.path, controls=True) as (process, terminal):
            before = termios.tcgetattr(terminal)
            shown = read_until(terminal, b"q quits")
            assert ENTERS_SCREEN in shown
            assert not termios.tcgetattr(terminal)[3] & (termios.ICANON | termios.ECHO)
            if isinstance(end, bytes):
                os.write(terminal, end)
            else:
                process.send_signal(end)
            read_until(terminal, LEAVES_SCREEN)
            assert process.wait(10) == 0
            assert termios.tcgetattr(terminal) == before

    def test_the_terminal_is_as_it_was_when_the_driver_dies(
        self, tmp_path: Path
    ) -> None:
        with (
            driver_process(tmp_path / "mortal") as mortal,
            on_a_terminal(mortal.path) as (process, terminal),
        ):
            before = termios.tcgetattr(terminal)
            read_until(terminal, b"q quits")
            mortal.kill()
            read_until(terminal, LEAVES_SCREEN)
            assert process.wait(10) == 1
            assert process.stderr is not None
            assert process.stderr.read().count(b"\n") == 1
            assert termios.tcgetattr(terminal) == before

    def test_other_keys_go_on(self, driver: DriverProcess) -> None:
        with on_a_terminal(driver.path) as (process, terminal):
            read_until(terminal, b"q quits")
            os.write(terminal, b"xyz")
            assert b"xyz" not in read_until(terminal, b"executions", 3)
            assert process.poll() is None

    def test_keys_that_are_not_typed_there_are_not_waited_for(
        self, driver: DriverProcess
    ) -> None:
        with on_a_terminal(driver.path, keys=subprocess.DEVNULL) as (process, terminal):
            read_until(terminal, b"Ctrl-C quits")
            read_until(terminal, b"executions", 2)
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 0

    @pytest.mark.parametrize("hears", [False, True], ids=["by EIO", "by SIGHUP"])
    def test_it_ends_with_its_terminal(
        self, driver: DriverProcess, hears: bool
    ) -> None:
        with on_a_terminal(driver.path, controls=hears) as (process, terminal):
            read_until(terminal, b"executions")
            os.close(terminal)
            assert process.wait(10) == 0
            assert process.stderr is not None
            assert process.stderr.read() == b""

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--web", "0", "--json"), "--web goes on"),
            (("--web", "0", "--once"), "--web goes on"),
            (("--host", "127.0.0.1"), "which is missing"),
            (("--web", "65536"), "less than or equal to 65535"),
            (("--web", "x"), "valid integer"),
            (("--json", "--openmetrics"), "two formats"),
            (("--socket", "/nothing"), "no driver at"),
        ],
    )
    def test_what_cannot_be_had_is_refused(
        self, asyncnn_command: Command, options: tuple[str, ...], words: str
    ) -> None:
        ran = asyncnn_command("top", *options)
        assert ran.status == 2
        assert words in ran.err

    def test_a_driver_that_does_not_answer_is_an_error(
        self,
        asyncnn_command: Command,
        driver: DriverProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        async def never(_: Device) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(Device, "statistics", never)
        monkeypatch.setattr("asyncnn.cli.top_changes.ANSWER_TIMEOUT_S", 0.05)
        ran = asyncnn_command("top", "--socket", driver.path)
        assert ran.status == 2
        assert "does not answer" in ran.err

    def test_metrics_need_their_package(
        self,
        asyncnn_command: Command,
        driver: DriverProcess,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setitem(sys.modules, "asyncnn.metrics", None)
        ran = asyncnn_command("top", "--socket", driver.path, "--openmetrics")
        assert ran.status == 2
        assert "asyncnn[metrics]" in ran.err


def test_a_driver_serves_its_metrics_on_a_port(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "asyncnn", "serve", "--metrics-port", "0"]
    with subprocess.Popen(
        [*command, "--socket", tmp_path / "driver.sock"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("metrics at ").strip()
        assert url.startswith("http://127.0.0.1:")
        assert process.stdout.readline().startswith("serving reference at ")
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert b"asyncnn_executions_queued" in answer.read()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
