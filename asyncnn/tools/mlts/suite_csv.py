"""Reports as CSV, in the columns of the suite's own benchmark.

A line has its latencies as counts in 32 ranges of time, so that its length depends on
what is in it. The suite's page of results finds what others are compared with in the
lines of ``TFLite_CPU``, which are LiteRT's.

Source: test/mlts/benchmark, CSVWriter and BenchmarkResult.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from asyncnn.tools.mlts.contenders import LITERT, ONNX_RUNTIME
from asyncnn.tools.mlts.evaluators import GOLDEN
from asyncnn.tools.mlts.suite_records import (
    Accuracy,
    JudgedModel,
    SuiteReport,
    SuiteRow,
)

Cell: TypeAlias = str | int | float

RANGES = 32

_ROUNDING = 1e-6

_FORMULAS = ("=", "+", "-", "@")
"""What the texts begin with that spreadsheets take for formulas."""

_BACKENDS = {LITERT: "TFLite_CPU", ONNX_RUNTIME: "ONNXRuntime_CPU"}

_TIMES = (
    "Iterations",
    "TotalTimeSec",
    "TimeFreqStartSec",
    "TimeFreqStepSec",
    "TimeFreqBucketCount",
    "TimeFreqBucket1,...",
)
_PREPARATIONS = {
    "CompileWithoutCache": "compileWithoutCache",
    "SaveToCache": "saveToCache",
    "PrepareFromCache": "prepareFromCache",
}
_HEADINGS = (
    "testInfo",
    "backendType",
    *(f"inference{each}" for each in _TIMES),
    "maxSingleError",
    "testSetSize",
    "evaluatorsCount",
    "validationErrorsCount",
    "evaluatorKey1,...",
    "evaluatorResult1,...",
    "validationError1,...",
    *(
        heading
        for title, name in _PREPARATIONS.items()
        for heading in (f"has{title}Results", *(f"{name}{each}" for each in _TIMES))
    ),
    "compilationCacheSizeBytes",
)


def csv_of(report: SuiteReport) -> str:
    """Return the text of a CSV file; what was refused is not in it."""
    return "".join(f"{line}\n" for line in _lines(report))


def _lines(report: SuiteReport) -> Iterator[str]:
    environment = report.environment
    how_far = f", {report.interrupted}" if report.interrupted else ""
    build = _plain(f"asyncnn {environment.asyncnn} on {environment.cpu}{how_far}")
    yield f"{report.made_at:%Y%m%d_%H%M%S},{build}"
    yield f"#{','.join(_HEADINGS)}"
    records = {model.name: model for model in report.models}
    for row in report.rows:
        if row.latency is not None:
            yield ",".join(map(_text, _cells(row, records[row.model])))


def _cells(row: SuiteRow, model: JudgedModel) -> Iterator[Cell]:
    yield _plain(row.model)
    yield backend_of(row)
    assert row.latency is not None
    yield from _times(row.latency.us)
    accuracy = row.accuracy or Accuracy("", model.samples)
    # Beside expected outputs, the suite counts no evaluator.
    figures = {} if accuracy.evaluator == GOLDEN else accuracy.figures
    yield accuracy.largest_error or 0.0
    yield accuracy.samples
    yield len(figures)
    yield len(accuracy.problems)
    yield from map(_plain, figures)
    yield from ("NaN" if each is None else each for each in figures.values())
    yield from map(_plain, accuracy.problems)
    preparation = row.preparation
    for us in (
        ()
        if preparation is None
        else (preparation.us, preparation.saving_us, preparation.cached_us)
    ):
        yield "true" if us else "false"
        if us:
            yield from _times(us)
    if preparation is None:
        yield from ["false"] * len(_PREPARATIONS)
    yield 0 if preparation is None else preparation.cache_bytes


def backend_of(row: SuiteRow) -> str:
    """Return what the suite calls a way to run models."""
    name = _BACKENDS.get(row.system) if row.is_peer else None
    return name or _plain(f"asyncnn_{row.system}_{row.transport}_{row.path}")


def _times(us: Sequence[float]) -> Iterator[Cell]:
    """Yield how many runs there are, seconds in all, and counts by ranges of time."""
    seconds = np.asarray(us) / 1e6
    start = float(seconds.min())
    step = (float(seconds.max()) - start) / (RANGES - 1)
    places = (seconds - start) / step if step else np.zeros(len(seconds))
    # The longest is the last one's, wherever its quotient has been rounded to.
    counts = np.bincount((places + _ROUNDING).astype(int), minlength=RANGES)
    yield len(seconds)
    yield float(seconds.sum())
    yield start
    yield step
    yield RANGES
    yield from (float(count) for count in counts)


def _text(cell: Cell) -> str:
    return f"{cell:.9g}" if isinstance(cell, float) else str(cell)


def _plain(text: str) -> str:
    """Return a text without what ends a cell; the suite's readers know no quotes.

    What a spreadsheet would compute, such as a model called ``=A1``, is marked as text.
    """
    plain = " ".join(text.replace(",", " ").replace('"', "'").split())
    return f"'{plain}" if plain.startswith(_FORMULAS) else plain
