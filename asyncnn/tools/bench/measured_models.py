"""The models that benchmarks measure: files of a folder, and generated MobileNets.

Also what they are given, and how far apart the outputs of two contenders are.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np

from asyncnn.engine.plan import CONSTANT_LIFETIMES
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import Dimensions, Model
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.tools.bench.litert import Quantization, TfliteWriter
from asyncnn.tools.other_runtimes import LiteRt

InputKind: TypeAlias = tuple[Dimensions, np.dtype[Any]]

DEFAULT_FOLDER = Path("../shared/models")
"""Measured where no folder is named, if it is there."""

_MOBILENETS = {
    f"mobilenet_{version}_224_{kind}": (version, kind == "int8")
    for version in ("v1", "v2")
    for kind in ("float", "int8")
}
"""Generated models by name: the version, and whether they are quantised."""

CLASSES = 1001

_FIRST_FILTERS = 32
_BLOCKS = (
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1)),
    *((512, 2), *[(512, 1)] * 5),
    *((1024, 2), (1024, 1)),
)
"""Output channels at full width, and stride, of each depthwise-separable block."""

_INVERTED = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output channels at full width, how many, and the stride of the first one,
of the inverted residual blocks.
"""

_LAST_FILTERS = 1280

_IMAGE = (1 / 255, -128)
_RELU6 = (6 / 255, -128)
_BOTTLENECK = (1 / 16, 0)
_LOGITS = (1 / 8, 0)
_PROBABILITIES = (1 / 256, -128)
"""Scale and zero point of the quantised tensors."""

_LOGITS_GAIN = 6.0
"""Spreads the logits as training does.

LiteRT's reference softmax ends the process on int8 logits that make over 512 classes
nearly equally likely.
"""

_TRIED_RUNS = 10

_BRANCH_GAIN = 0.5
"""Keeps what a residual block adds small beside what it is added to."""


@contextmanager
def model_files(
    folder: Path | None, pattern: str = "*", *, mobilenet: bool = True
) -> Iterator[list[Path]]:
    """Yield the TFLite files whose name without suffix matches ``pattern``, sorted.

    ``folder`` may be a single file. Generated MobileNets come last and are removed in
    the end.

    :raises InvalidArgumentError: if there is no such folder, or nothing to measure.
    :raises PeerMissingError: if MobileNets are wanted but LiteRT is not installed.
    """
    files = [path for path in _found(folder) if fnmatchcase(path.stem, pattern)]
    wanted = [name for name in _MOBILENETS if mobilenet and fnmatchcase(name, pattern)]
    if not files and not wanted:
        raise InvalidArgumentError(
            f"there is no .tflite file {pattern!r} in {folder or DEFAULT_FOLDER}"
        )
    with TemporaryDirectory(prefix="asyncnn-bench-") as temporary:
        for name in wanted:
            file = Path(temporary, f"{name}.tflite")
            version, quantized = _MOBILENETS[name]
            make = mobilenet_v1 if version == "v1" else mobilenet_v2
            file.write_bytes(make(quantized=quantized))
            files.append(file)
        yield files


def _found(folder: Path | None) -> list[Path]:
    if folder is None:
        folder = DEFAULT_FOLDER
    elif not folder.exists():
        raise InvalidArgumentError(f"there is no folder {folder}")
    return [folder] if folder.is_file() else sorted(folder.glob("*.tflite"))


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


def weights_bytes(model: Model) -> int:
    """Return the bytes of a model's constants."""
    return sum(
        operand.location.length
        for graph in (model.main, *model.referenced)
        for operand in graph.operands
        if operand.lifetime in CONSTANT_LIFETIMES
    )


class Candidate(NamedTuple):
    """A model, its file if it has one, and about what LiteRT takes for a run.

    ``us`` is 0 if LiteRT cannot run it.
    """

    name: str
    named: NamedModel
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


def candidates(paths: Iterable[Path], refusals: dict[str, str]) -> list[Candidate]:
    """Return the models of files; note why others cannot be imported."""
    found = []
    for path in paths:
        try:
            found.append(Candidate(path.stem, load(path), path, _litert_us(path)))
        except AsyncnnError as error:
            refusals[path.stem] = str(error)
    return found


def _litert_us(path: Path) -> float:
    try:
        peer = LiteRt(path)
        peer.run(random_inputs(peer.input_kinds()))
    except AsyncnnError:
        return 0.0
    samples = []
    for _ in range(_TRIED_RUNS):
        started = time.perf_counter_ns()
        peer.invoke()
        samples.append((time.perf_counter_ns() - started) / 1000)
    return median(samples)


def inputs_of(model: NamedModel | PreparedModel) -> list[Array]:
    """Return reproducible inputs of a model."""
    return random_inputs([(info.dimensions, info.dtype) for info in model.inputs])


class Difference(msgspec.Struct, frozen=True):
    """The largest difference between the device's outputs and the reference kernels'.

    In quantisation steps if ``in_steps``, else absolute.
    """

    largest: float
    in_steps: bool

    def __str__(self) -> str:
        return f"{self.largest:.0f} LSB" if self.in_steps else f"{self.largest:.0e}"


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


def difference_text(difference: Difference | None) -> str:
    """Return a difference as text, a dash for none."""
    return "-" if difference is None else str(difference)


def mobilenet_v1(
    *, quantized: bool, size: int = 224, width: float = 1.0, seed: int = 0
) -> bytes:
    """Return the file of a MobileNet v1 for one image of ``size`` times ``size``.

    A real network in every respect but its answers: the operators, shapes, fused ReLU6
    and, quantised, per-channel scales. Its random weights keep the variance of the
    activations from layer to layer, so that quantised ones neither vanish nor saturate.
    The input is float32 in [0, 1), or int8 with scale 1/255; both variants have the
    same weights, but for rounding. ``width`` multiplies the numbers of channels.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    network = _Network(quantized, size, width, seed)
    return network.file(network.add_separable_blocks)


def mobilenet_v2(
    *, quantized: bool, size: int = 224, width: float = 1.0, seed: int = 0
) -> bytes:
    """Return the file of a MobileNet v2, otherwise like `mobilenet_v1`.

    Its blocks expand to six times the channels, end without an activation, and have
    what goes in added to what comes out where the shapes are the same.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    network = _Network(quantized, size, width, seed)
    return network.file(network.add_inverted_blocks)


class _Network:
    """The network so far: ``_tensor`` is its last activation."""

    def __init__(self, quantized: bool, size: int, width: float, seed: int) -> None:
        self._writer = TfliteWriter(quantized=quantized, seed=seed)
        self._schema = self._writer.schema
        self._quantized = quantized
        self._width = width
        self._layers = 0
        self._advance("input", (1, size, size, 3), _IMAGE)

    def file(self, add_blocks: Callable[[], None]) -> bytes:
        schema, image = self._schema, self._tensor
        self._convolve(self._channels(_FIRST_FILTERS), kernel=3, stride=2)
        add_blocks()
        _, rows, columns, channels = self._shape
        options = schema.Pool2DOptionsT(
            padding=schema.Padding.VALID,
            strideW=1,
            strideH=1,
            filterWidth=columns,
            filterHeight=rows,
        )
        result: tuple[str, Dimensions] = ("average", (1, 1, 1, channels))
        self._layer("AVERAGE_POOL_2D", options, result, _RELU6, version=2)
        self._convolve(CLASSES, quantization=_LOGITS, gain=_LOGITS_GAIN)
        flat = (1, CLASSES)
        shape = self._writer.constant("shape", np.array(flat, np.int32))
        options = schema.ReshapeOptionsT(newShape=[*flat])
        self._layer("RESHAPE", options, ("logits", flat), _LOGITS, shape)
        options = schema.SoftmaxOptionsT(beta=1.0)
        result = ("probabilities", flat)
        self._layer("SOFTMAX", options, result, _PROBABILITIES, version=2)
        return self._writer.finish([image], [self._tensor])

    def add_separable_blocks(self) -> None:
        for filters, stride in _BLOCKS:
            self._convolve_depthwise(stride)
            self._convolve(self._channels(filters))

    def add_inverted_blocks(self) -> None:
        for expansion, filters, count, first_stride in _INVERTED:
            for stride in (first_stride, *[1] * (count - 1)):
                self._add_inverted_block(expansion, self._channels(filters), stride)
        self._convolve(self._channels(_LAST_FILTERS))

    def _add_inverted_block(self, expansion: int, filters: int, stride: int) -> None:
        entered, shape = self._tensor, self._shape
        if expansion > 1:
            self._convolve(expansion * shape[3])
        self._convolve_depthwise(stride)
        self._convolve(filters, quantization=_BOTTLENECK, gain=_BRANCH_GAIN)
        if self._shape == shape:
            result = (f"add_{self._layers}", shape)
            options = self._schema.AddOptionsT()
            self._layer("ADD", options, result, _BOTTLENECK, entered, version=2)

    def _channels(self, full: int) -> int:
        return max(8, int(full * self._width))

    def _convolve(
        self,
        filters: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        quantization: Quantization = _RELU6,
        gain: float = 1.0,
    ) -> None:
        options = self._schema.Conv2DOptionsT()
        shape = (filters, kernel, kernel, self._shape[3])
        self._weighted("CONV_2D", options, shape, 0, stride, quantization, gain)

    def _convolve_depthwise(self, stride: int) -> None:
        options = self._schema.DepthwiseConv2DOptionsT(depthMultiplier=1)
        shape = (1, 3, 3, self._shape[3])
        self._weighted("DEPTHWISE_CONV_2D", options, shape, 3, stride, _RELU6, 1.0)

    def _weighted(
        self,
        operator: str,
        options: Any,
        shape: Dimensions,
        axis: int,
        stride: int,
        quantization: Quantization,
        gain: float,
    ) -> None:
        options.strideW = options.strideH = stride
        if quantization is _RELU6:
            relu6 = self._schema.ActivationFunctionType.RELU6
            options.fusedActivationFunction = relu6
        self._layers += 1
        number, channels = self._layers, shape[axis]
        deviation = gain * math.sqrt(2 * channels / math.prod(shape))
        weights = self._writer.weights(f"weights_{number}", shape, axis, deviation)
        bias = self._writer.bias(f"bias_{number}", channels, self._scale)
        rows, columns = (-(-n // stride) for n in self._shape[1:3])
        result = (f"{operator.lower()}_{number}", (1, rows, columns, channels))
        self._layer(operator, options, result, quantization, weights, bias, version=3)

    def _layer(
        self,
        operator: str,
        options: Any,
        result: tuple[str, Dimensions],
        quantization: Quantization,
        *constants: int,
        version: int = 1,
    ) -> None:
        """Apply an operator to the last activation; its result is the next one.

        ``version`` is the operator's for quantised tensors.
        """
        inputs = (self._tensor, *constants)
        self._advance(*result, quantization)
        version = version if self._quantized else 1
        self._writer.operator(operator, inputs, self._tensor, options, version=version)

    def _advance(
        self, name: str, shape: Dimensions, quantization: Quantization
    ) -> None:
        """Make a new tensor the last activation."""
        self._shape = shape
        self._scale, _ = quantization
        self._tensor = self._writer.tensor(name, shape, quantization)
