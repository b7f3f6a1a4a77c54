"""Tables of figures that were measured in more than one placement."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from rich.markup import escape
from rich.table import Table

from asyncnn.tools.bench.ratios import RatioVerdict, goal_cell


class Placed(Protocol):
    """Figures of one placement."""

    @property
    def placement(self) -> str:
        """Which CPUs were used for what."""
        ...

    @property
    def verdicts(self) -> tuple[RatioVerdict, ...]:
        """What the goals say."""
        ...


class Refusing(Protocol):
    """Figures of one placement, of which some are missing."""

    @property
    def refusals(self) -> dict[str, str]:
        """Why, by contender."""
        ...


class Pair(Protocol):
    """A goal: two figures that are held against each other."""

    @property
    def figure(self) -> str:
        """The one that is to be small."""
        ...

    @property
    def peer(self) -> str:
        """The one that it is divided by."""
        ...


PlacedT = TypeVar("PlacedT", bound=Placed)


def placed_table(
    title: str,
    placements: Sequence[PlacedT],
    descriptions: Mapping[str, str],
    goals: Iterable[Pair],
    times: Callable[[PlacedT, str], str],
) -> Table:
    """Return a row for each contender and each goal, a column for each placement.

    ``times`` writes a contender's figure.
    """
    table = Table(title=title)
    table.add_column("")
    for placed in placements:
        table.add_column(placed.placement, justify="right")
    for name, description in descriptions.items():
        table.add_row(escape(description), *(times(p, name) for p in placements))
    table.add_section()
    for goal in goals:
        cells = (goal_cell(p.verdicts, goal.figure, goal.peer) for p in placements)
        table.add_row(f"{goal.figure} / {goal.peer}", *cells)
    return table


def refusal_notes(placements: Iterable[Refusing]) -> Iterator[str]:
    """Yield who could not be measured, and why."""
    reasons = {name: why for p in placements for name, why in p.refusals.items()}
    for name, why in reasons.items():
        yield f"{name} was not measured: {why}"
