"""``asyncnn conformance``: the public test suite, and mutants of its cases."""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar, cast

import typer

from asyncnn.cli import options
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError, InvalidArgumentError
from asyncnn.output_files import check_writable

if TYPE_CHECKING:
    from asyncnn.runtime.execution_options import AnyPath
    from asyncnn.tools.conformance.random_graphs import TriedGraphs
    from asyncnn.tools.conformance.suite import AnySelection, VectorRuns

_OLDEST = "auto"
_VERSIONS = ("newest", _OLDEST)
_FRAMEWORK = "framework"

T = TypeVar("T")


class ConformanceOptions(options.CommandOptions, frozen=True, kw_only=True):
    """What ``asyncnn conformance`` is asked to do.

    directory: Folder of vector files.
    hal newest|auto: HAL version to speak; auto is the oldest that has the case.
    pattern --filter GLOB: Cases whose names, or files', match.
    json: Write all verdicts to this file.
    cache: Save and load all models first.
    device: Device to run on, one of asyncnn devices; by default $ASYNCNN_DEVICE, or
        reference.
    through framework: Put a framework, with its CPU fallback, before the device.
    mutate: Try mutants of the cases, all of which are illegal.
    mutants: Mutants of each row and case; 0 for all.
    workers: Processes; by default one for each core.
    random N: Try so many random graphs, in place of vectors.
    seed S: Draws the same graphs again.
    dump FOLDER: Where a graph that fails is written; by default $ASYNCNN_DUMPS.
    replay FILE: Try a graph that was written once more.
    """

    directory: Annotated[Path | None, typer.Argument(show_default=False)] = None
    path: str = "async,sync"
    transport: str = "inprocess"
    hal: str = "newest"
    pattern: str = "*"
    json: Path | None = None
    cache: bool = False
    device: str | None = None
    socket: Path | None = None
    through: str | None = None
    extension: list[str] | None = None
    mutate: bool = False
    mutants: options.Natural = 1
    workers: options.PositiveOrNone = None
    random: options.PositiveOrNone = None
    seed: options.Natural = 0
    dump: Path | None = None
    replay: Path | None = None


def conformance(asked: ConformanceOptions) -> None:
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
    from asyncnn.tools.conformance.suite import IN_PROCESS, REMOTE, VectorRuns

    transports = options.chosen("transport", asked.transport, (IN_PROCESS, REMOTE))
    paths = options.chosen("path", asked.path, tuple(PATHS))
    if asked.through is not None:
        options.chosen("layer", asked.through, (_FRAMEWORK,))
    (version,) = options.chosen("version of the HAL", asked.hal, _VERSIONS)
    extensions = tuple(asked.extension or ())
    for place in extensions:
        load_extension(place)
    if asked.socket is not None:
        transports = [REMOTE]
    _refuse_contradictions(asked)
    name = asked.device or default_device_name(exact=True)
    opener_of(name)
    check_writable(asked.json)
    run = VectorRuns(
        paths=paths,
        pattern=asked.pattern,
        extensions=extensions,
        device=name,
        socket=None if asked.socket is None else str(asked.socket),
        oldest=version == _OLDEST,
        cached=asked.cache,
        through_framework=asked.through is not None,
    )
    work = _run if not asked.mutate else _mutate
    totals = (_try_graphs if asked.directory is None else work)(asked, run, transports)
    typer.echo(", ".join(f"{count} {outcome}" for outcome, count in totals.items()))
    if totals["failed"]:
        raise typer.Exit(1)


def _refuse_contradictions(asked: ConformanceOptions) -> None:
    """Refuse options that have no meaning together.

    :raises InvalidArgumentError: if there are any, or nothing to run.
    """
    if asked.socket is not None and (asked.device is not None or asked.extension):
        raise InvalidArgumentError("a driver that runs has its own device")
    if asked.random is not None or asked.replay is not None:
        others = asked.mutate or asked.cache or asked.directory is not None
        if others or (asked.random and asked.replay):
            raise InvalidArgumentError(
                "random graphs are tried by themselves",
                hint="leave out the folder, --cache and --mutate, and --random "
                "beside --replay",
            )
    elif asked.directory is None:
        raise InvalidArgumentError(
            "there is nothing to run", hint="give a folder of vectors, or --random N"
        )
    if asked.mutate and (asked.device not in (None, "reference") or asked.through):
        raise InvalidArgumentError("mutants are for the reference device itself")


def _run(
    asked: ConformanceOptions, run: "VectorRuns", transports: Sequence[str]
) -> dict[str, int]:
    from asyncnn.tools.conformance.suite import run_specs, specs_below

    assert asked.directory is not None
    specs = specs_below(asked.directory)
    each = partial(run_specs, specs, workers=asked.workers)
    verdicts = _on_each("conformance", transports, run, len(specs), each)
    if not verdicts:
        raise InvalidArgumentError(f"no case matches {run.pattern!r}")
    verdicts.sort(key=lambda v: (v.spec, v.case, v.path, v.transport))
    options.write_json(asked.json, verdicts)
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
    asked: ConformanceOptions, run: "VectorRuns", transports: Sequence[str]
) -> dict[str, int]:
    """Try a file, or random graphs, whose dumps go to a folder."""
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
    most = asked.random or 1
    if asked.replay is None:
        check_dumps(asked.dump)
    found: list[TriedGraphs] = []
    totals = dict.fromkeys(OUTCOMES, 0)
    for transport in transports:
        with reached(run, transport) as here:
            for path in run.paths:
                way = cast("AnyPath", path)
                if asked.replay is None:
                    work = partial(search, here, way, most, asked.seed, asked.dump)
                else:
                    work = partial(replay, here, way, asked.replay)
                try:
                    tried = anyio.run(work)
                except AsyncnnError as error:
                    if not totals["failed"]:
                        raise
                    typer.echo(f"not tried [{path}, {transport}]: {error}")
                    continue
                found.append(tried)
                options.write_json(asked.json, found)
                _report(tried, most, run)
                failed = int(bool(tried.problem))
                totals["passed"] += tried.graphs - failed
                totals["failed"] += failed
    return totals


def _report(tried: "TriedGraphs", most: int, run: "VectorRuns") -> None:
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
        command += ["--socket", run.socket] if run.socket else ["--device", run.device]
        command += ["--through", _FRAMEWORK] if run.through_framework else []
        command += [f"--extension={each}" for each in run.extensions]
        typer.echo(f"try it again with: {shlex.join(command)}")


def _mutate(
    asked: ConformanceOptions, run: "VectorRuns", transports: Sequence[str]
) -> dict[str, int]:
    from asyncnn.tools.conformance.mutations.trial import WORDS, MutantPlan, run_mutants
    from asyncnn.tools.conformance.suite import specs_below

    assert asked.directory is not None
    specs = specs_below(asked.directory)
    plan = MutantPlan(
        limit=asked.mutants or None,
        pattern=run.pattern,
        extensions=run.extensions,
        socket=run.socket,
    )
    each = partial(run_mutants, specs, workers=asked.workers)
    results = _on_each("mutants", transports, plan, len(specs) + 1, each)
    if not any(result.case for result in results):
        raise InvalidArgumentError(f"no case matches {plan.pattern!r}")
    results.sort(key=lambda t: (t.spec, t.case, t.transport))
    options.write_json(asked.json, results)
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
