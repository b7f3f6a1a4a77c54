"""Measures model files on the device and with LiteRT."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.container import load
from asyncnn.runtime.device import Device, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.arrays import InputKind, largest_difference, random_inputs
from asyncnn.tools.bench.environment import describe_environment
from asyncnn.tools.bench.errors import PeerRefusedError
from asyncnn.tools.bench.goals import LITERT_REF
from asyncnn.tools.bench.litert import LiteRt, litert_version
from asyncnn.tools.bench.models.report import (
    AWAITED,
    DEVICE,
    PEERS,
    ModelReport,
    ModelsReport,
    summarize,
)
from asyncnn.tools.bench.placement import ONE_CPU, placement
from asyncnn.tools.bench.rounds import DEFAULT_ROUNDS, Batch, measure, timed_call

Progress: TypeAlias = Callable[[Sequence[Path]], Iterable[Path]]


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
        async with open_device(settings=OWN_PROCESS) as device:
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
