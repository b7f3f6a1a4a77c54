"""The work behind ``asyncnn conformance --mutate``."""

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import msgspec
import typer
from rich.table import Table

from asyncnn.cli.console import console, progress
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.service.process import driver_process
from asyncnn.tools.conformance.mutations.plan import Plan, Tally
from asyncnn.tools.conformance.mutations.running import run_mutants
from asyncnn.tools.conformance.mutations.table import WORDS
from asyncnn.tools.conformance.running import REMOTE

_OUTCOMES = ("passed", "failed", "skipped")


def mutate(
    specs: Sequence[Path],
    transports: Sequence[str],
    plan: Plan,
    json: Path | None,
    workers: int | None,
) -> bool:
    """Try mutants of the cases, print a table by row; return whether all passed.

    :raises InvalidArgumentError: if no case matches.
    """
    tallies: list[Tally] = []
    for way in transports:
        remote = driver_process(extensions=plan.extensions)
        with remote if way == REMOTE else nullcontext() as driver:
            here = msgspec.structs.replace(
                plan, socket=None if driver is None else str(driver.path)
            )
            runs = run_mutants(specs, here, workers)
            for batch in progress(runs, f"mutants, {way}", len(specs) + 1):
                tallies.extend(batch)
    if not any(tally.case for tally in tallies):
        raise InvalidArgumentError(f"no case matches {plan.pattern!r}")
    if json is not None:
        order = sorted(tallies, key=lambda t: (t.spec, t.case, t.transport))
        json.write_bytes(msgspec.json.format(msgspec.json.encode(order)))
    totals = _print(tallies)
    return not totals["failed"]


def _print(tallies: Sequence[Tally]) -> Counter[str]:
    table = Table("row", "mutation", *_OUTCOMES)
    totals: Counter[str] = Counter()
    for row, words in WORDS.items():
        counts = _count([tally for tally in tallies if tally.row == row])
        table.add_row(row, words, *(str(counts[outcome]) for outcome in _OUTCOMES))
        totals += counts
    console().print(table)
    for tally in tallies:
        for problem in tally.problems:
            typer.echo(
                f"failed: {tally.case} [{tally.row}, {tally.transport}]: {problem}"
            )
    for (row, reason), count in sorted(_skipped(tallies).items()):
        typer.echo(f"skipped: {count} [{row}]: {reason}")
    typer.echo(", ".join(f"{totals[outcome]} {outcome}" for outcome in _OUTCOMES))
    return totals


def _count(tallies: Sequence[Tally]) -> Counter[str]:
    return Counter(
        passed=sum(tally.passed for tally in tallies),
        failed=sum(tally.failed for tally in tallies),
        skipped=sum(sum(tally.skipped.values()) for tally in tallies),
    )


def _skipped(tallies: Sequence[Tally]) -> Counter[tuple[str, str]]:
    counts: Counter[tuple[str, str]] = Counter()
    for tally in tallies:
        for reason, count in tally.skipped.items():
            counts[tally.row, reason] += count
    return counts
