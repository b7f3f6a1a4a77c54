"""What is recorded: spans of the steady clock, grouped by what they belong to."""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from asyncnn.tracing.labels import Layer, Phase, label

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
