"""Runs vector files over several processes and collects what came out."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

import msgspec

from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.own_devices import CPU, OWN_DEVICES, own_device, usual_device_name
from asyncnn.extensions import Extension
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.operands import is_tensor
from asyncnn.hal.types import HalVersion, OperandType, OperationType
from asyncnn.memory.pages import os_errors
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device, open_devices
from asyncnn.service.driver.server import Server
from asyncnn.service.process import driver_process, private_address
from asyncnn.tools.conformance.executing import NotCarriedError
from asyncnn.tools.conformance.judging import RefusedError, judge
from asyncnn.tools.conformance.preparing import oldest_version, preparing, through_cache
from asyncnn.tools.conformance.vectors import Case, find_specs, load_cases

T = TypeVar("T")

IN_PROCESS, REMOTE = "inprocess", "remote"
NEWEST = HalVersion.V1_3
OUTCOMES = ("passed", "failed", "skipped")

CTS_ONLY = "_cts_only"
"""Ends the names of folders whose models a driver may refuse."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which cases are used, and on which device.

    ``pattern`` is a glob that the name of a case or of its file matches. With
    ``socket``, the driver that serves it is asked, else a ``device`` of that name in
    each worker, which has ``extensions``, and ``is_served`` by a socket there. With
    ``through_framework`` it is a device of a framework on this side, whose CPU computes
    what drivers need not.
    """

    pattern: str = "*"
    socket: str | None = None
    extensions: tuple[str, ...] = ()
    device: str = CPU
    is_served: bool = False
    through_framework: bool = False

    @property
    def transport(self) -> str:
        """The way to the device, by its name on the command line."""
        is_remote = self.is_served or self.socket is not None
        return REMOTE if is_remote else IN_PROCESS

    def load(self, spec: Path) -> list[Case]:
        """Return the cases of a file that are used."""
        return [
            case
            for case in load_cases(spec)
            if fnmatchcase(case.name, self.pattern)
            or fnmatchcase(case.spec, self.pattern)
        ]


AnySelection = TypeVar("AnySelection", bound=Selection)


class VectorRuns(Selection, frozen=True, kw_only=True):
    """The ``paths`` on which each case is run, and what comes before.

    With ``oldest``, each case goes through the oldest version of the HAL that can carry
    it; with ``cached``, its models are saved and loaded first.
    """

    paths: Sequence[str]
    oldest: bool = False
    cached: bool = False


class Verdict(msgspec.Struct, frozen=True):
    """How one case went on one path.

    ``outcome`` is one of `OUTCOMES`; ``details`` says why.
    """

    spec: str
    case: str
    operation: str
    type: str
    path: str
    transport: str
    outcome: str
    details: tuple[str, ...] = ()


def specs_below(directory: Path) -> list[Path]:
    """Return the vector files below ``directory``, sorted.

    :raises InvalidArgumentError: if there are none.
    """
    specs = find_specs(directory)
    if not specs:
        raise InvalidArgumentError(f"there are no vector files in {directory}")
    return specs


@contextmanager
def reached(selection: AnySelection, transport: str) -> Iterator[AnySelection]:
    """Yield ``selection`` with a device that is reached by ``transport``.

    A driver process for that lives as long as the block, unless one was chosen. What
    only an application can open, each worker serves to itself.
    """
    if transport == IN_PROCESS or selection.socket is not None:
        yield selection
        return
    if selection.device not in (CPU, "accelerated"):
        yield msgspec.structs.replace(selection, is_served=True)
        return
    with driver_process(
        extensions=selection.extensions, device=selection.device
    ) as driver:
        yield msgspec.structs.replace(selection, socket=str(driver.path))


def run_specs(
    specs: Sequence[Path], run: VectorRuns, workers: int | None = None
) -> Iterator[list[Verdict]]:
    """Yield the verdicts of each file as it completes, in any order."""
    return in_processes([partial(run_spec, spec, run) for spec in specs], workers)


def in_processes(tasks: Sequence[Callable[[], T]], workers: int | None) -> Iterator[T]:
    """Yield what each task returns as it ends, in any order.

    There are as many processes as cores unless ``workers`` says otherwise.

    :raises ResourceExhaustedTransientError: if shared memory has run out.
    """
    count = min(workers or os.cpu_count() or 1, len(tasks)) or 1
    # Spawned workers inherit neither threads nor event loops.
    with os_errors("worker processes"):
        pool = ProcessPoolExecutor(count, get_context("spawn"))
    with pool:
        for future in as_completed([pool.submit(task) for task in tasks]):
            yield future.result()


def run_spec(spec: Path, run: VectorRuns) -> list[Verdict]:
    """Run the cases of one file on every path."""
    cases = run.load(spec)
    return asyncio.run(_run_cases(cases, run)) if cases else []


@asynccontextmanager
async def opened_by(
    transport: str,
    device: str | None,
    extensions: Sequence[Extension] = (),
    places: Sequence[str] = (),
) -> AsyncIterator[Device]:
    """Open a device in this process, or in a driver process for as long.

    It has ``extensions``, which a driver process imports from ``places``.

    :raises AsyncnnError: if there is no such device, or it cannot be opened.
    """
    name = device or await usual_device_name()
    if transport == IN_PROCESS:
        opening = open_device(name, settings=OWN_PROCESS, extensions=extensions)
    elif own_device(name) is None:
        raise InvalidArgumentError(
            f"a driver process does not serve {name}",
            hint=f"use {' or '.join(OWN_DEVICES)}, or --transport inprocess",
        )
    else:
        opening = connect(device=name, extensions=places)
    async with opening as opened:
        yield opened


@asynccontextmanager
async def opened(selection: Selection) -> AsyncIterator[Device]:
    """Open the device that a selection is for."""
    settings, extensions = OWN_PROCESS, selection.extensions
    name = selection.device
    chosen: str | Device = name
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        if selection.socket is not None:
            chosen = device = await enter(connect(selection.socket))
        elif selection.is_served or not selection.through_framework:
            opening = open_device(name, settings=settings, extensions=extensions)
            chosen = device = await enter(opening)
            if selection.is_served:
                path = private_address()
                await enter(Server(device.hal, path))
                chosen = device = await enter(connect(path))
        if selection.through_framework:
            together = open_devices(chosen, settings=settings, extensions=extensions)
            device = await enter(together)
        yield device


async def _run_cases(cases: Sequence[Case], run: VectorRuns) -> list[Verdict]:
    async with opened(run) as device:
        hal = through_cache(device.hal) if run.cached else device.hal
        return [
            await _verdict(case, path, hal, run) for case in cases for path in run.paths
        ]


async def _verdict(case: Case, path: str, hal: IDevice, run: VectorRuns) -> Verdict:
    try:
        version = oldest_version(case, path) if run.oldest else NEWEST
        details = await judge(
            case,
            preparing(hal, version),
            path,
            version,
            by_client=run.through_framework,
        )
        outcome = "failed" if details else "passed"
    except RefusedError as error:
        outcome = "skipped" if case.folder.endswith(CTS_ONLY) else "failed"
        details = [f"refused: {error}"]
    except NotCarriedError as error:
        outcome, details = "skipped", [str(error)]
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
        transport=run.transport,
        outcome=outcome,
        details=tuple(details),
    )
