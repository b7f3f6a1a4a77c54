"""How the time of a segment spreads over its operations.

An engine computes a segment at once, and nothing shows how far it has come. So each
operation is made a graph of its own, and these run in their order on what the segment
was given, so that each finds its input where it would: in a cache, if at all. What the
call of an engine takes is measured by a graph of next to nothing, and taken off.

That shares the segment's own time out; it is not that time: an engine may do together
what is done one by one here.
"""

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from asyncnn.devices.compiled_graph import CompiledGraph
from asyncnn.devices.litert.engine import Engine, load_engine
from asyncnn.devices.litert.writer import write_file
from asyncnn.engine.delegation import Segment, Step
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array, BoundOperand, BoundOperation
from asyncnn.hal.types import OperandType, OperationType
from asyncnn.kernels.kernel import Inputs, Outputs
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
