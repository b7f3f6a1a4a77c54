"""Tries mutants in processes that have imported all already: a pytest plugin.

Each is tried in a fork, where functions get the code of the mutant. The tests that
reach its lines are run there until one fails; which these are, and how long they take,
is recorded first. A failure counts if the test passes without the mutant after it.
"""

import ctypes
import gc
import json
import os
import resource
import select
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import coverage
import msgspec
import pytest

from tests.mutating.mutants import Mutant

KILLED, TIMED_OUT, SURVIVED, UNREACHED = "killed", "timed out", "survived", "unreached"

LONGEST = 4
"""How many times as long as without a mutant tests may take."""
BESIDE_S = 20.0
ENOUGH_S = 60.0
"""Of tests that pass, after which a mutant counts as survived."""
MOST_BYTES = 16 << 30
"""Of address space: a mutant may ask for any."""

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG


class Outcome(msgspec.Struct):
    """What became of a mutant."""

    part: str
    name: str
    became: str
    by: str = ""
    """The test that failed."""


class Recorded(msgspec.Struct):
    """Tests that pass, with what they take, and which lines they reach."""

    seconds: dict[str, float]
    reached: dict[str, dict[int, list[int]]]
    """By line, by file, which of those tests."""

    def tests_of(self, mutant: Mutant) -> set[str]:
        lines, tests = self.reached.get(mutant.path, {}), list(self.seconds)
        return {tests[each] for line in mutant.lines for each in lines.get(line, ())}


def merged(files: Iterable[Path]) -> Recorded:
    """Return what several processes have recorded."""
    both = Recorded({}, defaultdict(lambda: defaultdict(list)))
    for file in files:
        each = msgspec.json.decode(file.read_bytes(), type=Recorded)
        first = len(both.seconds)
        both.seconds.update(each.seconds)
        for path, lines in each.reached.items():
            for line, tests in lines.items():
                both.reached[path][line] += [first + test for test in tests]
    return both


class Ended(NamedTuple):
    """How a fork ended, with what it has said."""

    status: int | None
    said: str


class MutantTrial:
    """Runs, instead of all tests that were collected, those of each mutant."""

    def __init__(
        self,
        files: Iterable[Path],
        mutants: Sequence[Mutant],
        kept: Path,
        results: Path,
        workers: int,
    ) -> None:
        self._files, self._mutants = [str(file) for file in files], mutants
        self._kept, self._results, self._workers = kept, results, workers

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self._items = {item.nodeid: item for item in session.items}
        self._share(self._record)
        self._recorded = merged(map(self._record_file, range(self._workers)))
        self._functions = _functions({each.path for each in self._mutants})
        self._share(self._try)
        return True

    def _share(self, work: Callable[[int], None]) -> None:
        workers = [_forked(partial(work, one)) for one in range(self._workers)]
        for worker in workers:
            os.waitpid(worker, 0)

    def _record_file(self, worker: int) -> Path:
        return self._kept.with_suffix(f".{worker}.json")

    def _try(self, worker: int) -> None:
        for mutant in self._mutants[worker :: self._workers]:
            line = msgspec.json.encode(self._tried(mutant)) + b"\n"
            with self._results.open("ab", buffering=0) as file:
                file.write(line)

    def _record(self, worker: int) -> None:
        """Run a part of all tests, and write down what holds of those that pass."""
        if self._record_file(worker).exists():
            return
        places = sorted({item.path for item in self._items.values()})
        own = set(places[worker :: self._workers])
        items = [item for item in self._items.values() if item.path in own]
        recording = coverage.Coverage(
            data_file=None, include=self._files, config_file=False
        )
        seconds = {}
        recording.start()
        for item, after in _with_next(items):
            recording.switch_context(item.nodeid)
            failed, began = self._session.testsfailed, time.monotonic()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self._session.testsfailed == failed:
                seconds[item.nodeid] = time.monotonic() - began
            self._session.shouldfail = False
        recording.stop()
        data = recording.get_data()
        number = {test: each for each, test in enumerate(seconds)}
        reached = {
            path: {
                line: [number[test] for test in tests if test in number]
                for line, tests in data.contexts_by_lineno(path).items()
            }
            for path in data.measured_files()
        }
        written = msgspec.json.encode(Recorded(seconds, reached))
        self._record_file(worker).write_bytes(written)

    def _tried(self, mutant: Mutant) -> Outcome:
        tests = self._recorded.tests_of(mutant) & self._items.keys()
        places = [
            each for old, _ in mutant.codes for each in self._functions[_key(old)]
        ]
        became = UNREACHED
        while tests and places:
            items, seconds = self._chosen(tests, mutant)
            limit_s = LONGEST * seconds + BESIDE_S
            ended = in_fork(partial(self._run, items, mutant), limit_s)
            if ended.status == 0:
                became = SURVIVED
                break
            if ended.status is None:
                return Outcome(mutant.part, mutant.name, TIMED_OUT, ended.said)
            again = [self._items[ended.said]]
            if in_fork(partial(self._run, again, None), limit_s).status == 0:
                return Outcome(mutant.part, mutant.name, KILLED, ended.said)
            tests.discard(ended.said)  # it fails without the mutant, too
        return Outcome(mutant.part, mutant.name, became)

    def _chosen(
        self, tests: Iterable[str], mutant: Mutant
    ) -> tuple[list[pytest.Item], float]:
        """Return tests by file, near and quick files first, and how long they take."""
        near = mutant.file.removesuffix(".py").partition("/")[0]
        taken = defaultdict(list)
        for test in tests:
            taken[test.partition("::")[0]].append(self._recorded.seconds[test])
        files = sorted(
            taken,
            key=lambda file: (near not in file, sum(taken[file]) / len(taken[file])),
        )
        place = {file: number for number, file in enumerate(files)}
        items = [item for name, item in self._items.items() if name in tests]
        items.sort(key=lambda item: place[item.nodeid.partition("::")[0]])
        chosen, seconds = [], 0.0
        for item in items:
            chosen.append(item)
            seconds += self._recorded.seconds[item.nodeid]
            if seconds > ENOUGH_S:
                break
        return chosen, seconds

    def _run(self, items: list[pytest.Item], mutant: Mutant | None, said: int) -> int:
        """Run tests until one fails; write down which is run."""
        for old, new in () if mutant is None else mutant.codes:
            for function in self._functions[_key(old)]:
                function.__code__ = new
        session = self._session
        for item, after in _with_next(items):
            os.ftruncate(said, 0)
            os.pwrite(said, item.nodeid.encode(), 0)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed:
                return 1
        return 0


def _with_next(
    items: list[pytest.Item],
) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    return zip(items, [*items[1:], None], strict=False)


def _key(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _functions(files: Iterable[str]) -> dict[Any, list[FunctionType]]:
    """Return all functions of some files, of which a line may have made several."""
    gc.unfreeze()
    found = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename in files:
            found[_key(each.__code__)].append(each)
    gc.freeze()
    return found


def in_fork(work: Callable[[int], object], limit_s: float) -> Ended:
    """Do work in a process of its own, which all that it started ends with.

    It gets a file to write to. The status is None if it took longer.
    """
    said = os.memfd_create("said")
    child = _forked(lambda: work(said))
    watched = os.pidfd_open(child)
    in_time, _, _ = select.select([watched], [], [], limit_s)
    os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    text = os.pread(said, 1 << 16, 0).decode()
    os.close(watched)
    os.close(said)
    return Ended(os.waitstatus_to_exitcode(status) if in_time else None, text)


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        with suppress(OSError):  # it has done so, and begun another program
            os.setpgid(child, child)
        return child
    status: object = 70
    try:
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        status = work()
    finally:
        os._exit(status if isinstance(status, int) else 0)


def outcomes(results: Path) -> list[Outcome]:
    """Return what was written, the last of each mutant."""
    if not results.exists():
        return []
    lines = map(json.loads, results.read_text().splitlines())
    return list({each["name"]: Outcome(**each) for each in lines}.values())
