"""A report as a page: tables, distributions, devices side by side, and history."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from asyncnn.hal.errors import counted
from asyncnn.tools import pages
from asyncnn.tools.mlts.contenders import LITERT
from asyncnn.tools.mlts.suite_records import SuiteReport, SuiteRow

_MOST_POINTS = 201
"""Of a distribution; more show no more to the eye."""

_PLAIN = "async"
"""The path that stands for a device in plots, of which eight colours can be known.

The tables have all paths.
"""

_WHO = (
    pages.Column("model"),
    pages.Column("system", help="a device, or another runtime in this process"),
    pages.Column("transport", help="in this process, or in a driver process"),
    pages.Column("path", help="the HAL call; session keeps the model's state"),
)
_LATENCY = (
    *_WHO,
    pages.Column("p50", "us"),
    pages.Column("p90", "us"),
    pages.Column("p99", "us"),
    pages.Column("runs"),
    pages.Column("to LiteRT", help="p50 divided by LiteRT's"),
    pages.Column("energy", "mJ", help="of the whole machine for one run"),
)
_PREPARATION = (
    *_WHO[:3],
    pages.Column(
        "from file", "us", help="from the file to a model that can run, at best"
    ),
    pages.Column("first run", "us"),
    pages.Column("saving", "us", help="the same, and leaving it in an empty cache"),
    pages.Column("from cache", "us", help="the same from that cache"),
    pages.Column("cache", "kB"),
    pages.Column("resident", "MB", help="growth by a prepared model that has run once"),
)
_ACCURACY = (
    *_WHO,
    pages.Column("evaluator"),
    pages.Column("samples"),
    pages.Column("outcome"),
    pages.Column("largest error", help="of one element, in real units"),
    pages.Column("figures"),
    pages.Column("problems"),
)
_REFUSALS = (*_WHO, pages.Column("reason"))


def page_of(report: SuiteReport, earlier: Sequence[SuiteReport] = ()) -> pages.Page:
    """Return the page of a report, with its history since ``earlier`` ones."""
    runs = sorted([*earlier, report], key=lambda each: each.made_at)
    return pages.Page(
        title="Machine learning test suite",
        parts=[
            pages.Text(_summary(report)),
            *_tables(report),
            *_side_by_side(report),
            *_distributions(report),
            *(_history(report, runs) if earlier else ()),
        ],
        circumstances=[
            f"measured at {report.made_at:%Y-%m-%d %H:%M} UTC",
            report.settings,
            str(report.environment),
            *report.notes,
            *filter(None, [report.interrupted]),
        ],
    )


def _summary(report: SuiteReport) -> str:
    failures = {row.model for row in report.failures()}
    judged = {row.model for row in report.rows if row.accuracy and not row.is_peer}
    measured = {row.way for row in report.rows if row.latency}
    text = (
        f"{counted(len(report.models), 'model')} on "
        f"{counted(len(measured), 'way')} to run them, measured by turns in one run. "
    )
    if report.interrupted:
        text += f"It was {report.interrupted}. "
    if not judged:
        return text + "Nothing was there to judge outputs by."
    if not failures:
        return text + f"The outputs of {counted(len(judged), 'model')} are accurate."
    return text + f"Outputs are off: {', '.join(sorted(failures))}."


def _tables(report: SuiteReport) -> Iterator[pages.Part]:
    rows = [row for row in report.rows if row.latency is not None]
    litert = {
        row.model: row.latency.p50_us
        for row in rows
        if row.system == LITERT and row.latency is not None
    }
    yield pages.SortableTable(
        title="Latency",
        columns=_LATENCY,
        rows=[_latency_cells(row, litert.get(row.model)) for row in rows],
        note="Microseconds of each run from the call to its outputs.",
    )
    prepared = {(row.model, row.system, row.transport): row for row in rows}
    yield pages.SortableTable(
        title="Preparation and memory",
        columns=_PREPARATION,
        rows=[_preparation_cells(row) for row in prepared.values()],
        note="Cached preparation is by the HAL's compilation cache.",
    )
    judged = [row for row in rows if row.accuracy is not None]
    if judged:
        yield pages.SortableTable(
            title="Accuracy",
            columns=_ACCURACY,
            rows=[_accuracy_cells(row) for row in judged],
            note="Beside expected outputs, a device may be as far off as LiteRT is in "
            "the same run.",
        )
    refused: list[list[pages.Value]] = [
        [*_who(row), row.refusal] for row in report.rows if row.refusal
    ]
    unread: list[list[pages.Value]] = [
        [model.name, None, None, None, model.problem]
        for model in report.models
        if model.problem
    ]
    if refused or unread:
        yield pages.SortableTable(
            title="Not measured", columns=_REFUSALS, rows=[*unread, *refused]
        )


def _who(row: SuiteRow) -> list[pages.Value]:
    return [row.model, row.system, row.transport, row.path or None]


def _latency_cells(row: SuiteRow, litert_us: float | None) -> list[pages.Value]:
    latency = row.latency
    assert latency is not None
    return [
        *_who(row),
        latency.p50_us,
        latency.p90_us,
        latency.p99_us,
        len(latency.us),
        latency.p50_us / litert_us if litert_us else None,
        None if row.joules is None else row.joules * 1e3,
    ]


def _preparation_cells(row: SuiteRow) -> list[pages.Value]:
    preparation = row.preparation
    if preparation is None:
        return [*_who(row)[:3], *[None] * 6]
    resident = preparation.resident_kib
    return [
        *_who(row)[:3],
        min(preparation.us),
        preparation.first_us,
        min(preparation.saving_us, default=None),
        min(preparation.cached_us, default=None),
        preparation.cache_bytes / 1e3 or None,
        None if resident is None else resident * 1024 / 1e6,
    ]


def _accuracy_cells(row: SuiteRow) -> list[pages.Value]:
    accuracy = row.accuracy
    assert accuracy is not None
    figures = (
        f"{name} {'-' if value is None else _number(value)}"
        for name, value in accuracy.figures.items()
    )
    return [
        *_who(row),
        accuracy.evaluator,
        accuracy.samples,
        pages.Judged(
            "accurate" if accuracy.passed else "off", accuracy.passed, is_verdict=True
        ),
        accuracy.largest_error,
        ", ".join(figures),
        "; ".join(accuracy.problems),
    ]


def _number(value: float) -> str:
    """Return a figure; counts of elements stand in full."""
    return f"{value:.0f}" if float(value).is_integer() else f"{value:.4g}"


def _side_by_side(report: SuiteReport) -> Iterator[pages.Part]:
    groups: dict[str, dict[str, float]] = {}
    for row in report.rows:
        if row.latency is not None and _is_plain(row):
            groups.setdefault(row.model, {})[row.way] = row.latency.p50_us
    if groups:
        yield pages.Bars(
            title="Device against device",
            unit="us",
            groups=groups,
            note=f"Median latency by the path {_PLAIN}; the table has the others.",
        )


def _is_plain(row: SuiteRow) -> bool:
    """Return whether a row stands for its device and transport."""
    return row.is_peer or row.path == _PLAIN


def _distributions(report: SuiteReport) -> Iterator[pages.Part]:
    for model in report.models:
        series = {
            row.way: _points(row.latency.us)
            for row in report.of_model(model.name)
            if row.latency is not None and _is_plain(row)
        }
        if series:
            yield pages.Distributions(
                title=f"Latency of {model.name}", unit="us", series=series
            )


def _points(values: Sequence[float]) -> list[float]:
    if len(values) <= _MOST_POINTS:
        return sorted(values)
    shares = np.linspace(0, 100, _MOST_POINTS)
    return [float(each) for each in np.percentile(values, shares)]


def _history(report: SuiteReport, runs: Sequence[SuiteReport]) -> Iterator[pages.Part]:
    medians = [
        {row.key: row.latency.p50_us for row in run.rows if row.latency is not None}
        for run in runs
    ]
    names = _names_of(runs)
    rows = [row for row in report.rows if row.latency is not None]
    yield pages.SortableTable(
        title="History",
        columns=(
            *_WHO,
            *(pages.Column(name, "us") for name in names),
            pages.Column("last / first"),
        ),
        rows=[_history_cells(row, medians) for row in rows],
        note="Median latency in each report, the earliest first.",
    )
    for model in report.models:
        series = {
            row.way: [run.get(row.key) for run in medians]
            for row in rows
            if row.model == model.name and _is_plain(row)
        }
        if any(sum(each is not None for each in line) > 1 for line in series.values()):
            yield pages.History(
                title=f"History of {model.name}", unit="us", runs=names, series=series
            )


def _names_of(runs: Sequence[SuiteReport]) -> list[str]:
    """Return the times of reports; ones of the same minute get a number."""
    names: list[str] = []
    for run in runs:
        name = f"{run.made_at:%Y-%m-%d %H:%M}"
        same = sum(each.split(" (")[0] == name for each in names)
        names.append(f"{name} ({same + 1})" if same else name)
    return names


def _history_cells(
    row: SuiteRow, medians: Sequence[Mapping[tuple[str, str, str, str], float]]
) -> list[pages.Value]:
    values = [run.get(row.key) for run in medians]
    known = [value for value in values if value is not None]
    change = known[-1] / known[0] if len(known) > 1 and known[0] else None
    return [*_who(row), *values, change]
