"""The models that benchmarks measure, and LiteRT as a peer that runs them.

They are files of a folder, and generated MobileNets. Also what they are given, how far
apart the outputs of two contenders are, and ways to await an interpreter.
"""

import asyncio
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeAlias

import msgspec
import numpy as np

import asyncnn
from asyncnn.engine.plan import CONSTANT_LIFETIMES
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Model
from asyncnn.input_files import call_abandonable, in_one
from asyncnn.tools.bench.report import noted
from asyncnn.tools.bench.rounds import Batches, Order, Samples
from asyncnn.tools.mobilenets import MOBILENETS, mobilenet_v1
from asyncnn.tools.other_runtimes import InputKind, LiteRt
from asyncnn.tools.samples import random_array

DEFAULT_FOLDER = Path("../shared/models")
"""Measured where no folder is named, if it is there."""

TFLITE = ".tflite"
MODEL_SUFFIXES = (TFLITE, ".onnx", ".asyncnn")
"""Of the files that `load` reads."""

_TRIED_RUNS = 10


@contextmanager
def model_files(
    order: Order, suffixes: Sequence[str] = (TFLITE,)
) -> Iterator[list[Path]]:
    """Yield the model files whose name without suffix matches the pattern, sorted.

    The folder may be a single file. Generated MobileNets come last and are removed in
    the end; None has them where no folder is named.

    :raises InvalidArgumentError: if there is no such folder, or nothing to measure.
    :raises PeerMissingError: if MobileNets are wanted but LiteRT is not installed.
    """
    folder, pattern, mobilenet = order.folder, order.pattern, order.mobilenet
    looking = in_one(_found, folder, suffixes)
    found = call_abandonable(f"looking into {folder}", looking)
    files = [path for path in found if fnmatchcase(path.stem, pattern)]
    has_all = folder is None if mobilenet is None else mobilenet
    wanted = [name for name in MOBILENETS if has_all and fnmatchcase(name, pattern)]
    if not files and not wanted:
        kinds = " or ".join(suffixes)
        raise InvalidArgumentError(
            f"there is no {kinds} file {pattern!r} in {folder or DEFAULT_FOLDER}"
        )
    with TemporaryDirectory(prefix="asyncnn-bench-") as temporary:
        for name in wanted:
            file = Path(temporary, f"{name}{TFLITE}")
            file.write_bytes(MOBILENETS[name]())
            files.append(file)
        yield files


@contextmanager
def small_model() -> Iterator[Path]:
    """Have the file of a MobileNet of some hundred microseconds.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    with TemporaryDirectory(prefix="asyncnn-bench-") as temporary:
        path = Path(temporary, "small.tflite")
        path.write_bytes(mobilenet_v1(quantized=False, size=96, width=0.25))
        yield path


def _found(folder: Path | None, suffixes: Sequence[str]) -> list[Path]:
    if folder is None:
        folder = DEFAULT_FOLDER
    elif not folder.exists():
        raise InvalidArgumentError(f"there is no folder {folder}")
    if folder.is_file():
        return [folder]
    return sorted(path for path in folder.glob("*") if path.suffix in suffixes)


def random_inputs(kinds: Sequence[InputKind]) -> list[Array]:
    """Return reproducible arrays, see `random_array`."""
    rng = np.random.default_rng(0)
    return [random_array(*kind, rng) for kind in kinds]


def weights_bytes(model: Model) -> int:
    """Return the bytes of a model's constants."""
    return sum(
        operand.location.length
        for graph in (model.main, *model.referenced)
        for operand in graph.operands
        if operand.lifetime in CONSTANT_LIFETIMES
    )


class ModelCandidate(NamedTuple):
    """A model, its file if it has one, and about what LiteRT takes for a run.

    ``us`` is 0 if LiteRT cannot run it.
    """

    name: str
    named: asyncnn.NamedModel
    path: Path | None = None
    us: float = 0.0

    @property
    def file(self) -> Path:
        """The file of a model that has one."""
        assert self.path is not None
        return self.path

    @property
    def inputs(self) -> list[Array]:
        """Reproducible inputs."""
        return inputs_of(self.named)


def candidates(paths: Iterable[Path], refusals: dict[str, str]) -> list[ModelCandidate]:
    """Return the models of files; note why others cannot be imported."""
    found = []
    for path in paths:
        with noted(refusals, path.stem):
            us, named = 0.0, asyncnn.load(path)
            with suppress(AsyncnnError):
                us = litert_us(path)
            found.append(ModelCandidate(path.stem, named, path, us))
    return found


def litert_us(path: Path, inputs: Sequence[Array] | None = None) -> float:
    """Return about what LiteRT takes for a run, of random inputs if none are given.

    :raises PeerRefusedError: if it cannot run the model.
    """
    peer = LiteRt(path)
    peer.run(inputs or random_inputs(peer.input_kinds()))
    samples = []
    for _ in range(_TRIED_RUNS):
        started = time.perf_counter_ns()
        peer.invoke()
        samples.append((time.perf_counter_ns() - started) / 1000)
    return median(samples)


def inputs_of(model: asyncnn.NamedModel | asyncnn.PreparedModel) -> list[Array]:
    """Return reproducible inputs of a model."""
    return random_inputs([(info.dimensions, info.dtype) for info in model.inputs])


class Difference(msgspec.Struct, frozen=True):
    """The largest difference between the device's outputs and the reference kernels'.

    In quantisation steps if ``in_steps``, else absolute.
    """

    largest: float
    in_steps: bool

    def __str__(self) -> str:
        if self.in_steps:
            return f"{self.largest:.0f} LSB"
        return f"{self.largest:.0e}" if self.largest else "0"


def largest_difference(
    actual: Sequence[Array], expected: Sequence[Array]
) -> Difference | None:
    """Compare outputs of two contenders; None if they have other numbers of elements.

    Ranks may differ: the HAL has neither rank 0 nor as many axes as files.
    """
    if [array.size for array in actual] != [array.size for array in expected]:
        return None
    actual = [a.reshape(b.shape) for a, b in zip(actual, expected, strict=True)]
    pairs = zip(actual, expected, strict=True)
    largest = max(
        float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0)) for a, b in pairs
    )
    return Difference(largest, all(array.dtype.kind != "f" for array in expected))


def difference_text(difference: Difference | None) -> str:
    """Return a difference as text, a dash for none."""
    return "-" if difference is None else str(difference)


LONG_US = 1000.0
"""What LiteRT takes at least for models that are cancelled and served by a driver."""

SERVABLE_US = 100.0
"""What LiteRT takes at least for models that are served to many tasks."""

HEAVY_BYTES = 1_000_000
"""Weights of models that are cached and whose memory is measured."""


Models: TypeAlias = Sequence[ModelCandidate]


def long_ones(models: Models) -> Models:
    """Return those that LiteRT takes more than `LONG_US` for, the longest last."""
    longer = [each for each in models if each.us > LONG_US]
    return sorted(longer, key=lambda each: each.us)


def servable(models: Models) -> Models:
    """Return the ones of `SERVABLE_US` to `LONG_US`."""
    return [each for each in models if SERVABLE_US <= each.us <= LONG_US]


def heavy(models: Models) -> Models:
    """Return the ones with weights that matter."""
    return [each for each in models if weights_bytes(each.named.model) >= HEAVY_BYTES]


def floats(models: Models) -> Models:
    """Return the ones with inputs of floats alone."""
    return [m for m in models if {i.dtype.kind for i in m.named.inputs} <= {"f"}]


LITERT = "litert"
"""LiteRT as it comes, which runs XNNPACK kernels."""

LITERT_REF = "litert_ref"
"""LiteRT with its reference kernels."""


@asynccontextmanager
async def in_executor(
    peer: LiteRt, inputs: Sequence[Array]
) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    """Await an interpreter in an executor of one thread."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as pool:
        yield lambda: loop.run_in_executor(pool, peer.run, inputs)


def on_device(
    prepared: asyncnn.PreparedModel, inputs: Sequence[Array], awaited: str = ""
) -> Batches:
    """Return what gives the time on the device, and that ``awaited`` if it has a name.

    The former is HAL Timing's ``time_on_device``, whole microseconds.
    """

    async def batch(runs: int) -> Samples:
        clock = time.perf_counter_ns
        found: dict[str, list[float]] = {"device": [], awaited: []}
        for _ in range(runs):
            started = clock()
            outputs = await prepared.run(inputs, measure=True)
            found[awaited].append((clock() - started) / 1000)
            assert outputs.timing is not None
            found["device"].append((outputs.timing.on_device_ns or 0) / 1000)
        return {name: each for name, each in found.items() if name}

    return Batches(batch)
