"""How fast LiteRT computes here, for estimates of what an operation takes.

Measured once for a library and a CPU, in the process that tries the library, on a few
operations as mobile models have them. Rounded, so that a second measurement gives the
same numbers, most often, and thereby the same graphs.
"""

import math
import time
from collections.abc import Callable

import numpy as np

from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.litert.chain_model import scalar
from asyncnn.devices.litert.graph_file import Engine
from asyncnn.devices.litert.writer import write_graph
from asyncnn.engine.costs import USUAL, Speeds, TypeSpeeds
from asyncnn.engine.delegation import Segment, Step
from asyncnn.hal.operands import dtype_of
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import FusedActivationFunc, OperandType, OperationType
from asyncnn.memory.pages import aligned_bytes

_FURTHEST = 16.0
"""A speed is at most so many times another than the usual one."""

_RUNS = 30
_MOST_NS = 100_000_000
_CHANNELS = 96
_PIXELS: Shape = (1, 56, 56, _CHANNELS)
_TAPS = 3
_SCALE, _ZERO_POINT = 0.05, 3


def measured_speeds(engine: Engine) -> Speeds:
    """Measure, which takes some ten milliseconds.

    :raises GeneralFailureError: if the engine fails.
    """
    return Speeds(
        _speeds_of(engine, OperandType.TENSOR_FLOAT32, USUAL.floats),
        _speeds_of(engine, OperandType.TENSOR_QUANT8_ASYMM_SIGNED, USUAL.integers),
    )


def _speeds_of(engine: Engine, type_: OperandType, usual: TypeSpeeds) -> TypeSpeeds:
    make = _Operations(type_)
    outputs = math.prod(_PIXELS)
    itemsize = dtype_of(type_).itemsize
    moved_bytes = 3 * outputs * itemsize
    bytes_ = moved_bytes / _least_ns(engine, make.addition())
    # What filters are applied to is moved, too.
    moving_ns = 2 * outputs * itemsize / bytes_

    def macs(operation: BoundOperation, taps: int) -> float:
        least_ns = _least_ns(engine, operation)
        return outputs * taps / max(least_ns - moving_ns, least_ns / 2)

    return TypeSpeeds(
        _rounded(macs(make.convolution(), _CHANNELS), usual.macs),
        _rounded(macs(make.depthwise_convolution(), _TAPS**2), usual.depthwise_macs),
        _rounded(bytes_, usual.bytes),
    )


def _rounded(speed: float, usual: float) -> float:
    """Return the nearest of steps by half, which all machines have in common."""
    step = round(2 * math.log2(speed / usual))
    furthest = round(2 * math.log2(_FURTHEST))
    return usual * math.exp2(min(max(step, -furthest), furthest) / 2)


class _Operations:
    """Operations on one type, from images to images of `_PIXELS`."""

    def __init__(self, type_: OperandType) -> None:
        self._type = type_
        self._is_quantized = dtype_of(type_).kind == "i"
        self._image = self._tensor(_PIXELS)

    def addition(self) -> BoundOperation:
        operands = (self._image, self._image, scalar(FusedActivationFunc.NONE))
        return BoundOperation(OperationType.ADD, operands, (self._image,))

    def convolution(self) -> BoundOperation:
        filters = self._constant((_CHANNELS, 1, 1, _CHANNELS))
        given = (self._image, filters, self._bias(), *self._strides(same=False))
        return BoundOperation(OperationType.CONV_2D, given, (self._image,))

    def depthwise_convolution(self) -> BoundOperation:
        filters = self._constant((1, _TAPS, _TAPS, _CHANNELS))
        *strides, activation = self._strides(same=True)
        given = (self._image, filters, self._bias(), *strides, scalar(1), activation)
        return BoundOperation(OperationType.DEPTHWISE_CONV_2D, given, (self._image,))

    def _tensor(self, shape: Shape, value: Array | None = None) -> BoundOperand:
        quantization = (_SCALE, _ZERO_POINT) if self._is_quantized else (0.0, 0)
        return BoundOperand(self._type, shape, *quantization, value=value)

    def _constant(self, shape: Shape) -> BoundOperand:
        random = np.random.default_rng(0)
        value: Array = random.integers(-9, 9, shape).astype(dtype_of(self._type))
        if self._is_quantized:
            return BoundOperand(self._type, shape, _SCALE, 0, value=value)
        return self._tensor(shape, value / 9)

    def _bias(self) -> BoundOperand:
        shape = (_CHANNELS,)
        if not self._is_quantized:
            return self._tensor(shape, np.zeros(shape, np.float32))
        value = np.zeros(shape, np.int32)
        return BoundOperand(
            OperandType.TENSOR_INT32, shape, _SCALE * _SCALE, 0, value=value
        )

    def _strides(self, *, same: bool) -> tuple[BoundOperand, ...]:
        """Return an implicit padding scheme, strides of one, and no activation."""
        padding = 1 if same else 2
        return tuple(map(scalar, (padding, 1, 1, FusedActivationFunc.NONE)))


def _least_ns(engine: Engine, operation: BoundOperation) -> int:
    """Return what a run of a graph of this operation alone takes."""
    given = tuple(range(len(operation.inputs)))
    varying = tuple(
        index
        for index, each in zip(given, operation.inputs, strict=True)
        if each is not None and each.value is None
    )
    step = Step(0, operation, given, (len(given),), None)
    graph = engine.compile(write_graph(Segment((step,), varying, step.outputs), []))
    try:
        return _timed(graph)
    finally:
        graph.close()


def _timed(
    graph: CompiledGraph, clock: Callable[[], int] = time.perf_counter_ns
) -> int:
    inputs, outputs = (
        [aligned_bytes(each.nbytes).view(each.dtype) for each in tensors]
        for tensors in (graph.inputs, graph.outputs)
    )
    for array in inputs:
        array.fill(1)
    taken: list[int] = []
    began_ns = clock()
    while len(taken) < _RUNS and clock() - began_ns < _MOST_NS:
        started_ns = clock()
        graph.run(inputs, outputs)
        taken.append(clock() - started_ns)
    return max(min(taken), 1)
