"""Recording, on or off for a whole process and for those that it starts.

Code that may be traced reads `recorder` first, which is None while nothing records.
`OpenTelemetrySink` hands spans to OpenTelemetry, where that is installed.

Labels of spans are the HAL's systrace's: ``[NN_<layer>_<phase>]detail``. Their JSON is
for Perfetto and Chrome's ``about:tracing``: spans of one execution or preparation stand
on a row of their own (nestable events), ones of no group on the row of their thread
(complete events). Times are microseconds of the steady clock, which all processes of a
machine share.

Source: the tracing utilities of the HAL (Tracing.h); the Trace Event Format of
Chromium, JSON object format.
"""

import atexit
import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from asyncnn.deadlines import deadline_after
from asyncnn.hal.errors import AsyncnnError, ResourceExhaustedError
from asyncnn.input_files import call_abandonable, in_one
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
import itertools
import threading
from collections import deque
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import msgspec

from asyncnn.input_files import open_input, read_input
from asyncnn.output_files import write_file


class Layer(StrEnum):
    """The part of the system that did it."""

    APPLICATION = "LA"
    RUNTIME = "LR"
    UTILITY = "LU"
    IPC = "LI"
    DRIVER = "LD"
    CPU = "LC"
    OTHER = "LO"


class Phase(StrEnum):
    """What it was done for; the last four are parts of an execution."""

    OVERALL = "PO"
    WARM_UP = "PWU"
    BENCHMARK = "PBM"
    INITIALIZATION = "PI"
    PREPARATION = "PP"
    COMPILATION = "PC"
    EXECUTION = "PE"
    TERMINATION = "PT"
    UNSPECIFIED = "PU"
    INPUTS_AND_OUTPUTS = "PIO"
    TRANSFORMATION = "PTR"
    COMPUTATION = "PCO"
    RESULTS = "PR"


def label(layer: Layer, phase: Phase, detail: str) -> str:
    """Return the label by which the HAL's trace tools know a span."""
    return f"[NN_{layer}_{phase}]{detail}"


FLUSH_SPANS = 4096
"""Spans that are kept until they are handed on."""


class Span(msgspec.Struct, frozen=True):
    """Something that took from ``started_ns`` to ``ended_ns``.

    ``group`` is the number of the execution or preparation that it is part of, 0 for
    none. ``failure`` names the status that it ended with, if not NONE.
    """

    name: str
    layer: Layer
    phase: Phase
    started_ns: int
    ended_ns: int
    thread: int
    group: int = 0
    failure: str = ""

    @property
    def label(self) -> str:
        """The name with layer and phase, as the HAL's trace tools know it."""
        return label(self.layer, self.phase, self.name)


class Recorder:
    """Takes spans from any thread and hands them to ``sink``, many at a time."""

    def __init__(self, sink: Callable[[Sequence[Span]], None]) -> None:
        self._sink = sink
        self._spans: deque[Span] = deque()
        self._lock = threading.Lock()
        self._groups = itertools.count(1)

    def new_group(self) -> int:
        """Return a number for spans that belong together."""
        return next(self._groups)

    def add(
        self,
        name: str,
        layer: Layer,
        phase: Phase,
        started_ns: int,
        ended_ns: int,
        group: int = 0,
        failure: str = "",
    ) -> None:
        """Record a span that has ended, in this thread."""
        thread = threading.get_native_id()
        self._spans.append(
            Span(name, layer, phase, started_ns, ended_ns, thread, group, failure)
        )
        if len(self._spans) >= FLUSH_SPANS:
            self.flush()

    def flush(self) -> None:
        """Hand on what was recorded."""
        with self._lock:  # others go on recording meanwhile
            spans = [self._spans.popleft() for _ in range(len(self._spans))]
            if spans:
                self._sink(spans)


Event = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[Event]).decode


def process_event(pid: int, name: str) -> Event:
    """Return the event that names a process."""
    return {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}


def events_of(spans: Iterable[Span], pid: int) -> Iterator[Event]:
    """Yield the events that stand for the spans of process ``pid``."""
    for span in spans:
        event: Event = {
            "name": span.label,
            "cat": f"{span.layer},{span.phase}",
            "pid": pid,
            "tid": span.thread,
            "ts": span.started_ns / 1000,
        }
        if span.failure:
            event["args"] = {"failure": span.failure}
        if not span.group:
            duration = (span.ended_ns - span.started_ns) / 1000
            yield event | {"ph": "X", "dur": duration}
            continue
        # Without the category, a group would be a row for each of them.
        event |= {"cat": "asyncnn", "id2": {"local": hex(span.group)}}
        yield event | {"ph": "b"}
        yield event | {"ph": "e", "ts": span.ended_ns / 1000}


def append_part(path: Path, events: Iterable[Event]) -> None:
    """Append events to a file that `merge_parts` is going to read, all or nothing."""
    line = _encode(list(events)) + b"\n"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with open(open_input(path, flags), "ab") as file:
        file.write(line)


def merge_parts(parts: Iterable[Path], path: Path) -> None:
    """Write one trace of the events in ``parts`` in order of time, and delete those.

    A line that a killed process did not finish is left out. What is at ``path`` stays
    there until the trace is complete.

    :raises OSError: if it cannot be written; the parts are deleted then, too.
    """
    events: list[Event] = []
    consumed = list(parts)
    for part in consumed:
        for line in read_input(part).splitlines():
            try:
                events += _decode(line)
            except msgspec.DecodeError:
                continue
    # Stable: an event that encloses others of the same time stays in front of them.
    events.sort(key=lambda event: event.get("ts", 0.0))
    try:
        write_file(path, _encode({"traceEvents": events, "displayTimeUnit": "ns"}))
    finally:
        for part in consumed:
            part.unlink(missing_ok=True)


logger = logging.getLogger(__name__)


class OpenTelemetrySink:
    """Takes what a `Recorder` hands on and gives it to a tracer as finished spans.

    Without ``tracer``, the one of the provider which the application has set up.

    :raises ImportError: if the package ``opentelemetry-api`` is not installed.
    """

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        from opentelemetry import trace

        self._error = trace.StatusCode.ERROR
        self._tracer = tracer or trace.get_tracer("asyncnn")
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self, spans: Sequence[Span]) -> None:
        """Hand on finished spans; their times become times of the wall clock."""
        for span in spans:
            started = self._tracer.start_span(
                span.name,
                start_time=self._epoch_ns + span.started_ns,
                attributes={
                    "asyncnn.layer": span.layer.name,
                    "asyncnn.phase": span.phase.name,
                    "asyncnn.group": span.group,
                },
            )
            if span.failure:
                started.set_status(self._error, span.failure)
            started.end(end_time=self._epoch_ns + span.ended_ns)


VARIABLE = "ASYNCNN_TRACE"
"""Environment variable by which processes that are started join a recording."""

_PATIENCE_S = 2.0
"""For which those who record wait for the trace's folder, once."""

recorder: Recorder | None = None
"""What takes spans now; read it each time, through this module."""


class Trace:
    """The spans of one execution or preparation, from now on."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._group = recorder.new_group()
        self.started_ns = time.monotonic_ns()

    def add(
        self,
        name: str,
        layer: Layer,
        phase: Phase,
        started_ns: int,
        ended_ns: int,
        failure: str = "",
    ) -> None:
        """Record a span that belongs to it."""
        self._recorder.add(
            name, layer, phase, started_ns, ended_ns, self._group, failure
        )

    def end(self, name: str, layer: Layer, phase: Phase, failure: str = "") -> None:
        """Record the span of all of it, which ends now."""
        ended_ns = time.monotonic_ns()
        self.add(name, layer, phase, self.started_ns, ended_ns, failure)


class _Spent:
    """Records what is done in its block as one span of this thread."""

    def __init__(
        self, recorder: Recorder, name: str, layer: Layer, phase: Phase
    ) -> None:
        self._recorder = recorder
        self._what = (name, layer, phase)

    def __enter__(self) -> None:
        self._started_ns = time.monotonic_ns()

    def __exit__(self, _: object, exc: BaseException | None, *__: object) -> None:
        failure = ""
        if isinstance(exc, AsyncnnError):
            failure = exc.status.name
        elif exc is not None:
            failure = type(exc).__name__
        ended_ns = time.monotonic_ns()
        self._recorder.add(*self._what, self._started_ns, ended_ns, 0, failure)


_NOT_RECORDED = contextlib.nullcontext()


def span(
    name: str, layer: Layer, phase: Phase
) -> contextlib.AbstractContextManager[None]:
    """Return a context for a block that awaits nothing, to record it if at all."""
    if recorder is None:
        return _NOT_RECORDED
    return _Spent(recorder, name, layer, phase)


def begin() -> Trace | None:
    """Return what takes the spans of a new execution, None while nothing records."""
    return None if recorder is None else Trace(recorder)


@contextlib.contextmanager
def recording_to(sink: Callable[[Sequence[Span]], None]) -> Iterator[Recorder]:
    """Record this process and hand the spans to ``sink``, many at a time.

    :raises RuntimeError: if this process records already.
    """
    global recorder
    if recorder is not None:
        raise RuntimeError("this process records already")
    recorder = active = Recorder(sink)
    try:
        yield active
    finally:
        recorder = None
        active.flush()


@contextlib.contextmanager
def recording(path: str | os.PathLike[str], name: str) -> Iterator[Recorder]:
    """Record this process, called ``name``, and write a trace to ``path`` at the end.

    A file that is there already stays as it is until then.

    Driver processes that are started meanwhile record, too; those that have ended by
    then are in the same trace.

    What is recorded goes on without the trace if its disk fills up, say; the end of the
    block says so.

    :raises RuntimeError: if this process records already.
    :raises OSError: if ``path`` cannot be written to.
    """
    path = Path(path).absolute()
    check_writable(path)  # better refused now than in the end
    own = _RecordedPart(path)
    with own.recording(name) as active:
        previous = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = os.fspath(path)
        try:
            yield active
        finally:
            if previous is None:
                del os.environ[VARIABLE]
            else:
                os.environ[VARIABLE] = previous
    call_abandonable(f"writing {path}", in_one(_merge, path, own.error))


def _merge(path: Path, error: OSError | None) -> None:
    parts = sorted(path.parent.glob(f"{escape(path.name)}.[0-9]*.part"))
    if error is not None:
        for part in parts:
            part.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, os.fspath(path))
    merge_parts(parts, path)


def join_recording(name: str) -> None:
    """Record this process until it exits, if the one that started it asks for it."""
    path = os.environ.get(VARIABLE)
    if path and recorder is None:
        part = _RecordedPart(Path(path)).recording(name)
        part.__enter__()
        atexit.register(part.__exit__, None, None, None)


class _RecordedPart:
    """What this process records of the trace at ``path``, in a file of its own.

    ``error`` is why the file takes no more, None as long as it does.
    """

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        self._pid = os.getpid()
        self._path = path.with_name(f"{path.name}.{self._pid}.part")

    @contextlib.contextmanager
    def recording(self, name: str) -> Iterator[Recorder]:
        """Record this process, called ``name``, inside the block.

        :raises OSError: with the file's path, if it cannot even be begun.
        """
        with recording_to(self._append) as active:
            call_abandonable(self._what, in_one(self._begin, name))
            yield active

    @property
    def _what(self) -> str:
        return f"writing {self._path}"

    def _begin(self, name: str) -> None:
        try:
            append_part(self._path, [process_event(self._pid, name)])
        except OSError as error:
            with contextlib.suppress(OSError):
                self._path.unlink()
            reason = error.strerror
            raise OSError(error.errno, reason, os.fspath(self._path)) from error

    def _append(self, spans: Sequence[Span]) -> None:
        # What was recorded is not to fail, and half a line takes no other behind it.
        if self.error is not None:
            return
        appending = in_one(append_part, self._path, events_of(spans, self._pid))
        try:
            call_abandonable(
                self._what, appending, deadline=deadline_after(_PATIENCE_S)
            )
        except (OSError, ResourceExhaustedError) as error:
            reason = getattr(error, "strerror", None) or "its folder does not answer"
            self.error = OSError(getattr(error, "errno", None) or errno.EIO, reason)
            logger.warning("the trace is incomplete: %s", reason)
