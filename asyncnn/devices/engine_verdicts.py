"""Whether an engine's library can be trusted here: tried in a process of its own.

What that process may do to itself, the one that asks is spared. The verdict is kept for
this library, this CPU and this version of asyncnn, with what the test wrote last, in
a file that only the user may write; remove it to have the test repeated.
"""

import contextlib
import hashlib
import logging
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

import asyncnn
from asyncnn.devices.measured_capabilities import cpu_features, cpu_name
from asyncnn.devices.private_files import read_private, state_folder, write_private
from asyncnn.hal.errors import (
    EngineUnavailableError,
    GeneralFailureError,
    ResourceExhaustedError,
)

logger = logging.getLogger(__name__)

LIMIT_S = 60.0
_MOST_BYTES = 2**14
_UNUSABLE = (OSError, RuntimeError, msgspec.DecodeError)

_FROM_OTHERS = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGKILL}
)
"""Signals of a terminal, of a service that is stopped, of a system without memory."""

_LIMITS = {
    resource.RLIMIT_AS: 2**40,
    resource.RLIMIT_DATA: 2**40,
    resource.RLIMIT_NOFILE: 256,
}
"""What a test has enough of; a process of few bytes may crash in many ways."""


class VerdictSubject(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a verdict holds for. ``library`` is its path, size and time of change."""

    asyncnn: str
    version: str
    library: str
    cpu: str
    cpu_features: str
    trials: int

    @classmethod
    def here(cls, library: Path, version: str, trials: int) -> "VerdictSubject":
        """Return the subject of a library on this machine.

        :raises OSError: if there is no such file.
        """
        status = library.stat()
        described = f"{library} {status.st_size} {status.st_mtime_ns}"
        cpu = cpu_name(), cpu_features()
        return cls(asyncnn.__version__, version, described, *cpu, trials)


class EngineVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a test has found: no ``reason`` against the library, or one.

    ``report`` is the last line that one wrote which has nothing against it.
    """

    subject: VerdictSubject
    reason: str
    report: str = ""


class Tried(NamedTuple):
    """A library that is tried: the ``key`` of its files, and ``what`` it is.

    ``module`` is run with library and version; ``trials`` counts the changes to what
    it tries and reports.
    """

    key: str
    what: str
    module: str
    trials: int

    def reason_against(
        self, library: Path, version: str, *, command: Sequence[str] | None = None
    ) -> str:
        """Return why the library must not be used, or nothing if it may be.

        The first time it takes about a second. ``command`` is run instead of the test.
        If the test was stopped by others, or had no memory, that holds for this time
        only, and so does a reason against the library that is found below a limit of
        memory.

        :raises OSError: if there is no such library, or no process can be started.
        """
        subject = VerdictSubject.here(library, version, self.trials)
        verdict = self._kept(subject)
        if verdict is None:
            try:
                found = _tried(command or self.command(library, version))
                verdict = EngineVerdict(subject, *found)
            except _NoVerdictError as error:
                logger.warning("%s is not used this time: %s", self.what, error)
                return str(error)
            # One against a library may be for want of what this process alone has not.
            where = None if verdict.reason and _has_little() else self._keep(verdict)
            if verdict.reason:
                logger.warning(
                    "%s is not used: %s (kept in %s)", self.what, verdict.reason, where
                )
        return verdict.reason

    def report_of(self, library: Path, version: str) -> str:
        """Return what the test of a library wrote; empty if that is not kept.

        :raises OSError: if there is no such library.
        """
        verdict = self._kept(VerdictSubject.here(library, version, self.trials))
        return "" if verdict is None else verdict.report

    def command(self, library: Path, version: str) -> list[str]:
        """Return the command of the test."""
        # -P: a module of the same name in the current folder must not be imported.
        return [sys.executable, "-P", "-m", self.module, str(library), version]

    def _file(self, subject: VerdictSubject) -> Path:
        """Return where a verdict is kept."""
        name = hashlib.blake2b(msgspec.json.encode(subject), digest_size=12).hexdigest()
        return state_folder() / f"{self.key}-{name}.json"

    def _kept(self, subject: VerdictSubject) -> EngineVerdict | None:
        try:
            content = read_private(self._file(subject), _MOST_BYTES)
            verdict = msgspec.json.decode(content, type=EngineVerdict)
        except FileNotFoundError:
            return None
        except _UNUSABLE as error:
            logger.warning("a verdict on %s is not used: %s", self.what, error)
            return None
        return verdict if verdict.subject == subject else None

    def _keep(self, verdict: EngineVerdict) -> Path | None:
        with contextlib.suppress(OSError, RuntimeError):
            file = self._file(verdict.subject)
            write_private(file, msgspec.json.encode(verdict))
            return file
        return None


def environment_of_trials() -> dict[str, str]:
    """Return the environment of a process that finds this package, wherever it is."""
    root = str(Path(asyncnn.__file__).parents[1])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    # Where no thread can be started, BLAS waits for one for ever.
    return {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}


def _tried(command: Sequence[str]) -> tuple[str, str]:
    """Return the reason against a library, if any, and what the test wrote."""
    try:
        ended = subprocess.run(
            command,
            env=environment_of_trials(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its self-test has not ended within {LIMIT_S:g} s", ""
    if ended.returncode < 0:
        name = signal.Signals(-ended.returncode).name
        reason = f"its self-test was ended by {name}"
        if -ended.returncode in _FROM_OTHERS:
            raise _NoVerdictError(reason)
        return reason, ""
    if ended.returncode:
        last = _last_line(ended.stderr) or "no reason given"
        if ended.returncode == os.EX_TEMPFAIL:
            raise _NoVerdictError(f"its self-test could not be made: {last}")
        return f"its self-test failed: {last}", ""
    return "", _last_line(ended.stdout)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _has_little() -> bool:
    """Return whether this process may have less memory or descriptors than others."""
    limits = {each: resource.getrlimit(each)[0] for each in _LIMITS}
    return any(0 <= limits[each] < least for each, least in _LIMITS.items())


class _NoVerdictError(Exception):
    """A test has ended for reasons that are not the library's."""


class TrialError(Exception):
    """Something is not as it should be."""


def require(is_right: bool, otherwise: str) -> None:
    """Raise `TrialError` unless something is as it should be."""
    if not is_right:
        raise TrialError(otherwise)


def trying(run: Callable[[], str], unusable: type[Exception]) -> int:
    """Run a test; return 0, or 1 with the reason as the last line written.

    It is ``os.EX_TEMPFAIL`` where memory, descriptors or threads have run out. What it
    returns is printed. So it is where the library lacks something else, which may come.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is an expected outcome
    # Whoever asked may be gone, and what hangs may be a library, which hears no signal.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        report = run()
    except EngineUnavailableError as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        return os.EX_TEMPFAIL
    except (TrialError, unusable, GeneralFailureError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)  # noqa: T201
        return 1
    except (OSError, MemoryError, ResourceExhaustedError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201
        return os.EX_TEMPFAIL
    print(report)  # noqa: T201
    return 0
