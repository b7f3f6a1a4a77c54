"""``asyncnn bench models``: the reference device beside LiteRT, model by model."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from asyncnn.bench.environment import (
    ONE_CPU,
    Environment,
    describe_environment,
    placement,
)
from asyncnn.bench.goals import LITERT, LITERT_REF, Verdict, judge
from asyncnn.bench.litert import LiteRt, PeerRefusedError, litert_version
from asyncnn.bench.rounds import DEFAULT_ROUNDS, Batch, Figure, measure, timed_call
from asyncnn.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.runtime.device import Device, open_device
from asyncnn.runtime.loading import load
from asyncnn.runtime.prepared import PreparedModel

DEVICE = "device"
"""The device's own measurement, HAL Timing's ``time_on_device``."""

AWAITED = "awaited"
"""From calling ``prepared.run`` to having its outputs."""

PEERS = (LITERT, LITERT_REF)

InputKind: TypeAlias = tuple[Dimensions, np.dtype[Any]]
Progress: TypeAlias = Callable[[Sequence[Path]], Iterable[Path]]


class Difference(msgspec.Struct, frozen=True):
    """The largest difference between the device's outputs and the reference kernels'.

    In quantisation steps if ``in_steps``, else absolute.
    """

    largest: float
    in_steps: bool

    def __str__(self) -> str:
        return f"{self.largest:.0f} LSB" if self.in_steps else f"{self.largest:.0e}"


class ModelReport(msgspec.Struct, frozen=True):
    """What was measured of one model.

    ``figures`` are called `DEVICE`, `AWAITED`, `LITERT` and `LITERT_REF`; one that is
    missing has its reason under the contender's name in ``refusals``. ``us`` and
    ``ratios``, the device's to each peer, are derived from them.
    """

    model: str
    figures: dict[str, Figure]
    us: dict[str, float]
    ratios: dict[str, float]
    verdicts: tuple[Verdict, ...]
    refusals: dict[str, str]
    difference_to_ref: Difference | None = None


class ModelsReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn bench models --json``."""

    environment: Environment
    placement: str
    rounds: int
    models: tuple[ModelReport, ...]

    @property
    def met(self) -> bool:
        """Whether every goal was met that could be measured."""
        return all(verdict.met for model in self.models for verdict in model.verdicts)


async def bench_models(
    paths: Sequence[Path],
    *,
    rounds: int = DEFAULT_ROUNDS,
    progress: Progress = iter,
) -> ModelsReport:
    """Measure the TFLite files at ``paths``; ``progress`` iterates over them.

    :raises PeerMissingError: if LiteRT is not installed.
    """
    environment = describe_environment(litert=litert_version())
    with placement(ONE_CPU) as where:
        async with open_device() as device:
            reports = [
                await _bench_model(device, path, rounds) for path in progress(paths)
            ]
    return ModelsReport(environment, where, rounds, tuple(reports))


async def _bench_model(device: Device, path: Path, rounds: int) -> ModelReport:
    refusals: dict[str, str] = {}
    prepared = await _prepare(device, path, refusals)
    loaded = _load_peers(path, refusals)
    inputs = random_inputs(_input_kinds(prepared, loaded))
    peers = _feed(loaded, inputs, refusals)
    batches = [timed_call(name, peer.invoke) for name, peer in peers.items()]
    difference = None
    if prepared is not None:
        batches.append(_device_batch(prepared, inputs))
        if LITERT_REF in peers:
            outputs = await prepared.run(inputs)
            expected = peers[LITERT_REF].first_outputs()
            difference = largest_difference(list(outputs.values()), expected)
    figures = await measure(batches, rounds=rounds)
    return summarize(path.stem, figures, refusals, difference)


async def _prepare(
    device: Device, path: Path, refusals: dict[str, str]
) -> PreparedModel | None:
    try:
        return await device.prepare(load(path))
    except AsyncnnError as error:
        refusals[DEVICE] = str(error)
        return None


def _load_peers(path: Path, refusals: dict[str, str]) -> dict[str, LiteRt]:
    peers: dict[str, LiteRt] = {}
    for name in PEERS:
        try:
            peers[name] = LiteRt(path, reference=name == LITERT_REF)
        except PeerRefusedError as error:
            refusals[name] = str(error)
    return peers


def _input_kinds(
    prepared: PreparedModel | None, peers: Mapping[str, LiteRt]
) -> list[InputKind]:
    if prepared is not None:
        return [(info.dimensions, info.dtype) for info in prepared.inputs]
    return next((peer.input_kinds() for peer in peers.values()), [])


def _feed(
    peers: Mapping[str, LiteRt], inputs: Sequence[Array], refusals: dict[str, str]
) -> dict[str, LiteRt]:
    """Set the inputs of the peers and return those that run on them."""
    ready: dict[str, LiteRt] = {}
    for name, peer in peers.items():
        try:
            peer.set_inputs(inputs)
            peer.first_outputs()
            ready[name] = peer
        except PeerRefusedError as error:
            refusals[name] = str(error)
    return ready


def random_inputs(kinds: Sequence[InputKind]) -> list[Array]:
    """Return reproducible arrays: floats in [0, 1), integers over their whole range.

    Axes that the model leaves open have length 1.
    """
    rng = np.random.default_rng(0)
    return [_random(rng, shape, dtype) for shape, dtype in kinds]


def _random(
    rng: np.random.Generator, dimensions: Dimensions, dtype: np.dtype[Any]
) -> Array:
    shape = tuple(axis or 1 for axis in dimensions)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    return rng.random(shape).astype(dtype)


def _device_batch(prepared: PreparedModel, inputs: Sequence[Array]) -> Batch:
    """Return the batch that gives both figures of the device."""

    async def batch(runs: int) -> Mapping[str, Sequence[float]]:
        clock = time.perf_counter_ns
        on_device, awaited = [], []
        for _ in range(runs):
            started = clock()
            outputs = await prepared.run(inputs, measure=True)
            awaited.append((clock() - started) / 1000)
            on_device.append(float(outputs.timing.time_on_device))
        return {DEVICE: on_device, AWAITED: awaited}

    return batch


def largest_difference(
    actual: Sequence[Array], expected: Sequence[Array]
) -> Difference | None:
    """Compare outputs of two contenders; None if their shapes differ."""
    if [array.shape for array in actual] != [array.shape for array in expected]:
        return None
    pairs = zip(actual, expected, strict=True)
    largest = max(
        float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0)) for a, b in pairs
    )
    return Difference(largest, all(array.dtype.kind != "f" for array in expected))


def summarize(
    model: str,
    figures: Mapping[str, Figure],
    refusals: Mapping[str, str],
    difference: Difference | None = None,
) -> ModelReport:
    """Derive times, ratios and verdicts from the figures of a model."""
    us = {name: figure.us for name, figure in figures.items()}
    ratios = {
        peer: figures[DEVICE].ratio_to(figures[peer])
        for peer in PEERS
        if DEVICE in figures and peer in figures
    }
    return ModelReport(
        model=model,
        figures=dict(figures),
        us=us,
        ratios=ratios,
        verdicts=judge(model, ratios, us.get(LITERT_REF)),
        refusals=dict(refusals),
        difference_to_ref=difference,
    )
