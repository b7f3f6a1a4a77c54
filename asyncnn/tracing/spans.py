"""Spans of the steady clock, their labels, and the JSON that shows them.

The labels are the HAL's systrace's: ``[NN_<layer>_<phase>]detail``. The JSON is
for Perfetto and Chrome's ``about:tracing``: spans of one execution or preparation stand
on a row of their own (nestable events), ones of no group on the row of their thread
(complete events). Times are microseconds of the steady clock, which all processes of a
machine share.

Source: the tracing utilities of the HAL (Tracing.h); the Trace Event Format of
Chromium, JSON object format.
"""

import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
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
