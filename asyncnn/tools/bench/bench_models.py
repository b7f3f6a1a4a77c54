"""``asyncnn bench models``: both devices beside LiteRT, model by model."""

import asyncio
import time
from collections.abc import (
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.device import Device
from asyncnn.runtime.model_file import load
from asyncnn.runtime.opening_devices import open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.environment import (
    ONE_CPU,
    describe_environment,
    installed_versions,
    placement,
)
from asyncnn.tools.bench.litert import LITERT, LITERT_REF, in_executor
from asyncnn.tools.bench.measured_models import (
    Difference,
    InputKind,
    difference_text,
    largest_difference,
    model_files,
    random_inputs,
)
from asyncnn.tools.bench.onnx_models import PACKAGES, OnnxRuntime
from asyncnn.tools.bench.report import (
    Cell,
    Goal,
    Row,
    Subject,
    SubjectsReport,
    Verdict,
    judge,
    ratio_cell,
    refusal_notes,
    verdict_cell,
)
from asyncnn.tools.bench.rounds import (
    DEFAULT_ROUNDS,
    Batch,
    Figure,
    measure,
    timed_await,
    timed_call,
)
from asyncnn.tools.other_runtimes import LiteRt, litert_version

Progress: TypeAlias = Callable[[Sequence[Path]], Iterable[Path]]

DEVICE = "device"
"""The device's own measurement, HAL Timing's ``time_on_device``."""

AWAITED = "awaited"
"""From calling ``prepared.run`` to having its outputs."""

ACCELERATED = "accelerated"
"""The same as `AWAITED` on the accelerated device."""

EXECUTOR = "executor"
"""LiteRT in `run_in_executor`, awaited: what one would write oneself."""

TO_THREAD = "to_thread"
"""ONNX Runtime in `asyncio.to_thread`, awaited."""

CONTENDERS = {
    DEVICE: "device",
    AWAITED: "awaited",
    LITERT: "LiteRT",
    LITERT_REF: "REF",
    ACCELERATED: "accel.",
    EXECUTOR: "executor",
    TO_THREAD: "to_thread",
}
PEERS = (LITERT, LITERT_REF)

REF_MATTERS_ABOVE_US = 100.0
"""Models that take the reference kernels less are too small for the general goal."""

_GENERAL = {LITERT_REF: 1.0}

_LIMITS = {
    "kws_ref_model": {LITERT_REF: 0.5},
    "mobilenet_v1_224_float": {LITERT_REF: 0.1, LITERT: 2.5},
    "pretrainedResnet": {LITERT_REF: 0.1, LITERT: 2.5},
    "pretrainedResnet_quant": {LITERT_REF: 0.5, LITERT: 10.0},
    "vww_96_float": {LITERT_REF: 0.5, LITERT: 8.0},
    "vww_96_int8": {LITERT_REF: 0.5, LITERT: 16.0},
}
"""Largest ratio of `DEVICE` to each peer, by model."""

_ACCELERATED_LIMITS = {"vww_96_int8": {EXECUTOR: 1.05, TO_THREAD: 0.5}}
"""Largest ratio of `ACCELERATED` to each peer, by model."""

ACCELERATED_STEPS = 0.0
"""Largest difference of the accelerated device to LiteRT, in quantisation steps."""


class MeasuredModel(Subject, frozen=True, kw_only=True):
    """What was measured of one model.

    A figure that is missing has its reason under the contender's name in ``refusals``.
    ``ratios`` are those of the device to each peer.
    """

    model: str
    ratios: dict[str, float]
    verdicts: tuple[Verdict, ...]
    refusals: dict[str, str]
    difference_to_ref: Difference | None = None
    accelerated_difference: Difference | None = None

    @property
    def is_exact(self) -> bool | None:
        """Whether the accelerated device computes LiteRT's codes; None for floats."""
        difference = self.accelerated_difference
        if difference is None or not difference.in_steps:
            return None
        return difference.largest <= ACCELERATED_STEPS

    def outcomes(self) -> Iterator[bool]:
        """Yield those of the goals whose peers were measured."""
        yield from (verdict.met for verdict in self.verdicts)
        if self.is_exact is not None:
            yield self.is_exact

    def cells(self) -> Row:
        """Return the differences, and the ratio to each peer with its goal."""
        differs = difference_text(self.difference_to_ref)
        accelerated = ratio_cell(
            difference_text(self.accelerated_difference), "<= 0", self.is_exact
        )
        others = [
            verdict_cell(self.verdicts, ACCELERATED, peer)
            for peer in (EXECUTOR, TO_THREAD)
        ]
        return differs, *map(self._ratio_cell, PEERS), accelerated, *others

    def _ratio_cell(self, peer: str) -> Cell:
        if peer in self.ratios and all(v.peer != peer for v in self.verdicts):
            return ratio_cell(f"{self.ratios[peer]:.3f}", "", None)
        return verdict_cell(self.verdicts, DEVICE, peer)


class ModelsReport(SubjectsReport, frozen=True, kw_only=True):
    """The JSON document of ``asyncnn bench models --json``."""

    CONTENDERS = CONTENDERS
    OTHERS = (
        "differs",
        "/ LiteRT",
        "/ REF",
        "accel. differs",
        "/ executor",
        "/ to_thread",
    )

    models: tuple[MeasuredModel, ...]

    def subjects(self) -> dict[str, Subject]:
        """Return the models by name."""
        return {model.model: model for model in self.models}

    def notes(self) -> Iterator[str]:
        """Return which models could not be measured with what, and why."""
        refusals = {model.model: model.refusals for model in self.models}
        return refusal_notes(refusals, CONTENDERS)


def goals_for(model: str, ref_us: float | None) -> tuple[Goal, ...]:
    """Return the goals of ``model``.

    ``ref_us`` is what LiteRT's reference kernels take, None if that is unknown.
    """
    is_tiny = ref_us is None or ref_us <= REF_MATTERS_ABOVE_US
    limits = _LIMITS.get(model, {} if is_tiny else _GENERAL)
    accelerated = _ACCELERATED_LIMITS.get(model, {})
    return (
        *(Goal(DEVICE, peer, limit) for peer, limit in limits.items()),
        *(Goal(ACCELERATED, peer, limit) for peer, limit in accelerated.items()),
    )


def judge_model(
    model: str,
    figures: dict[str, Figure],
    refusals: dict[str, str],
    difference: Difference | None = None,
    accelerated_difference: Difference | None = None,
) -> MeasuredModel:
    """Derive ratios and verdicts from the figures of a model.

    Peers that were not measured are left out.
    """
    ref = figures.get(LITERT_REF)
    goals = goals_for(model, None if ref is None else ref.us)
    return MeasuredModel(
        model=model,
        figures=figures,
        ratios={
            peer: figures[DEVICE].ratio_to(figures[peer])
            for peer in PEERS
            if DEVICE in figures and peer in figures
        },
        verdicts=judge(goals, figures),
        refusals=refusals,
        difference_to_ref=difference,
        accelerated_difference=accelerated_difference,
    )


def bench(
    folder: Path | None = None,
    *,
    pattern: str = "*",
    mobilenet: bool = True,
    rounds: int = DEFAULT_ROUNDS,
    progress: Progress = iter,
) -> ModelsReport:
    """Measure the models of a folder, see `model_files`.

    ``progress`` iterates over their paths.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    peers = {"litert": litert_version(), **installed_versions(*PACKAGES)}
    with (
        model_files(folder, pattern, mobilenet=mobilenet) as paths,
        placement(ONE_CPU) as where,
    ):
        models = asyncio.run(_measure(paths, rounds, progress))
    return ModelsReport(
        environment=describe_environment(**peers),
        rounds=rounds,
        placement=where,
        models=tuple(models),
    )


async def _measure(
    paths: Sequence[Path], rounds: int, progress: Progress
) -> list[MeasuredModel]:
    async with open_device("reference", settings=OWN_PROCESS) as device:
        return [await _bench_model(device, path, rounds) for path in progress(paths)]


async def _bench_model(device: Device, path: Path, rounds: int) -> MeasuredModel:
    refusals: dict[str, str] = {}
    prepared = None
    with _noted(refusals, DEVICE):
        prepared = await device.prepare(load(path))
    peers: dict[str, LiteRt] = {}
    for name in PEERS:
        with _noted(refusals, name):
            peers[name] = LiteRt(path, reference=name == LITERT_REF)
    inputs = random_inputs(_input_kinds(prepared, peers))
    batches, outputs = [], {}
    for name, peer in peers.items():
        with _noted(refusals, name):
            peer.set_inputs(inputs)
            outputs[name] = peer.first_outputs()
            batches.append(timed_call(name, peer.invoke))
    difference = None
    if prepared is not None:
        batches.append(_device_batch(prepared, inputs))
        if LITERT_REF in outputs:
            own = await prepared.run(inputs)
            difference = largest_difference(list(own.values()), outputs[LITERT_REF])
    async with AsyncExitStack() as stack:
        awaited = await _awaited(stack, path, inputs, refusals)
        batches += [timed_await(name, run) for name, run in awaited.items()]
        accelerated = None
        if ACCELERATED in awaited and LITERT in outputs:
            own = await awaited[ACCELERATED]()
            accelerated = largest_difference(list(own.values()), outputs[LITERT])
        figures = await measure(batches, rounds=rounds)
    return judge_model(path.stem, figures, refusals, difference, accelerated)


async def _awaited(
    stack: AsyncExitStack,
    path: Path,
    inputs: Sequence[Array],
    refusals: dict[str, str],
) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Return the runs of the accelerated device and of what one would write oneself."""
    runs: dict[str, Callable[[], Awaitable[Any]]] = {}
    with _noted(refusals, ACCELERATED):
        opened = open_device("accelerated", settings=OWN_PROCESS)
        device = await stack.enter_async_context(opened)
        prepared = await device.prepare(load(path))
        runs[ACCELERATED] = partial(prepared.run, inputs)
    with _noted(refusals, EXECUTOR):
        executor = in_executor(LiteRt(path), inputs)
        runs[EXECUTOR] = await stack.enter_async_context(executor)
    with _noted(refusals, TO_THREAD):
        session = OnnxRuntime(load(path))
        runs[TO_THREAD] = session.awaited(session.converted(inputs))
    return runs


@contextmanager
def _noted(refusals: dict[str, str], contender: str) -> Iterator[None]:
    """Note why a contender cannot do what the block has it do."""
    try:
        yield
    except AsyncnnError as error:
        refusals[contender] = str(error)


def _input_kinds(
    prepared: PreparedModel | None, peers: Mapping[str, LiteRt]
) -> list[InputKind]:
    if prepared is not None:
        return [(info.dimensions, info.dtype) for info in prepared.inputs]
    return next((peer.input_kinds() for peer in peers.values()), [])


def _device_batch(prepared: PreparedModel, inputs: Sequence[Array]) -> Batch:
    """Return the batch that gives both figures of the device."""

    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        clock = time.perf_counter_ns
        on_device, awaited = [], []
        for _ in range(runs):
            started = clock()
            outputs = await prepared.run(inputs, measure=True)
            awaited.append((clock() - started) / 1000)
            assert outputs.timing is not None
            on_device.append(float(outputs.timing.time_on_device))
        return {DEVICE: on_device, AWAITED: awaited}

    return batch
