"""Runs graphs on the engine, under harsh conditions, and compares the outputs."""

from collections.abc import Sequence

import numpy as np

from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.workspace import aligned_bytes
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.validate import validate_model
from asyncnn.pacing import Pause
from asyncnn.tools.conformance.random_graphs.checking import evaluate, interpret
from asyncnn.tools.conformance.random_graphs.families import RandomGraph
from tests.random_graphs.judging import evaluate_and_judge

GARBAGE = 0xA5

_OFF_LINE = 8
"""Bytes between a cache line and the arrays of a request."""

_LOOP_TIMEOUT_NS = 300_000_000
"""Much more than a loop takes, and less than a search for small graphs can wait."""


def program_of(graph: RandomGraph) -> Program:
    """Validate and prepare a graph."""
    validate_model(graph.named.model)
    return Program(graph.named.model)


def launch(program: Program, inputs: Sequence[Array]) -> PlanExecution:
    """Return an execution on read-only inputs and outputs that begin as garbage.

    Each is aligned for its elements, without which NumPy multiplies matrices in
    another order than BLAS, but none begins on a cache line.
    """
    plan = program.plan(tuple(array.shape for array in inputs))
    outputs = [_garbage(port.shape, port.dtype) for port in plan.outputs]
    return PlanExecution(
        program,
        plan,
        [_read_only(array) for array in inputs],
        outputs,
        loop_timeout_ns=_LOOP_TIMEOUT_NS,
    )


def _garbage(shape: tuple[int, ...] | None, dtype: np.dtype) -> Array | None:
    if shape is None:
        return None
    size = int(np.prod(shape)) * dtype.itemsize
    memory = aligned_bytes(_OFF_LINE + size)[_OFF_LINE:]
    memory.fill(GARBAGE)
    return memory.view(dtype).reshape(shape)


def _read_only(array: Array) -> Array:
    copy = _garbage(array.shape, array.dtype)
    copy[...] = array
    copy.flags.writeable = False
    return copy


def directly(graph: RandomGraph, inputs: Sequence[Array]) -> list[Array]:
    """Return what the kernels give one after the other, with nothing planned."""
    return interpret(graph.named.model, inputs, evaluate)


def check_engine(graph: RandomGraph) -> None:
    """Compare the engine with the kernels one by one."""
    execution = launch(program_of(graph), graph.inputs)
    assert execution.advance(Spoil(execution))
    assert_same(execution.outputs, directly(graph, graph.inputs))


def check_formulas(graph: RandomGraph) -> None:
    """Compare the engine with the kernels, and each of these with its formula."""
    execution = launch(program_of(graph), graph.inputs)
    assert execution.advance()
    judged = interpret(graph.named.model, graph.inputs, evaluate_and_judge)
    assert_same(execution.outputs, judged)


def assert_same(actual: Sequence[Array], expected: Sequence[Array]) -> None:
    """Compare outputs bit for bit, NaN and signs of zero included."""
    for position, (one, other) in enumerate(zip(actual, expected, strict=True)):
        name = f"output {position}"
        assert one.dtype == other.dtype, f"{name} is {one.dtype}, not {other.dtype}"
        np.testing.assert_array_equal(one, other, name)
        assert one.tobytes() == other.tobytes(), f"{name} differs in some bits"


class Spoil(Pause):
    """Spoils, before each operation, the memory that it is going to write.

    Nothing that anyone still reads may lie there, least of all its own inputs.
    """

    interrupt = from_ns = None
    threads = 2  # for one, a plan of kernels in C is run in one go

    def __init__(self, execution: PlanExecution) -> None:
        self._execution = execution

    @property
    def requested(self) -> bool:  # type: ignore[override]
        frame = self._execution._bound_plans[-1]
        call = frame.calls[frame.position]
        if call is not None:
            for output in call[2]:
                assert output.flags.writeable, "about to write what is read-only"
                output.reshape(-1).view(np.uint8).fill(GARBAGE)
        return False
