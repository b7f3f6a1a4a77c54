"""The report of ``asyncnn bench cache`` as a table for the terminal."""

from rich.table import Table

from asyncnn.tools.bench.cache.report import (
    DESCRIPTIONS,
    MEMORY_LIMIT,
    TIME_LIMIT,
    CacheReport,
    CachesReport,
)


def cache_table(report: CachesReport) -> Table:
    """Return a row for each model, with the goals that it has."""
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("model", no_wrap=True)
    headings = (*DESCRIPTIONS.values(), "loaded / anew", "growth / weights")
    for heading in headings:
        table.add_column(heading, justify="right")
    for model in report.models:
        times = (f"{model.us[name]:.0f}" for name in DESCRIPTIONS)
        table.add_row(model.model, *times, *_ratios(model))
    return table


def _ratios(model: CacheReport) -> tuple[str, str]:
    return (
        f"{model.ratio:.3f}" + _outcome(f"<= {TIME_LIMIT}", model.saves_time),
        f"{model.growth:.1%}" + _outcome(f"< {MEMORY_LIMIT:.0%}", model.saves_memory),
    )


def _outcome(limit: str, met: bool | None) -> str:
    if met is None:
        return ""
    return f" {limit} " + ("[green]met[/]" if met else "[bold red]MISSED[/]")
