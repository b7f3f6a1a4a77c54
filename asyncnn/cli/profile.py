"""``asyncnn profile``: where the time of a model's runs goes."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from asyncnn.cli import options
from asyncnn.deadlines import format_duration
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.input_files import read_input
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from rich.table import Table

    from asyncnn.tools.profiling import OperationProfile, Profile


class ProfileOptions(options.Loading, frozen=True, kw_only=True):
    """What ``asyncnn profile`` is asked to do.

    input_file --input: An .npz file whose input_0 or input_0.NAME to run on, or an .npy
        file with the only input.
    device: Device to run on, one of asyncnn devices; by default $ASYNCNN_DEVICE, or the
        fastest that works.
    runs: Runs to take medians of; by default 50, or 10 seconds of them.
    only --filter GLOB: Show these types alone: CONV*.
    top: Show the N longest operations alone.
    source --from: Show what --json has printed; run nothing.
    html: Write a page with the graph to this file.
    """

    model: Annotated[Path | None, typer.Argument()] = None
    input_file: Path | None = None
    device: str | None = None
    strict: bool = False
    runs: options.PositiveOrNone = None
    only: str = "*"
    top: options.PositiveOrNone = None
    source: Path | None = None
    html: Path | None = None
    json: bool = False


def profile(asked: ProfileOptions) -> None:
    """Measure where the time of runs goes: by operation, partition and stage.

    Runs are as any others; every second one is observed. What another engine
    computes at once is measured as a segment, whose time is shared out among its
    operations; ~ marks those. Without --input, inputs are random.

    --json prints all operations, whatever is shown. Exits with 2 on bad input.
    """
    if (asked.model is None) is (asked.source is None):
        raise typer.BadParameter("give a model, or --from a profile")
    check_writable(asked.html)
    from asyncnn.tools.profiling.page import page_of

    if asked.source is not None:
        found = _read(asked.source)
    elif asked.model is not None:
        found = options.rounded(_measured(asked, asked.model))
    shown = _chosen(found, asked.only, asked.top)
    options.write_page(asked.html, lambda: page_of(found, shown))
    if asked.json:
        options.print_json(found)
    else:
        _print(found, shown)


def _measured(asked: ProfileOptions, path: Path) -> "Profile":
    import anyio

    from asyncnn.devices import OWN_PROCESS
    from asyncnn.runtime.opening_devices import open_device
    from asyncnn.tools.profiling.observed_runs import ProfileOrder, measure
    from asyncnn.tools.samples import hinting_open_axes, random_sample

    named, extensions = asked.load(path, strict=asked.strict)
    given = options.given_samples(asked.input_file, named.inputs)
    inputs = given[0] if given else random_sample(named.inputs)
    origin = "random" if asked.input_file is None else asked.input_file.name
    order = ProfileOrder(path.name, named, inputs, origin, asked.runs)

    async def run() -> "Profile":
        opening = open_device(asked.device, settings=OWN_PROCESS, extensions=extensions)
        async with opening as opened:
            with hinting_open_axes(None if given else named):
                rounds = partial(options.progress, description="runs")
                return await measure(opened, order, rounds)

    return anyio.run(run)


def _read(path: Path) -> "Profile":
    """Return the profile that a file has.

    :raises InvalidArgumentError: if it has none.
    """
    from asyncnn.tools.profiling import Profile

    try:
        return msgspec.json.decode(read_input(path), type=Profile)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            f"{path} is no profile: {error}",
            hint="write one with: asyncnn profile MODEL --json",
        ) from None


def _chosen(
    found: "Profile", only: str, top: int | None
) -> "Sequence[OperationProfile]":
    """Return the operations to show, the longest first if only some of them are.

    :raises InvalidArgumentError: if there is none of the type.
    """
    shown = [each for each in found.operations if fnmatchcase(each.type, only)]
    if found.operations and not shown:
        types = sorted({each.type for each in found.operations})
        raise InvalidArgumentError(
            f"no operation's type matches {only!r}",
            hint=f"there are {', '.join(types)}",
        )
    if top is not None:
        shown = sorted(shown, key=lambda each: -each.time_us)[:top]
    return shown


def _print(found: "Profile", shown: "Sequence[OperationProfile]") -> None:
    """Print tables that fit 80 columns."""
    from asyncnn.tools.profiling.page import headlines

    terminal = options.console()
    several = len(found.partitions) > 1
    if found.operations:
        terminal.print(_operations(shown, several))
    if several or not found.operations:
        terminal.print(_partitions(found))
    if found.segments:
        terminal.print(_segments(found))
    stages = _table("besides", "time", "share", "", left=(0, 3))
    for stage in found.stages:
        stages.add_row(
            *(stage.name, format_duration(stage.time_us)),
            *(f"{stage.share:.1%}", stage.meaning),
        )
    terminal.print(stages)
    for line in headlines(found):
        terminal.print(line)


def _table(*columns: str, left: Iterable[int] = (0,)) -> "Table":
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(columns):
        justify = "left" if number in left else "right"
        made.add_column(name, justify=justify, overflow="fold")  # type: ignore[arg-type]
    return made


def _operations(shown: "Sequence[OperationProfile]", several: bool) -> "Table":
    from asyncnn.tools.profiling.page import mark

    table = _table(
        *("", "operation", "us", "share", "bytes", "temp", "kernel", "rounding"),
        left=(0, 1, 6, 7),
    )
    for each in shown:
        kernel = each.kernel.rpartition(".")[2]
        where = f"{kernel}\non {each.device}" if several else kernel
        table.add_row(
            *(each.place, each.type),
            *(f"{mark(each)}{each.time_us:.1f}", f"{each.share:.1%}"),
            *(_bytes(each.moved_bytes), _bytes(each.temporary_bytes)),
            *(where, each.rounding),
        )
    return table


def _partitions(found: "Profile") -> "Table":
    table = _table("", "partition on", "operations", "time", "share", left=(0, 1))
    for number, part in enumerate(found.partitions):
        table.add_row(
            *(str(number), part.device, str(len(part.operations))),
            "elsewhere" if part.time_us is None else format_duration(part.time_us),
            "" if part.share is None else f"{part.share:.1%}",
        )
    return table


def _segments(found: "Profile") -> "Table":
    table = _table(
        *("", "segment by", "operations", "time", "share", "one by one"), left=(0, 1)
    )
    for number, segment in enumerate(found.segments):
        parts = segment.parts_us
        table.add_row(
            *(str(number), segment.engine, str(len(segment.operations))),
            *(format_duration(segment.time_us), f"{segment.share:.1%}"),
            "estimated" if parts is None else format_duration(parts),
        )
    return table


def _bytes(count: int | None) -> str:
    """Return a number of bytes in three digits or so."""
    if count is None:
        return "-"
    for unit, size in (("M", 2**20), ("k", 2**10)):
        if count >= size:
            return f"{count / size:.3g}{unit}"
    return str(count)
