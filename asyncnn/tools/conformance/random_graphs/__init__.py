"""Random graphs: drawn, computed in the simplest way, and tried on devices.

`families` draws valid models with inputs, by Hypothesis, which also makes a failing one
small; `artist` draws operands, and `sketch` holds what is drawn.
`checking` compares a device with the reference kernels, run one operation after the
other, `search` looks for a graph that fails, and
`dumping` writes that to files.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import anyio.from_thread
import anyio.to_thread
import msgspec
from hypothesis import HealthCheck, Phase, Verbosity, given, reject, seed, settings

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    InvalidArgumentError,
    failure_of,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.conformance.executing import NotCarriedError
from asyncnn.tools.conformance.random_graphs.checking import (
    DifferenceError,
    Judge,
    evaluate,
    interpret,
)
from asyncnn.tools.conformance.random_graphs.dumping import dump
from asyncnn.tools.conformance.random_graphs.families import RandomGraph, graphs
from asyncnn.tools.conformance.suite import Selection, opened
from asyncnn.tools.samples import load_arrays, samples

_MOST_S = 60.0
"""Seconds after which a graph counts as one that hangs."""

_SETTINGS = settings(
    database=None,
    deadline=None,
    derandomize=False,
    phases=(Phase.generate, Phase.shrink),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)


class TriedGraphs(msgspec.Struct, frozen=True, kw_only=True):
    """How graphs went on one path.

    ``graphs`` were tried, as they were drawn by ``seed``, without those that were tried
    to make a failing one small. That has a ``problem``, and ``model`` is its file,
    empty if it could not be written.
    """

    transport: str
    path: str
    seed: int
    graphs: int
    problem: str = ""
    model: str = ""


class _Ended(BaseException):
    """The device, or the loop, is gone, so that all that follows would fail."""


async def search(
    selection: Selection, path: AnyPath, count: int, number: int, folder: Path | None
) -> TriedGraphs:
    """Try as many graphs, drawn by a seed, on a path; write one that fails to files.

    :raises AsyncnnError: if the device cannot be opened.
    """
    async with opened(selection) as device:
        judge = await _judge(device, path)
        trials = _Trials(judge, count, number)
        await anyio.to_thread.run_sync(trials.run)
    tried = TriedGraphs(
        transport=selection.transport, path=path, seed=number, graphs=trials.tried
    )
    if trials.failing is None:
        return tried
    graph = trials.failing
    expected = interpret(graph.named.model, graph.inputs, evaluate)
    name = f"random-{number}-{selection.transport}-{path}"
    problem, model = trials.problem, ""
    try:
        model = str(dump(graph.named, graph.inputs, expected, name, folder).model)
    except (OSError, AsyncnnError) as error:
        problem += f"; it is not written, as {error}\n{graph}"
    return msgspec.structs.replace(tried, problem=problem, model=model)


async def replay(selection: Selection, path: AnyPath, file: Path) -> TriedGraphs:
    """Try the graph of a file again.

    :raises InvalidArgumentError: if it is no such file, or its arrays are not beside.
    :raises AsyncnnError: if the device cannot be opened.
    """
    named = load(file)
    arrays = file.with_suffix(".npz")
    (sample, *_) = samples(load_arrays(arrays), "input", named.inputs, arrays)
    inputs = [sample[info.name] for info in named.inputs]
    problem = ""
    async with opened(selection) as device:
        judge = await _judge(device, path)
        try:
            await _checked(judge, named, inputs)
        except NotCarriedError as error:
            raise InvalidArgumentError(f"{file} on the path {path}: {error}") from error
        except (DifferenceError, AsyncnnError, TimeoutError) as error:
            problem = _said(error)
    return TriedGraphs(
        transport=selection.transport,
        path=path,
        seed=0,
        graphs=1,
        problem=problem,
        model=str(file),
    )


async def _judge(device: Device, path: AnyPath) -> Judge:
    async with open_device("reference", settings=OWN_PROCESS) as reference:
        return Judge(device, path, is_exact=device.version == reference.version)


async def _checked(judge: Judge, named: NamedModel, inputs: Sequence[Array]) -> None:
    async with asyncio.timeout(_MOST_S):
        await judge.check(named, inputs)


class _Trials:
    """Draws graphs on a thread, and has each judged by the loop."""

    def __init__(self, judge: Judge, count: int, number: int) -> None:
        self._judge = judge
        self._count = count
        self._number = number
        self.tried = 0
        self.failing: RandomGraph | None = None
        self.problem = ""

    def run(self) -> None:
        """Draw until one fails, which is made small then."""
        drawn = given(graph=graphs())(self._try)
        trial = seed(self._number)(settings(_SETTINGS, max_examples=self._count)(drawn))
        try:
            trial()
        except (Exception, _Ended):
            if self.failing is None:
                raise

    def _try(self, graph: RandomGraph) -> None:
        anyio.from_thread.check_cancelled()
        self.tried += self.failing is None
        try:
            if not anyio.from_thread.run(self._check, graph):
                raise _Ended
        except NotCarriedError:
            self.tried -= self.failing is None
            reject()
        except DeviceUnavailableError as error:
            self._keep(graph, error)
            raise _Ended from error
        except Exception as error:
            self._keep(graph, error)
            raise

    async def _check(self, graph: RandomGraph) -> bool:
        """Return False if the loop ends before: raised, that would be reported."""
        try:
            await _checked(self._judge, graph.named, graph.inputs)
        except asyncio.CancelledError:
            return False
        return True

    def _keep(self, graph: RandomGraph, error: Exception) -> None:
        self.failing, self.problem = graph, _said(error)


def _said(error: Exception) -> str:
    if isinstance(error, DifferenceError):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"not computed in {_MOST_S:g} s"
    return str(failure_of(error))
