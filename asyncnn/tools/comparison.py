"""The work behind ``asyncnn compare``: a model beside the runtime that its file is for.

Both get the same inputs, random ones and given ones. What a model keeps from one step
to the next, both keep over the samples of a series, each in its own way.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from asyncnn.runtime.file_kinds import FileKind
from asyncnn.runtime.model import NamedModel, TensorInfo
from asyncnn.runtime.requests import InputCheck
from asyncnn.tools.conformance.suite import Selection, opened, reached
from asyncnn.tools.other_runtimes import (
    OtherRuntime,
    litert_version,
    onnx_runtime_version,
    open_file,
    taken,
)
from asyncnn.tools.samples import (
    Sample,
    Tolerance,
    as_narrow,
    compare,
    hinting_open_axes,
    random_sample,
    without_common_nan,
)

_TIMED_S = 1.0
_LEAST_RUNS = 5
"""How long, and how often at least, a run is timed."""


class PeerKind(Enum):
    """A runtime to compare with: its name, and the kind of file that it reads."""

    LITERT = ("LiteRT", FileKind.TFLITE)
    ONNX_RUNTIME = ("ONNX Runtime", FileKind.ONNX)

    @property
    def title(self) -> str:
        """Its name in messages."""
        return self.value[0]

    def version(self) -> str:
        """Return the version that is installed.

        :raises PeerMissingError: if there is none.
        """
        return _VERSIONS[self]()

    def check_reads(self, kind: FileKind) -> None:
        """Check that it reads files of a kind.

        :raises InvalidArgumentError: if it does not.
        """
        if kind is not self.value[1]:
            raise InvalidArgumentError(
                f"{self.title} reads {self.value[1].value} files, and this is "
                f"{kind.value}",
                hint=_OTHER.get(kind, "it has no other runtime to compare with"),
            )


_OTHER: Mapping[FileKind, str] = {
    FileKind.TFLITE: "compare it with LiteRT: --with litert",
    FileKind.ONNX: "compare it with ONNX Runtime: --with onnxruntime",
    FileKind.CONTAINER: "compare the file that it was made of",
}

_VERSIONS: Mapping[PeerKind, Callable[[], str]] = {
    PeerKind.LITERT: litert_version,
    PeerKind.ONNX_RUNTIME: onnx_runtime_version,
}


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared with what, and how far apart they may be.

    ``given`` samples are compared beside so many ``random`` ones of a ``seed``;
    ``constants`` are what inputs of an ONNX file are fixed to.
    """

    path: Path
    named: NamedModel
    peer: PeerKind
    reference_kernels: bool
    device: str
    extensions: tuple[str, ...]
    paths: tuple[AnyPath, ...]
    transports: tuple[str, ...]
    given: tuple[Sample, ...]
    random: int
    seed: int
    tolerance: Tolerance
    constants: Mapping[str, Any] = {}


class OutputReport(msgspec.Struct, frozen=True):
    """How far an output is from the peer's, at most over all samples.

    ``largest`` is in steps of the type if ``in_steps``, else absolute, and ``relative``
    the same as a share of the largest magnitude that the peer's has. ``differing`` of
    ``elements`` are out of tolerance.
    """

    name: str
    passed: bool
    in_steps: bool
    largest: float
    relative: float
    differing: int
    elements: int
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{self.name}: {self.problem}"
        text = f"{self.name}: at most {self.largest:.6g}"
        text += " LSB" if self.in_steps else f" ({self.relative:.3g} relative)"
        if self.differing:
            text += f", {self.differing} of {self.elements} elements by too much"
        return text


class SeriesReport(msgspec.Struct, frozen=True):
    """A series of ``samples`` on one way to the device; ``inputs`` says which."""

    transport: str
    path: str
    inputs: str
    samples: int
    passed: bool
    outputs: tuple[OutputReport, ...]


class ComparisonReport(msgspec.Struct, frozen=True):
    """The JSON document of ``asyncnn compare --json``.

    ``run_us`` is the median time of an awaited run, ``peer_us`` the peer's in
    `asyncio.to_thread`; both take the first sample in turn.
    """

    model: str
    device: str
    version: str
    peer: str
    peer_version: str
    passed: bool
    states: tuple[str, ...]
    series: tuple[SeriesReport, ...]
    run_us: float
    peer_us: float


async def compare_model(comparison: Comparison) -> ComparisonReport:
    """Run both on every series, on each path and transport.

    :raises InvalidArgumentError: if the peer does not take what the model does.
    :raises PeerMissingError: if the peer is not installed.
    :raises PeerRefusedError: if the peer cannot load or run the model.
    :raises AsyncnnError: if the device refuses the model, or fails.
    """
    peer_version = comparison.peer.version()
    series = _series(comparison)
    expected = {name: _run_peer(comparison, series[name]) for name in series}
    reports: list[SeriesReport] = []
    for transport in comparison.transports:
        async with _device(comparison, transport) as device:
            version = device.version
            for path in comparison.paths:
                for inputs, samples in series.items():
                    drawn = comparison.named if inputs == "random" else None
                    with hinting_open_axes(drawn):
                        actual = await _run_device(
                            comparison.named, device, path, samples
                        )
                    outputs = _outputs(comparison, actual, expected[inputs])
                    passed = all(output.passed for output in outputs)
                    reports.append(
                        SeriesReport(
                            transport, path, inputs, len(samples), passed, outputs
                        )
                    )
            if transport == comparison.transports[0]:
                (samples, *_) = series.values()
                run_us, peer_us = await _times_us(comparison, device, samples[0])
    return ComparisonReport(
        model=str(comparison.path),
        device=comparison.device,
        version=version,
        peer=comparison.peer.title,
        peer_version=peer_version,
        passed=all(report.passed for report in reports),
        states=tuple(state.info.name for state in comparison.named.states),
        series=tuple(reports),
        run_us=run_us,
        peer_us=peer_us,
    )


async def _times_us(
    comparison: Comparison, device: Device, sample: Sample
) -> tuple[float, float]:
    """Return the median times of a run here and of one of the peer."""
    prepared = await device.prepare(comparison.named)
    peer = _open_peer(comparison, sample)
    arrays = taken(peer, comparison.peer.title, comparison.named.inputs)(sample)
    runs: list[float] = []
    peers: list[float] = []
    ends = time.perf_counter() + _TIMED_S
    while len(runs) < _LEAST_RUNS or time.perf_counter() < ends:
        began = time.perf_counter()
        await prepared.run(sample)
        between = time.perf_counter()
        await asyncio.to_thread(peer.run, arrays)
        runs.append(between - began)
        peers.append(time.perf_counter() - between)
    return median(runs) * 1e6, median(peers) * 1e6


def _series(comparison: Comparison) -> dict[str, Sequence[Sample]]:
    """Return the samples of each series that is not empty.

    :raises InvalidArgumentError: if there is none.
    """
    rng = np.random.default_rng(comparison.seed)
    infos = comparison.named.inputs
    drawn = [random_sample(infos, rng) for _ in range(comparison.random)]
    series: dict[str, Sequence[Sample]] = {"random": drawn, "given": comparison.given}
    filled = {name: samples for name, samples in series.items() if samples}
    if not filled:
        raise InvalidArgumentError(
            "there is no sample to compare with",
            hint="ask for one random sample or more, or give some with --input",
        )
    return filled


@asynccontextmanager
async def _device(comparison: Comparison, transport: str) -> AsyncIterator[Device]:
    selection = Selection(device=comparison.device, extensions=comparison.extensions)
    with reached(selection, transport) as reaching:
        async with opened(reaching) as device:
            yield device


def _run_peer(
    comparison: Comparison, samples: Sequence[Sample]
) -> list[Sequence[Array]]:
    """Return what the peer gives for a series, which begins with fresh state."""
    infos = comparison.named.inputs
    check = InputCheck(infos)
    for sample in samples:
        check(sample)
    peer = _open_peer(comparison, samples[0])
    feed = taken(peer, comparison.peer.title, infos)
    results: list[Sequence[Array]] = []
    for sample in samples:
        if not comparison.named.states:
            peer.reset()
        results.append(peer.run(feed(sample)))
    return results


def _open_peer(comparison: Comparison, sample: Sample) -> OtherRuntime:
    return open_file(
        comparison.path,
        comparison.named.inputs,
        sample,
        is_litert=comparison.peer is PeerKind.LITERT,
        reference=comparison.reference_kernels,
        constants=comparison.constants,
    )


async def _run_device(
    named: NamedModel, device: Device, path: AnyPath, samples: Sequence[Sample]
) -> list[Sequence[Array]]:
    """Return what the device gives for a series, which begins with initial state."""
    prepared = await device.prepare(named)
    async with AsyncExitStack() as stack:
        run: Callable[[Sample], Awaitable[Mapping[str, Array]]]
        if named.states:
            session = await stack.enter_async_context(prepared.session(path=path))
            run = session.run
        else:
            run = await stack.enter_async_context(prepared.runner(path))
        # A burst gives the same arrays each time.
        return [
            [np.array(each) for each in (await run(sample)).values()]
            for sample in samples
        ]


def _outputs(
    comparison: Comparison,
    actual: Sequence[Sequence[Array]],
    expected: Sequence[Sequence[Array]],
) -> tuple[OutputReport, ...]:
    infos = comparison.named.outputs
    if any(len(arrays) != len(infos) for arrays in expected):
        raise InvalidArgumentError(
            f"{comparison.peer.title} gives {len(expected[0])} outputs, and the model "
            f"{len(infos)}"
        )
    return tuple(
        _output(
            info,
            [arrays[position] for arrays in actual],
            [arrays[position] for arrays in expected],
            comparison.tolerance,
        )
        for position, info in enumerate(infos)
    )


def _output(
    info: TensorInfo,
    actual: Sequence[Array],
    expected: Sequence[Array],
    tolerance: Tolerance,
) -> OutputReport:
    in_steps = info.dtype.kind not in "fc"
    if in_steps and not info.scale:
        tolerance = replace(tolerance, lsb=0)  # counts, indices, truths
    largest = relative = 0.0
    differing = elements = 0
    for number, (mine, theirs) in enumerate(zip(actual, expected, strict=True)):
        pair = mine, as_model_gives(theirs, mine.shape, mine.dtype)
        if mine.dtype.kind in "fc" and mine.shape == pair[1].shape:
            pair = without_common_nan(*pair)
        result = compare(info.name, *pair, tolerance)
        if result.problem:
            problem = f"sample {number}: {result.problem}"
            count = result.elements
            return OutputReport(
                info.name, False, in_steps, np.inf, np.inf, count, count, problem
            )
        magnitude = float(np.max(np.abs(_finite(pair[1])), initial=0.0))
        largest = max(largest, _known(result.worst))
        if result.worst:
            share = result.worst / magnitude if magnitude else np.inf
            relative = max(relative, _known(share))
        differing += result.differing
        elements += result.elements
    return OutputReport(
        info.name, not differing, in_steps, largest, relative, differing, elements
    )


def as_model_gives(theirs: Array, shape: Dimensions, dtype: np.dtype[Any]) -> Array:
    """Return the peer's output as the HAL has it, where that loses nothing."""
    if theirs.ndim != len(shape) and theirs.size == math.prod(shape):
        theirs = theirs.reshape(shape)
    return as_narrow(theirs, dtype)


def _finite(array: Array) -> Array:
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return wide[np.isfinite(wide)]


def _known(value: float) -> float:
    """Return a difference, infinity for one from what is no number."""
    return np.inf if np.isnan(value) else float(value)
