"""Runs vector files over several processes and collects what came out."""

import asyncio
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from fnmatch import fnmatchcase
from multiprocessing import get_context
from pathlib import Path

import msgspec

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.operands import is_tensor
from asyncnn.hal.types import HalVersion, OperandType, OperationType
from asyncnn.runtime.device import connect, open_device
from asyncnn.tools.conformance.caching import through_cache
from asyncnn.tools.conformance.callers import oldest_version, preparing
from asyncnn.tools.conformance.judging import RefusedError, judge
from asyncnn.tools.conformance.paths import NotCarriedError
from asyncnn.tools.conformance.vectors import Case, load_cases

IN_PROCESS, REMOTE = "inprocess", "remote"
NEWEST = HalVersion.V1_3

CTS_ONLY = "_cts_only"
"""Ends the names of folders whose models a driver may refuse."""


class Verdict(msgspec.Struct, frozen=True):
    """How one case went on one path.

    ``outcome`` is ``passed``, ``failed`` or ``skipped``; ``details`` says why.
    """

    spec: str
    case: str
    operation: str
    type: str
    path: str
    transport: str
    outcome: str
    details: tuple[str, ...] = ()


def run_specs(
    specs: Sequence[Path],
    paths: Sequence[str],
    pattern: str = "*",
    workers: int | None = None,
    socket: str | None = None,
    *,
    oldest: bool = False,
    cached: bool = False,
    extensions: Sequence[str] = (),
) -> Iterator[list[Verdict]]:
    """Yield the verdicts of each file as it completes, in any order.

    ``pattern`` is a glob that case names, or the file's name, must match. With
    ``socket``, the driver that serves it is asked, else a device in each worker, which
    has ``extensions``. With ``oldest``, each case goes through the oldest version of
    the HAL that can carry it; with ``cached``, its models are saved and loaded first.
    """
    count = min(workers or os.cpu_count() or 1, len(specs)) or 1
    # Spawned workers inherit neither threads nor event loops.
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        futures = [
            pool.submit(
                run_spec,
                spec,
                paths,
                pattern,
                socket,
                oldest=oldest,
                cached=cached,
                extensions=extensions,
            )
            for spec in specs
        ]
        for future in as_completed(futures):
            yield future.result()


def run_spec(
    spec: Path,
    paths: Sequence[str],
    pattern: str,
    socket: str | None = None,
    *,
    oldest: bool = False,
    cached: bool = False,
    extensions: Sequence[str] = (),
) -> list[Verdict]:
    """Run the cases of one file on every path."""
    cases = [
        case
        for case in load_cases(spec)
        if fnmatchcase(case.name, pattern) or fnmatchcase(case.spec, pattern)
    ]
    if not cases:
        return []
    return asyncio.run(_run_cases(cases, paths, socket, oldest, cached, extensions))


async def _run_cases(
    cases: Sequence[Case],
    paths: Sequence[str],
    socket: str | None,
    oldest: bool,
    cached: bool,
    extensions: Sequence[str],
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    transport = REMOTE if socket else IN_PROCESS
    opened = (
        connect(socket)
        if socket
        else open_device(settings=OWN_PROCESS, extensions=extensions)
    )
    async with opened as device:
        hal = through_cache(device.hal) if cached else device.hal
        for case in cases:
            for path in paths:
                try:
                    version = oldest_version(case, path) if oldest else NEWEST
                    prepare = preparing(hal, version)
                    problems = await judge(case, prepare, path, version)
                    outcome = "failed" if problems else "passed"
                except RefusedError as error:
                    may_refuse = case.folder.endswith(CTS_ONLY)
                    outcome = "skipped" if may_refuse else "failed"
                    problems = [f"refused: {error}"]
                except NotCarriedError as error:
                    outcome, problems = "skipped", [str(error)]
                verdicts.append(_verdict(case, path, transport, outcome, problems))
    return verdicts


def _verdict(
    case: Case, path: str, transport: str, outcome: str, details: Sequence[str]
) -> Verdict:
    main = case.model.main
    operation = main.operations[0]
    types = [
        OperandType(main.operands[index].type)
        for index in (*operation.inputs, *operation.outputs)
        if is_tensor(main.operands[index].type)
    ]
    return Verdict(
        spec=f"{case.folder}/{case.spec}",
        case=case.name,
        operation=OperationType(operation.type).name,
        type=types[0].name if types else "",
        path=path,
        transport=transport,
        outcome=outcome,
        details=tuple(details),
    )
