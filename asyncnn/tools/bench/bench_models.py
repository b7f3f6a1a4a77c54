"""``asyncnn bench models``: model files beside the engines that they are written for.

The default device comes first: its runs stand beside what one would write oneself, the
engine as it comes, on a thread that is awaited.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from asyncnn.deadlines import format_duration
from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.own_devices import usual_device_name
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.device import Device
from asyncnn.runtime.file_kinds import FileKind, kind_of
from asyncnn.runtime.model import NamedModel, open_model_file
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.tools.bench import environment, measured_models, report
from asyncnn.tools.bench.benches import Started
from asyncnn.tools.bench.measured_models import LITERT, LITERT_REF
from asyncnn.tools.bench.rounds import Call, Figures, Order, measure
from asyncnn.tools.other_runtimes import (
    LiteRt,
    OnnxFile,
    PeerRefusedError,
    as_peer_takes,
    litert_version,
)
from asyncnn.tools.samples import random_sample, telling_open_axes

Run: TypeAlias = Callable[[], Awaitable[Any]]

DEVICE = "device"
"""The reference device's own measurement, HAL Timing's ``time_on_device``."""

AWAITED = "awaited"
"""From calling ``prepared.run`` of the reference device to having its outputs."""

ACCELERATED = "accelerated"
"""The same on the accelerated device."""

EXECUTOR = "executor"
"""LiteRT as it comes in `run_in_executor`, awaited: what one would write oneself."""

TO_THREAD = "to_thread"
"""ONNX Runtime as it comes in `asyncio.to_thread`, awaited."""

_REFERENCE = "reference"
TITLES = {
    AWAITED: _REFERENCE,
    EXECUTOR: "LiteRT",
    TO_THREAD: "ONNX Runtime",
    LITERT: "LiteRT's invoke",
    LITERT_REF: "LiteRT's reference kernels",
    DEVICE: "reference, on the device",
}
"""What contenders are called; devices have their names."""

_ENGINES = {FileKind.TFLITE: EXECUTOR, FileKind.ONNX: TO_THREAD}
PEERS = (LITERT, LITERT_REF)

LONGEST_S = 2.0
"""Runs that take longer are not repeated: there are 21 of each at least."""

REF_MATTERS_ABOVE_US = 100.0
"""Models that take the reference kernels less are too small for the general goal."""

_GENERAL = report.Goal(DEVICE, LITERT_REF, 1.0)

_GOALS = {
    model: [report.Goal(*each) for each in goals]
    for model, goals in {
        "kws_ref_model": [(DEVICE, LITERT_REF, 0.5)],
        "mobilenet_v1_224_float": [(DEVICE, LITERT_REF, 0.1), (DEVICE, LITERT, 2.5)],
        "pretrainedResnet": [(DEVICE, LITERT_REF, 0.1), (DEVICE, LITERT, 2.5)],
        "pretrainedResnet_quant": [(DEVICE, LITERT_REF, 0.5), (DEVICE, LITERT, 10.0)],
        "vww_96_float": [(DEVICE, LITERT_REF, 0.5), (DEVICE, LITERT, 8.0)],
        "vww_96_int8": [
            (DEVICE, LITERT_REF, 0.5),
            (DEVICE, LITERT, 16.0),
            (ACCELERATED, EXECUTOR, 1.05),
        ],
        "trained_lstm_int8": [(ACCELERATED, LITERT, 1.4)],
        "dtln_noise_suppression": [(ACCELERATED, LITERT, 1.2)],
    }.items()
}
"""By model."""

ACCELERATED_STEPS = 0.0
"""Largest difference of the accelerated device to LiteRT, in quantisation steps."""


def figure_of(device: str) -> str:
    """Return the name of the figure that awaited runs of a device have."""
    return AWAITED if device == _REFERENCE else device


class MeasuredModel(report.Measured, frozen=True, kw_only=True):
    """What was measured of one model.

    A figure that is missing has its reason under the contender's name in ``refusals``.
    ``ratios`` are of the reference device's own time to each peer; ``ratio`` is
    of an awaited run of the default device to one of the ``engine`` of the file.
    """

    model: str
    ratios: dict[str, float]
    difference_to_ref: measured_models.Difference | None = None
    accelerated_difference: measured_models.Difference | None = None
    file: str = ""
    engine: str = ""
    ratio: float | None = None
    difference: measured_models.Difference | None = None
    is_exact: bool | None = None
    """Whether the accelerated device computes LiteRT's codes; None if that is no goal.
    """

    def outcomes(self) -> Iterator[bool]:
        """Yield the goals whose peers were measured."""
        yield from super().outcomes()
        if self.is_exact is not None:
            yield self.is_exact

    def goals(self, name: str) -> Iterator[report.Row]:
        """Yield a row for each goal that was judged."""
        for each in self.verdicts:
            limit = report.Outcome(f"{each.limit:.3g}", each.met)
            yield f"{name}: {each.figure} / {each.peer}", f"{each.ratio:.3f}", limit
        if self.is_exact is not None:
            differs = measured_models.difference_text(self.accelerated_difference)
            yield (
                f"{name}: accelerated differs",
                differs,
                report.Outcome("0", self.is_exact),
            )


class ModelsReport(report.SingleReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench models --json``.

    ``devices`` are the names of those that were measured, the default one first.
    """

    devices: tuple[str, ...]
    models: tuple[MeasuredModel, ...]

    def named(self) -> dict[str, MeasuredModel]:
        """Return the models by the names of their files, as short as they differ."""
        names = [each.model for each in self.models]
        return {
            each.model if names.count(each.model) == 1 else each.file: each
            for each in self.models
        }

    def tables(self) -> Iterator[report.ReportTable]:
        """Yield a table of all models, and one of the goals if any has some."""
        first, *others = self.devices
        rows = [
            (
                name,
                each.time(figure_of(first)),
                each.time(each.engine),
                "-" if each.ratio is None else f"{each.ratio:.2f}",
                *(each.time(figure_of(other)) for other in others),
                measured_models.difference_text(each.difference),
            )
            for name, each in self.named().items()
        ]
        headings = ("", first, "engine", "ratio", *others, "differs")
        yield report.ReportTable("microseconds of an awaited run", headings, [rows])
        goals = [row for name, each in self.named().items() for row in each.goals(name)]
        if goals:
            yield report.ReportTable("goals", ("", "measured", "at most"), [goals])

    def notes(self) -> Iterator[str]:
        """Yield which models could not be measured with what, and why."""
        refusals = {name: each.refusals for name, each in self.named().items()}
        return report.refusal_notes(refusals, TITLES)

    def bars(self) -> report.Bars:
        """Return a group for each model, a bar for each contender."""
        return {
            name: {TITLES.get(key, key): us for key, us in each.us.items()}
            for name, each in self.named().items()
        }


def goals_for(model: str, ref_us: float | None) -> tuple[report.Goal, ...]:
    """Return the goals of ``model``.

    ``ref_us`` is what LiteRT's reference kernels take, None if that is unknown.
    """
    goals = _GOALS.get(model, [])
    is_tiny = ref_us is None or ref_us <= REF_MATTERS_ABOVE_US
    if not is_tiny and all(goal.figure != DEVICE for goal in goals):
        return (_GENERAL, *goals)
    return tuple(goals)


def judge_model(
    model: str,
    figures: Figures,
    refusals: dict[str, str],
    *,
    is_own: bool = True,
    **told: Any,
) -> MeasuredModel:
    """Derive ratios and verdicts from the figures of a model.

    Peers that were not measured are left out. Only the project's own models have goals.
    ``told`` is what is known of the model besides.
    """
    ref = figures.get(LITERT_REF)
    goals = goals_for(model, None if ref is None else ref.us) if is_own else ()
    codes = told.get("accelerated_difference")
    is_exact = None
    if is_own and codes is not None and codes.in_steps:
        is_exact = codes.largest <= ACCELERATED_STEPS
    return MeasuredModel(
        model=model,
        figures=figures,
        ratios={
            peer: figures[DEVICE].ratio_to(figures[peer])
            for peer in PEERS
            if DEVICE in figures and peer in figures
        },
        verdicts=report.judge(goals, figures),
        refusals=refusals,
        is_exact=is_exact,
        **told,
    )


def bench(order: Order) -> ModelsReport:
    """Measure models, see `model_files`. Goals are judged if no folder is named."""
    peers = environment.installed_versions("onnxruntime")
    with suppress(environment.PeerMissingError):
        peers["litert"] = litert_version()
    with measured_models.model_files(order, measured_models.MODEL_SUFFIXES) as paths:
        measured = partial(asyncio.run, _measured(paths, order))
        return ModelsReport.measured(
            environment.ALL_CPUS, order.rounds, measured, peers
        )


async def _measured(paths: Sequence[Path], order: Order) -> dict[str, Any]:
    """Measure files on the default device, and on the two that come with asyncnn."""
    names = list(dict.fromkeys((await usual_device_name(), ACCELERATED, _REFERENCE)))
    devices: dict[str, Device] = {}
    refusals: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for name in names:
            with report.noted(refusals, figure_of(name)):
                opened = open_device(name, settings=OWN_PROCESS)
                devices[name] = await stack.enter_async_context(opened)
        models = [
            await _File(path, order, dict(refusals)).measured(names[0], devices)
            for path in order.progress(paths)
        ]
    return {"devices": tuple(names), "models": tuple(models)}


class _File:
    """A file as it is measured: by whom, what they computed, and who cannot run it."""

    def __init__(self, path: Path, order: Order, refusals: dict[str, str]) -> None:
        self._path = path
        self._order = order
        self._refusals = refusals
        self._started: Started = {}
        self._outputs: dict[str, list[Array]] = {}

    async def measured(
        self, first: str, devices: Mapping[str, Device]
    ) -> MeasuredModel:
        """Measure it on devices, of which ``first`` is the default one, and engines."""
        named, kind = None, None
        with report.noted(self._refusals, *map(figure_of, devices)):
            kind = kind_of(open_model_file(self._path))
            named = load(self._path, input_shapes=self._order.input_shapes)
        peers = self._peers(kind, named)
        inputs = _inputs(named, peers.values())
        async with AsyncExitStack() as stack:
            for name in devices if named is not None else ():
                with (
                    report.noted(self._refusals, figure_of(name)),
                    telling_open_axes(named),
                ):
                    await self._add_device(devices[name], name, named, inputs)
            for name, peer in peers.items():
                with report.noted(self._refusals, name):
                    await self._add_peer(stack, name, peer, _as_taken(peer, inputs))
            figures = await measure(self._started, rounds=self._order.rounds)
        ours, engine = figure_of(first), _ENGINES.get(kind, "")
        has_both = ours in figures and engine in figures
        return judge_model(
            self._path.stem,
            figures,
            self._refusals,
            is_own=self._order.folder is None,
            file=self._path.name,
            engine=engine,
            ratio=figures[ours].ratio_to(figures[engine]) if has_both else None,
            difference=self._difference(ours, engine),
            difference_to_ref=self._difference(AWAITED, LITERT_REF),
            accelerated_difference=self._difference(ACCELERATED, LITERT),
        )

    def _peers(
        self, kind: FileKind | None, named: NamedModel | None
    ) -> dict[str, LiteRt | OnnxFile]:
        """Open what reads files of a kind: as it comes, and for goals otherwise."""
        infos = () if named is None else named.inputs
        shapes = [tuple(length or 1 for length in info.dimensions) for info in infos]
        litert = partial(LiteRt, self._path, input_shapes=shapes)
        opening: dict[str, Callable[[], LiteRt | OnnxFile]] = {}
        if kind is FileKind.TFLITE:
            opening[EXECUTOR] = partial(litert, threads=None)
            opening |= {LITERT: litert, LITERT_REF: partial(litert, reference=True)}
        elif kind is FileKind.ONNX:
            opening[TO_THREAD] = partial(OnnxFile, self._path, threads=None)
        peers = {}
        for name, open_ in opening.items():
            with report.noted(self._refusals, name):
                peers[name] = open_()
        return peers

    async def _add_device(
        self, device: Device, name: str, named: NamedModel, inputs: Sequence[Array]
    ) -> None:
        prepared = await device.prepare(named)
        run = partial(prepared.run, inputs)
        outputs = await _tried(run)
        self._outputs[figure_of(name)] = list(outputs.values())
        if name == _REFERENCE:
            both = measured_models.on_device(prepared, inputs, awaited=AWAITED)
            self._started[name] = both
        else:
            self._started[name] = run

    async def _add_peer(
        self,
        stack: AsyncExitStack,
        name: str,
        peer: LiteRt | OnnxFile,
        inputs: Sequence[Array],
    ) -> None:
        peer.reset()
        if isinstance(peer, OnnxFile):
            run: Call = partial(asyncio.to_thread, peer.run, inputs)
        else:
            run = await stack.enter_async_context(
                measured_models.in_executor(peer, inputs)
            )
        self._outputs[name] = await _tried(run)
        if isinstance(peer, LiteRt) and name in PEERS:
            run = peer.invoke
        self._started[name] = run

    def _difference(self, one: str, other: str) -> measured_models.Difference | None:
        """Return how far the outputs of two are apart; None if one has none."""
        found = self._outputs
        if one not in found or other not in found:
            return None
        return measured_models.largest_difference(found[one], found[other])


def _inputs(
    named: NamedModel | None, peers: Iterable[LiteRt | OnnxFile]
) -> list[Array]:
    """Return reproducible inputs of a model, or else of what could open its file."""
    if named is not None:
        return list(random_sample(named.inputs).values())
    kinds = [peer.input_kinds() for peer in peers]
    return measured_models.random_inputs(kinds[0]) if kinds else []


def _as_taken(peer: LiteRt | OnnxFile, inputs: Sequence[Array]) -> list[Array]:
    """Return inputs as a peer takes them.

    :raises PeerRefusedError: if it takes another number of them.
    """
    kinds = peer.input_kinds()
    if len(kinds) != len(inputs):
        raise PeerRefusedError(f"it takes {len(kinds)} inputs, not {len(inputs)}")
    return [as_peer_takes(x, *kind) for x, kind in zip(inputs, kinds, strict=True)]


async def _tried(run: Run) -> Any:
    """Run once, and again if that took long: first runs do more than others.

    :raises GeneralFailureError: if it takes too long to be repeated.
    """
    for _ in range(2):
        started = time.perf_counter()
        outputs = await run()
        taken_s = time.perf_counter() - started
        if taken_s <= LONGEST_S:
            return outputs
    raise GeneralFailureError(
        f"a run takes {format_duration(taken_s * 1e6)}, too long to be repeated"
    )
