"""What is known of an operation beside its time, and how a segment's spreads.

An engine computes a segment at once, and nothing shows how far it has come. So each
operation is made a graph of its own, and these run in their order on what the segment
was given, so that each finds its input where it would: in a cache, if at all. What the
call of an engine takes is measured by a graph of next to nothing, and taken off.

That shares the segment's own time out; it is not that time: an engine may do together
what is done one by one here.
"""

import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.litert.engine import Engine, load_engine
from asyncnn.devices.litert.writer import write_file
from asyncnn.engine.delegation import Segment, Step
from asyncnn.engine.plan import Plan
from asyncnn.engine.workspace import MeasuringScratch
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operands import QUANT8_TYPES
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation, Shape
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.kernels import registry
from asyncnn.kernels.kernel import Inputs, Outputs
from asyncnn.kernels.numerics import same_quantization
from asyncnn.memory.pages import TAIL_BYTES, aligned_bytes

LEAST_NS = 20.0
"""What any operation is taken to cost: as little as differs from a call."""

_CALLS = 200
_LONGEST_S = 1.0
"""Seconds after which a round of all parts is the last."""


class Parts:
    """The operations of a segment, with a time for each in nanoseconds.

    They are ``measured``, or else estimated, as where a part is refused by itself.
    """

    def __init__(self, times_ns: Sequence[float], *, measured: bool) -> None:
        self.times_ns = tuple(times_ns)
        self.measured = measured
        self.total_ns = sum(times_ns)

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of each operation; they add up to 1."""
        return tuple(time / self.total_ns for time in self.times_ns)


def engine_name() -> str:
    """Return name and version of the engine; empty if there is none."""
    try:
        engine = load_engine()
    except AsyncnnError:
        return ""
    return f"LiteRT {engine.version}"


def measured_parts(step: Step, arrays: Mapping[int, Array], rounds: int) -> Parts:
    """Return the times of the parts of ``step``; takes a while.

    :param arrays: what the segment was given, by operand.
    :param rounds: of which the medians are taken.
    """
    try:
        times_ns = _measured_ns(load_engine(), step, dict(arrays), rounds)
    except AsyncnnError:
        costs_ns = [float(part.cost_ns) for part in step.parts]
        return Parts(costs_ns, measured=False)
    return Parts(times_ns, measured=True)


def _measured_ns(
    engine: Engine, step: Step, arrays: dict[int, Array], rounds: int
) -> list[float]:
    needed = {index for part in step.parts for index in part.inputs}
    needed.update(step.outputs)
    calls: list[tuple[CompiledGraph, Inputs, Outputs]] = []
    for part in step.parts:
        read = dict.fromkeys(
            index
            for index, operand in zip(part.inputs, part.operation.inputs, strict=True)
            if operand is not None and operand.value is None
        )
        written = tuple(index for index in part.outputs if index in needed)
        for index, operand in zip(part.outputs, part.operation.outputs, strict=True):
            arrays[index] = _empty(operand)
        graph = engine.compile(write_file(Segment((part,), tuple(read), written)))
        given = [arrays[index] for index in read]
        calls.append((graph, given, [arrays[index] for index in written]))
    times: list[list[int]] = [[] for _ in calls]
    due_ns = time.perf_counter_ns() + int(_LONGEST_S * 1e9)
    for _ in range(rounds + 1):
        for taken, (graph, inputs, outputs) in zip(times, calls, strict=True):
            taken.append(_time_ns(graph, inputs, outputs))
        if time.perf_counter_ns() > due_ns:
            break
    call_ns = _call_ns(engine, 1)
    array_ns = max(_call_ns(engine, 2) - call_ns, 0.0)
    own: list[float] = []
    for taken, (_, inputs, outputs) in zip(times, calls, strict=True):
        # The first round does what an engine puts off until then.
        median_ns = statistics.median(taken[1:] or taken)
        arrays_ns = (len(inputs) + len(outputs) - 2) * array_ns
        own.append(max(median_ns - call_ns - arrays_ns, LEAST_NS))
    return own


def _time_ns(graph: CompiledGraph, inputs: Inputs, outputs: Outputs) -> int:
    started_ns = time.perf_counter_ns()
    graph.run(inputs, outputs)
    return time.perf_counter_ns() - started_ns


def _call_ns(engine: Engine, count: int) -> float:
    """Return what a call takes that computes next to nothing of ``count`` inputs."""
    one = BoundOperand(OperandType.TENSOR_FLOAT32, (1,))
    type_ = OperationType.ABS if count == 1 else OperationType.MAXIMUM
    operation = BoundOperation(type_, (one,) * count, (one,), False, {})
    read = tuple(range(1, count + 1))
    step = Step(0, operation, read, (0,), None)
    graph = engine.compile(write_file(Segment((step,), read, (0,))))
    inputs, outputs = [_empty(one) for _ in read], [_empty(one)]
    return statistics.median(_time_ns(graph, inputs, outputs) for _ in range(_CALLS))


def _empty(operand: BoundOperand) -> Array:
    shape = operand.require_shape()
    size = int(np.prod(shape, dtype=np.int64)) * operand.dtype.itemsize
    # Engines read a little beyond an end, and copy what lies too close to that.
    raw = aligned_bytes(size + TAIL_BYTES)[:size]
    return raw.view(operand.dtype).reshape(shape)


_CODES = QUANT8_TYPES | {
    OperandType.TENSOR_QUANT16_ASYMM,
    OperandType.TENSOR_QUANT16_SYMM,
    OperandType.TENSOR_QUANT8_SYMM,
}
_HALVES = frozenset({OperandType.TENSOR_FLOAT16, OperandType.FLOAT16})

_TWICE = frozenset(
    {
        *(OperationType.CONV_2D, OperationType.DEPTHWISE_CONV_2D),
        *(OperationType.GROUPED_CONV_2D, OperationType.TRANSPOSE_CONV_2D),
        *(OperationType.BATCH_MATMUL, OperationType.ROI_ALIGN),
        *(OperationType.ADD, OperationType.SUB, OperationType.MUL),
        OperationType.PRELU,
    }
)
"""Sums and products of codes that kernels round as fixed-point hardware does."""

_RECURRENT = frozenset(
    {OperationType.QUANTIZED_LSTM, OperationType.QUANTIZED_16BIT_LSTM}
)

_MOVING_FAMILIES = ("joining", "reshaping")
_MOVING = frozenset(
    {
        *(OperationType.MAX_POOL_2D, OperationType.TOPK_V2, OperationType.SELECT),
        *(OperationType.REDUCE_MAX, OperationType.REDUCE_MIN),
        *(OperationType.MAXIMUM, OperationType.MINIMUM),
        *(OperationType.EMBEDDING_LOOKUP, OperationType.HASHTABLE_LOOKUP),
        OperationType.RESIZE_NEAREST_NEIGHBOR,
    }
)
"""What only moves codes, unless the results are quantised in another way."""


class Facts(msgspec.Struct, frozen=True):
    """Bytes that an operation moves, and the shapes of its outputs."""

    input_bytes: int
    output_bytes: int
    weight_bytes: int
    shapes: tuple[Shape | None, ...]


def facts_of_part(part: Step) -> Facts:
    """Return the facts of an operation whose shapes are all known."""
    reads = [each for each in part.operation.inputs if each is not None]
    writes = part.operation.outputs
    return Facts(
        sum(_bytes(each) for each in reads if each.value is None),
        sum(map(_bytes, writes)),
        sum(_bytes(each) for each in reads if each.value is not None),
        tuple(each.shape for each in writes),
    )


def facts_of_run(
    plan: Plan,
    step: Step,
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
) -> Facts:
    """Return the facts of a step by the arrays that it has worked on."""
    constants = plan.constants.keys()
    read = dict(zip(step.inputs, inputs, strict=True))
    weights = [array for index, array in read.items() if index in constants]
    others = [array for index, array in read.items() if index not in constants]
    return Facts(
        _total(others),
        _total(outputs),
        _total(weights),
        tuple(None if array is None else array.shape for array in outputs),
    )


def _bytes(operand: BoundOperand) -> int:
    return math.prod(operand.shape or ()) * operand.dtype.itemsize


def _total(arrays: Iterable[Array | None]) -> int:
    return sum(array.nbytes for array in arrays if array is not None)


def temporary_bytes(plan: Plan, part: Step) -> int:
    """Return the bytes of its results in the arena, and of its kernel's scratch."""
    outputs = zip(part.outputs, part.operation.outputs, strict=True)
    own = sum(_bytes(made) for index, made in outputs if index in plan.arena.offsets)
    if part.kernel is None:
        return own
    scratch = MeasuringScratch()
    part.kernel(scratch)
    return own + scratch.transient_bytes + scratch.persistent_bytes


def rounding_of(operation: BoundOperation, *, by_engine: bool) -> str:
    """Say how results are rounded to codes or float16, or what they are otherwise.

    Source: the kernels' own words, and docs/accelerated.md for LiteRT.
    """
    output = operation.outputs[0]
    type_ = output.type
    if type_ in _HALVES:
        return "at segment's end" if by_engine else "once, to even"
    if type_ not in _CODES:
        return "exact" if output.dtype.kind in "iub" else output.dtype.name
    read = [
        each for each in operation.inputs if each is not None and each.type in _CODES
    ]
    family = registry.family_of(operation.type)
    is_moving = operation.type in _MOVING or family in _MOVING_FAMILIES
    if is_moving and all(same_quantization(each, output) for each in read):
        return "none"
    if by_engine:
        return "once, to even"
    if operation.type in _RECURRENT:
        return "each step"
    return "twice" if operation.type in _TWICE else "once, away"


def kernel_of(step: Step) -> str:
    """Return the name of the kernel of a step that no other engine computes."""
    name = registry.family_of(step.operation.type)
    return f"{name}, anew" if step.kernel is None and name else name
