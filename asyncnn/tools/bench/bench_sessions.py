"""``asyncnn bench sessions``: steps of models with state, and the memory of sessions.

A step of a session is measured beside a plain run of the same model, which begins with
the first values, on the asynchronous path and by burst. The memory of many sessions of
one model is what a process of their own has private more than before, and has more than
one of as many LiteRT interpreters. Either has run another model before, so that the
code of libraries does not count; what sessions share, such as weights, does.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import anyio

from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench import environment
from asyncnn.tools.bench.measured_models import LITERT, inputs_of, model_files
from asyncnn.tools.bench.processes import READY, Pipe, telling_growth, told
from asyncnn.tools.bench.report import Row, Subject, SubjectsReport, ratio_cell
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Figures, Progress, measure
from asyncnn.tools.other_runtimes import LiteRt, litert_version

STEP_LIMIT = 1.15
"""Goal of the time of a step divided by that of a plain run on the same path."""

STEP_GATE = 1.3
"""What any machine has to reach of that, whatever disturbs it."""

MEMORY_LIMIT = 0.1
"""Goal of the memory of sessions divided by that of as many LiteRT interpreters."""

PACKAGE = "pymicro_wakeword"
"""Its models are measured if no others are named; it is not imported."""

SESSIONS = 100
_STEPS = 3


class SessionModelFigures(Subject, frozen=True, kw_only=True):
    """What was measured of one model; memory is that of `SESSIONS` of each, in KiB."""

    model: str
    step_limit: float
    step_ratio: float
    burst_ratio: float
    sessions_kib: int
    interpreters_kib: int

    @property
    def memory_ratio(self) -> float:
        """Memory of the sessions as a share of that of the interpreters."""
        return self.sessions_kib / max(self.interpreters_kib, 1)

    def outcomes(self) -> Iterator[bool]:
        """Yield whether steps are cheap enough, and sessions small enough."""
        yield self.step_ratio <= self.step_limit
        yield self.burst_ratio <= self.step_limit
        yield self.memory_ratio <= MEMORY_LIMIT

    def cells(self) -> Row:
        """Return the ratios with their goals, and the memory."""
        step, burst, memory = self.outcomes()
        limit = f"<= {self.step_limit:g}"
        return (
            ratio_cell(f"{self.step_ratio:.3f}", limit, step),
            ratio_cell(f"{self.burst_ratio:.3f}", limit, burst),
            f"{self.sessions_kib}",
            f"{self.interpreters_kib}",
            ratio_cell(f"{self.memory_ratio:.1%}", f"<= {MEMORY_LIMIT:.0%}", memory),
        )


class SessionsReport(SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench sessions --json``."""

    CONTENDERS: ClassVar[Mapping[str, str]] = {
        "step": "step of a session",
        "plain": "plain run",
        "burst_step": "step by burst",
        "burst_plain": "plain run by burst",
        LITERT: "LiteRT, step",
    }
    OTHERS = (
        "step / plain",
        "by burst",
        f"KiB of {SESSIONS} sessions",
        f"KiB of {SESSIONS} interpreters",
        "share",
    )

    device: str
    models: tuple[SessionModelFigures, ...]

    def subjects(self) -> dict[str, Subject]:
        """Return the models by name."""
        return {model.model: model for model in self.models}


def sessions(
    folder: Path | None = None,
    *,
    pattern: str = "*",
    rounds: int = DEFAULT_ROUNDS,
    gates: bool = False,
    progress: Progress = iter,
) -> SessionsReport:
    """Measure the models of a folder or a package of wake words, with one CPU.

    :param gates: judge times by what any machine has to reach.
    :raises PeerMissingError: if LiteRT or, without a folder, the package is missing.
    """
    version = litert_version()
    with (
        model_files(folder or package_models(), pattern, mobilenet=False) as paths,
        environment.placement(environment.ONE_CPU) as where,
    ):
        models = [
            _session_model(path, paths, rounds, STEP_GATE if gates else STEP_LIMIT)
            for path in progress(paths)
        ]
        device = anyio.run(_device_name)
    return SessionsReport(
        environment=environment.describe_environment(**{"ai-edge-litert": version}),
        rounds=rounds,
        placement=where,
        device=device,
        models=tuple(models),
    )


def package_models() -> Path:
    """Return the folder of the package's models.

    :raises PeerMissingError: if it is not installed.
    """
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise environment.PeerMissingError(
            f"{PACKAGE}, whose models are measured, is not installed",
            hint="name a folder of models, or pip install --no-deps pymicro-wakeword",
        )
    return Path(found.origin).parent / "models"


async def _device_name() -> str:
    async with open_device() as device:
        return device.name


def _session_model(
    path: Path, paths: Sequence[Path], rounds: int, limit: float
) -> SessionModelFigures:
    figures = anyio.run(_measure_sessions, path, rounds)
    # A model alone is its own predecessor: its weights then count a little less.
    warming = next((other for other in paths if other != path), path)
    return SessionModelFigures(
        model=path.stem,
        step_limit=limit,
        figures=figures,
        step_ratio=figures["step"].ratio_to(figures["plain"]),
        burst_ratio=figures["burst_step"].ratio_to(figures["burst_plain"]),
        sessions_kib=told(grow_by_sessions, warming, path),
        interpreters_kib=told(grow_by_interpreters, warming, path),
    )


async def _measure_sessions(path: Path, rounds: int) -> Figures:
    litert = LiteRt(path)
    async with open_device() as device, AsyncExitStack() as stack:
        prepared = await device.prepare(load(path))
        inputs = inputs_of(prepared)
        session = await stack.enter_async_context(prepared.session())
        by_burst = await stack.enter_async_context(prepared.session(path="burst"))
        burst = await stack.enter_async_context(prepared.burst())
        runs: dict[str, Callable[..., Any]] = {
            "step": session.run,
            "plain": prepared.run,
            "burst_step": by_burst.run,
            "burst_plain": burst.run,
            LITERT: litert.run,
        }
        started = {name: partial(run, inputs) for name, run in runs.items()}
        return await measure(started, rounds=rounds)


async def grow_by_sessions(pipe: Pipe, warming: Path, path: Path) -> None:
    """Send by how many KiB `SESSIONS` sessions make this process grow."""
    pipe.send_bytes(READY)
    async with open_device() as device, AsyncExitStack() as stack:
        first = await device.prepare(load(warming))
        await _open_stepped(first, inputs_of(first), stack)
        with telling_growth(pipe):
            prepared = await device.prepare(load(path))
            inputs = inputs_of(prepared)
            for _ in range(SESSIONS):
                await _open_stepped(prepared, inputs, stack)


async def _open_stepped(
    prepared: PreparedModel, inputs: list[Array], stack: AsyncExitStack
) -> None:
    session = await stack.enter_async_context(prepared.session())
    for _ in range(_STEPS):
        await session.run(inputs)


async def grow_by_interpreters(pipe: Pipe, warming: Path, path: Path) -> None:
    """Send by how many KiB `SESSIONS` interpreters make this process grow."""
    pipe.send_bytes(READY)
    inputs = inputs_of(load(path))
    LiteRt(warming).invoke()
    with telling_growth(pipe):
        interpreters = [LiteRt(path) for _ in range(SESSIONS)]
        for _ in range(_STEPS):
            for interpreter in interpreters:
                interpreter.run(inputs)
