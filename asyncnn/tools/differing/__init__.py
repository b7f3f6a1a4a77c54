"""Where two ways of running a model part: the work behind ``asyncnn diff``.

`extracts` rewrites models so that their tensors can be seen, `sides` runs them on
devices and on the runtimes of others, `levels` says which tensors are the same,
`distances` how far they are apart, `finding` which operation that comes from,
`evidence` keeps what repeats it, `difference_report` says it; `answer` does it all.
"""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from asyncnn.devices import OWN_PROCESS
from asyncnn.extensions import Extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model import NamedModel, TensorInfo, located, open_model_file
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.requests import InputCheck
from asyncnn.tools.differing.difference_report import (
    DifferenceReport,
    SideReport,
    report_of,
)
from asyncnn.tools.differing.distances import Allowed, converted, is_quantised
from asyncnn.tools.differing.evidence import keep
from asyncnn.tools.differing.extracts import ModelGraph
from asyncnn.tools.differing.finding import Question, find
from asyncnn.tools.differing.sides import PEERS, DeviceSide, PeerSide, Side
from asyncnn.tools.samples import Sample, hinting_open_axes, random_sample

_READS = {"litert": FileKind.TFLITE, "onnxruntime": FileKind.ONNX}


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


async def answer(
    inquiry: Inquiry, on_step: Callable[[str], None] = lambda text: None
) -> DifferenceReport:
    """Run both sides, compare, and keep what repeats the error.

    :raises InvalidArgumentError: if the two cannot be compared, or an input is wrong.
    :raises PeerMissingError: if a runtime is not installed.
    :raises AsyncnnError: if a side refuses its model, or fails.
    :raises OSError: if what repeats the error cannot be written.
    """
    against = inquiry.against or (inquiry.path, inquiry.named)
    models = ((inquiry.path, inquiry.named), against)
    pairs = list(zip(inquiry.between, models, strict=True))
    for name, (path, _) in pairs:
        check_reads(name, path)
    graph = _graph(inquiry.named, inquiry)
    other = graph if inquiry.against is None else _graph(against[1], inquiry)
    here, there = _samples(inquiry, against[1])
    drawn = None if inquiry.given else inquiry.named
    first_name, second_name = inquiry.between
    with hinting_open_axes(drawn):
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
                on_step=on_step,
            )
            found = await find(question)
            operation = found.to_look_into
            evidence = None
            if inquiry.save is not None and operation is not None:
                evidence = await keep(
                    operation, inquiry.save, inquiry.between, inquiry.options
                )
            sides = tuple(
                SideReport(side.title, side.version, str(path))
                for side, (_, (path, _)) in zip((first, second), pairs, strict=True)
            )
    return report_of(found, sides, len(here), evidence)


def check_reads(name: str, path: Path) -> None:
    """Check that a side reads the kind of file at ``path``, if it is no device.

    :raises InvalidArgumentError: if it does not.
    """
    if name not in PEERS:
        return
    with located(path):
        kind = kind_of(open_model_file(path))
        if kind is not _READS[name]:
            raise InvalidArgumentError(
                f"{name} reads {_READS[name].value} files, and this is {kind.value}"
            )


def _graph(named: NamedModel, inquiry: Inquiry) -> ModelGraph:
    return ModelGraph(named.with_open_states(), inquiry.extensions)


@asynccontextmanager
async def _side(
    name: str, inquiry: Inquiry, graph: ModelGraph, path: Path, named: NamedModel
) -> AsyncIterator[Side]:
    if name in PEERS:
        yield PeerSide(
            name,
            graph,
            named.states,
            path,
            reference=inquiry.reference_kernels,
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
