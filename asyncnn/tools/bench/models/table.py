"""The report of ``asyncnn bench models`` as a table for the terminal."""

from collections.abc import Iterator

from rich.table import Table

from asyncnn.tools.bench.goals import LITERT, LITERT_REF, Verdict
from asyncnn.tools.bench.models.report import AWAITED, DEVICE, ModelReport, ModelsReport

_PEER_NAMES = {LITERT: "LiteRT", LITERT_REF: "REF"}


def models_table(report: ModelsReport) -> Table:
    """Return a row for each model, with the goals that it has."""
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("model", no_wrap=True)
    for heading in ("device", "awaited", "LiteRT", "REF", "/ LiteRT", "/ REF"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("differs", justify="right", no_wrap=True)
    table.add_column("goals")
    for model in report.models:
        table.add_row(*_cells(model))
    return table


def models_notes(report: ModelsReport) -> Iterator[str]:
    """Yield which models could not be measured with what, and why."""
    for model in report.models:
        yield from _refusals(model)


def _refusals(model: ModelReport) -> Iterator[str]:
    by_reason: dict[str, list[str]] = {}
    for contender, reason in model.refusals.items():
        name = _PEER_NAMES.get(contender, "the device")
        by_reason.setdefault(reason, []).append(name)
    for reason, names in by_reason.items():
        yield f"{model.model}: {' and '.join(names)} cannot run it: {reason}"


def _cells(model: ModelReport) -> list[str]:
    times = (DEVICE, AWAITED, LITERT, LITERT_REF)
    difference = model.difference_to_ref
    return [
        model.model,
        *(_microseconds(model.us.get(name)) for name in times),
        *(_ratio(model.ratios.get(peer)) for peer in _PEER_NAMES),
        "-" if difference is None else str(difference),
        ", ".join(_verdict(verdict) for verdict in model.verdicts) or "-",
    ]


def _microseconds(us: float | None) -> str:
    if us is None:
        return "-"
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3g}"


def _verdict(verdict: Verdict) -> str:
    outcome = "[green]met[/]" if verdict.met else "[bold red]MISSED[/]"
    return f"{_PEER_NAMES[verdict.peer]} <= {verdict.limit:g} {outcome}"
