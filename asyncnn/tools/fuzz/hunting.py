"""Watches a worker, restarts it after what it has found, and keeps that in files."""

import hashlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.tools.fuzz.worker import HANG_S, NOTE_BYTES, Note, WorkOrder
from asyncnn.tools.watched_processes import (
    LOOK_S,
    cause_of,
    keep_calls_of,
    starved_s_of,
    take_stacks,
)

HAS_ATHERIS = importlib.util.find_spec("atheris") is not None
"""Whether mutants can be guided by coverage."""

UNGUIDED = frozenset({"driver", "frames", "http", "litert", "onnxruntime"})
"""Targets in which what counts is in another process, in C, or on a loop."""

_MOST_START_S = 120.0
_SHRINK_S = 8.0
_MOST_STARTS = 16
_FIRST_LINE = "most recent call first"


class FuzzFinding(msgspec.Struct, frozen=True):
    """Bytes that a target does not answer as it has to.

    ``kind`` is ``crash``, ``hang`` or ``error``; ``where`` is the same for the same
    cause, as far as is known. ``command`` tries the ``file`` again. Of a driver,
    ``recording`` is a file of the calls that it was asked for.
    """

    kind: str
    problem: str
    where: str
    file: str
    command: str
    recording: str = ""


class Hunted(msgspec.Struct, frozen=True):
    """How a target was tried: so often in so many seconds, and what was found.

    ``how`` is ``atheris``, or ``seed`` for mutants that nothing guides. A target that
    cannot be tried here has a ``problem`` instead.
    """

    target: str
    how: str
    seed: int
    executions: int
    seconds: float
    findings: tuple[FuzzFinding, ...] = ()
    problem: str = ""

    @property
    def per_s(self) -> float:
        """Executions a second."""
        return self.executions / self.seconds if self.seconds else 0.0


def hunt(order: WorkOrder, folder: Path) -> Hunted:
    """Try a target until the time is over; what is found is written below a folder.

    Coverage guides as the order says, where that can be.

    :raises GeneralFailureError: if a finding cannot be written.
    """
    is_guided = order.is_guided and HAS_ATHERIS and order.target not in UNGUIDED
    found: dict[str, FuzzFinding] = {}
    executions, spent, starts, problem = 0, 0.0, 0, ""
    while spent < order.seconds and starts < _MOST_STARTS:
        trial = replace(
            order,
            seconds=order.seconds - spent,
            seed=order.seed + starts,
            is_guided=is_guided,
            known=tuple(found),
        )
        outcome = watched(trial)
        executions += outcome.executions
        spent += outcome.seconds
        starts += 1
        if not outcome.executions:
            problem = outcome.problem or "it has not begun"
            break
        if outcome.kind and outcome.where not in found:
            found[outcome.where] = _kept(trial, outcome, folder)
    return Hunted(
        *(order.target, "atheris" if is_guided else "seed", order.seed, executions),
        *(round(spent, 2), tuple(found.values()), problem),
    )


def _kept(order: WorkOrder, outcome: "WorkerEnd", folder: Path) -> FuzzFinding:
    """Make what was found small, and write it to a file."""
    file = folder / f"{order.target}-{hashlib.sha256(outcome.data).hexdigest()[:12]}"
    recording = Path(f"{file}.calls")
    words = ["asyncnn", "fuzz", order.target, "--input", str(file)]
    if order.device:
        words += ["--device", order.device]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_bytes(outcome.data)
        order = replace(order, is_guided=False, known=(), input=str(file))
        again = watched(order)
        if again.kind == outcome.kind:
            outcome = replace(outcome, calls=again.calls)  # of that alone
            watched(replace(order, shrinks=True, seconds=_SHRINK_S))
        else:
            words.append(f"# by itself it is answered: seed {order.seed}")
        if outcome.calls:
            recording.write_bytes(outcome.calls)
    except OSError as error:
        raise GeneralFailureError(f"{file}: {error.strerror}") from error
    return FuzzFinding(
        *(outcome.kind, outcome.problem, outcome.where, str(file)),
        *(" ".join(words), str(recording) if outcome.calls else ""),
    )


class WorkerEnd(msgspec.Struct, frozen=True):
    """How a worker ended, in how many seconds since it was ready; see `FuzzFinding`.

    ``data`` are what it tried last, and ``calls`` a recording of its driver.
    """

    executions: int
    seconds: float
    data: bytes = b""
    kind: str = ""
    problem: str = ""
    where: str = ""
    calls: bytes = b""


def watched(order: WorkOrder) -> WorkerEnd:
    """Have a worker do as ordered, and end it when its time is over, or if it hangs."""
    with TemporaryDirectory(prefix="asyncnn-fuzz-") as folder:
        path, words = Path(folder, "note"), Path(folder, "stderr")
        path.write_bytes(b"")
        os.truncate(path, NOTE_BYTES)
        note = Note(str(path))
        order = replace(order, note=str(path), watcher=os.getpid())
        command = [sys.executable, "-m", "asyncnn.tools.fuzz.worker"]
        with (
            words.open("wb") as stderr,
            subprocess.Popen(
                [*command, msgspec.json.encode(order).decode()],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
            ) as process,
        ):
            try:
                hangs, seconds = _wait(process, note, order)
            finally:
                process.kill()
        status = process.returncode
        output = words.read_text(errors="replace")
        outcome = WorkerEnd(note.head[0], max(seconds, 1e-3), note.data)
        if note.calls.exists():
            outcome = replace(outcome, calls=note.calls.read_bytes())
        if hangs:
            where = f"hang at {_place(output)}"
            return replace(outcome, kind="hang", problem="took 5 s", where=where)
        if note.words:
            problem, _, where = note.words.partition("\n")
            return replace(outcome, kind="error", problem=problem, where=where)
        if status in (0, -signal.SIGKILL) or not note.head[0]:
            return replace(outcome, problem=output.strip().rpartition("\n")[2][:300])
        name = cause_of(status)
        return replace(
            outcome,
            kind="crash",
            problem=f"the process ended by {name}: {_last_words(output)}",
            where=f"{name} at {_place(output)}",
        )


def _wait(
    process: subprocess.Popen[bytes], note: Note, order: WorkOrder
) -> tuple[bool, float]:
    """Wait for the end of a worker, or of its time; return whether it hangs.

    And for how many seconds it was ready.
    """
    started = last = time.monotonic()
    ready: float | None = None
    count, starved_s = 0, 0.0
    while process.poll() is None:
        time.sleep(LOOK_S)
        now, (executions, _, _, is_ready) = time.monotonic(), note.head
        if is_ready and ready is None:
            ready = last = now
        if executions != count:
            count, last, starved_s = executions, now, starved_s_of(process.pid)
        if (
            ready is not None
            and not order.shrinks
            and now - last > HANG_S
            and now - last - starved_s_of(process.pid) + starved_s > HANG_S
        ):
            keep_calls_of(process.pid, note.calls)
            take_stacks(process)
            return True, now - ready
        limit = order.seconds + (2 * HANG_S if order.shrinks or order.input else 0)
        # What is tried when the time is over has its own time yet: it may hang.
        is_between = last == now or order.shrinks
        if ready is None:
            if now - started > _MOST_START_S:
                process.kill()
        elif now - ready > limit and is_between:
            process.kill()
    return False, time.monotonic() - (ready or started)


def _place(output: str) -> str:
    """Return the newest places of what `faulthandler` has written."""
    lines = output.partition(_FIRST_LINE)[2].splitlines()[1:4]
    places = [line.replace('"', "").split(", ") for line in lines if ", line " in line]
    return " < ".join(
        f"{Path(each[0].split('File ')[-1]).name}:{each[1].split()[1]}"
        for each in places
    )


def _last_words(output: str) -> str:
    """Return the line that native code has written before its process ended."""
    lines = output.partition("Fatal Python error")[0].strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"
