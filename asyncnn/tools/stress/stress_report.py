"""What stress reports: rows with an outcome each, growth of a soak, and their page."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import msgspec

from asyncnn.hal.errors import counted
from asyncnn.tools import pages
from asyncnn.tools.bench.environment import Environment

SUCCESS, FAILURE, HANG, CRASH = "SUCCESS", "FAILURE", "HANG", "CRASH"
SKIPPED = "SKIPPED"
"""Of a case that means nothing for a device; it is no failure."""

OUTCOMES = (SUCCESS, FAILURE, HANG, CRASH, SKIPPED)
FORMAT = 1


class StressRow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one case on a device by a transport.

    ``counts`` is what was verified, by what it is; ``figures`` what was measured.
    ``processes`` were started, of which ``kills`` were killed. ``folder`` has what
    repeats a failure.
    """

    case: str
    device: str
    transport: str
    outcome: str
    reason: str = ""
    seed: int
    seconds: float
    processes: int
    kills: int
    counts: dict[str, int]
    figures: dict[str, list[float]]
    folder: str = ""

    @property
    def has_passed(self) -> bool:
        """Whether nothing was found."""
        return self.outcome in (SUCCESS, SKIPPED)


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """How a quantity has gone during a soak, ``values`` at ``minutes`` since it began.

    ``slope`` is what it gains in an hour after the warm-up, give or take ``noise``,
    which is None if the values are too few. It grows if it gains more than ``most``,
    noise aside.
    """

    name: str
    unit: str
    minutes: tuple[float, ...]
    values: tuple[float, ...]
    slope: float
    noise: float | None
    most: float
    grows: bool


class StressReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn stress --json``."""

    format: int
    made_at: Annotated[datetime, msgspec.Meta(tz=True)]
    environment: Environment
    settings: str
    rows: tuple[StressRow, ...]
    growth: tuple[Growth, ...] = ()
    interrupted: bool = False

    @property
    def passed(self) -> bool:
        """Whether all cases have, and nothing grows."""
        return all(row.has_passed for row in self.rows)


def page_of(report: StressReport) -> pages.Page:
    """Return the page of a report: a table of the outcomes, and plots of a soak."""
    failures = [row for row in report.rows if not row.has_passed]
    summary = f"{counted(len(report.rows), 'case')} tried, {len(failures)} failed."
    columns = ("case", "device", "transport", "outcome", "verified", "processes")
    parts: list[pages.Part] = [
        pages.Text(summary),
        pages.SortableTable(
            title="Outcomes",
            columns=[
                *map(pages.Column, columns),
                *(pages.Column(each) for each in ("kills", "counts", "reason")),
            ],
            rows=[_cells(row) for row in report.rows],
        ),
    ]
    parts += [
        pages.History(
            title=f"{each.name}",
            unit=each.unit,
            runs=[f"{minute:.1f} min" for minute in each.minutes],
            series={each.name: each.values},
            note=growth_text(each),
        )
        for each in report.growth
    ]
    return pages.Page(
        title="Stress",
        parts=parts,
        circumstances=[
            f"begun at {report.made_at:%Y-%m-%d %H:%M} UTC",
            report.settings,
            str(report.environment),
        ],
    )


def growth_text(growth: Growth) -> str:
    """Say what a quantity gains in an hour, and whether that is too much."""
    if growth.noise is None:
        return f"{growth.name}: too few values to say whether it grows"
    verdict = "grows" if growth.grows else "does not grow"
    return (
        f"{growth.name} {verdict}: {growth.slope:+.3g} {growth.unit}/h give or take "
        f"{growth.noise:.2g}, at most {growth.most:.3g}"
    )


def _cells(row: StressRow) -> Sequence[pages.Value]:
    return [
        row.case,
        row.device,
        row.transport,
        pages.Judged(row.outcome, row.has_passed, is_verdict=True),
        sum(row.counts.values()),
        row.processes,
        row.kills,
        ", ".join(f"{count:,} {what}" for what, count in sorted(row.counts.items())),
        row.reason or None,
    ]
