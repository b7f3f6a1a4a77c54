"""Spans for OpenTelemetry, where it is installed and configured."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from asyncnn.tracing.spans import Span

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer


class OpenTelemetrySink:
    """Takes what a `Recorder` hands on and gives it to a tracer as finished spans.

    Without ``tracer``, that of the provider which the application has set up.

    :raises ImportError: if the package ``opentelemetry-api`` is not installed.
    """

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        from opentelemetry import trace

        self._error = trace.StatusCode.ERROR
        self._tracer = tracer or trace.get_tracer("asyncnn")
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def __call__(self, spans: Sequence[Span]) -> None:
        """Hand on finished spans; their times become those of the clock on the wall."""
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
