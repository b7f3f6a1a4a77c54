"""What a page is made of: sortable tables, plots, a graph of operations.

A page has no reference to anything outside itself, so it works without a network.
Values that are not finite are drawn as ones that were not measured.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec


class Judged(msgspec.Struct, frozen=True):
    """A cell that says whether a goal was met; None is one that has no goal."""

    text: str
    met: bool | None = None
    value: float | None = None
    """What the cell is sorted by; without it, the text is."""
    is_verdict: bool = False
    """Whether the text says itself that the goal was met or missed."""


Value: TypeAlias = str | int | float | Judged | None
"""A cell; None is one that was not measured, drawn as a dash and sorted last."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table. Numbers are drawn with ``digits`` significant ones."""

    heading: str
    unit: str = ""
    digits: int = 3
    help: str = ""
    """What the column says, shown where the pointer rests on its heading."""


class SortableTable(msgspec.Struct, frozen=True, kw_only=True, tag="table"):
    """A table whose rows a click on a heading sorts, and a word typed in filters.

    The first cell of a row names it. Integers are drawn in full.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    note: str = ""


class Distributions(msgspec.Struct, frozen=True, kw_only=True, tag="distributions"):
    """How values of several series lie: the share of them at most as large.

    Times and sizes (a ``unit`` of ns, us, ms, s or B) are drawn in the unit that
    reads best. The axis is logarithmic if the values span more than a decade.
    """

    title: str
    unit: str
    series: Mapping[str, Sequence[float | None]]
    note: str = ""


class Bars(msgspec.Struct, frozen=True, kw_only=True, tag="bars"):
    """Values in groups, drawn side by side on a logarithmic scale."""

    title: str
    unit: str
    groups: Mapping[str, Mapping[str, float | None]]
    """Values by group and series; those that are not above zero have no bar."""
    note: str = ""


class History(msgspec.Struct, frozen=True, kw_only=True, tag="history"):
    """Values of several series over runs, the earliest first."""

    title: str
    unit: str
    runs: Sequence[str]
    """A short name of each run, such as its time."""
    series: Mapping[str, Sequence[float | None]]
    """For each series a value of each run, None where it was not measured."""
    note: str = ""


class DrawnNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph; the larger ``share`` (0 to 1), the stronger its colour."""

    name: str
    label: str
    """What stands in it, up to three lines."""
    share: float = 0.0
    details: Mapping[str, str] = {}
    """What a click on the node shows."""
    group: str = ""
    """Nodes of one group, such as a partition, have a border of one colour."""


class DrawnGraph(msgspec.Struct, frozen=True, kw_only=True, tag="graph"):
    """A directed graph without circles, drawn from top to bottom."""

    title: str
    nodes: Sequence[DrawnNode]
    """Their names differ."""
    edges: Sequence[tuple[str, str, str]]
    """Names of two nodes, and a label such as a shape."""
    note: str = ""


class Text(msgspec.Struct, frozen=True, tag="text"):
    """A paragraph, or several with empty lines between them."""

    text: str


Part: TypeAlias = SortableTable | Distributions | Bars | History | DrawnGraph | Text


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page: what it is called, its parts, and how it came about."""

    title: str
    parts: Sequence[Part]
    circumstances: Sequence[str] = ()
    """Lines on machine, versions and rounds, drawn last."""
