"""``asyncnn bench loading``: reading and preparing files beside LiteRT's interpreter.

A contender begins with a file and ends with a model that runs. LiteRT's reads the file
and allocates its tensors, which for its optimised kernels packs the weights, too. The
models are those of a folder, generated ones, and those of packages that are installed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TypeAlias

import anyio
import msgspec

from asyncnn.devices import OWN_PROCESS
from asyncnn.runtime.device import Device
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.accelerated_contenders import noted
from asyncnn.tools.bench.environment import ONE_CPU, describe_environment, placement
from asyncnn.tools.bench.litert import LITERT, LITERT_REF
from asyncnn.tools.bench.measured_models import model_files
from asyncnn.tools.bench.report import (
    Cell,
    Goal,
    Row,
    Subject,
    SubjectsReport,
    Verdict,
    judge,
    refusal_notes,
    verdict_cell,
)
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Call, measure, timed
from asyncnn.tools.other_runtimes import LiteRt, litert_version

LOADED, REFERENCE, ACCELERATED = "loaded", "reference", "accelerated"

CONTENDERS = {
    LOADED: "load",
    REFERENCE: "load and prepare, reference",
    ACCELERATED: "load and prepare, accelerated",
    LITERT: "LiteRT",
    LITERT_REF: "LiteRT, reference kernels",
}

LIMIT = 1.5
"""Goal of the time to load and prepare divided by that of LiteRT's interpreter."""

GATE = 15.0
"""The same for any machine, however many others use it."""

MATTERS_ABOVE_BYTES = 1_000_000
"""Files as large as this have the goal."""

PACKAGES = ("basic_pitch", "pymicro_wakeword", "pyopen_wakeword")
"""Packages whose files are measured if they are installed; none is imported."""

Progress: TypeAlias = Callable[[Sequence[Path]], Iterable[Path]]


class LoadedModel(Subject, frozen=True, kw_only=True):
    """What was measured of one file of ``size`` bytes, and what became of the goals."""

    size: int
    verdicts: tuple[Verdict, ...] = ()
    refusals: Mapping[str, str] = msgspec.field(default_factory=dict)

    def outcomes(self) -> Iterator[bool]:
        """Yield for each goal whether it was met."""
        return (verdict.met for verdict in self.verdicts)

    def cells(self) -> Row:
        """Return the size, and the ratios of both devices, with their goals."""
        return (f"{self.size / 1e6:.2f}", *map(self._cell, (REFERENCE, ACCELERATED)))

    def _cell(self, figure: str) -> Cell:
        if self.verdicts or not {figure, LITERT} <= self.figures.keys():
            return verdict_cell(self.verdicts, figure, LITERT)
        return f"{self.figures[figure].ratio_to(self.figures[LITERT]):.3f}"


class LoadingReport(SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench loading --json``."""

    CONTENDERS = CONTENDERS
    OTHERS = ("MB", "reference / LiteRT", "accelerated / LiteRT")

    models: dict[str, LoadedModel]

    def subjects(self) -> dict[str, LoadedModel]:
        """Return the models by name."""
        return self.models

    def notes(self) -> Iterator[str]:
        """Yield who could not be measured, and why."""
        refusals = {name: model.refusals for name, model in self.models.items()}
        return refusal_notes(refusals, CONTENDERS)


def bench(
    folder: Path | None = None,
    *,
    pattern: str = "*",
    mobilenet: bool | None = None,
    gates: bool = False,
    rounds: int = DEFAULT_ROUNDS,
    progress: Progress = iter,
) -> LoadingReport:
    """Measure the files of a folder, see `model_files`, and of packages, with one CPU.

    With a ``folder``, packages are left out. ``progress`` iterates over the paths.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    version = litert_version()
    with (
        model_files(folder, pattern, mobilenet=mobilenet) as paths,
        placement(ONE_CPU) as where,
    ):
        found = paths if folder is not None else [*paths, *packaged(pattern)]
        limit = GATE if gates else LIMIT
        models = {
            _name(path): anyio.run(_measure, path, limit, rounds)
            for path in progress(found)
        }
    return LoadingReport(
        environment=describe_environment(litert=version),
        rounds=rounds,
        placement=where,
        models=models,
    )


def packaged(pattern: str = "*") -> list[Path]:
    """Return the TFLite files of those `PACKAGES` that are installed."""
    folders = [
        Path(place)
        for package in PACKAGES
        if (spec := find_spec(package)) is not None
        for place in spec.submodule_search_locations or ()
    ]
    files = [path for folder in folders for path in sorted(folder.rglob("*.tflite"))]
    return [path for path in files if path.match(f"{pattern}.tflite")]


def _name(path: Path) -> str:
    """Return the name of a file; packages may have files of one name."""
    package = next((part for part in path.parts if part in PACKAGES), None)
    return path.stem if package is None else f"{package}/{path.stem}"


async def _measure(path: Path, limit: float, rounds: int) -> LoadedModel:
    refusals: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        calls: dict[str, Call] = {
            LOADED: partial(load, path),
            LITERT: partial(LiteRt, path),
            LITERT_REF: partial(LiteRt, path, reference=True),
        }
        for name in (REFERENCE, ACCELERATED):
            with noted(refusals, name):
                opened = open_device(name, settings=OWN_PROCESS)
                device = await stack.enter_async_context(opened)
                calls[name] = partial(_load_and_prepare, device, path)
        batches = []
        for name, call in calls.items():
            with noted(refusals, name):
                batches.append(await timed(name, call))
        figures = await measure(batches, rounds=rounds)
    size = path.stat().st_size  # noqa: ASYNC240 - nothing else runs
    goals = [Goal(name, LITERT, limit) for name in (REFERENCE, ACCELERATED)]
    return LoadedModel(
        figures=figures,
        size=size,
        verdicts=judge(goals, figures) if size >= MATTERS_ABOVE_BYTES else (),
        refusals=refusals,
    )


async def _load_and_prepare(device: Device, path: Path) -> PreparedModel:
    return await device.prepare(load(path))
