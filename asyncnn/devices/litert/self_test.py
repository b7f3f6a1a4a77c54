"""Whether LiteRT's C API can be trusted here: tried in a process of its own.

What that process may do to itself, the one that asks is spared: a function whose
arguments have changed since the release that asyncnn was written for ends a process by
a signal, or never returns. The verdict is kept for this library, this CPU and this
version of asyncnn, with how fast it has computed, in a file that only the user may
write; remove it to have the test repeated. The test is ``python -m
asyncnn.devices.litert.self_test LIBRARY VERSION``.
"""

import contextlib
import hashlib
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

import asyncnn
from asyncnn.devices.compiled_graph import Array, CompiledGraph
from asyncnn.devices.litert.c_api import CApiUnavailableError
from asyncnn.devices.litert.c_api_engine import CApiEngine
from asyncnn.devices.litert.weights import PackedWeights, weights_key
from asyncnn.devices.measured_capabilities import cpu_features, cpu_name
from asyncnn.devices.private_files import read_private, state_folder, write_private
from asyncnn.engine.costs import USUAL, Speeds
from asyncnn.engine.workspace import aligned_bytes
from asyncnn.hal.errors import GeneralFailureError, ResourceExhaustedError
from asyncnn.offload import start_thread

logger = logging.getLogger(__name__)

LIMIT_S = 60.0
_REPETITIONS = 100
_OFFSETS_BYTES = (0, 4, 16, 64)
_MOST_INTERRUPTIONS = 500
_MOST_BYTES = 2**14
_UNUSABLE = (OSError, RuntimeError, msgspec.DecodeError)
TRIALS_VERSION = 2
"""Counts the changes to what is tried and kept."""

_FROM_OTHERS = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL}
)
"""Signals of a terminal, of a service that is stopped, of a system without memory."""

_LIMITS = {
    resource.RLIMIT_AS: 2**40,
    resource.RLIMIT_DATA: 2**40,
    resource.RLIMIT_NOFILE: 256,
}
"""What the test has enough of; a process of few bytes may crash in many ways."""

_MODULE = "asyncnn.devices.litert.self_test"


class Subject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a verdict holds for. ``library`` is its path, size and time of change."""

    asyncnn: str
    version: str
    library: str
    cpu: str
    cpu_features: str
    trials: int = TRIALS_VERSION

    @classmethod
    def here(cls, library: Path, version: str) -> "Subject":
        """Return the subject of a library on this machine.

        :raises OSError: if there is no such file.
        """
        status = library.stat()
        described = f"{library} {status.st_size} {status.st_mtime_ns}"
        return cls(asyncnn.__version__, version, described, cpu_name(), cpu_features())

    def file(self) -> Path:
        """Return where its verdict is kept.

        :raises RuntimeError: if there is no home.
        """
        name = hashlib.blake2b(msgspec.json.encode(self), digest_size=12).hexdigest()
        return state_folder() / f"litert-{name}.json"


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a self-test has found: no ``reason`` against the library, or one.

    ``speeds`` are those of one that it has nothing against.
    """

    subject: Subject
    reason: str
    speeds: Speeds = USUAL


def reason_against(
    library: Path, version: str, *, command: Sequence[str] | None = None
) -> str:
    """Return why the library must not be used, or nothing if it may be.

    The first time it takes about a second. ``command`` is run instead of the test. If
    the test was stopped by others, or had no memory, that holds for this time only, and
    so does a reason against the library that is found below a limit of memory.

    :raises OSError: if there is no such library, or no process can be started.
    """
    subject = Subject.here(library, version)
    verdict = _kept(subject)
    if verdict is None:
        try:
            verdict = Verdict(subject, *_tried(command or _command(library, version)))
        except _NoVerdictError as error:
            logger.warning("LiteRT's C API is not used this time: %s", error)
            return str(error)
        # One against a library may be for want of what this process alone has not.
        where = None if verdict.reason and _has_little() else _keep(verdict)
        if verdict.reason:
            logger.warning(
                "LiteRT's C API is not used: %s (kept in %s)", verdict.reason, where
            )
    return verdict.reason


def speeds_of(library: Path, version: str) -> Speeds:
    """Return how fast a library was measured to be, usual speeds if that is not kept.

    :raises OSError: if there is no such library.
    """
    verdict = _kept(Subject.here(library, version))
    return USUAL if verdict is None else verdict.speeds


def _command(library: Path, version: str) -> list[str]:
    # -P: a module of the same name in the current folder must not be imported.
    return [sys.executable, "-P", "-m", _MODULE, str(library), version]


def _tried(command: Sequence[str]) -> tuple[str, Speeds]:
    """Return the reason against a library, if any, and its speeds.

    :raises _NoVerdictError: if the test says nothing of the library.
    """
    root = str(Path(asyncnn.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        ended = subprocess.run(
            command,
            # Where no thread can be started, BLAS waits for one for ever.
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its self-test has not ended within {LIMIT_S:g} s", USUAL
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        reason = f"its self-test was ended by {name}"
        if -ended.returncode in _FROM_OTHERS:
            raise _NoVerdictError(reason)
        return reason, USUAL
    if ended.returncode:
        last = _last_line(ended.stderr) or "no reason given"
        if ended.returncode == os.EX_TEMPFAIL:
            raise _NoVerdictError(f"its self-test could not be made: {last}")
        return f"its self-test failed: {last}", USUAL
    with contextlib.suppress(msgspec.DecodeError):  # it has not come to measuring
        return "", msgspec.json.decode(_last_line(ended.stdout), type=Speeds)
    return "", USUAL


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _kept(subject: Subject) -> Verdict | None:
    """Return the verdict that is kept, None if there is none that can be used."""
    try:
        content = read_private(subject.file(), _MOST_BYTES)
        verdict = msgspec.json.decode(content, type=Verdict)
    except FileNotFoundError:
        return None
    except _UNUSABLE as error:
        logger.warning("a verdict on LiteRT's C API is not used: %s", error)
        return None
    return verdict if verdict.subject == subject else None


def _has_little() -> bool:
    """Tell whether this process may have less memory or descriptors than others."""
    limits = {each: resource.getrlimit(each)[0] for each in _LIMITS}
    return any(0 <= limits[each] < least for each, least in _LIMITS.items())


def _keep(verdict: Verdict) -> Path | None:
    with contextlib.suppress(OSError, RuntimeError):
        file = verdict.subject.file()
        write_private(file, msgspec.json.encode(verdict))
        return file
    return None


class _NoVerdictError(Exception):
    """A test has ended for reasons that are not the library's."""


class _TrialError(Exception):
    """Something is not as it should be."""


def _require(is_right: bool, otherwise: str) -> None:
    if not is_right:
        raise _TrialError(otherwise)


class _Trial:
    """The test itself, in a process that it may end.

    :raises _TrialError: if something is not as it should be.
    :raises CApiUnavailableError: if the library cannot even be loaded.
    """

    def __init__(self, library: Path, version: str) -> None:
        # What asks for the verdict has no use for it, and it takes long to import.
        from asyncnn.devices.litert.chain_model import Chain

        self._engine = CApiEngine(library, version)
        # Its arrays are so large that they are used in place, where one can look.
        self._chain = Chain(links=24, rows=80, width=128)
        self._model = self._chain.model()
        self._x = np.random.default_rng(0).integers(-8, 9, (80, 128)).astype(np.float32)
        self._early, self._late = self._chain.expected(self._x)

    def run(self) -> None:
        """Compile, run, interrupt and close graphs."""
        graph = self._engine.compile(self._model)
        for offset in _OFFSETS_BYTES:
            self._try_alignment(graph, offset)
        self._interrupt_before(graph)
        self._interrupt_within(graph)
        graph.close()
        weights = PackedWeights(weights_key(self._model, self._engine.version))
        for number in range(_REPETITIONS):
            again = self._engine.compile(
                self._model, weights=weights if number % 2 else None
            )
            self._compare(again, self._x)
            again.close()

    def speeds(self) -> Speeds:
        """Return how fast it computes."""
        from asyncnn.devices.litert.speed_trials import measured_speeds

        return measured_speeds(self._engine)

    def _outputs(self, offset: int = 0) -> list[Array]:
        made = []
        for like in (self._early, self._late):
            memory = aligned_bytes(like.nbytes + offset)[offset:].view(np.float32)
            memory[:] = np.nan
            made.append(memory.reshape(like.shape))
        return made

    def _compare(self, graph: CompiledGraph, x: Array, offset: int = 0) -> None:
        outputs = self._outputs(offset)
        _require(graph.run([x], outputs), "a run says that it was interrupted")
        for found, right in zip(outputs, (self._early, self._late), strict=True):
            _require(np.array_equal(found, right), f"wrong results at offset {offset}")

    def _try_alignment(self, graph: CompiledGraph, offset: int) -> None:
        memory = aligned_bytes(self._x.nbytes + offset)[offset:].view(np.float32)
        x = memory.reshape(self._x.shape)
        x[...] = self._x
        x.flags.writeable = False
        for _ in range(3):
            self._compare(graph, x, offset)

    def _interrupt_before(self, graph: CompiledGraph) -> None:
        graph.interrupt()
        ended = graph.run([self._x], self._outputs())
        _require(not ended, "an interrupt has no effect")
        graph.clear_interrupt()
        self._compare(graph, self._x)

    def _interrupt_within(self, graph: CompiledGraph) -> None:
        """Interrupt until a run has come to its first output, but not to its last."""
        for _ in range(_MOST_INTERRUPTIONS):
            outputs = self._outputs()
            thread = threading.Thread(target=graph.run, args=([self._x], outputs))
            start_thread(thread)
            while np.isnan(outputs[0][0, 0]) and thread.is_alive():
                pass
            graph.interrupt()
            thread.join()
            graph.clear_interrupt()
            if np.isnan(outputs[1]).all():
                self._compare(graph, self._x)
                return
        raise _TrialError("an interrupt has no effect within a run")


def main(library: str, version: str) -> int:
    """Run the test; return 0, or 1 with the reason as the last line written.

    Where memory, descriptors or threads have run out, it is ``os.EX_TEMPFAIL``.
    After a success, speeds are the last line of standard output.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an expected outcome
    # Whoever asked may be gone, and what hangs may be a library, which hears no signal.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        trial = _Trial(Path(library), version)
        trial.run()
        speeds = trial.speeds()
    except (_TrialError, CApiUnavailableError, GeneralFailureError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        return 1
    except (OSError, MemoryError, ResourceExhaustedError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return os.EX_TEMPFAIL
    print(msgspec.json.encode(speeds).decode())  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
