"""``asyncnn diff``: which operation makes two runs of a model differ."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from asyncnn.cli import options
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.tools.differing.difference_report import (
        DifferenceReport,
        OperationDifference,
    )
    from asyncnn.tools.differing.distances import Distance

_MOST_ROWS = 30
_WIDTH = 80
_REPEAT = "repeat it with: "


class DiffOptions(options.LoadingToCompare, frozen=True, kw_only=True):
    """What ``asyncnn diff`` is asked to do.

    model: A .tflite, .onnx or .asyncnn file; or a .json of --json.
    against: Another kind of the network, for the second side.
    between A,B: Two of: devices, litert, onnxruntime. By default
        reference,accelerated, or reference twice for two models.
    samples: Random inputs, without --input.
    reference_kernels: Use LiteRT's reference kernels.
    save F.npz: Write the inputs of the operation found, and a model of it beside.
    every --all: List operations that do not differ, too.
    html: Write a page that shows it to this file.
    """

    model: options.FileArgument
    against: Annotated[Path | None, typer.Argument()] = None
    between: str | None = None
    input_file: Path | None = None
    samples: options.Positive = 3
    seed: options.Natural = 0
    reference_kernels: bool = False
    save: Path | None = None
    every: bool = False
    html: Path | None = None
    json: bool = False


def diff(asked: DiffOptions) -> None:
    """Find the operation that makes two runs of a model differ.

    Compares every tensor that both sides show, and every operation by itself: the
    first side, if it is a device, computes it again from what the second had.
    What that puts out of tolerance the operation adds itself; the rest it has got
    from those before it. Tolerances are of single operations. A float and a
    quantised model are compared in steps of the quantisation.

    Exits with 1 if an operation or an output is out of tolerance, with 2 on bad
    input.
    """
    from asyncnn.tools.differing.difference_report import page_of, read_report

    if asked.save is not None:
        _check_place(asked.save, (asked.model, asked.against))
    check_writable(asked.html, asked.save)
    if asked.model.suffix == ".json":
        report = read_report(asked.model)
    else:
        report = _found(asked)
    options.write_page(asked.html, lambda: page_of(report, list(_verdict(report))))
    draw = partial(_print, every=asked.every)
    options.show(report, draw, json=asked.json, passed=report.passed)


def _check_place(save: Path, models: Sequence[Path | None]) -> None:
    """Check that what is kept takes no place of what is compared.

    :raises InvalidArgumentError: if it does, or has not the suffix of arrays.
    """
    from asyncnn.tools.differing.evidence import model_files

    hint = "its models get the name, too"
    if save.suffix != ".npz":
        raise InvalidArgumentError(f"--save {save} is no .npz file", hint=hint)
    taken = {file.resolve() for file in model_files(save)}
    for model in models:
        if model is not None and model.resolve() in taken:
            words = f"--save {save} would overwrite {model}"
            raise InvalidArgumentError(words, hint=hint)


def _found(asked: DiffOptions) -> "DifferenceReport":
    """Run both sides, as the options say."""
    import anyio

    from asyncnn.tools.differing import Inquiry, answer
    from asyncnn.tools.differing.distances import Allowed

    # What it looks into are operations of the HAL, so there are no regions here.
    named, extensions = asked.load(asked.model, strict=True)
    kinds, other = [named], None
    if asked.against is not None:
        second, more = asked.load(asked.against, strict=True)
        extensions += tuple(each for each in more if each not in extensions)
        kinds.append(second)
        other = (asked.against, second)
    relaxed = any(each.model.relax_computation_float32_to_float16 for each in kinds)
    inquiry = options.made_of(
        Inquiry,
        asked,
        path=asked.model,
        named=named,
        against=other,
        between=_sides(asked.between, is_two=asked.against is not None),
        extensions=extensions,
        constants=options.constants_of(asked.constant or ()),
        given=options.given_samples(asked.input_file, named.inputs),
        random=asked.samples,
        allowed=Allowed(asked.lsb, asked.rtol, asked.atol, relaxed),
        options=tuple(asked.words()),
    )
    return anyio.run(answer, inquiry, _report_step)


def _sides(between: str | None, *, is_two: bool) -> tuple[str, str]:
    """Return the names of both sides.

    :raises InvalidArgumentError: if there are not two.
    """
    if between is None:
        return ("reference", "reference" if is_two else "accelerated")
    names = [name.strip() for name in between.split(",")]
    if len(names) != 2 or not all(names):
        raise InvalidArgumentError(
            f"--between {between} does not name two sides",
            hint="write it as reference,accelerated",
        )
    return names[0], names[1]


def _report_step(text: str) -> None:
    stderr = options.console(stderr=True)
    if stderr.is_terminal:
        stderr.print(text)


def _print(report: "DifferenceReport", *, every: bool) -> None:
    for side in report.sides:
        typer.echo(f"{side.name}, version {side.version}: {side.model}")
    samples = options.counted(report.samples, "sample")
    tensors = options.counted(report.tensors, "tensor")
    typer.echo(f"{samples}, {tensors} compared")
    _print_table(report, every=every)
    for output in report.outputs:
        verdict = "" if output.distance.passed else ", OUT OF TOLERANCE"
        name = _short(output.name, _WIDTH // 2)
        typer.echo(f"output {name}: {output.distance}{verdict}")
    notes = [f"note: {note}" for note in report.notes]
    for line in (*_verdict(report), *notes):
        if not line.startswith(_REPEAT):  # a command is to be copied
            line = fill(line, _WIDTH, subsequent_indent="  ", break_long_words=False)
        typer.echo(line)


def _print_table(report: "DifferenceReport", *, every: bool) -> None:
    from rich.table import Column, Table

    chosen = [each for each in report.operations if every or _differs(each)]
    left = 0
    if not every and len(chosen) > _MOST_ROWS:
        worst = sorted(chosen, key=_rank, reverse=True)[:_MOST_ROWS]
        left = len(chosen) - len(worst)
        chosen = [each for each in chosen if each in worst]
    if not chosen:
        return
    rows = [
        (
            each.place,
            each.operation,
            _cell(each.error),
            _cell(each.own),
            "DIVERGES" if each.diverges else "",
        )
        for each in chosen
    ]
    headings = ("", "operation", "error", "own error", "")
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    # Names of operations of extensions can be long: they are folded.
    left_over = max(_WIDTH - sum(widths) - 3 * len(headings) - 4, len("computes"))
    right = [Column(name, justify="right") for name in headings[2:4]]
    table = Table("", Column("operation", overflow="fold"), *right, "", "computes")
    for row, each in zip(rows, chosen, strict=True):
        table.add_row(*row, _short(each.tensor, left_over))
    options.console().print(table)
    if left:
        typer.echo(
            f"{options.counted(left, 'more operation')} with less error: see --all"
        )


def _differs(operation: "OperationDifference") -> bool:
    distances = (operation.error, operation.own)
    return bool(operation.problem) or any(each and each.units for each in distances)


def _rank(operation: "OperationDifference") -> tuple[bool, tuple[float, float]]:
    distance = operation.own or operation.error
    return operation.diverges, distance.rank if distance else (0.0, 0.0)


def _cell(distance: "Distance | None") -> str:
    if distance is None:
        return "-"
    return "other shape" if distance.problem else str(distance)


def _short(name: str, width: int) -> str:
    return name if len(name) <= width else f"...{name[3 - width :]}"


def _verdict(report: "DifferenceReport") -> Iterator[str]:
    """Yield what is found, in sentences."""
    first, most, behind, whole = (
        report.at(place)
        for place in (report.first, report.most, report.behind, report.only_whole)
    )
    if first is not None:
        yield f"first to diverge: {first.name}, {_amount(first)}"
    elif whole is not None:
        yield (
            f"the model as it is diverges at {whole.name}, and does not if it shows "
            "its tensors: an error of fusing operations"
        )
    elif not report.passed:
        yield "no operation diverges by itself: small errors have added up"
    else:
        yield "no operation diverges"
    if most is not None:
        yield f"adds most error: {most.name}, {_amount(most)}"
    if behind is not None and behind is not first:
        yield f"first result out of tolerance: {behind.name}, {behind.error}"
    for each in report.operations:
        if each.problem:
            yield f"{each.name}: {each.problem}"
    if report.evidence is not None:
        kept = report.evidence
        again = {
            True: "it diverges by itself, too",
            False: "by itself it does not diverge: it takes the operations around it",
            None: "by itself it is within tolerance",
        }[kept.repeats]
        yield f"kept: operation {kept.place} as {kept.model}; {again}"
        yield f"{_REPEAT}{kept.command}"


def _amount(operation: "OperationDifference") -> str:
    distance = operation.own or operation.error
    if distance is None:
        return "not compared"
    if distance.problem:
        return distance.problem
    if not distance.differing:
        return f"by {distance}, within tolerance"
    return (
        f"by {distance}, {distance.differing:,} of {distance.elements:,} elements out "
        "of tolerance"
    )
