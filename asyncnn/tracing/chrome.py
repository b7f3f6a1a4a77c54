"""Traces as JSON that Perfetto and Chrome's ``about:tracing`` open.

Spans of one execution or preparation stand on a row of their own (nestable events),
those of no group on the row of their thread (complete events). Times are microseconds
of the steady clock, which all processes of a machine share.

Source: the Trace Event Format of Chromium, JSON object format.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from asyncnn.tracing.spans import Span

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
    with path.open("ab") as file:
        file.write(line)


def merge_parts(parts: Iterable[Path], path: Path) -> None:
    """Write one trace of the events in ``parts`` in order of time, and delete those.

    A line that a killed process did not finish is left out.
    """
    events: list[Event] = []
    consumed = list(parts)
    for part in consumed:
        for line in part.read_bytes().splitlines():
            try:
                events += _decode(line)
            except msgspec.DecodeError:
                continue
    # Stable: an event that encloses others of the same time stays in front of them.
    events.sort(key=lambda event: event.get("ts", 0.0))
    path.write_bytes(_encode({"traceEvents": events, "displayTimeUnit": "ns"}))
    for part in consumed:
        part.unlink(missing_ok=True)
