"""``asyncnn inspect``: what a model file expects, holds and needs."""

import shlex
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from asyncnn.cli.options import (
    FileArgument,
    Loading,
    console,
    constants_of,
    counted,
    naming_options,
    of_options,
    print_json,
    shapes_of,
)
from asyncnn.hal.errors import AsyncnnError

if TYPE_CHECKING:
    from asyncnn.runtime.inspection import DeviceSupport, Inspection, TensorSummary

_MOST_CHARACTERS = 60
"""How much is shown of a text that the author says."""


class InspectOptions(Loading, frozen=True, kw_only=True):
    """What ``asyncnn inspect`` is asked to do."""

    model: FileArgument
    strict: bool = False
    json: bool = False


def inspect(asked: InspectOptions) -> None:
    """Show what a model expects and returns, what it computes, and what runs it."""
    import anyio

    from asyncnn.extensions import load_extension
    from asyncnn.runtime.inspection import inspected, outlined

    failure = None
    try:
        with naming_options():
            loaded, extensions = asked.load(asked.model, strict=asked.strict)
            inspection = anyio.run(partial(inspected, loaded, extensions=extensions))
    except AsyncnnError as error:
        inspection = outlined(
            asked.model,
            error,
            input_shapes=shapes_of(asked.input_shape or ()),
            constants=constants_of(asked.constant or ()),
            extensions=list(map(load_extension, asked.extension or ())),
        )
        # Shapes are what to look for here, and no failure if they are found.
        failure = None if inspection.example_shapes else error
    if asked.json:
        print_json(inspection)
    else:
        given = [("--constant", each) for each in asked.constant or ()]
        given += [("--extension", each) for each in asked.extension or ()]
        words = ("asyncnn", "inspect", str(asked.model), *chain.from_iterable(given))
        print_inspection(inspection, shlex.join(words))
    if failure is not None:
        raise failure


def print_inspection(inspection: "Inspection", command: str = "") -> None:
    """Print tables of tensors and operations, the size, and what each device runs.

    :param command: what to repeat with shapes of inputs, if these are all that lacks.
    """
    from rich.table import Column, Table

    screen = console()
    # Names of tensors can be long: they are folded rather than cut.
    tensors = Table(
        "", Column("name", overflow="fold"), "dtype", "shape", "scale", "zero point"
    )
    for kind in ("input", "output", "state"):
        for summary in getattr(inspection, f"{kind}s"):
            tensors.add_row(kind, *_cells(summary))
    screen.print(tensors)
    tensors_of = inspection.inputs + inspection.outputs + inspection.states
    if any(each.scale for each in tensors_of):
        screen.print("quantised: real value = scale * (stored - zero point)")
    if inspection.operations:
        operations = Table(Column("operation", overflow="fold"), "count")
        for name, count in inspection.operations.items():
            operations.add_row(name, str(count))
        screen.print(operations)
    for line in (*_said(inspection), *_lines(inspection, command)):
        screen.print(line, soft_wrap=True)


def _cells(summary: "TensorSummary") -> tuple[str, ...]:
    axes = summary.axes or ("",) * len(summary.shape)
    pairs = zip(axes, summary.shape, strict=True)
    lengths = [str(length or axis or "?") for axis, length in pairs]
    shape = " x ".join(lengths) or "scalar"
    cells = summary.name, summary.dtype or summary.type, shape
    if not summary.scale:
        return cells
    return *cells, f"{summary.scale:.6g}", str(summary.zero_point)


def _said(inspection: "Inspection") -> Iterable[str]:
    """Yield what the author says of the model, each text in one line."""
    said = inspection.metadata
    if said is None:
        return
    texts = {
        name: getattr(said, name)
        for name in ("name", "description", "version", "author", "license")
    }
    for name, text in (*texts.items(), *said.properties.items()):
        line = " ".join(text.split())
        if len(line) > _MOST_CHARACTERS:
            line = f"{line[:_MOST_CHARACTERS]}... ({counted(len(text), 'character')})"
        if line:
            yield f"{name}: {line}"


def _lines(inspection: "Inspection", command: str) -> Iterable[str]:
    from asyncnn.extensions.regions import ENGINES
    from asyncnn.runtime.axes import as_options

    options = as_options(inspection.example_shapes)
    if inspection.problem:
        if options:
            yield f"as it is, it cannot be loaded: {inspection.problem}"
            yield f"with shapes it can: {command} {options}"
        return
    count = inspection.operation_count
    where = ""
    if inspection.subgraphs > 1:
        where = f" in {inspection.subgraphs} subgraphs"
    version = f"HAL version {inspection.hal_version} or newer"
    made = f"{counted(count, 'operation')}{where}, {version}"
    if inspection.region:
        engine, _ = ENGINES[inspection.region]
        yield f"one region: devices with {engine} run the file as it is"
    if inspection.untranslated:
        yield f"not to be translated for others: {of_options(inspection.untranslated)}"
    else:
        yield f"translated for others: {made}" if inspection.region else made
    yield f"weights: {_size(inspection.weight_bytes)}"
    for before, after in inspection.pairs:
        yield f"a session keeps {before}, which is {after} after a step"
    if inspection.open_inputs:
        names = ", ".join(inspection.open_inputs)
        yield f"shapes that the application may choose: those of {names}"
        yield f"such as: {options}"
    for device in inspection.devices:
        yield f"{device.name}: {_support(device, count)}"


def _support(device: "DeviceSupport", count: int) -> str:
    if device.problem:
        return device.problem
    if device.takes_region:
        return "runs it, as one region"
    if device.supported == count:
        return "runs it"
    return f"supports {device.supported} of {counted(count, 'operation')}"


def _size(size_bytes: int) -> str:
    if size_bytes < 1000:
        return counted(size_bytes, "byte")
    size = float(size_bytes)
    for unit in ("kB", "MB"):
        size /= 1000
        if size < 1000:
            return f"{size:.3g} {unit}"
    return f"{size / 1000:.3g} GB"
