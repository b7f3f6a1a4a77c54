"""``asyncnn bench kernels``: single operations beside LiteRT's kernels.

Each operation is written as a TFLite file that LiteRT and the importer both read, and
is run as one step of a plan, with neither request nor event loop around it. The twenty
pairs of an operation and a type keep the device busiest at the sizes they have in
MobileNet, ResNet, BERT and detectors; scales are chosen so that results neither vanish
nor saturate.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from asyncnn.engine import Program
from asyncnn.engine.plan_execution import run_straight
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.types import Dimensions
from asyncnn.runtime.model_file import load
from asyncnn.tools.bench.environment import ONE_CPU, placement
from asyncnn.tools.bench.measured_models import (
    LITERT,
    Difference,
    difference_text,
    largest_difference,
    random_inputs,
)
from asyncnn.tools.bench.report import BenchReport, Goal, Measured, Subjects, judge
from asyncnn.tools.bench.rounds import Figures, Order, Started, measure
from asyncnn.tools.other_runtimes import LiteRt, litert_version
from asyncnn.tools.tflite_writer import TfliteWriter

F32 = "f32"
INT8 = "int8"


class Data(NamedTuple):
    """An input or the result; ``scale`` and ``zero_point`` are int8's."""

    shape: Dimensions
    scale: float = 1 / 32
    zero_point: int = 0


class Weights(NamedTuple):
    """Weights; int8 has a scale for each index of ``axis``, or one if that is None."""

    shape: Dimensions
    axis: int | None = None


class Bias(NamedTuple):
    """The bias that belongs to the data and the weights."""

    size: int


class Integers(NamedTuple):
    """Constant int32 numbers, such as a shape."""

    values: tuple[int, ...]


class OpOptions(NamedTuple):
    """The options of an operator: a class of the schema, and its fields."""

    name: str
    fields: Mapping[str, Any] = MappingProxyType({})


class OpCase(NamedTuple):
    """One TFLite operator on one type, `F32` or `INT8`.

    ``operator`` is a member of the schema's `BuiltinOperator`; ``label`` distinguishes
    cases of one operator.
    """

    operator: str
    type: str
    operands: tuple[Data | Weights | Bias | Integers, ...]
    result: Data
    options: OpOptions | None = None
    version: int = 1
    label: str = ""

    @property
    def name(self) -> str:
        """What the case is called in reports."""
        parts = (self.operator.lower(), self.label, self.type)
        return "_".join(part for part in parts if part)


def _cases(types: tuple[str, ...], operator: str, *rest: Any) -> tuple[OpCase, ...]:
    return tuple(OpCase(operator, type_, *rest) for type_ in types)


def _image(size: int, channels: int, *quantization: Any) -> Data:
    return Data((1, size, size, channels), *quantization)


def _strides(name: str, stride: int = 1, **fields: Any) -> OpOptions:
    return OpOptions(name, {"strideW": stride, "strideH": stride, **fields})


_BOTH = (F32, INT8)
_RESULT = (1 / 16, 3)
_X, _Y = _image(56, 256), _image(56, 256, 1 / 24, 5)
_3X3 = (_image(56, 64), Weights((64, 3, 3, 64), 0), Bias(64))
_1X1 = (_image(28, 256), Weights((256, 1, 1, 256), 0), Bias(256))
_EACH = (_image(56, 128), Weights((1, 3, 3, 128), 3), Bias(128))
_TRANSPOSED = (Integers((1, 56, 56, 64)), _3X3[1], _image(28, 64), Bias(64))
_DENSE = (Data((8, 1024)), Weights((1024, 1024)), Bias(1024))
_SIZED = (_image(112, 16), Integers((224, 224)))
_PERMUTED = (_X, Integers((0, 3, 1, 2)))

_CONVOLVE = _strides("Conv2DOptionsT")
_CONVOLVE_EACH = _strides("DepthwiseConv2DOptionsT", depthMultiplier=1)
_POOL = _strides("Pool2DOptionsT", filterWidth=3, filterHeight=3)
_RESIZE = OpOptions("ResizeBilinearOptionsT", {"halfPixelCenters": True})
_UPSAMPLE = _strides("TransposeConvOptionsT", 2)
_HARD_SWISH = OpOptions("HardSwishOptionsT")
_TRANSPOSE = OpOptions("TransposeOptionsT")
_CONNECT = OpOptions("FullyConnectedOptionsT")

CASES: tuple[OpCase, ...] = (
    *_cases(_BOTH, "CONV_2D", _3X3, _image(56, 64, *_RESULT), _CONVOLVE, 3, "3x3"),
    *_cases(_BOTH, "CONV_2D", _1X1, _image(28, 256, *_RESULT), _CONVOLVE, 3, "1x1"),
    *_cases(
        _BOTH, "DEPTHWISE_CONV_2D", _EACH, _image(56, 128, *_RESULT), _CONVOLVE_EACH, 3
    ),
    *_cases(
        _BOTH, "TRANSPOSE_CONV", _TRANSPOSED, _image(56, 64, *_RESULT), _UPSAMPLE, 3
    ),
    *_cases(_BOTH, "FULLY_CONNECTED", _DENSE, Data((8, 1024), *_RESULT), _CONNECT, 4),
    OpCase("AVERAGE_POOL_2D", INT8, (_image(56, 128),), _image(56, 128), _POOL, 2),
    OpCase(
        "ADD", INT8, (_X, _Y), _image(56, 256, *_RESULT), OpOptions("AddOptionsT"), 2
    ),
    OpCase(
        "MUL", INT8, (_X, _Y), _image(56, 256, 1 / 8, 3), OpOptions("MulOptionsT"), 2
    ),
    OpCase("LOGISTIC", INT8, (_X,), _image(56, 256, 1 / 256, -128), version=2),
    OpCase("TANH", INT8, (_X,), _image(56, 256, 1 / 128), version=2),
    OpCase("HARD_SWISH", INT8, (_X,), _image(56, 256, 1 / 24, -100), _HARD_SWISH),
    OpCase("PRELU", F32, (_X, Weights((1, 1, 256))), _X),
    *_cases(_BOTH, "RESIZE_BILINEAR", _SIZED, _image(224, 16), _RESIZE, 3),
    OpCase("TRANSPOSE", F32, _PERMUTED, Data((1, 256, 56, 56)), _TRANSPOSE),
)


def kernel_file(case: OpCase, *, seed: int = 0) -> bytes:
    """Return the file of the model that consists of ``case`` alone.

    Weights keep the variance of what they are applied to.

    :raises PeerMissingError: if LiteRT, which has the schema, is not installed.
    """
    writer = TfliteWriter(quantized=case.type == INT8, seed=seed)
    data_scale = next(o.scale for o in case.operands if isinstance(o, Data))
    operands: list[int] = []
    inputs: list[int] = []
    for number, operand in enumerate(case.operands):
        name = f"operand_{number}"
        match operand:
            case Data():
                tensor = writer.tensor(name, operand.shape, operand[1:])
                inputs.append(tensor)
            case Weights(shape, axis):
                terms = math.prod(shape) // shape[axis or 0]
                tensor = writer.weights(name, shape, axis, 1 / math.sqrt(terms))
            case Bias(size):
                tensor = writer.bias(name, size, data_scale)
            case Integers(values):
                tensor = writer.constant(name, np.array(values, np.int32))
        operands.append(tensor)
    result = writer.tensor("result", case.result.shape, case.result[1:])
    options = None
    if case.options is not None:
        options = getattr(writer.schema, case.options.name)(**case.options.fields)
    writer.operator(case.operator, operands, result, options, version=case.version)
    return writer.finish(inputs, [result])


ENGINE = "engine"
"""The plan on given arrays, called: the kernel, its step and what leads to it."""

GOAL_OF_EACH = Goal(ENGINE, LITERT, 25.0)
GOAL_OF_MEDIAN = Goal(ENGINE, LITERT, 8.0)
"""For the median of the ratios of all kernels."""

_BATCH_US = 20_000.0

KERNELS = Subjects(
    {ENGINE: "engine", LITERT: "LiteRT"},
    {
        "differs": lambda each: difference_text(each.facts["difference_to_ref"]),
        "/ LiteRT": lambda each: each.cell(ENGINE, LITERT),
    },
    field="kernels",
)
"""``difference_to_ref`` is from the engine's result to LiteRT's reference kernels'."""


def kernels(order: Order) -> BenchReport:
    """Measure the kernels whose name matches the pattern.

    :raises InvalidArgumentError: if there are none.
    :raises PeerMissingError: if LiteRT is not installed.
    """
    cases = [case for case in CASES if fnmatchcase(case.name, order.pattern)]
    if not cases:
        raise InvalidArgumentError(f"there is no kernel {order.pattern!r} to measure")
    peers = {"litert": litert_version()}
    # As many threads of the BLAS as the device gives it.
    with placement(ONE_CPU) as where, threadpool_limits(1, user_api="blas"):
        found = [_measured(case, order.rounds) for case in order.progress(cases)]
    return reported(order.rounds, where, found, peers)


def reported(
    rounds: int,
    where: str,
    found: Sequence[Measured],
    peers: Mapping[str, str] | None = None,
) -> BenchReport:
    """Return the report, with a verdict on the median if these are all kernels."""
    verdict = None
    if len(found) == len(CASES):
        ratio = median(each.verdicts[0].ratio for each in found)
        verdict = GOAL_OF_MEDIAN.judge(ratio)
    report = KERNELS.report(rounds, where, found, peers, median_verdict=verdict)
    (table,) = report.tables
    return report._replace(tables=[table.ended("median", verdict, -1)])


def _measured(case: OpCase, rounds: int) -> Measured:
    calls, difference = _contenders(case)
    figures = asyncio.run(measure(calls, rounds=rounds, batch_us=_BATCH_US))
    return judged(case.name, figures, difference)


def judged(kernel: str, figures: Figures, difference: Difference | None) -> Measured:
    """Hold the figures of a kernel against its goal."""
    (verdict,) = judge([GOAL_OF_EACH], figures)
    facts: dict[str, Any] = {"verdict": verdict, "difference_to_ref": difference}
    return Measured.judged(kernel, figures, [GOAL_OF_EACH], **facts)


def _contenders(case: OpCase) -> tuple[Started, Difference | None]:
    """Return what to measure, and how far the results are apart."""
    with TemporaryDirectory(prefix="asyncnn-bench-") as folder:
        path = Path(folder, f"{case.name}.tflite")
        path.write_bytes(kernel_file(case))
        peer, reference = LiteRt(path), LiteRt(path, reference=True)
        program = Program(load(path, strict=True).model)
    inputs = random_inputs(peer.input_kinds())
    for interpreter in (peer, reference):
        interpreter.set_inputs(inputs)
    shapes = tuple(array.shape for array in inputs)
    run = partial(run_straight, program, program.plan(shapes), inputs)
    outputs = run([None])  # which each run writes again
    difference = largest_difference(outputs, reference.first_outputs())
    return {ENGINE: partial(run, outputs), LITERT: peer.invoke}, difference
