"""``asyncnn conformance``: the public test suite, and mutants of its cases."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import msgspec
import typer

from asyncnn.cli import options
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.output_files import check_writable, write_file

if TYPE_CHECKING:
    from asyncnn.runtime.execution_options import AnyPath
    from asyncnn.tools.conformance.mutations.trial import Plan
    from asyncnn.tools.conformance.random_graphs import Tried
    from asyncnn.tools.conformance.suite import AnySelection, Run, Selection

_OLDEST = "auto"
_VERSIONS = ("newest", _OLDEST)
_FRAMEWORK = "framework"

T = TypeVar("T")


def conformance(
    directory: Annotated[
        Path | None, typer.Argument(help="Folder of vector files.", show_default=False)
    ] = None,
    path: options.PathOption = "async,sync",
    transport: options.TransportOption = "inprocess",
    hal: Annotated[
        str,
        typer.Option(
            metavar="newest|auto",
            help="HAL version to speak; auto is the oldest that has the case.",
        ),
    ] = "newest",
    pattern: Annotated[
        str,
        typer.Option(
            "--filter", metavar="GLOB", help="Cases whose names, or files', match."
        ),
    ] = "*",
    json: Annotated[
        Path | None, typer.Option("--json", help="Write all verdicts to this file.")
    ] = None,
    cache: Annotated[
        bool, typer.Option("--cache", help="Save and load all models first.")
    ] = False,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device to run on, one of asyncnn devices; by default "
            "$ASYNCNN_DEVICE, or reference."
        ),
    ] = None,
    socket: options.SocketOption = None,
    through: Annotated[
        str | None,
        typer.Option(
            metavar="framework",
            help="Put a framework, with its CPU fallback, before the device.",
        ),
    ] = None,
    extension: options.ExtensionOption = None,
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
    random: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Try so many random graphs, in place of vectors."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, metavar="S", help="Draws the same graphs again.")
    ] = 0,
    dump: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where a graph that fails is written; by default $ASYNCNN_DUMPS.",
        ),
    ] = None,
    replay: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Try a graph that was written once more."),
    ] = None,
) -> None:
    """Run conformance vectors and print a table by operation and type.

    With --socket they go to the driver that serves it, whatever it publishes.

    With --mutate, models, requests and packets of bursts that have one thing
    wrong are tried instead, and the table is by row of mutations.

    With --random, the device computes graphs that are drawn, which are compared
    with the reference kernels: bit by bit on the reference device, operation by
    operation on others. The first that fails ends the search of its path; it is
    made small and written to files, which --replay tries again.

    The last line says how many cases passed, failed and were skipped. Exits with
    1 if one fails, with 2 on bad input.
    """
    from asyncnn.devices.own_devices import default_device_name
    from asyncnn.extensions import load_extension
    from asyncnn.runtime.framework.device_registry import opener_of
    from asyncnn.tools.conformance.executing import PATHS
    from asyncnn.tools.conformance.mutations.trial import Plan
    from asyncnn.tools.conformance.suite import (
        IN_PROCESS,
        REMOTE,
        Run,
        Selection,
        specs_below,
    )

    transports = options.chosen("transport", transport, (IN_PROCESS, REMOTE))
    paths = options.chosen("path", path, tuple(PATHS))
    layers = (
        options.chosen("layer", through, (_FRAMEWORK,)) if through is not None else []
    )
    (version,) = options.chosen("version of the HAL", hal, _VERSIONS)
    extensions = tuple(extension or ())
    for place in extensions:
        load_extension(place)
    if socket is not None:
        if device is not None or extensions:
            raise InvalidArgumentError("a driver that runs has its own device")
        transports = [REMOTE]
    if random is not None or replay is not None:
        if mutate or cache or directory is not None or (random and replay):
            raise InvalidArgumentError(
                "random graphs are tried by themselves",
                hint="leave out the folder, --cache and --mutate, and --random "
                "beside --replay",
            )
    elif directory is None:
        raise InvalidArgumentError(
            "there is nothing to run", hint="give a folder of vectors, or --random N"
        )
    if mutate and (device not in (None, "reference") or layers):
        raise InvalidArgumentError("mutants are for the reference device itself")
    name = device or default_device_name(exact=True)
    opener_of(name)
    served = None if socket is None else str(socket)
    check_writable(json)
    if directory is None:
        selection = Selection(
            socket=served,
            extensions=extensions,
            device=name,
            through_framework=bool(layers),
        )
        drawn = replay or (random or 0, seed, dump)
        totals = _try_graphs(selection, transports, paths, drawn, json)
    elif mutate:
        specs = specs_below(directory)
        plan = Plan(
            limit=mutants or None, pattern=pattern, extensions=extensions, socket=served
        )
        totals = _mutate(specs, transports, plan, json, workers)
    else:
        specs = specs_below(directory)
        run = Run(
            paths=paths,
            pattern=pattern,
            extensions=extensions,
            device=name,
            socket=served,
            oldest=version == _OLDEST,
            cached=cache,
            through_framework=bool(layers),
        )
        totals = _run(specs, transports, run, json, workers)
    typer.echo(", ".join(f"{count} {outcome}" for outcome, count in totals.items()))
    if totals["failed"]:
        raise typer.Exit(1)


def _run(
    specs: Sequence[Path],
    transports: Sequence[str],
    run: "Run",
    json: Path | None,
    workers: int | None,
) -> dict[str, int]:
    from asyncnn.tools.conformance.suite import run_specs

    each = partial(run_specs, specs, workers=workers)
    verdicts = _on_each("conformance", transports, run, len(specs), each)
    if not verdicts:
        raise InvalidArgumentError(f"no case matches {run.pattern!r}")
    verdicts.sort(key=lambda v: (v.spec, v.case, v.path, v.transport))
    _write(json, verdicts)
    rows: dict[tuple[str, str], Counter[str]] = {}
    for verdict in sorted(verdicts, key=lambda v: (v.operation, v.type)):
        counts = rows.setdefault((verdict.operation, verdict.type), Counter())
        counts[verdict.outcome] += 1
    totals = _print(("operation", "type"), rows)
    for verdict in verdicts:
        if verdict.outcome != "passed":
            details = "; ".join(verdict.details)
            how = f"{verdict.path}, {verdict.transport}"
            typer.echo(f"{verdict.outcome}: {verdict.case} [{how}]: {details}")
    return totals


def _try_graphs(
    selection: "Selection",
    transports: Sequence[str],
    paths: Sequence[str],
    drawn: "Path | tuple[int, int, Path | None]",
    json: Path | None,
) -> dict[str, int]:
    """Try a file, or as many graphs, by a seed, whose dumps go to a folder."""
    import anyio

    from asyncnn.tools.conformance.suite import OUTCOMES, reached

    try:
        from asyncnn.tools.conformance.random_graphs import replay, search
        from asyncnn.tools.conformance.random_graphs.dumping import check_dumps
    except ModuleNotFoundError as error:
        raise GeneralFailureError(
            f"random graphs need {error.name}, which is not installed",
            hint="pip install asyncnn[conformance]",
        ) from error
    if not isinstance(drawn, Path):
        check_dumps(drawn[2])
    found: list[Tried] = []
    totals = dict.fromkeys(OUTCOMES, 0)
    for transport in transports:
        with reached(selection, transport) as here:
            for path in paths:
                way = cast("AnyPath", path)
                if isinstance(drawn, Path):
                    most, work = 1, partial(replay, here, way, drawn)
                else:
                    most, work = drawn[0], partial(search, here, way, *drawn)
                try:
                    tried = anyio.run(work)
                except AsyncnnError as error:
                    if not totals["failed"]:
                        raise
                    typer.echo(f"not tried [{path}, {transport}]: {error}")
                    continue
                found.append(tried)
                _write(json, found)
                _tell(tried, most, selection)
                failed = int(bool(tried.problem))
                totals["passed"] += tried.graphs - failed
                totals["failed"] += failed
    return totals


def _tell(tried: "Tried", most: int, selection: "Selection") -> None:
    """Print how ``most`` graphs went at most, and how the one that failed is tried."""
    how = f"{tried.path}, {tried.transport}"
    count = options.counted(tried.graphs, "graph")
    if tried.graphs < most:
        count += f" of {most:,}, as the first that fails ends the search"
    typer.echo(f"{count} [{how}]")
    if not tried.problem:
        return
    typer.echo(f"failed: {tried.model or 'a graph'} [{how}]: {tried.problem}")
    if tried.model:
        command = ["asyncnn", "conformance", "--replay", tried.model]
        command += ["--path", tried.path, "--transport", tried.transport]
        if selection.socket is not None:
            command += ["--socket", selection.socket]
        else:
            command += ["--device", selection.device]
        typer.echo(f"try it again with: {shlex.join(command)}")


def _mutate(
    specs: Sequence[Path],
    transports: Sequence[str],
    plan: "Plan",
    json: Path | None,
    workers: int | None,
) -> dict[str, int]:
    from asyncnn.tools.conformance.mutations.trial import WORDS, run_mutants

    each = partial(run_mutants, specs, workers=workers)
    results = _on_each("mutants", transports, plan, len(specs) + 1, each)
    if not any(result.case for result in results):
        raise InvalidArgumentError(f"no case matches {plan.pattern!r}")
    results.sort(key=lambda t: (t.spec, t.case, t.transport))
    _write(json, results)
    rows = {row: Counter[str]() for row in WORDS.items()}
    skipped: Counter[tuple[str, str]] = Counter()
    for result in results:
        counts = rows[result.row, WORDS[result.row]]
        counts["passed"] += result.passed
        counts["failed"] += result.failed
        for reason, count in result.skipped.items():
            counts["skipped"] += count
            skipped[result.row, reason] += count
    totals = _print(("row", "mutation"), rows)
    for result in results:
        for problem in result.problems:
            typer.echo(
                f"failed: {result.case} [{result.row}, {result.transport}]: {problem}"
            )
    for (row, reason), count in sorted(skipped.items()):
        typer.echo(f"skipped: {count} [{row}]: {reason}")
    return totals


def _on_each(
    what: str,
    transports: Sequence[str],
    selection: "AnySelection",
    total: int,
    run: "Callable[[AnySelection], Iterator[list[T]]]",
) -> list[T]:
    """Return all that ``run`` yields on each transport, in ``total`` batches."""
    from asyncnn.tools.conformance.suite import reached

    found: list[T] = []
    for transport in transports:
        with reached(selection, transport) as here:
            for batch in options.progress(run(here), f"{what}, {transport}", total):
                found.extend(batch)
    return found


def _write(file: Path | None, records: Sequence[msgspec.Struct]) -> None:
    if file is not None:
        write_file(file, msgspec.json.format(msgspec.json.encode(records)))


def _print(
    headers: tuple[str, str], rows: dict[tuple[str, str], Counter[str]]
) -> dict[str, int]:
    """Print the outcomes of each row as a table, and return all rows'."""
    from rich.table import Table

    from asyncnn.tools.conformance.suite import OUTCOMES

    table = Table(*headers, *OUTCOMES)
    for names, counts in rows.items():
        table.add_row(*names, *(str(counts[outcome]) for outcome in OUTCOMES))
    options.console().print(table)
    return {name: sum(each[name] for each in rows.values()) for name in OUTCOMES}
