"""``asyncnn fuzz``: feeds what reads the words of others with mutants of them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncnn.cli import options
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.tools.fuzz.hunting import Hunted

ALL = "all"


class FuzzOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn fuzz`` is asked to do.

    target: One of those that asyncnn fuzz --list names, or all.
    seconds: Seconds for each target.
    seed S: Mutates the same again, but for what coverage decides.
    corpus DIR: Files to mutate besides the target's own.
    json: Write the report to this file.
    device: Device that driver, litert or onnxruntime feed, of asyncnn devices; other
        targets have none, and are refused with one.
    dump DIR: Where a finding is written.
    input FILE: Try this file alone, as it is.
    guide: Let coverage guide mutants, where atheris is installed.
    lists --list: List the targets.
    """

    target: Annotated[str, typer.Argument()] = ALL
    seconds: Annotated[float, typer.Option(min=0.0)] = 60.0
    seed: options.Natural = 0
    corpus: Path | None = None
    json: Path | None = None
    device: str | None = None
    dump: Path = Path("fuzz-findings")
    input: Path | None = None
    guide: bool = True
    lists: bool = False


def fuzz(asked: FuzzOptions) -> None:
    """Feed a target with mutants, and keep what it does not answer as it has to.

    Each runs in a process of its own. A finding is a process that dies, takes
    5 s, or much memory, or an error that is no answer. It is made small and
    written to a file, with the command that tries that again.

    Exits with 1 if there are findings, with 2 on bad input, or if none was tried.
    """
    from asyncnn.tools.fuzz.hunting import hunt
    from asyncnn.tools.fuzz.targets import TARGETS
    from asyncnn.tools.fuzz.worker import WorkOrder

    out = options.console()
    if asked.lists:
        for name, target in TARGETS.items():
            out.print(f"{name:12} {target.title}", highlight=False, soft_wrap=True)
        return
    names = [*TARGETS]
    if asked.target != ALL:
        names = options.chosen("target", asked.target, names)
        for name in names:
            if asked.device and not TARGETS[name].takes_device:
                raise InvalidArgumentError(f"{name} has no device to feed")
    check_writable(asked.json)
    if asked.input is not None:
        _again(asked, names)
        return
    reports = []
    for name in options.announced(names):
        order = WorkOrder(
            target=name,
            seconds=asked.seconds,
            seed=asked.seed,
            device=asked.device or "",
            corpus=str(asked.corpus or ""),
            is_guided=asked.guide,
        )
        reports.append(hunt(order, asked.dump))
        _print(reports[-1])
    options.write_json(asked.json, reports)
    if any(each.findings for each in reports):
        raise typer.Exit(1)
    if all(each.problem for each in reports):
        raise typer.Exit(2)


def _again(asked: FuzzOptions, names: list[str]) -> None:
    """Try a file once more.

    :raises InvalidArgumentError: if there are several targets, or no such file.
    """
    from asyncnn.tools.fuzz.hunting import watched
    from asyncnn.tools.fuzz.worker import WorkOrder

    if len(names) != 1:
        raise InvalidArgumentError("--input is for one target")
    if asked.input is None or not asked.input.is_file():
        raise InvalidArgumentError(f"there is no file {asked.input}")
    order = WorkOrder(
        target=names[0], device=asked.device or "", input=str(asked.input)
    )
    outcome = watched(order)
    out = options.console()
    if not outcome.kind:
        out.print(f"{names[0]}: answered", highlight=False)
        return
    out.print(f"{names[0]}: {outcome.kind}: {outcome.problem}", highlight=False)
    out.print(f"  {outcome.where}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)


def _print(hunted: "Hunted") -> None:
    out = options.console()
    if hunted.problem:
        out.print(f"{hunted.target}: not tried: {hunted.problem}", highlight=False)
        return
    guided = "guided by coverage" if hunted.how == "atheris" else "not guided"
    count = options.counted(len(hunted.findings), "finding")
    out.print(
        f"{hunted.target:12} {hunted.executions:>10,} executions, "
        f"{hunted.per_s:>7,.0f}/s, {guided}: {count}",
        highlight=False,
    )
    for each in hunted.findings:
        out.print(f"  {each.kind}: {each.problem}", highlight=False, soft_wrap=True)
        out.print(f"    {each.where}", highlight=False, soft_wrap=True)
        out.print(f"    {each.command}", highlight=False, soft_wrap=True)
        if each.recording:
            words = f"    asyncnn replay {each.recording} --bisect"
            out.print(words, highlight=False, soft_wrap=True)
