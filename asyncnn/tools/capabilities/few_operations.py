"""Workloads of an operation or a few, for the types that have little arithmetic.

The first operand of an operation decides which figure counts for it: symmetric codes
come first in DEQUANTIZE and CAST alone, whatever they are weights of. The figure of an
IF or a WHILE comes on top of those of the operations that it runs.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.devices.measured_capabilities import ReferenceWorkload
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.tools.capabilities.workload import Coding, Workload, add_inputs

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


def integers() -> Workload:
    """Return ``(x + y) * y``, and of that the rows that other integers name."""
    rng = np.random.default_rng(2)
    x, y = rng.integers(-1000, 1000, (2, *_SHAPE), np.int32)
    rows = rng.permutation(_SHAPE[0]).astype(np.int32)
    tensor = hal.Operand(_I32, _SHAPE)
    builder = ModelBuilder()
    first, second, which = add_inputs(
        builder, tensor, tensor, hal.Operand(_I32, rows.shape)
    )
    none = builder.scalar(hal.FusedActivationFunc.NONE)
    value = builder.operation(hal.OperationType.ADD, (first, second, none), tensor)
    value = builder.operation(hal.OperationType.MUL, (value, second, none), tensor)
    value = builder.operation(
        hal.OperationType.EMBEDDING_LOOKUP, (which, value), tensor
    )
    builder.output(value, "picked")

    def plain(x: Array, y: Array, rows: Array) -> tuple[Array]:
        return (((x + y) * y)[rows],)

    return Workload(
        ReferenceWorkload.TENSOR_INT32, builder.build(), (x, y, rows), plain
    )


def booleans() -> Workload:
    """Return numbers of x or y, as ``(a & b) | ~a`` chooses."""
    rng = np.random.default_rng(3)
    a, b = rng.random((2, *_SHAPE)) < 0.5
    x, y = rng.random((2, *_SHAPE), np.float32)
    tensor = hal.Operand(_B8, _SHAPE)
    builder = ModelBuilder()
    first, second, one, other = add_inputs(builder, tensor, tensor, _FLOATS, _FLOATS)
    both = builder.operation(hal.OperationType.LOGICAL_AND, (first, second), tensor)
    none = builder.operation(hal.OperationType.LOGICAL_NOT, (first,), tensor)
    which = builder.operation(hal.OperationType.LOGICAL_OR, (both, none), tensor)
    chosen = builder.operation(hal.OperationType.SELECT, (which, one, other), _FLOATS)
    builder.output(chosen, "chosen")

    def plain(a: Array, b: Array, x: Array, y: Array) -> tuple[Array]:
        return (np.where((a & b) | ~a, x, y),)

    return Workload(
        ReferenceWorkload.TENSOR_BOOL8, builder.build(), (a, b, x, y), plain
    )


def symmetric() -> Workload:
    """Return DEQUANTIZE of codes with one scale."""
    return _one_operation(
        ReferenceWorkload.TENSOR_QUANT8_SYMM,
        hal.OperationType.DEQUANTIZE,
        hal.Operand(hal.OperandType.TENSOR_QUANT8_SYMM, _SHAPE, scale=_STEP),
        _signed_codes(np.int8),
        _FLOATS,
        lambda codes: (codes.astype(np.float32) * np.float32(_STEP),),
    )


def symmetric_per_channel() -> Workload:
    """Return DEQUANTIZE of codes with a scale for each column."""
    scales = np.linspace(_STEP, 2 * _STEP, _SHAPE[1], dtype=np.float32)
    params = hal.SymmPerChannelQuantParams(tuple(scales.tolist()), channel_dim=1)
    return _one_operation(
        ReferenceWorkload.TENSOR_QUANT8_SYMM_PER_CHANNEL,
        hal.OperationType.DEQUANTIZE,
        hal.Operand(
            hal.OperandType.TENSOR_QUANT8_SYMM_PER_CHANNEL, _SHAPE, extra_params=params
        ),
        _signed_codes(np.int8),
        _FLOATS,
        lambda codes: (codes.astype(np.float32) * scales,),
    )


def symmetric_16_bit() -> Workload:
    """Return CAST of codes to their own type, which is a copy."""
    tensor = hal.Operand(hal.OperandType.TENSOR_QUANT16_SYMM, _SHAPE, scale=_STEP)
    return _one_operation(
        ReferenceWorkload.TENSOR_QUANT16_SYMM,
        hal.OperationType.CAST,
        tensor,
        _signed_codes(np.int16),
        tensor,
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
    builder = ModelBuilder()
    moved = builder.operation(
        hal.OperationType.AXIS_ALIGNED_BBOX_TRANSFORM,
        add_inputs(builder, *operands),
        _PLACES.operand((_BOXES, _CLASSES * 4)),
    )
    builder.output(moved, "moved")
    return Workload(
        ReferenceWorkload.TENSOR_QUANT16_ASYMM, builder.build(), inputs, _moved
    )


def choices() -> Workload:
    """Return numbers whose signs eight IF after one another change or take away."""
    truths = tuple(np.array([number % 2 == 0]) for number in range(_CHOICES))
    first = 2 + _CHOICES
    main = _main(
        (*_references(2), *[_TRUTH] * _CHOICES, *[_NUMBERS] * (_CHOICES + 1)),
        [
            hal.Operation(
                hal.OperationType.IF, (2 + i, 0, 1, first + i), (first + i + 1,)
            )
            for i in range(_CHOICES)
        ],
        inputs=range(2, first + 1),
        outputs=(first + _CHOICES,),
    )
    branches = tuple(
        _subgraph([_NUMBERS], [(operation, (0,), _NUMBERS)])
        for operation in (hal.OperationType.NEG, hal.OperationType.ABS)
    )
    return Workload(
        ReferenceWorkload.IF,
        _named(hal.Model(main, branches)),
        (*truths, _some_numbers()),
        _chosen,
    )


def loop() -> Workload:
    """Return what a WHILE leaves that takes square roots as long as they are large."""
    main = _main(
        (*_references(2), _NUMBER, _NUMBERS, _NUMBER, _NUMBER, _NUMBERS),
        [hal.Operation(hal.OperationType.WHILE, (0, 1, 2, 3, 4), (5, 6))],
        inputs=(2, 3, 4),
        outputs=(5, 6),
    )
    state = [_NUMBER, _NUMBERS, _NUMBER]
    condition = _subgraph(state, [(hal.OperationType.GREATER, (0, 2), _TRUTH)])
    body = _subgraph(
        state,
        [
            (hal.OperationType.SQRT, (0,), _NUMBER),
            (hal.OperationType.NEG, (1,), _NUMBERS),
        ],
    )
    first, last = (
        np.array([guard], np.float32) for guard in (_FIRST_GUARD, _LAST_GUARD)
    )
    return Workload(
        ReferenceWorkload.WHILE,
        _named(hal.Model(main, (condition, body))),
        (first, _some_numbers(), last),
        _repeated,
    )


def _signed_codes(dtype: type[np.signedinteger]) -> Array:
    return np.random.default_rng(5).integers(-100, 101, _SHAPE, dtype)


def _one_operation(
    name: ReferenceWorkload,
    operation: hal.OperationType,
    operand: hal.Operand,
    codes: Array,
    result: hal.Operand,
    plain: Callable[[Array], tuple[Array]],
) -> Workload:
    builder = ModelBuilder()
    output = builder.operation(operation, add_inputs(builder, operand), result)
    builder.output(output, "result")
    return Workload(name, builder.build(), (codes,), plain)


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


def _references(count: int) -> list[hal.Operand]:
    return [
        hal.Operand(
            hal.OperandType.SUBGRAPH,
            lifetime=hal.OperandLifeTime.SUBGRAPH,
            location=hal.DataLocation(0, number, 0),
        )
        for number in range(count)
    ]


def _subgraph(
    inputs: Sequence[hal.Operand],
    operations: Sequence[tuple[hal.OperationType, Sequence[int], hal.Operand]],
) -> hal.Subgraph:
    """Build a graph each of whose operations gives one of its outputs."""
    builder = ModelBuilder()
    add_inputs(builder, *inputs)
    for number, (type_, reads, result) in enumerate(operations):
        output = builder.operation(type_, reads, result)
        builder.output(output, f"output_{number}")
    return builder.build().model.main


def _main(
    operands: Sequence[hal.Operand],
    operations: Sequence[hal.Operation],
    inputs: Sequence[int],
    outputs: Sequence[int],
) -> hal.Subgraph:
    consumers = Counter(i for operation in operations for i in operation.inputs)
    lifetimes = dict.fromkeys(inputs, hal.OperandLifeTime.SUBGRAPH_INPUT)
    lifetimes |= dict.fromkeys(outputs, hal.OperandLifeTime.SUBGRAPH_OUTPUT)
    return hal.Subgraph(
        tuple(
            replace(
                operand,
                number_of_consumers=consumers[index],
                lifetime=lifetimes.get(index, operand.lifetime),
            )
            for index, operand in enumerate(operands)
        ),
        tuple(operations),
        tuple(inputs),
        tuple(outputs),
    )


def _named(model: hal.Model) -> NamedModel:
    main = model.main
    return NamedModel.of(
        model,
        [f"input_{number}" for number in range(len(main.input_indexes))],
        [f"output_{number}" for number in range(len(main.output_indexes))],
    )
