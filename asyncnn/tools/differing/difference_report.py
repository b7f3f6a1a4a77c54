"""What is found, as it is printed, drawn, and written as JSON."""

import math
from pathlib import Path
from typing import Any

import msgspec

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.input_files import read_input
from asyncnn.tools.differing.distances import Distance
from asyncnn.tools.differing.evidence import Evidence
from asyncnn.tools.differing.finding import Finding, PlacedOperation, every
from asyncnn.tools.differing.sides import PEERS

FUSING = (
    "{} runs with all tensors as outputs, so it does not fuse operations; the outputs "
    "compared are those of the model as it is"
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
