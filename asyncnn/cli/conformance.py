"""``asyncnn conformance``: runs conformance vectors through the public interface."""

from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from asyncnn.cli import mutating
from asyncnn.cli.console import console, progress
from asyncnn.cli.extending import ExtensionOption
from asyncnn.extensions import load_extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.service.process import driver_process
from asyncnn.tools.conformance.mutations.plan import Plan
from asyncnn.tools.conformance.paths import PATHS
from asyncnn.tools.conformance.running import IN_PROCESS, REMOTE, Verdict, run_specs
from asyncnn.tools.conformance.vectors import find_specs

_TRANSPORTS = (IN_PROCESS, REMOTE)
_OLDEST = "auto"
_VERSIONS = ("newest", _OLDEST)
_OUTCOMES = ("passed", "failed", "skipped")


def conformance(
    directory: Annotated[Path, typer.Argument(help="Folder of vector files.")],
    path: Annotated[
        str, typer.Option(help="HAL calls to use, separated by commas.")
    ] = "async,sync",
    transport: Annotated[
        str, typer.Option(help="Ways to the device, separated by commas.")
    ] = "inprocess",
    hal: Annotated[
        str,
        typer.Option(help="HAL version: newest, or auto for each case's oldest."),
    ] = "newest",
    pattern: Annotated[
        str, typer.Option("--filter", help="Glob of case or file names.")
    ] = "*",
    json: Annotated[
        Path | None, typer.Option("--json", help="Write all verdicts to this file.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Save and load all models first.")
    ] = False,
    extension: ExtensionOption = None,
    mutate: Annotated[
        bool,
        typer.Option(
            "--mutate", help="Try mutants of the cases, all of which are illegal."
        ),
    ] = False,
    mutants: Annotated[
        int, typer.Option(min=0, help="Mutants of each row and case; 0 for all.")
    ] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; by default one for each core.")
    ] = None,
) -> None:
    """Run conformance vectors and print a table by operation and type.

    With --mutate, models, requests and packets of bursts that have one thing wrong are
    tried instead, and the table is by row of mutations.

    Exits with 0 only if all pass. The last line is ``N passed, N failed, N skipped``.
    """
    transports = _chosen("transport", transport, _TRANSPORTS)
    paths = _chosen("path", path, tuple(PATHS))
    (version,) = _chosen("version of the HAL", hal, _VERSIONS)
    extensions = tuple(extension or ())
    for place in extensions:
        load_extension(place)
    specs = find_specs(directory)
    if not specs:
        raise InvalidArgumentError(f"there are no vector files in {directory}")
    if mutate:
        plan = Plan(mutants or None, pattern, extensions=extensions)
        if not mutating.mutate(specs, transports, plan, json, workers):
            raise typer.Exit(1)
        return
    verdicts: list[Verdict] = []
    for way in transports:
        remote = driver_process(extensions=extensions)
        with remote if way == REMOTE else nullcontext() as driver:
            socket = None if driver is None else str(driver.path)
            runs = run_specs(
                specs,
                paths,
                pattern,
                workers,
                socket,
                oldest=version == _OLDEST,
                cached=cache,
                extensions=extensions,
            )
            for batch in progress(runs, f"conformance, {way}", len(specs)):
                verdicts.extend(batch)
    if not verdicts:
        raise InvalidArgumentError(f"no case matches {pattern!r}")
    verdicts.sort(key=lambda v: (v.spec, v.case, v.path, v.transport))
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(verdicts)))
    _print(verdicts)
    if any(verdict.outcome == "failed" for verdict in verdicts):
        raise typer.Exit(1)


def _chosen(what: str, names: str, known: tuple[str, ...]) -> list[str]:
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in chosen if name not in known]
    if unknown or not chosen:
        raise InvalidArgumentError(
            f"there is no {what} {', '.join(unknown) or repr(names)}",
            hint=f"known: {', '.join(known)}",
        )
    return chosen


def _print(verdicts: list[Verdict]) -> None:
    counts = Counter((v.operation, v.type, v.outcome) for v in verdicts)
    table = Table("operation", "type", *_OUTCOMES)
    for operation, type_ in sorted({(v.operation, v.type) for v in verdicts}):
        numbers = [str(counts[operation, type_, outcome]) for outcome in _OUTCOMES]
        table.add_row(operation, type_, *numbers)
    console().print(table)
    for verdict in verdicts:
        if verdict.outcome != "passed":
            details = "; ".join(verdict.details)
            how = f"{verdict.path}, {verdict.transport}"
            typer.echo(f"{verdict.outcome}: {verdict.case} [{how}]: {details}")
    totals = Counter(verdict.outcome for verdict in verdicts)
    typer.echo(", ".join(f"{totals[outcome]} {outcome}" for outcome in _OUTCOMES))
