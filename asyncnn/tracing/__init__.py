"""Floor 1: where the time of executions and preparations goes.

Nothing is recorded, and next to nothing spent, unless `recording` is on. A trace is a
JSON file for Perfetto, with all processes that took part on one timeline.
"""

from asyncnn.tracing.active import (
    Trace,
    begin,
    join_recording,
    recording,
    recording_to,
    span,
)
from asyncnn.tracing.spans import Layer, Phase, Recorder, Span

__all__ = (
    "Layer",
    "Phase",
    "Recorder",
    "Span",
    "Trace",
    "begin",
    "join_recording",
    "recording",
    "recording_to",
    "span",
)
