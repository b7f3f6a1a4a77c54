"""What is found, as it is printed, drawn, and written as JSON."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.input_files import read_input
from asyncnn.tools import pages
from asyncnn.tools.differing.distances import Distance
from asyncnn.tools.differing.evidence import Evidence
from asyncnn.tools.differing.finding import Finding, PlacedOperation, every
from asyncnn.tools.differing.sides import PEERS

FUSING = (
    "{} runs with all tensors as outputs, so it does not fuse operations; the outputs "
    "compared are from the model as it is"
)


class SideReport(msgspec.Struct, frozen=True):
    """A side: what ran, and which model."""

    name: str
    version: str
    model: str


class OutputDifference(msgspec.Struct, frozen=True):
    """How far an output of the models as they are is apart."""

    name: str
    distance: Distance


class OperationDifference(msgspec.Struct, frozen=True):
    """An operation: its ``place``, and what it computes.

    ``error`` is between both runs, ``own`` what it adds itself, from inputs that the
    other side had. Both are None if no result could be compared; ``problem`` says why
    it could not be looked into. A ``group`` of operations before it, whose results one
    side does not show, has part in its own error.
    """

    place: str
    operation: str
    tensor: str
    error: Distance | None
    own: Distance | None
    diverges: bool
    problem: str = ""
    group: tuple[str, ...] = ()
    reads: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """What people call it."""
        name = f"operation {self.place} ({self.operation})"
        if not self.group:
            return name
        return f"{name}, with {', '.join(self.group)} before it"


class DifferenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn diff --json``; null is an infinite distance.

    ``first`` is the place of the first operation that diverges, ``most`` of that which
    adds most error, ``behind`` of the first with results out of tolerance, and
    ``only_whole`` of one up to which a model diverges that shows nothing on its way.
    """

    passed: bool
    sides: tuple[SideReport, ...]
    samples: int
    tensors: int
    outputs: tuple[OutputDifference, ...]
    first: str | None
    most: str | None
    behind: str | None
    only_whole: str | None
    operations: tuple[OperationDifference, ...]
    notes: tuple[str, ...]
    evidence: Evidence | None

    def at(self, place: str | None) -> OperationDifference | None:
        """Return the operation of a place."""
        found = (each for each in self.operations if each.place == place)
        return next(found, None)


def report_of(
    found: Finding,
    sides: tuple[SideReport, ...],
    samples: int,
    evidence: Evidence | None,
) -> DifferenceReport:
    """Return the report of what is found between two sides on so many samples."""

    def place(entry: PlacedOperation | None) -> str | None:
        return None if entry is None else entry.place

    notes = [
        FUSING.format(name)
        for name in dict.fromkeys(side.name for side in sides)
        if name not in PEERS and name != "reference"
    ]
    if "litert" in (side.name for side in sides):
        notes.append("litert keeps all tensors, which rules its XNNPACK delegate out")
    return DifferenceReport(
        passed=found.passed,
        sides=sides,
        samples=samples,
        tensors=found.level.tensors,
        outputs=tuple(OutputDifference(*each) for each in found.outputs),
        first=place(found.first),
        most=place(found.most),
        behind=place(found.behind),
        only_whole=place(found.only_whole),
        operations=tuple(map(_operation, every(found.entries))),
        notes=tuple(notes),
        evidence=evidence,
    )


def _operation(entry: PlacedOperation) -> OperationDifference:
    level, position = entry.level, entry.position
    operation = level.graph.main.operations[position]
    operands, writers = level.graph.main.operands, level.graph.writers
    prefix = entry.place.removesuffix(str(position))
    return OperationDifference(
        entry.place,
        level.graph.operation_name(position),
        ", ".join(map(level.graph.label, operation.outputs)),
        entry.error,
        entry.own,
        level.diverges(position),
        level.problems.get(position, ""),
        tuple(
            f"{prefix}{each} ({level.graph.operation_name(each)})"
            for each in (level.group(position) if entry.own is not None else ())
        ),
        tuple(
            (
                f"{prefix}{writers[index]}",
                "x".join(map(str, operands[index].dimensions)),
            )
            for index in operation.inputs
            if index in writers
        ),
    )


def read_report(path: Path) -> DifferenceReport:
    """Read what ``asyncnn diff --json`` has printed.

    :raises InvalidArgumentError: if it is no such report.
    """
    try:
        document = msgspec.json.decode(read_input(path))
        for each in document["outputs"]:
            _with_infinities(each["distance"])
        for each in document["operations"]:
            _with_infinities(each["error"])
            _with_infinities(each["own"])
        return msgspec.convert(document, DifferenceReport)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from None
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        raise InvalidArgumentError(
            f"{path} is no report of asyncnn diff",
            hint="write one with: asyncnn diff MODEL --json > report.json",
        ) from None


def _with_infinities(distance: dict[str, Any] | None) -> None:
    """Put back what JSON has no numbers for."""
    if distance is not None:
        for name in ("largest", "units", "typical"):
            if distance[name] is None:
                distance[name] = math.inf


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
