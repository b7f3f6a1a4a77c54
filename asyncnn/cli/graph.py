"""``asyncnn graph`` and ``asyncnn run --explain``: what a device makes of a model."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from asyncnn.cli import options
from asyncnn.cli.run_options import RunOptions
from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import (
    EngineUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.output_files import check_writable, write_file

if TYPE_CHECKING:
    from asyncnn.extensions import Extension
    from asyncnn.runtime.explain import Explanation, OperationReport
    from asyncnn.runtime.model import NamedModel

GRAPHVIZ, GRAPHVIZ_TIMEOUT = "dot", 120
"""The command that draws graphs, and the seconds that it may take."""

SVG, TEXTS = ".svg", (".dot", ".gv")


class GraphOptions(options.Loading, frozen=True, kw_only=True):
    """What ``asyncnn graph`` is asked to do.

    device: Device whose support is marked, one of asyncnn devices; by default the one
        that runs it.
    full: Show constants and temporaries as nodes, too.
    output --output -o FILE: Write here; a .svg file is drawn, for which Graphviz is
        needed.
    """

    model: options.FileArgument
    device: str | None = None
    strict: bool = False
    full: bool = False
    output: Path | None = None


def graph(asked: GraphOptions) -> None:
    """Draw a model: its operations, types, shapes, and the device's support.

    Operations say their scalars, and types and shapes of their weights. Prints
    the text of Graphviz, unless --output names a file.
    """
    import anyio

    from asyncnn.runtime.dot import dot

    _check(asked.output)
    loaded, extensions = asked.load(asked.model, strict=asked.strict)
    form, explanation = anyio.run(_marked, loaded, extensions, asked.device)
    text = dot(form, explanation, folded=not asked.full)
    if asked.output is None:
        typer.echo(text, nl=False)
    elif asked.output.suffix == SVG:
        write_file(asked.output, _drawn(text, asked.full))
    else:
        write_file(asked.output, text)


def _check(output: Path | None) -> None:
    """Find out, before the model is loaded, whether the file can be made.

    :raises InvalidArgumentError: if its name does not say what to write.
    :raises EngineUnavailableError: if Graphviz is needed, and not installed.
    :raises OSError: if it cannot be written.
    """
    import shutil

    if output is None:
        return
    if output.suffix not in (SVG, *TEXTS):
        raise InvalidArgumentError(
            f"{output} does not say what to write",
            hint=f"names end in {SVG}, or in {' or '.join(TEXTS)} for text",
        )
    if output.suffix == SVG and shutil.which(GRAPHVIZ) is None:
        raise EngineUnavailableError(
            f"{output} is drawn by Graphviz, which is not installed",
            hint="apt install graphviz, brew install graphviz, or write a .dot file",
        )
    check_writable(output)


def _drawn(text: str, full: bool) -> bytes:
    """Return a graph as SVG.

    :raises GeneralFailureError: if Graphviz fails, or takes too long.
    """
    import subprocess

    hint = "a .dot file has the text, for other programs"
    if full:
        hint = f"it is simpler without --full; {hint}"
    try:
        ran = subprocess.run(
            [GRAPHVIZ, "-Tsvg"],
            input=text.encode(errors="replace"),
            capture_output=True,
            timeout=GRAPHVIZ_TIMEOUT,
            check=True,
        )
    except subprocess.TimeoutExpired:
        took = f"Graphviz has not drawn it in {GRAPHVIZ_TIMEOUT} seconds"
        raise GeneralFailureError(took, hint=hint) from None
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        first = said.splitlines()[0] if said else f"status {error.returncode}"
        raise GeneralFailureError(f"Graphviz failed: {first}", hint=hint) from None
    return ran.stdout


def explain(asked: RunOptions) -> None:
    """Print what a device, or a driver, supports of a model.

    :raises AsyncnnError: if the file is bad, or the device cannot be asked.
    :raises typer.Exit: with 1, if there is an operation that is not supported.
    """
    import anyio

    from asyncnn.runtime.explain import Explanation
    from asyncnn.runtime.unsupported import UnsupportedOperatorError

    try:
        with options.naming_options():
            model, extensions = asked.load(asked.model, strict=asked.strict)
            explanation = anyio.run(_explained, model, extensions, asked)
    except UnsupportedOperatorError as error:
        if not error.operators:  # it is not about single ones
            raise
        refused, hint = error.operators, error.hint
        explanation = Explanation("", error.message, (), unsupported=refused, hint=hint)
    passed = explanation.is_supported
    options.show(explanation, print_explanation, json=asked.json, passed=passed)


async def _explained(
    model: "NamedModel", extensions: "Sequence[Extension]", asked: RunOptions
) -> "Explanation":
    from asyncnn.runtime.explain import explain
    from asyncnn.runtime.opening_devices import connect, open_device

    opened = (
        open_device(asked.device, extensions=extensions)
        if asked.socket is None
        else connect(asked.socket, device=asked.device)
    )
    async with opened as device:
        return await explain(device, model, extensions=extensions)


async def _marked(
    model: "NamedModel", extensions: "Sequence[Extension]", device: str | None
) -> "tuple[NamedModel, Explanation]":
    """Return what a device would prepare for a model, and what it supports of that."""
    from asyncnn.runtime.explain import explain
    from asyncnn.runtime.opening_devices import open_device
    from asyncnn.runtime.translation import form_for

    async with open_device(device, extensions=extensions) as asked:
        form = await form_for(asked.hal, model)
        return form, await explain(asked, form, extensions=extensions)


def print_explanation(explanation: "Explanation") -> None:
    """Print a table of all operations, why some are not supported, and how many are."""
    from rich.table import Column, Table

    from asyncnn.extensions.regions import ENGINES

    if explanation.unsupported:
        for refused in explanation.unsupported:
            typer.echo(f"{refused.place}: {refused.reason}")
        counts = Counter(refused.name for refused in explanation.unsupported)
        names = ", ".join(f"{count} x {name}" for name, count in counts.items())
        hint = f" ({explanation.hint})" if explanation.hint else ""
        typer.echo(f"no model can be made of the file: it has {names}{hint}")
        return
    if explanation.problem:
        typer.echo(f"the model is refused: {explanation.problem}")
    # Names of extensions can be long: they are folded rather than cut.
    headers = ("", "operation", "type", "needs", "support")
    table = Table(*(Column(header, overflow="fold") for header in headers))
    for report in explanation.operations:
        table.add_row(
            _number(report),
            _in_lines(report.type),
            _in_lines(report.main_type),
            report.since,
            _support(report),
        )
    options.console().print(table)
    for report in explanation.operations:
        if not report.is_supported:
            typer.echo(f"{report.place}: {report.reason}")
    for number, partition in enumerate(explanation.partitions):
        count = len(partition.operations)
        typer.echo(
            f"partition {number}: {partition.device}, "
            f"{count} operation{'' if count == 1 else 's'}, "
            f"about {format_duration(partition.expected_us)}"
        )
    for segment in explanation.segments:
        count = len(segment.operations)
        typer.echo(
            f"{segment.device}: {_ranges(segment.operations)} by {segment.engine}, "
            f"about {format_duration(segment.expected_us)}"
        )
    if explanation.are_estimates and (explanation.partitions or explanation.segments):
        typer.echo(f"times are estimates: {_better_than_estimates()}")
    for name, reason in explanation.left_out.items():
        typer.echo(f"{name} has no part: {reason}")
    if explanation.translated:
        engine, _ = ENGINES[explanation.translated]
        typer.echo(f"{explanation.device} runs the file translated, not by {engine}")
    for hint, use in explanation.hal_hints.items():
        typer.echo(f"{explanation.device}: the hint {hint} is {use}")
    if explanation.batching:
        typer.echo(f"{explanation.device}: batches: {explanation.batching}")
    supported = sum(report.is_supported for report in explanation.operations)
    total = len(explanation.operations)
    typer.echo(f"{explanation.device} supports {supported} of {total} operations")


def _better_than_estimates() -> str:
    """Return what gives times that are measured."""
    from asyncnn.devices.measured_capabilities import load_measurement

    command = "asyncnn capabilities --measure"
    with suppress(GeneralFailureError):
        found = load_measurement()
        if found is not None and found.model_times and not found.is_in_force:
            return "what was measured is in force from the next boot of the machine on"
        if found is not None:
            return f"{command} --again"
    return command


def _support(report: "OperationReport") -> str:
    if not report.is_supported:
        return f"no, {report.cause}"
    text = f"{report.device}: {report.choice}" if report.device else "yes"
    if report.engine:
        text += f"; {report.engine}"
    if report.obstacle:
        text += f", as {report.obstacle}"
    return text


def _ranges(numbers: "Sequence[int]") -> str:
    """Return numbers in words, those that follow one another as a range."""
    parts: list[str] = []
    ordered = sorted(numbers)
    for _, following in groupby(enumerate(ordered), lambda each: each[1] - each[0]):
        run = [position for _, position in following]
        parts.append(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}")
    word = "operation" if len(ordered) == 1 else "operations"
    return f"{word} {', '.join(parts)}"


def _in_lines(name: str) -> str:
    """Return a name of an extension with what it stands in on a line of its own."""
    return name.replace("/", "/\n")


def _number(report: "OperationReport") -> str:
    if report.subgraph is None:
        return str(report.index)
    return f"{report.index} of {report.subgraph}"
