"""What reports of benchmarks are made of, and how they are shown.

A report is itself the JSON document.

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
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from asyncnn.hal.errors import AsyncnnError
from asyncnn.tools import pages
from asyncnn.tools.bench.environment import Environment, describe_environment, placement
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


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What all reports have, and what is asked of them."""

    environment: Environment
    rounds: int

    @property
    def where(self) -> str:
        """Where threads and processes ran."""
        raise NotImplementedError

    @property
    def met(self) -> bool:
        """Whether every goal was met that could be judged."""
        return all(self.outcomes())

    def outcomes(self) -> Iterator[bool]:
        """Yield for each goal that could be judged whether it was met."""
        yield from _outcomes([getattr(self, name) for name in self.__struct_fields__])

    def tables(self) -> Iterable[ReportTable]:
        """Return what was measured, as tables."""
        raise NotImplementedError

    def notes(self) -> Iterable[str]:
        """Return lines that say what tables do not, such as who was not measured."""
        return ()

    def bars(self) -> Bars:
        """Return what is drawn as a chart."""
        return {}


def _outcomes(record: object) -> Iterator[bool]:
    """Yield what became of the goals that are anywhere in a record."""
    if isinstance(record, Measured):
        yield from record.outcomes()
    elif isinstance(record, msgspec.Struct):
        met = getattr(record, "met", None)
        parts = [getattr(record, name) for name in record.__struct_fields__]
        yield from _outcomes(parts) if met is None else [met]
    elif isinstance(record, Mapping):
        yield from _outcomes(list(record.values()))
    elif isinstance(record, list | tuple):
        for each in record:
            yield from _outcomes(each)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Contenders that were measured in the same rounds; ``us`` are their medians.

    Those that were refused have a reason instead.
    """

    figures: Figures
    us: dict[str, float] = {}
    verdicts: tuple[GoalVerdict, ...] = ()
    refusals: dict[str, str] = {}

    def __post_init__(self) -> None:
        """Derive the medians from the figures."""
        self.us.update((name, figure.us) for name, figure in self.figures.items())

    def outcomes(self) -> Iterator[bool]:
        """Yield for each goal whether it was met."""
        yield from _outcomes(self.verdicts)

    def time(self, contender: str) -> str:
        """Return the microseconds of a contender as text, a dash for none."""
        return figure_text(self.us.get(contender))


def figure_text(value: float | None) -> str:
    """Return a figure as text, a dash for none."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}"


class SingleReport(BenchReport, frozen=True, kw_only=True):
    """What was measured in one placement."""

    placement: str

    @classmethod
    def measured(
        cls,
        cpus: str,
        rounds: int,
        measure: Callable[[], Mapping[str, Any]],
        peers: Mapping[str, str] | None = None,
    ) -> Self:
        """Have the fields measured on those CPUs; ``peers`` have versions."""
        with placement(cpus) as where:
            fields = measure()
        environment = describe_environment(**(peers or {}))
        return cls(environment=environment, rounds=rounds, placement=where, **fields)

    @property
    def where(self) -> str:
        """The placement."""
        return self.placement


class Subject(Measured, frozen=True, kw_only=True):
    """What contenders run, such as a model, and their figures with it."""

    def cells(self) -> Row:
        """Return what a table shows of it beside times: goals, and what has none."""
        raise NotImplementedError

    def outcomes(self) -> Iterator[bool]:
        """Yield for each goal whether it was met."""
        for cell in self.cells():
            if isinstance(cell, Outcome) and cell.met is not None:
                yield cell.met


class SubjectsReport(SingleReport, frozen=True, kw_only=True):
    """Subjects, each of which all contenders run.

    The table has a row for each subject, and a column for each contender.
    """

    CONTENDERS: ClassVar[Mapping[str, str]]
    """Headings of the contenders, in the order in which they are reported."""

    OTHERS: ClassVar[Sequence[str]]
    """Headings of what `Subject.cells` returns."""

    TITLE: ClassVar[str] = MICROSECONDS

    FIELD: ClassVar[str] = "models"
    """Has the subjects by name, or those whose name is the field in the singular."""

    def subjects(self) -> Mapping[str, Subject]:
        """Return the subjects by name."""
        found = getattr(self, self.FIELD)
        if isinstance(found, Mapping):
            return found
        return {getattr(each, self.FIELD[:-1]): each for each in found}

    def tables(self) -> Iterator[ReportTable]:
        """Yield the one table."""
        rows = [
            (name, *map(subject.time, self.CONTENDERS), *subject.cells())
            for name, subject in self.subjects().items()
        ]
        headings = ("", *self.CONTENDERS.values(), *self.OTHERS)
        yield ReportTable(self.TITLE, headings, [rows])

    def notes(self) -> Iterator[str]:
        """Yield who could not be measured, and why."""
        refusals = {name: each.refusals for name, each in self.subjects().items()}
        return refusal_notes(refusals, self.CONTENDERS)

    def bars(self) -> Bars:
        """Return a group for each subject, a bar for each contender."""
        titles = self.CONTENDERS
        return {
            name: {
                titles[each]: subject.us[each] for each in titles if each in subject.us
            }
            for name, subject in self.subjects().items()
        }


def ratio_cell(ratio: str, limit: str, met: bool | None) -> Outcome:
    """Return the cell of a ratio, with its limit if that is a goal."""
    return Outcome(ratio if met is None else f"{ratio} {limit}", met)


def verdict_cell(verdicts: Iterable[GoalVerdict], figure: str, peer: str) -> Cell:
    """Return the cell of the verdict on a figure and its peer, a dash for none."""
    for verdict in verdicts:
        if (verdict.figure, verdict.peer) == (figure, peer):
            limit = f"<= {verdict.limit:.3g}"
            return ratio_cell(f"{verdict.ratio:.3f}", limit, verdict.met)
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
            f"{report.rounds} rounds, {report.where}.",
            str(report.environment),
        ],
    )


def _parts(report: BenchReport) -> Iterator[pages.Part]:
    bars = {label: group for label, group in report.bars().items() if group}
    if bars:
        note = "Shorter is better; the scale is logarithmic."
        yield pages.Bars(title="Times", unit="us", groups=bars, note=note)
    for table in report.tables():
        times, *others = table.sections
        goals = [row for section in others for row in section]
        for title, rows in ((table.title, times), (f"{table.title}: goals", goals)):
            if rows:
                yield _section(title, table.headings, rows)
    yield from map(pages.Text, report.notes())


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
