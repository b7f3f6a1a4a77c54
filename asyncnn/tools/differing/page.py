"""The page of ``asyncnn diff --html``: the graph by error, and all operations."""

import math
from collections.abc import Sequence
from pathlib import Path

from asyncnn.tools import pages
from asyncnn.tools.differing.difference_report import (
    DifferenceReport,
    OperationDifference,
)
from asyncnn.tools.differing.distances import Distance

_COLUMNS = (
    pages.Column(
        "place", help="Position in the model; what control flow runs, behind it."
    ),
    pages.Column("operation"),
    pages.Column("tensor", help="What it computes."),
    pages.Column("error", help="Largest difference of both runs, in LSB if quantised."),
    pages.Column("own error", help="The same, from inputs that the other side had."),
    pages.Column("own / allowed", help="Own error divided by what is allowed."),
    pages.Column("too far", help="Elements that its own error puts there."),
    pages.Column("verdict"),
)


def page_of(report: DifferenceReport, lines: Sequence[str]) -> pages.Page:
    """Return the page of a report; ``lines`` are what the terminal says of it."""
    names = " and ".join(side.name for side in report.sides)
    table = pages.SortableTable(
        title="Operations",
        columns=_COLUMNS,
        rows=[_row(each) for each in report.operations],
        note="An error grows along the graph; an own error is what one operation adds.",
    )
    models = dict.fromkeys(Path(side.model).name for side in report.sides)
    return pages.Page(
        title=f"{' and '.join(models)}: {names}",
        parts=[*map(pages.Text, lines), _graph(report), table],
        circumstances=[
            *(f"{side.name}, version {side.version}" for side in report.sides),
            f"samples: {report.samples}, tensors compared: {report.tensors}",
            *report.notes,
        ],
    )


def _row(operation: OperationDifference) -> list[pages.Value]:
    error, own = operation.error, operation.own
    return [
        operation.place,
        operation.operation,
        operation.tensor,
        None if error is None else _drawn(error.largest, error),
        None if own is None else _drawn(own.largest, own),
        None if own is None else _drawn(own.units, own),
        None if own is None else own.differing,
        "diverges" if operation.diverges else operation.problem,
    ]


def _drawn(value: float, of: Distance) -> pages.Value:
    """Return a number that can be drawn; infinity in words, whole steps in full."""
    if math.isinf(value):
        return "inf"
    return int(value) if of.in_steps and value.is_integer() else value


def _graph(report: DifferenceReport) -> pages.DrawnGraph:
    """Draw the main subgraph, the stronger the more error an operation adds."""
    operations = [each for each in report.operations if "/" not in each.place]
    most = max((_units(each.own) for each in operations), default=0.0)
    nodes = [
        pages.DrawnNode(
            name=each.place,
            label=f"{each.place} {each.operation}\n{each.own or 'not compared'}",
            share=math.log1p(_units(each.own)) / math.log1p(max(most, 1.0)),
            details={
                "computes": each.tensor,
                "error": str(each.error or "not compared"),
                "own error": str(each.own or each.problem or "not compared"),
                **({"verdict": "diverges"} if each.diverges else {}),
            },
        )
        for each in operations
    ]
    edges = {
        (maker, each.place): shape for each in operations for maker, shape in each.reads
    }
    return pages.DrawnGraph(
        title="Error that each operation adds",
        nodes=nodes,
        edges=[(*ends, shape) for ends, shape in edges.items()],
        note="Strong colours are large own errors, on a logarithmic scale.",
    )


def _units(own: Distance | None) -> float:
    return 0.0 if own is None else min(own.units, 1e9)
