"""What a page is made of: sortable tables, plots, a graph of operations.

A page has no reference to anything outside itself, so it works without a network.
"""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

Value: TypeAlias = str | float | None
"""A cell; None is one that was not measured, drawn as a dash and sorted last."""


class Column(msgspec.Struct, frozen=True):
    """A column of a table. Numbers are drawn with ``digits`` significant ones."""

    heading: str
    unit: str = ""
    digits: int = 3
    help: str = ""
    """What the column says, shown where the pointer rests on its heading."""


class SortableTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose rows a click on a heading sorts, and a word typed in filters."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Value]]
    note: str = ""


class Distributions(msgspec.Struct, frozen=True, kw_only=True):
    """How values of several series lie: the share of them at most as large."""

    title: str
    unit: str
    series: Mapping[str, Sequence[float]]
    note: str = ""


class Bars(msgspec.Struct, frozen=True, kw_only=True):
    """Values in groups, drawn side by side on a logarithmic scale."""

    title: str
    unit: str
    groups: Mapping[str, Mapping[str, float]]
    """Values by group and series."""
    note: str = ""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Values of several series over runs, the earliest first."""

    title: str
    unit: str
    runs: Sequence[str]
    """A short name of each run, such as its time."""
    series: Mapping[str, Sequence[float | None]]
    """For each series a value of each run, None where it was not measured."""
    note: str = ""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a graph; the larger ``share`` (0 to 1), the stronger its colour."""

    name: str
    label: str
    share: float = 0.0
    details: Mapping[str, str] = {}
    """What a click on the node shows."""
    group: str = ""
    """Nodes of one group, such as a partition, have a border of one colour."""


class Graph(msgspec.Struct, frozen=True, kw_only=True):
    """A directed graph without circles, drawn from top to bottom."""

    title: str
    nodes: Sequence[Node]
    edges: Sequence[tuple[str, str, str]]
    """Names of two nodes, and a label such as a shape."""
    note: str = ""


class Text(msgspec.Struct, frozen=True):
    """A paragraph."""

    text: str


Part: TypeAlias = SortableTable | Distributions | Bars | History | Graph | Text


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """A page: what it is called, its parts, and how it came about."""

    title: str
    parts: Sequence[Part]
    circumstances: Sequence[str] = ()
    """Lines on machine, versions and rounds, drawn last."""
