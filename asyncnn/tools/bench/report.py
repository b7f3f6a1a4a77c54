"""What reports of benchmarks are made of, and how they are shown.

* A *contender* is who is measured; its `Figure` has a median for each round.
* A *goal* limits the ratio of a contender's figure to its peer's. Held against figures
  it gives a *verdict*.
* A *placement* is where threads and processes ran while the contenders were measured.
* A *table* shows all of it, the same on a terminal and on an HTML page. There, each
  section of a table is one of its own, as sorting would mix them: times stand above,
  and what became of goals below.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from asyncnn.hal.errors import AsyncnnError
from asyncnn.tools import pages
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.rounds import Figures

MICROSECONDS = "microseconds, median over the rounds of medians"

Bars: TypeAlias = Mapping[str, Mapping[str, float]]
"""Microseconds for a chart, by group and contender."""


class GoalVerdict(msgspec.Struct, frozen=True):
    """A goal and the ratio that was measured."""

    figure: str
    peer: str
    limit: float
    ratio: float
    met: bool


class Goal(msgspec.Struct, frozen=True):
    """``limit`` is the largest ratio of a figure to ``peer``'s that is wanted.

    ``gate`` is the largest on any machine, the limit itself if None. Both hold for
    models that LiteRT takes ``above_us`` to ``below_us`` for. A ratio whose limit is
    infinite is only shown.
    """

    figure: str
    peer: str
    limit: float
    gate: float | None = None
    above_us: float = 0.0
    below_us: float = inf

    def judge(self, ratio: float, *, gates: bool = False) -> GoalVerdict:
        """Hold a ratio against the goal, or the gate."""
        limit = self.gate if gates and self.gate is not None else self.limit
        return GoalVerdict(self.figure, self.peer, limit, ratio, ratio <= limit)


def judge(
    goals: Iterable[Goal], figures: Figures, *, gates: bool = False
) -> tuple[GoalVerdict, ...]:
    """Hold figures against those goals both of whose contenders were measured."""
    return tuple(
        goal.judge(figures[goal.figure].ratio_to(figures[goal.peer]), gates=gates)
        for goal in goals
        if goal.figure in figures and goal.peer in figures
    )


class Outcome(NamedTuple):
    """A cell of a table that shows what became of a goal, None if it has none."""

    text: str
    met: bool | None


Cell: TypeAlias = str | Outcome
Row: TypeAlias = Sequence[Cell]


class ReportTable(NamedTuple):
    """Rows in sections; the first cell of each row names it."""

    title: str
    headings: Sequence[str]
    sections: Sequence[Sequence[Row]]

    def ended(
        self, name: str, verdict: GoalVerdict | None, column: int
    ) -> "ReportTable":
        """Return a table with a verdict, if there is one, in a row at its end."""
        if verdict is None:
            return self
        row: list[Cell] = [name, *[""] * (len(self.headings) - 1)]
        row[column] = verdict_cell([verdict], verdict.figure, verdict.peer)
        return self._replace(sections=(*self.sections, [row]))


class BenchReport(NamedTuple):
    """The JSON document of a benchmark, and how it is shown.

    ``elsewhere`` says where it was measured if that was not in one placement.
    """

    document: dict[str, Any]
    tables: Sequence[ReportTable]
    notes: Sequence[str] = ()
    bars: Bars = MappingProxyType({})
    elsewhere: str = "in each placement"

    @property
    def where(self) -> str:
        """Where threads and processes ran."""
        return str(self.document.get("placement", self.elsewhere))

    @property
    def met(self) -> bool:
        """Whether every goal was met that could be judged."""
        sections = [rows for table in self.tables for rows in table.sections]
        cells = [cell for rows in sections for row in rows for cell in row]
        return all(c.met is not False for c in cells if isinstance(c, Outcome))


def documented(
    rounds: int, peers: Mapping[str, str] | None = None, **fields: Any
) -> dict[str, Any]:
    """Return a document of ``fields``; ``peers`` are versions of libraries."""
    environment = describe_environment(**(peers or {}))
    return {"environment": environment, "rounds": rounds, **fields}


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured of one subject, such as a model or a placement, by contender.

    Those that were refused have a reason instead. ``facts`` are what else is known.
    """

    name: str
    figures: Figures
    verdicts: tuple[GoalVerdict, ...] = ()
    refusals: dict[str, str] = {}
    facts: dict[str, Any] = {}

    @classmethod
    def judged(
        cls,
        name: str,
        figures: Figures,
        goals: Iterable[Goal] = (),
        refusals: dict[str, str] | None = None,
        gates: bool = False,
        **facts: Any,
    ) -> Self:
        """Hold figures against goals."""
        return cls(
            name=name,
            figures=figures,
            verdicts=judge(goals, figures, gates=gates),
            refusals=refusals or {},
            facts=facts,
        )

    @property
    def us(self) -> dict[str, float]:
        """Medians over the rounds."""
        return {name: figure.us for name, figure in self.figures.items()}

    def record(self, key: str = "") -> dict[str, Any]:
        """Return the part of a document, with the name under ``key`` if that is one."""
        measured = {
            "figures": self.figures,
            "us": self.us,
            "verdicts": self.verdicts,
            "refusals": self.refusals,
        }
        return ({key: self.name} if key else {}) | self.facts | measured

    def time(self, contender: str) -> str:
        """Return the microseconds of a contender as text, a dash for none."""
        return figure_text(self.us.get(contender))

    def cell(self, figure: str, peer: str, *, always: bool = False) -> Cell:
        """Return the cell of the verdict on a figure and its peer, a dash for none.

        Without one, the ratio is ``always`` there if both were measured.
        """
        cell = verdict_cell(self.verdicts, figure, peer)
        if cell == "-" and always and {figure, peer} <= self.figures.keys():
            return f"{self.figures[figure].ratio_to(self.figures[peer]):.3f}"
        return cell

    def bars(self, titles: Mapping[str, str]) -> dict[str, float]:
        """Return microseconds by the titles of contenders."""
        return {titles[each]: self.us[each] for each in titles if each in self.us}


class Subjects(NamedTuple):
    """How subjects are shown, each of which all contenders run.

    A table has a row for each, and a column for each contender, and for ``others``,
    which are goals and what has none. The document has them in its ``field``, by name
    if that is ``named``.
    """

    titles: Mapping[str, str]
    others: Mapping[str, Callable[[Measured], Cell]]
    field: str = "models"
    named: bool = False
    title: str = MICROSECONDS
    label: Callable[[Measured], str] = lambda subject: subject.name

    def table(self, subjects: Iterable[Measured]) -> ReportTable:
        """Return the table."""
        rows = [
            (
                self.label(each),
                *map(each.time, self.titles),
                *(cell(each) for cell in self.others.values()),
            )
            for each in subjects
        ]
        headings = ("", *self.titles.values(), *self.others)
        return ReportTable(self.title, headings, [rows])

    def report(
        self,
        rounds: int,
        where: str,
        subjects: Sequence[Measured],
        peers: Mapping[str, str] | None = None,
        **fields: Any,
    ) -> BenchReport:
        """Return the report on subjects that were measured in one placement."""
        key = "" if self.named else self.field[:-1]
        records: Any = [each.record(key) for each in subjects]
        if self.named:
            names = [each.name for each in subjects]
            records = dict(zip(names, records, strict=True))
        return BenchReport(
            documented(
                rounds, peers, placement=where, **{self.field: records}, **fields
            ),
            [self.table(subjects)],
            [*refusal_notes({s.name: s.refusals for s in subjects}, self.titles)],
            {each.name: each.bars(self.titles) for each in subjects},
        )


def figure_text(value: float | None) -> str:
    """Return a figure as text, a dash for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


def limited(text: str, limit: str, met: bool | None = None) -> Outcome:
    """Return the cell of a figure, with its limit if that is a goal."""
    return Outcome(text if met is None else f"{text} {limit}", met)


def verdict_cell(verdicts: Iterable[GoalVerdict], figure: str, peer: str) -> Cell:
    """Return the cell of the verdict on a figure and its peer, a dash for none."""
    for verdict in verdicts:
        if (verdict.figure, verdict.peer) == (figure, peer):
            limit = f"<= {verdict.limit:.3g}"
            return limited(f"{verdict.ratio:.3f}", limit, verdict.met)
    return "-"


@contextmanager
def noted(
    refusals: dict[str, str], *names: str, errors: type[AsyncnnError] = AsyncnnError
) -> Iterator[None]:
    """Note why contenders cannot do what the block has them do."""
    try:
        yield
    except errors as error:
        refusals.update(dict.fromkeys(names, str(error)))


def refusal_notes(
    refusals: Mapping[str, Mapping[str, str]], titles: Mapping[str, str]
) -> Iterator[str]:
    """Yield why contenders were not measured: ``refusals`` are by subject and name.

    What holds for a contender with every one of several subjects is said once.
    """
    subjects = list(refusals.values())
    shared = subjects[0].items() if len(subjects) > 1 else ()
    everywhere = {n: r for n, r in shared if all(s.get(n) == r for s in subjects)}
    for name, reason in everywhere.items():
        yield f"{titles.get(name, name)} was not measured: {reason}"
    for subject, reasons in refusals.items():
        by_reason: dict[str, list[str]] = {}
        for name, reason in reasons.items():
            if name not in everywhere:
                by_reason.setdefault(reason, []).append(titles.get(name, name))
        for reason, names in by_reason.items():
            yield f"{subject}: {' and '.join(names)} cannot run it: {reason}"


_MARKUP = {True: " [green]met   [/]", False: " [bold red]MISSED[/]", None: " " * 7}
"""As wide as one another, so that figures line up."""

_NUMBER = re.compile(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?(?![\w.])", re.IGNORECASE)


_WIDEST = 10_000
"""Columns that no table needs."""

_SHORT_NAME = 20
"""Columns of a name that is folded rather than a table divided."""


def draw_table(table: ReportTable, out: Console) -> Iterator[RichTable]:
    """Yield a table for the terminal, in parts that have its first column each.

    A part has as many columns as fit where names are folded; one that is alone may be
    narrowed.
    """
    left = range(1, len(table.headings))
    while left:
        count = 1
        while count < len(left) and _fits(table, left[: count + 1], out):
            count += 1
        yield _drawn(table, left[:count])
        left = left[count:]


def _fits(table: ReportTable, columns: Sequence[int], out: Console) -> bool:
    widest = out.options.update(max_width=_WIDEST)
    sections = [
        [(str(row[0])[:_SHORT_NAME], *row[1:]) for row in section]
        for section in table.sections
    ]
    drawn = _drawn(table._replace(sections=sections), columns)
    return out.measure(drawn, options=widest).maximum <= out.width


def _drawn(table: ReportTable, columns: Sequence[int]) -> RichTable:
    part = "" if columns[0] == 1 else ", continued"
    drawn = RichTable(title=f"{table.title}{part}")
    drawn.add_column(escape(table.headings[0]), overflow="fold")
    for column in columns:
        heading = escape(table.headings[column])
        drawn.add_column(heading, justify="right", no_wrap=len(columns) > 1)
    for section in table.sections:
        for row in section:
            cells = [row[column] for column in columns if column < len(row)]
            drawn.add_row(*map(_markup, (row[0], *cells)))
        drawn.add_section()
    return drawn


def _markup(cell: Cell) -> str:
    if isinstance(cell, Outcome):
        return escape(cell.text) + _MARKUP[cell.met]
    return escape(cell)


def page_of(name: str, report: BenchReport) -> pages.Page:
    """Return the page of a benchmark: a chart, the tables, the circumstances."""
    return pages.Page(
        title=f"asyncnn bench {name}",
        parts=[*_parts(report)],
        circumstances=[
            f"{report.document['rounds']} rounds, {report.where}.",
            str(report.document["environment"]),
        ],
    )


def _parts(report: BenchReport) -> Iterator[pages.Part]:
    bars = {label: group for label, group in report.bars.items() if group}
    if bars:
        note = "Shorter is better; the scale is logarithmic."
        yield pages.Bars(title="Times", unit="us", groups=bars, note=note)
    for table in report.tables:
        times, *others = table.sections
        goals = [row for section in others for row in section]
        for title, rows in ((table.title, times), (f"{table.title}: goals", goals)):
            if rows:
                yield _section(title, table.headings, rows)
    yield from map(pages.Text, report.notes)


def _section(
    title: str, headings: Sequence[str], rows: Sequence[Row]
) -> pages.SortableTable:
    """Return a table of the columns that say something in these rows."""
    kept = [n for n in range(len(headings)) if n == 0 or any(row[n] for row in rows)]
    return pages.SortableTable(
        title=title,
        columns=[pages.Column(headings[n] or "name") for n in kept],
        rows=[[_value(row[n], is_name=n == 0) for n in kept] for row in rows],
    )


def _value(cell: Cell, *, is_name: bool) -> pages.Value:
    """Return a cell that looks as on the terminal and is sorted by its number."""
    if isinstance(cell, Outcome):
        return pages.Judged(cell.text, cell.met, _number(cell.text))
    number = None if is_name else _number(cell)
    if number is None:
        return None if cell == "-" else cell
    return pages.Judged(cell, None, number)


def _number(text: str) -> float | None:
    found = _NUMBER.match(text)
    return float(found[0]) if found else None
