"""Workloads of an operation or a few, for the types that have little arithmetic.

The first operand of an operation decides which figure counts for it: symmetric codes
come first in DEQUANTIZE and CAST alone, whatever they are weights of. The figure of an
IF or a WHILE comes on top of the operations' own that it runs.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from asyncnn import hal
from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import OperationType as Op
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.capabilities.network import Coding, Workload, add_inputs

_SHAPE = (1024, 1024)
_STEP = 2.0**-6

_F32, _I32, _B8 = (
    hal.OperandType.TENSOR_FLOAT32,
    hal.OperandType.TENSOR_INT32,
    hal.OperandType.TENSOR_BOOL8,
)
_FLOATS = hal.Operand(_F32, _SHAPE)

_BOXES = 256
_CLASSES = 16
_SIDE = 512.0

_PLACES = Coding(hal.OperandType.TENSOR_QUANT16_ASYMM, scale=0.125)
_DELTAS = Coding(hal.OperandType.TENSOR_QUANT8_ASYMM, 2.0**-6, 128)
_INDICES = Coding(hal.OperandType.TENSOR_INT32)

_NUMBERS = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (64, 1024))
_NUMBER = hal.Operand(hal.OperandType.TENSOR_FLOAT32, (1,))
_TRUTH = hal.Operand(hal.OperandType.TENSOR_BOOL8, (1,))

_CHOICES = 8
_FIRST_GUARD = 2.0**120
_LAST_GUARD = 1.00001
"""23 square roots lead from the first to below the last."""


_Applied: TypeAlias = tuple[hal.OperationType, Sequence[int], *tuple[hal.Operand, ...]]
"""An operation: its type, the operands that it reads, and those that it writes."""


class _GraphBody(NamedTuple):
    """A graph that an operation runs; it gives the last few results."""

    inputs: Sequence[hal.Operand]
    operations: Sequence[_Applied]
    outputs: int = 1


def integers() -> Workload:
    """Return ``(x + y) * y``, and of that the rows that other integers name."""
    rng = np.random.default_rng(2)
    x, y = rng.integers(-1000, 1000, (2, *_SHAPE), np.int32)
    rows = rng.permutation(_SHAPE[0]).astype(np.int32)
    tensor = hal.Operand(_I32, _SHAPE)
    model = _model(
        [tensor, tensor, hal.Operand(_I32, rows.shape)],
        (Op.ADD, (0, 1, 3), tensor),
        (Op.MUL, (4, 1, 3), tensor),
        (Op.EMBEDDING_LOOKUP, (2, 5), tensor),
        scalars=[hal.FusedActivationFunc.NONE],
    )

    def plain(x: Array, y: Array, rows: Array) -> tuple[Array]:
        return (((x + y) * y)[rows],)

    return Workload(ReferenceWorkload.TENSOR_INT32, model, (x, y, rows), plain)


def booleans() -> Workload:
    """Return numbers of x or y, as ``(a & b) | ~a`` chooses."""
    rng = np.random.default_rng(3)
    a, b = rng.random((2, *_SHAPE)) < 0.5
    x, y = rng.random((2, *_SHAPE), np.float32)
    tensor = hal.Operand(_B8, _SHAPE)
    model = _model(
        [tensor, tensor, _FLOATS, _FLOATS],
        (Op.LOGICAL_AND, (0, 1), tensor),
        (Op.LOGICAL_NOT, (0,), tensor),
        (Op.LOGICAL_OR, (4, 5), tensor),
        (Op.SELECT, (6, 2, 3), _FLOATS),
    )

    def plain(a: Array, b: Array, x: Array, y: Array) -> tuple[Array]:
        return (np.where((a & b) | ~a, x, y),)

    return Workload(ReferenceWorkload.TENSOR_BOOL8, model, (a, b, x, y), plain)


def symmetric() -> Workload:
    """Return DEQUANTIZE of codes with one scale."""
    tensor = hal.Operand(hal.OperandType.TENSOR_QUANT8_SYMM, _SHAPE, scale=_STEP)
    return Workload(
        ReferenceWorkload.TENSOR_QUANT8_SYMM,
        _model([tensor], (Op.DEQUANTIZE, (0,), _FLOATS)),
        (_signed_codes(np.int8),),
        lambda codes: (codes.astype(np.float32) * np.float32(_STEP),),
    )


def symmetric_per_channel() -> Workload:
    """Return DEQUANTIZE of codes with a scale for each column."""
    scales = np.linspace(_STEP, 2 * _STEP, _SHAPE[1], dtype=np.float32)
    params = hal.SymmPerChannelQuantParams(tuple(scales.tolist()), channel_dim=1)
    type_ = hal.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL
    tensor = hal.Operand(type_, _SHAPE, extra_params=params)
    return Workload(
        ReferenceWorkload.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        _model([tensor], (Op.DEQUANTIZE, (0,), _FLOATS)),
        (_signed_codes(np.int8),),
        lambda codes: (codes.astype(np.float32) * scales,),
    )


def symmetric_16_bit() -> Workload:
    """Return CAST of codes to their own type, which is a copy."""
    tensor = hal.Operand(hal.OperandType.TENSOR_QUANT16_SYMM, _SHAPE, scale=_STEP)
    return Workload(
        ReferenceWorkload.TENSOR_QUANT16_SYMM,
        _model([tensor], (Op.CAST, (0,), tensor)),
        (_signed_codes(np.int16),),
        lambda codes: (codes.copy(),),
    )


def boxes() -> Workload:
    """Return AXIS_ALIGNED_BBOX_TRANSFORM of boxes in one image, for each class."""
    rng = np.random.default_rng(4)
    corner, size = rng.uniform(16, 200, (2, _BOXES, 2))
    inputs = (
        _PLACES.write(np.concatenate((corner, corner + size), axis=1)),
        rng.integers(64, 192, (_BOXES, _CLASSES * 4), np.uint8),
        np.zeros(_BOXES, np.int32),
        _PLACES.write(np.full((1, 2), _SIDE)),
    )
    codings = (_PLACES, _DELTAS, _INDICES, _PLACES)
    operands = [
        coding.operand(array.shape)
        for coding, array in zip(codings, inputs, strict=True)
    ]
    moved = _PLACES.operand((_BOXES, _CLASSES * 4))
    model = _model(operands, (Op.AXIS_ALIGNED_BBOX_TRANSFORM, range(4), moved))
    return Workload(ReferenceWorkload.TENSOR_QUANT16_ASYMM, model, inputs, _moved)


def choices() -> Workload:
    """Return numbers whose signs eight IF after one another change or take away."""
    truths = tuple(np.array([number % 2 == 0]) for number in range(_CHOICES))
    branches = [
        _GraphBody([_NUMBERS], [(type_, (0,), _NUMBERS)]) for type_ in (Op.NEG, Op.ABS)
    ]
    # Inputs are the truths and the numbers; the two branches follow, then results.
    then, else_, result = range(_CHOICES + 1, _CHOICES + 4)
    read = [_CHOICES, *range(result, result + _CHOICES)]
    model = _model(
        [*[_TRUTH] * _CHOICES, _NUMBERS],
        *((Op.IF, (i, then, else_, read[i]), _NUMBERS) for i in range(_CHOICES)),
        bodies=branches,
    )
    return Workload(ReferenceWorkload.IF, model, (*truths, _some_numbers()), _chosen)


def loop() -> Workload:
    """Return what a WHILE leaves that takes square roots as long as they are large."""
    state = [_NUMBER, _NUMBERS, _NUMBER]
    condition = _GraphBody(state, [(Op.GREATER, (0, 2), _TRUTH)])
    steps = [(Op.SQRT, (0,), _NUMBER), (Op.NEG, (1,), _NUMBERS)]
    body = _GraphBody(state, steps, outputs=2)
    model = _model(
        state,
        (Op.WHILE, (3, 4, 0, 1, 2), _NUMBER, _NUMBERS),
        bodies=[condition, body],
        outputs=2,
    )
    guards = (np.array([guard], np.float32) for guard in (_FIRST_GUARD, _LAST_GUARD))
    first, last = guards
    return Workload(
        ReferenceWorkload.WHILE, model, (first, _some_numbers(), last), _repeated
    )


def _signed_codes(dtype: type[np.signedinteger]) -> Array:
    return np.random.default_rng(5).integers(-100, 101, _SHAPE, dtype)


def _moved(boxes: Array, deltas: Array, images: Array, sizes: Array) -> tuple[Array]:
    corners = _PLACES.read(boxes).reshape(_BOXES, 1, 2, 2)
    shifts, growths = np.split(
        _DELTAS.read(deltas).reshape(_BOXES, _CLASSES, 4), 2, axis=-1
    )
    size = corners[:, :, 1] - corners[:, :, 0]
    center = corners.mean(axis=2) + shifts * size
    half = size * np.exp(growths) / 2
    most = _PLACES.read(sizes)[images, np.newaxis, ::-1]
    ends = [np.clip(end, 0, most) for end in (center - half, center + half)]
    return (_PLACES.write(np.concatenate(ends, axis=-1).reshape(_BOXES, -1)),)


def _chosen(*inputs: Array) -> tuple[Array]:
    *truths, numbers = inputs
    for truth in truths:
        numbers = -numbers if truth[0] else abs(numbers)
    return (numbers,)


def _repeated(guard: Array, numbers: Array, last: Array) -> tuple[Array, Array]:
    while guard[0] > last[0]:
        guard, numbers = np.sqrt(guard), -numbers
    return guard, numbers


def _some_numbers() -> Array:
    rng = np.random.default_rng(6)
    return rng.normal(0, 1, _NUMBERS.dimensions).astype(np.float32)


def _model(
    inputs: Sequence[hal.Operand],
    *operations: _Applied,
    scalars: Sequence[int] = (),
    bodies: Sequence[_GraphBody] = (),
    outputs: int = 1,
) -> NamedModel:
    """Return a model that gives the last few results of its operations.

    Operands are numbered: inputs, scalars, one for each of ``bodies``, which operations
    run, and what the operations write.
    """
    builder = ModelBuilder()
    add_inputs(builder, *inputs)
    for scalar in scalars:
        builder.scalar(scalar)
    for each in bodies:
        body = builder.body()
        add_inputs(body, *each.inputs)
        _add(body, each.operations, each.outputs)
        builder.subgraph(body)
    _add(builder, operations, outputs)
    return builder.build()


def _add(graph: GraphBuilder, operations: Sequence[_Applied], outputs: int) -> None:
    written: list[int] = []
    for type_, reads, *results in operations:
        written += graph.operation(type_, reads, results)
    for number, index in enumerate(written[-outputs:]):
        graph.output(index, f"output_{number}")
