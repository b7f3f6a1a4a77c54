"""The process that feeds a target: ``python -m asyncnn.tools.fuzz.worker ORDER``.

It may die of what it is fed with. So the bytes lie in a file before, which it shares
with who started it, with the number of those that were tried. What is found without
that is written to the same file, and ends the process.
"""

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from asyncnn.tools.fuzz.targets import FuzzTarget

MOST_BYTES = 1 << 20
"""Of what is tried."""

_HEAD = struct.Struct("<QQQQ")
_WORDS_BYTES = 1 << 16
NOTE_BYTES = _HEAD.size + MOST_BYTES + _WORDS_BYTES

_PR_SET_PDEATHSIG = 1

HANG_S = 5.0
"""After which a try hangs."""

MOST_GROWTH_KIB = 192 << 10
"""Memory that one try may take beside the most that others have taken."""

_ADDRESS_SPACE = 2 << 30
"""Bytes that a target may map beyond what the process has when it begins."""

_LONGEST_WORDS = 25_000
_KEPT_ORIGINALS = 512


class Note:
    """What a worker is at, in a file that outlives it.

    ``executions`` were tried; ``is_ready`` once there is something to try.
    """

    def __init__(self, path: str) -> None:
        self.calls = Path(path).with_suffix(".calls")
        """Where the last calls of a driver are kept, if one has failed."""
        with Path(path).open("r+b") as file:
            self._data = mmap.mmap(file.fileno(), NOTE_BYTES)

    @property
    def head(self) -> tuple[int, int, int, int]:
        """Executions, bytes of the last, bytes of words, and whether it is ready."""
        found = _HEAD.unpack_from(self._data)
        return found[0], found[1], found[2], found[3]

    def begin(self, executions: int, data: bytes) -> None:
        """Note what is tried next."""
        start = _HEAD.size
        self._data[start : start + len(data)] = data
        _HEAD.pack_into(self._data, 0, executions, len(data), 0, 1)

    def note(self, words: str) -> None:
        """Note what was found."""
        executions, size, _, is_ready = self.head
        data = words.encode(errors="replace")[:_WORDS_BYTES]
        start = NOTE_BYTES - _WORDS_BYTES
        self._data[start : start + len(data)] = data
        _HEAD.pack_into(self._data, 0, executions, size, len(data), is_ready)

    @property
    def data(self) -> bytes:
        """What was tried last."""
        return self._data[_HEAD.size : _HEAD.size + self.head[1]]

    @property
    def words(self) -> str:
        """What was found, if anything."""
        start = NOTE_BYTES - _WORDS_BYTES
        return self._data[start : start + self.head[2]].decode(errors="replace")


class WorkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What to do: feed ``target``, for so many seconds, from a seed on.

    ``targets`` is the module that has it in its table. The originals are the target's
    and the files of ``corpus``. With ``is_guided``, coverage says what is kept. What
    fails at one of the ``known`` places is not noted again. If there is an ``input``,
    that file alone is tried; if it ``shrinks``, parts of it are, and the smallest that
    ends in the same way is written there instead. It ends with its ``watcher``.
    """

    target: str
    note: str = ""
    watcher: int = 0
    seconds: float = 60.0
    seed: int = 0
    device: str = ""
    corpus: str = ""
    is_guided: bool = False
    input: str = ""
    shrinks: bool = False
    known: tuple[str, ...] = ()
    targets: str = "asyncnn.tools.fuzz.targets"


class Feeder:
    """Feeds a function with bytes, and ends the process where it fails."""

    def __init__(
        self,
        target: "FuzzTarget",
        run: Callable[[bytes], Any],
        note: Note,
        known: Sequence[str] = (),
    ) -> None:
        self._answers = target.answers
        self._known = frozenset(known)
        self.run = run
        self._note = note
        self._count = 0
        self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
        self._most_kib = self._peak_kib()

    def __call__(self, data: bytes) -> None:
        """Try some bytes."""
        data = data[:MOST_BYTES]
        self._count += 1
        self._note.begin(self._count, data)
        try:
            self.run(data)
        except self._answers as error:
            problem = _problem_of(error)
            if problem:
                self._fail(problem, error)
        except BaseException as error:
            self._fail(f"{type(error).__name__}: {error}", error)
        grown, self._most_kib = self._most_kib, self._peak_kib()
        if self._most_kib - grown > MOST_GROWTH_KIB:
            self._fail(f"{self._most_kib - grown >> 10} MiB of memory", None)

    def _peak_kib(self) -> int:
        # Of these pages alone: ``ru_maxrss`` begins with the peak of who started this.
        _, _, after = os.pread(self._status, 4096, 0).partition(b"VmHWM:")
        return int(after.split(maxsplit=1)[0])

    def _fail(self, problem: str, error: BaseException | None) -> None:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            os._exit(2)
        where = "" if error is None else _where(error)
        # Here: what is imported before the target is not instrumented.
        from asyncnn.tools.watched_processes import GoneError, keep_calls_of

        if where in self._known:
            if isinstance(error, GoneError):
                os._exit(0)  # to be begun anew
            return
        keep_calls_of(os.getpid(), self._note.calls)
        self._note.note(f"{problem[:500]}\n{where}")
        os._exit(1)


def _problem_of(error: Exception) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if not str(error).isprintable() or len(str(error)) > _LONGEST_WORDS:
        return f"a message that is not one line: {str(error)[:80]!r}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, MemoryError | RecursionError):
            return f"{type(cause).__name__} on the way"
        cause = cause.__cause__ or cause.__context__
    return ""


def _where(error: BaseException) -> str:
    """Return the last places of the first error, newest first."""
    while error.__cause__ is not None:
        error = error.__cause__
    places = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(
        f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in places[::-1]
    )


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * mmap.PAGESIZE + _ADDRESS_SPACE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def mutants(
    originals: Sequence[bytes], mutate: Callable[[bytes, Random], bytes], seed: int
) -> Iterator[bytes]:
    """Yield the originals, and then mutants of them and of one another, for ever."""
    random, pool = Random(seed), [*originals]
    yield from originals
    while True:
        mutant = mutate(random.choice(pool), random)
        yield mutant
        if random.random() < 0.02 and len(mutant) <= MOST_BYTES:
            # Damage upon damage, now and then, from the originals on.
            if len(pool) >= len(originals) + _KEPT_ORIGINALS:
                del pool[len(originals) + random.randrange(_KEPT_ORIGINALS)]
            pool.append(mutant)


def _guided(
    target: "FuzzTarget", trial: Feeder, order: WorkOrder, originals: list[bytes]
) -> None:
    """Let atheris choose, for ever."""
    atheris = _atheris()

    def mutate(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        return target.mutate(data, random)[:most]

    folder = Path(order.note).with_suffix(".corpus")
    folder.mkdir(exist_ok=True)
    for number, data in enumerate(originals):
        (folder / str(number)).write_bytes(data)
    arguments = [
        *("asyncnn", f"-seed={order.seed + 1}", f"-max_len={MOST_BYTES}"),
        *("-timeout=3600", "-rss_limit_mb=0", "-len_control=0", "-verbosity=0"),
        f"-artifact_prefix={folder}/",
        *(f"-handle_{each}=0" for each in ("abrt", "segv", "bus", "fpe", "ill")),
    ]
    atheris.Setup([*arguments, str(folder)], trial, custom_mutator=mutate)
    atheris.Fuzz()


def _atheris() -> Any:
    return import_module("atheris")


@contextmanager
def _instrumenting(order: WorkOrder) -> Iterator[None]:
    if not order.is_guided:
        yield
        return
    with _atheris().instrument_imports(include=["asyncnn"]):
        yield


def _shrunk(order: WorkOrder, ends: Callable[[bytes], str]) -> None:
    """Take parts away for as long as there is time, and the end is the same."""
    path, limit = Path(order.input), time.monotonic() + order.seconds
    data = path.read_bytes()
    wanted, size = ends(data), len(data) // 2
    while size and wanted:
        at = 0
        while at < len(data):
            if time.monotonic() > limit:
                return
            shorter = data[:at] + data[at + size :]
            if ends(shorter) == wanted:
                data = shorter
                path.write_bytes(data)
            else:
                at += size
        size //= 2


def _end_of(try_: Callable[[bytes], None], note: Note, data: bytes) -> str:
    """Return how a child ends that tries some bytes; empty if it lives."""
    child = os.fork()
    if not child:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        try_(data)
        os._exit(0)
    limit = time.monotonic() + HANG_S
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        time.sleep(0.002)
        if time.monotonic() > limit:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
    status = os.waitstatus_to_exitcode(ended[1])
    return note.words.partition("\n")[2] if status == 1 else f"{status or ''}"


def main(order: WorkOrder) -> None:
    """Do as ordered; what is found ends the process with 1."""
    faulthandler.enable()
    # By the kernel: what hangs in native code would not notice.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != order.watcher:
        return
    with _instrumenting(order):
        target = import_module(order.targets).TARGETS[order.target]
        originals = [] if order.input else list(target.corpus())
        if order.corpus:
            files = sorted(Path(order.corpus).rglob("*"))
            originals += [each.read_bytes() for each in files if each.is_file()]
        note = Note(order.note)

        def alone(data: bytes) -> None:
            with target.opened(order.device) as run:
                Feeder(target, run, note)(data)

        if order.shrinks:
            _shrunk(order, lambda data: _end_of(alone, note, data))
        elif order.input:
            alone(Path(order.input).read_bytes())
        else:
            with target.opened(order.device) as run:
                trial = Feeder(target, run, note, order.known)
                _hunt(target, trial, order, originals)


def _hunt(
    target: "FuzzTarget", trial: Feeder, order: WorkOrder, originals: list[bytes]
) -> None:
    """Try for ever; who has started this process ends it."""
    if order.is_guided:
        # Modules that are imported when they are needed take seconds to instrument.
        for data in originals:
            with suppress(Exception):
                trial.run(data)
    _limit_memory()
    if order.is_guided:
        _guided(target, trial, order, originals)
    for data in mutants(originals, target.mutate, order.seed):
        trial(data)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=WorkOrder))
