"""Runs one case: starts its processes, kills some, finds those that hang or crash."""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TypeAlias

import msgspec

from asyncnn.hal.errors import NoDriverError
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.conformance.suite import REMOTE
from asyncnn.tools.stress.place import Beat, StressOrder, StressSpan
from asyncnn.tools.stress.stress_cases import StressCase
from asyncnn.tools.stress.stress_report import (
    CRASH,
    FAILURE,
    HANG,
    SKIPPED,
    SUCCESS,
    StressRow,
)
from asyncnn.tools.watched_processes import (
    LONGEST_START_S,
    LOOK_S,
    Process,
    ServedDriver,
    cause_of,
    descriptors_of,
    end,
    facts_of,
    keep_calls,
    served_driver,
    start,
    take_stacks,
)

DEFAULT_PATIENCE_S = 60.0
"""Seconds without anything verified, after something was, in which none passes."""

CALLS = "driver.calls"
"""What a driver was asked for last, in the folder of a failure."""

_STRESSED = "asyncnn.tools.stress.stressed"
_STOP_S = 20.0
_LEFT_S = 10.0
_LIFE_S = 1.5
"""The longest life of a client that is to be killed, after its first result."""

Watch: TypeAlias = Callable[[Mapping[str, int], float], None]
"""Is given processes that stay by their names, and seconds since the case began."""


class StressTrial(msgspec.Struct, frozen=True, kw_only=True):
    """How a case is tried: on a device by a transport, for how long, by how many."""

    case: StressCase
    device: str
    transport: str
    seconds: float
    width: int
    seed: int
    folder: Path
    command: str = ""
    patience_s: float = DEFAULT_PATIENCE_S
    watch: Watch = lambda pids, passed: None


class FindingError(Exception):
    """What ends a case before its time: an outcome and the reason for it."""

    def __init__(self, outcome: str, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


class _Client:
    """One of the places for processes, and the process that has it."""

    def __init__(self, number: int, is_victim: bool, log: IO[bytes]) -> None:
        self.number = number
        self.is_victim = is_victim
        self.log = log
        self.process: Process | None = None
        self.generation = 0
        self.beat = Beat()
        self.kill_at = 0.0
        self.is_killed = False
        self.is_done = False
        self.is_ready = self._has_gone = False
        self.seen = 0.0
        self._rest = b""

    def start(self, order: StressOrder) -> None:
        text = msgspec.json.encode(order).decode()
        self.process = start(["-m", _STRESSED, text], self.log, subprocess.PIPE)
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)
        self.beat, self.kill_at, self.is_killed = Beat(), 0.0, False
        self.is_ready = self._has_gone = False
        self.seen, self._rest = time.monotonic(), b""

    def hear(self) -> bool:
        """Take what the process has reported; return whether there was anything."""
        assert self.process is not None
        assert self.process.stdout is not None
        output = self.process.stdout.read() or b""
        *lines, self._rest = (self._rest + output).split(b"\n")
        if lines:
            self.seen, self.is_ready = time.monotonic(), True
            self.beat = msgspec.json.decode(lines[-1], type=Beat)
        return bool(lines)

    def go(self, span: StressSpan) -> None:
        """Have the process begin, once."""
        if not self._has_gone:
            self._has_gone = True
            assert self.process is not None
            assert self.process.stdin is not None
            with suppress(BrokenPipeError):  # it is seen to have ended
                self.process.stdin.write(msgspec.json.encode(span))
                self.process.stdin.flush()


class _Watchdog:
    def __init__(self, trial: StressTrial, stack: ExitStack) -> None:
        self._trial = trial
        self._stack = stack
        self._rng = random.Random(trial.seed)
        self._driver: ServedDriver | None = None
        self._span = StressSpan(time.monotonic(), float("inf"))
        self.counts: Counter[str] = Counter()
        self.figures: dict[str, list[float]] = {}
        self.skipped = ""
        self.kills = self.processes = 0

    def run(self) -> None:
        """Try the case until its time is up.

        :raises FindingError: if it fails.
        """
        trial = self._trial
        if trial.transport == REMOTE and not trial.case.starts_drivers:
            self._start_driver()
        width = 1 if trial.case.is_alone else trial.width
        clients = [self._client(number) for number in range(width)]
        for client in clients:
            self._start(client)
        self._wait_for(clients)
        while not all(client.is_done for client in clients):
            time.sleep(LOOK_S)
            self._look_at_driver()
            for client in clients:
                if not client.is_done:
                    self._look_at(client)
            now = time.monotonic()
            if now < self._span.end:
                trial.watch(self._staying(clients[0]), now - self._span.begin)
        self._end_driver()

    def _staying(self, client: _Client) -> dict[str, int]:
        driver = None if self._driver is None else self._driver.process
        found = {"client": client.process, "driver": driver}
        return {name: each.pid for name, each in found.items() if each is not None}

    def _wait_for(self, clients: list[_Client]) -> None:
        """Wait until all processes have begun, and have them go on together."""
        while not all(client.is_ready for client in clients):
            time.sleep(LOOK_S)
            for client in clients:
                self._look_at(client)
        now = time.monotonic()
        self._span = StressSpan(now, now + self._trial.seconds)
        for client in clients:
            client.go(self._span)

    def _client(self, number: int) -> _Client:
        case, folder = self._trial.case, self._trial.folder
        file = folder / f"client-{number}.log"
        log = self._stack.enter_context(file.open("wb"))
        return _Client(number, case.kills_clients and number > 0, log)

    def _start(self, client: _Client) -> None:
        trial = self._trial
        client.start(
            StressOrder(
                body=trial.case.body,
                device=trial.device,
                is_remote=trial.transport == REMOTE,
                socket=None if self._driver is None else self._driver.path,
                seed=trial.seed,
                number=client.number,
                width=trial.width,
                folder=str(trial.folder),
                generation=client.generation,
            )
        )
        assert client.process is not None
        self._stack.callback(end, client.process)
        client.generation += 1
        self.processes += 1

    def _look_at(self, client: _Client) -> None:
        process, now = client.process, time.monotonic()
        assert process is not None
        if client.hear():
            if self._span.end < float("inf"):
                client.go(self._span)
            if client.is_victim and client.beat.counts and not client.kill_at:
                client.kill_at = now + self._rng.uniform(0, _LIFE_S)
        status = process.poll()
        if status is not None:
            client.hear()
            self._ended(client, status)
        elif client.kill_at and now > client.kill_at and now < self._span.end:
            client.is_killed = True
            client.kill_at = 0.0
            process.send_signal(signal.SIGKILL)
            self.kills += 1
        elif now > client.seen + (
            self._trial.patience_s if client.beat.counts else LONGEST_START_S
        ):
            self._hangs(client, process)

    def _ended(self, client: _Client, status: int) -> None:
        beat, is_over = client.beat, time.monotonic() >= self._span.end
        self.counts.update(beat.counts)
        self.figures.update(beat.figures)
        who = f"client {client.number}"
        if beat.is_skipped:
            self.skipped = beat.problem
        elif beat.problem:
            raise FindingError(FAILURE, f"{who}: {beat.problem}")
        elif status and not (client.is_killed and status == -signal.SIGKILL):
            raise FindingError(CRASH, f"{who} ended by {cause_of(status)}")
        assert client.process is not None
        end(client.process)
        may_end = client.is_killed or self._trial.case.ends_early
        if not (is_over or beat.is_skipped or may_end):
            raise FindingError(FAILURE, f"{who} ended before its time")
        client.is_done = is_over or beat.is_skipped
        if not client.is_done:
            self._start(client)

    def _hangs(self, client: _Client, process: Process) -> None:
        drivers = [] if self._driver is None else [self._driver.process]
        facts = "\n".join(map(facts_of, (process, *drivers)))
        (self._trial.folder / "facts.txt").write_text(facts)
        take_stacks(process, signal.SIGUSR1)
        for driver in drivers:
            take_stacks(driver)
        passed = time.monotonic() - client.seen
        raise FindingError(
            HANG, f"client {client.number} has verified nothing for {passed:.0f} s"
        )

    def _start_driver(self) -> None:
        trial = self._trial
        log = self._stack.enter_context((trial.folder / "driver.log").open("wb"))
        try:
            served = served_driver(
                trial.device, log, records=not trial.case.is_measured
            )
            self._driver = self._stack.enter_context(served)
        except NoDriverError as error:
            raise FindingError(FAILURE, str(error)) from error
        self._sockets = sockets_of(self._driver.process.pid)

    def keep_calls(self) -> None:
        """Write the last calls of the driver beside the logs, if there is one."""
        if self._driver is not None and self._driver.calls is not None:
            keep_calls(self._driver.calls, self._trial.folder / CALLS)

    def _look_at_driver(self, how: str = "") -> None:
        status = None if self._driver is None else self._driver.process.poll()
        if status is not None and (status or not how):
            raise FindingError(CRASH, f"the driver{how} ended by {cause_of(status)}")

    def _end_driver(self) -> None:
        """Have the driver end by itself; before, nothing of clients may be left."""
        if self._driver is None:
            return
        process, latest = self._driver.process, time.monotonic() + _LEFT_S
        while (left := sockets_of(process.pid) - self._sockets) > 0:
            if time.monotonic() > latest:
                problem = f"the driver keeps {left} sockets of clients that are gone"
                raise FindingError(FAILURE, problem)
            time.sleep(LOOK_S)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            take_stacks(process)
            problem = f"the driver does not end in {_STOP_S:g} s"
            raise FindingError(HANG, problem) from None
        self._look_at_driver(", asked to end,")


def sockets_of(pid: int) -> int:
    """Return how many sockets a process has open; 0 if it is gone."""
    return sum(name.startswith("socket:") for name in descriptors_of(pid))


def try_case(trial: StressTrial) -> StressRow:
    """Run a case and return what became of it.

    Logs, and what is known of a failure, are in the folder of the trial.
    """
    started, outcome, reason = time.monotonic(), SUCCESS, ""
    with ExitStack() as stack:
        watchdog = _Watchdog(trial, stack)
        try:
            watchdog.run()
        except FindingError as finding:
            outcome, reason = finding.outcome, str(finding)
            watchdog.keep_calls()
    if outcome == SUCCESS and watchdog.skipped:
        outcome, reason = SKIPPED, watchdog.skipped
    row = StressRow(
        case=trial.case.name,
        device=trial.device,
        transport=trial.transport,
        outcome=outcome,
        reason=reason,
        seed=trial.seed,
        seconds=time.monotonic() - started,
        processes=watchdog.processes,
        kills=watchdog.kills,
        counts=dict(watchdog.counts),
        figures=watchdog.figures,
        folder=str(trial.folder) if outcome in (FAILURE, HANG, CRASH) else "",
    )
    if row.folder:
        _note(trial, row)
    return row


def _replaying(calls: Path) -> list[str]:
    words = shlex.join(["asyncnn", "replay", str(calls), "--bisect"])
    return [f"its last calls: {words}"] if calls.exists() else []


def _note(trial: StressTrial, row: StressRow) -> None:
    """Write beside the logs what repeats a failure, and on what it was found."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    cores = pattern.read_text().strip() if pattern.exists() else "unknown"
    lines = [
        f"{row.outcome}: {row.reason}",
        f"repeat: {trial.command}",
        *_replaying(trial.folder / CALLS),
        f"environment: {describe_environment()}",
        f"python: {sys.version}",
        f"core files go to: {cores}",
    ]
    (trial.folder / "failure.txt").write_text("\n".join(lines) + "\n")
    (trial.folder / "row.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(row))
    )
