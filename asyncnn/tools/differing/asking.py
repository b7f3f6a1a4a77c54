"""The work behind ``asyncnn diff``: opens both sides, asks, and reports."""

import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncnn.devices import OWN_PROCESS
from asyncnn.extensions import Extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Operand
from asyncnn.memory.pools import view
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model import NamedModel, TensorInfo, located, map_model_file
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.requests import InputCheck
from asyncnn.tools.differing.distances import Allowed, Distance, converted, is_quantised
from asyncnn.tools.differing.evidence import Evidence, keep
from asyncnn.tools.differing.extracts import Graph
from asyncnn.tools.differing.finding import Entry, Finding, Question, every, find
from asyncnn.tools.differing.sides import PEERS, DeviceSide, PeerSide, Side
from asyncnn.tools.samples import Sample, random_sample, telling_open_axes

_READS = {"litert": FileKind.TFLITE, "onnxruntime": FileKind.ONNX}

FUSING = (
    "{} runs with all tensors as outputs, so it does not fuse operations; the outputs "
    "compared are those of the model as it is"
)


class Inquiry(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared: one or two models, on two sides, on what inputs.

    Without ``given`` samples, so many ``random`` ones of a ``seed`` are drawn. What
    repeats the error that is found goes to the file ``save``, if that is given;
    ``options`` are what its command has besides.
    """

    path: Path
    named: NamedModel
    against: tuple[Path, NamedModel] | None
    between: tuple[str, str]
    extensions: tuple[Extension, ...] = ()
    constants: Mapping[str, Any] = {}
    reference_kernels: bool = False
    given: tuple[Sample, ...] = ()
    random: int = 3
    seed: int = 0
    allowed: Allowed = Allowed()
    save: Path | None = None
    options: tuple[str, ...] = ()


class SideReport(msgspec.Struct, frozen=True):
    """A side: what ran, and which model."""

    name: str
    version: str
    model: str


class OutputReport(msgspec.Struct, frozen=True):
    """How far an output of the models as they are is apart."""

    name: str
    distance: Distance


class OperationReport(msgspec.Struct, frozen=True):
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
    outputs: tuple[OutputReport, ...]
    first: str | None
    most: str | None
    behind: str | None
    only_whole: str | None
    operations: tuple[OperationReport, ...]
    notes: tuple[str, ...]
    evidence: Evidence | None

    def at(self, place: str | None) -> OperationReport | None:
        """Return the operation of a place."""
        found = (each for each in self.operations if each.place == place)
        return next(found, None)


async def answer(
    inquiry: Inquiry, tell: Callable[[str], None] = lambda text: None
) -> DifferenceReport:
    """Run both sides, compare, and keep what repeats the error.

    :raises InvalidArgumentError: if the two cannot be compared, or an input is wrong.
    :raises PeerMissingError: if a runtime is not installed.
    :raises AsyncnnError: if a side refuses its model, or fails; a file cannot be
        written.
    """
    against = inquiry.against or (inquiry.path, inquiry.named)
    models = ((inquiry.path, inquiry.named), against)
    pairs = list(zip(inquiry.between, models, strict=True))
    for name, (path, _) in pairs:
        check_reads(name, path)
    graph = _graph(inquiry.named, inquiry)
    other = graph if inquiry.against is None else _graph(against[1], inquiry)
    here, there = _samples(inquiry, against[1])
    drawn = () if inquiry.given else inquiry.named.inputs
    first_name, second_name = inquiry.between
    with telling_open_axes(drawn):
        async with (
            _side(first_name, inquiry, graph, inquiry.path, inquiry.named) as first,
            _side(second_name, inquiry, other, *against) as second,
        ):
            question = Question(
                first=first,
                second=second,
                samples=here,
                converted=there,
                allowed=inquiry.allowed,
                tell=tell,
            )
            found = await find(question)
            told = found.told
            evidence = None
            if inquiry.save is not None and told is not None:
                evidence = await keep(
                    told, inquiry.save, inquiry.between, inquiry.options
                )
            sides = tuple(
                SideReport(side.title, side.version, str(path))
                for side, (_, (path, _)) in zip((first, second), pairs, strict=True)
            )
    return _report(found, sides, len(here), evidence)


def check_reads(name: str, path: Path) -> None:
    """Check that a side reads the kind of file at ``path``, if it is no device.

    :raises InvalidArgumentError: if it does not.
    """
    if name not in PEERS:
        return
    with located(path):
        kind = kind_of(view(map_model_file(path)))
        if kind is not _READS[name]:
            raise InvalidArgumentError(
                f"{name} reads {_READS[name].value} files, and this is {kind.value}"
            )


def _graph(named: NamedModel, inquiry: Inquiry) -> Graph:
    return Graph(named.with_open_states(), inquiry.extensions)


@asynccontextmanager
async def _side(
    name: str, inquiry: Inquiry, graph: Graph, path: Path, named: NamedModel
) -> AsyncIterator[Side]:
    if name in PEERS:
        yield PeerSide(
            name,
            graph,
            named.states,
            path,
            reference_kernels=inquiry.reference_kernels,
            constants=inquiry.constants,
        )
        return
    async with open_device(
        name, settings=OWN_PROCESS, extensions=inquiry.extensions
    ) as device:
        yield DeviceSide(name, device, graph, named.states)


def _samples(inquiry: Inquiry, other: NamedModel) -> tuple[list[Sample], list[Sample]]:
    """Return the samples in the types of each model, which are the same values.

    So what only one of them quantises is rounded to its steps for both.
    """
    infos, others = inquiry.named.inputs, other.inputs
    if len(infos) != len(others):
        raise InvalidArgumentError(
            f"one model has {len(infos)} inputs and the other {len(others)}",
            hint="compare two kinds of one network",
        )
    pairs = list(zip(infos, others, strict=True))
    for mine, theirs in pairs:
        if mine.dimensions != theirs.dimensions:
            raise InvalidArgumentError(
                f"input {mine} has another shape than {theirs}",
                hint="compare two kinds of one network",
            )
    check = InputCheck(infos)
    given = list(inquiry.given)
    for sample in given:
        check(sample)
    if not given:
        rng = np.random.default_rng(inquiry.seed)
        for _ in range(inquiry.random):
            codes = random_sample([theirs for _, theirs in pairs], rng)
            values = random_sample(infos, rng)
            for mine, theirs in pairs:
                if is_quantised(theirs) and not is_quantised(mine):
                    code = codes[theirs.name]
                    values[mine.name] = converted(code, theirs, mine, mine.dtype)
            given.append(values)
    if not given:
        raise InvalidArgumentError(
            "there is no sample to compare", hint="ask for one random sample or more"
        )
    return _converted(given, pairs)


def _converted(
    samples: Sequence[Sample], pairs: Sequence[tuple[TensorInfo, TensorInfo]]
) -> tuple[list[Sample], list[Sample]]:
    here: list[Sample] = []
    there: list[Sample] = []
    for sample in samples:
        mine: Sample = {}
        theirs: Sample = {}
        for info, other in pairs:
            array = np.asarray(sample[info.name])
            code = converted(array, info, other, other.dtype)
            if is_quantised(other) and not is_quantised(info):
                array = converted(code, other, info, info.dtype)
            mine[info.name], theirs[other.name] = array, code
        here.append(mine)
        there.append(theirs)
    return here, there


def _report(
    found: Finding,
    sides: tuple[SideReport, ...],
    samples: int,
    evidence: Evidence | None,
) -> DifferenceReport:
    def place(entry: Entry | None) -> str | None:
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
        outputs=tuple(OutputReport(*each) for each in found.outputs),
        first=place(found.first),
        most=place(found.most),
        behind=place(found.behind),
        only_whole=place(found.only_whole),
        operations=tuple(map(_operation, every(found.entries))),
        notes=tuple(notes),
        evidence=evidence,
    )


def _operation(entry: Entry) -> OperationReport:
    level, position = entry.level, entry.position
    operation = level.graph.main.operations[position]
    operands, writers = level.graph.main.operands, level.graph.writers
    prefix = entry.place.removesuffix(str(position))
    return OperationReport(
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


def _shape(operand: Operand) -> str:
    return "x".join(str(length) if length else "?" for length in operand.dimensions)


def read_report(path: Path) -> DifferenceReport:
    """Read what ``asyncnn diff --json`` has printed.

    :raises InvalidArgumentError: if it is no such report.
    """
    try:
        document = msgspec.json.decode(path.read_bytes())
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
