"""The report of ``asyncnn bench kernels`` as a table for the terminal."""

from rich.table import Table

from asyncnn.tools.bench.goals import LITERT, Verdict
from asyncnn.tools.bench.kernels.report import ENGINE, KernelReport, KernelsReport


def kernels_table(report: KernelsReport) -> Table:
    """Return a row for each kernel and, if it was judged, one for the median."""
    table = Table(title="microseconds, median over the rounds of medians")
    table.add_column("kernel", no_wrap=True)
    for heading in ("engine", "LiteRT", "/ LiteRT", "differs", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    for kernel in report.kernels:
        table.add_row(*_cells(kernel))
    if report.median_verdict is not None:
        table.add_section()
        table.add_row("median", "", "", *_judged(report.median_verdict, ""))
    return table


def _cells(kernel: KernelReport) -> list[str]:
    difference = kernel.difference_to_ref
    differs = "-" if difference is None else str(difference)
    times = (f"{kernel.us[name]:.0f}" for name in (ENGINE, LITERT))
    return [kernel.kernel, *times, *_judged(kernel.verdict, differs)]


def _judged(verdict: Verdict, differs: str) -> tuple[str, str, str]:
    outcome = "[green]met[/]" if verdict.met else "[bold red]MISSED[/]"
    return f"{verdict.ratio:.3g}", differs, f"<= {verdict.limit:g} {outcome}"
