"""The buffers of one execution at a time, and a plan that is bound to run in them.

A `Workspace` has the arena, scratch memory and kernel instances of a plan. They are
allocated at the first execution rather than at preparation, and kept for the next. A
`BoundPlan` is a plan under way: the arrays of its operands, its calls, the next step.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike

from asyncnn.engine.arena import align
from asyncnn.engine.delegation import Step
from asyncnn.engine.job import IJob, Job, JobSegment, KernelSegment, Placed
from asyncnn.engine.plan import OPERANDS_PER_STEP, Plan
from asyncnn.hal.errors import all_memory_bytes, check_memory
from asyncnn.hal.operands import dtype_of
from asyncnn.hal.operations.bound import Array, Shape
from asyncnn.kernels.kernel import EngineKernel, InterruptibleRun, NativeKernel, Run
from asyncnn.memory.pages import TAIL_BYTES, aligned_bytes
from asyncnn.pacing import Steps

Call: TypeAlias = tuple[Callable[[Any, Any], Any], list[Any], list[Any]]
"""A kernel's run with its input and output arrays."""

Slots: TypeAlias = list[Array | None]
"""Arrays by operand index, None where an operand is omitted or not computed yet."""


def aligned_like(array: Array) -> Array:
    """Return uninitialised memory of the same kind, which any engine can work on."""
    memory = aligned_bytes(array.nbytes + TAIL_BYTES)
    return array_at(memory, 0, array.shape, array.dtype)


class MeasuringScratch:
    """Hands out untouched memory and adds up what kernels ask for, one by one.

    With ``held_bytes`` that may be what `check_memory` allows.
    """

    def __init__(self, held_bytes: int = 0, most_bytes: int | None = None) -> None:
        self._held_bytes = held_bytes
        self._most_bytes = most_bytes
        self._limit = all_memory_bytes(most_bytes)
        self._used_bytes = 0
        self.transient_bytes = self.persistent_bytes = 0

    def begin_kernel(self) -> None:
        """Have the next kernel ask for its memory; transient bytes all share."""
        self._used_bytes = 0

    def transient(self, shape: Shape, dtype: DTypeLike) -> Array:
        """Return memory whose contents last for one run."""
        self._used_bytes += align(math.prod(shape) * np.dtype(dtype).itemsize)
        self.transient_bytes = max(self.transient_bytes, self._used_bytes)
        return self._allowed(shape, dtype)

    def persistent(self, shape: Shape, dtype: DTypeLike, fill: float = 0) -> Array:
        """Return memory of this kernel alone, without filling it."""
        self.persistent_bytes += math.prod(shape) * np.dtype(dtype).itemsize
        return self._allowed(shape, dtype)

    def _allowed(self, shape: Shape, dtype: DTypeLike) -> Array:
        needed = self._held_bytes + self.transient_bytes + self.persistent_bytes
        if needed > self._limit:
            check_memory(needed, self._most_bytes)
        return np.empty(shape, dtype)


class _SharedScratch:
    """Gives each kernel in turn the same transient bytes from their start."""

    def __init__(self, memory: Array) -> None:
        self._memory = memory
        self._used = 0

    def begin_kernel(self) -> None:
        self._used = 0

    def transient(self, shape: Shape, dtype: DTypeLike) -> Array:
        array = array_at(self._memory, self._used, shape, np.dtype(dtype))
        self._used += align(array.nbytes)
        return array

    def persistent(self, shape: Shape, dtype: DTypeLike, fill: float = 0) -> Array:
        return np.full(shape, fill, dtype)


def array_at(memory: Array, offset: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """Return the array of this shape and dtype at ``offset`` of byte ``memory``."""
    size = math.prod(shape) * dtype.itemsize
    return memory[offset : offset + size].view(dtype).reshape(shape)


class Workspace:
    """Buffers bound to the steps of a plan. Serves one execution at a time.

    ``slots`` holds the array of every operand that stays in place, by operand index:
    constants and temporaries of known shape. A straight plan has ``own_calls``, which
    `bind` sets to arrays, and a ``job`` if an engine in C computes all of it.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.slots: list[Array | None] = [None] * len(plan.shapes)
        self.size_bytes = 0
        self._fixed_calls: list[Call | None] = []
        self._moving_calls: list[tuple[int, Run, Step]] = []
        self.own_calls: list[Call | None] = []
        self._ports: list[tuple[list[Any], int, int]] = []
        self.job: IJob | None = None
        self.is_bound = False

    @classmethod
    def making(cls, plan: Plan, most_bytes: int | None = None) -> Steps["Workspace"]:
        """Allocate a workspace of ``plan``, in steps.

        :raises ResourceExhaustedPersistentError: if it takes more memory than
            `check_memory` allows.
        """
        made = cls(plan)
        yield from made._allocating(most_bytes)
        return made

    def _allocating(self, most_bytes: int | None) -> Steps[None]:
        plan = self.plan
        size_bytes = plan.arena.size_bytes
        check_memory(size_bytes, most_bytes)
        arena = aligned_bytes(size_bytes + TAIL_BYTES)[:size_bytes]
        for index, value in plan.constants.items():
            self.slots[index] = value
        for count, (index, offset) in enumerate(plan.arena.offsets.items(), 1):
            dtype = dtype_of(plan.subgraph.operands[index].type)
            self.slots[index] = array_at(arena, offset, plan.shapes[index] or (), dtype)
            if not count % OPERANDS_PER_STEP:
                yield
        runs, scratch_bytes = yield from self._instantiating(most_bytes)
        self.size_bytes = arena.nbytes + scratch_bytes
        ports = {port.index for port in plan.inputs + plan.outputs}
        for position, (step, run) in enumerate(zip(plan.steps, runs, strict=True)):
            self._fixed_calls.append(None)
            if run is None:
                continue
            if ports.isdisjoint(step.inputs + step.outputs):
                self._fixed_calls[position] = _call(run, step, self.slots)
            else:
                self._moving_calls.append((position, run, step))
            if not (position + 1) % OPERANDS_PER_STEP:
                yield
        if plan.is_straight:
            self.own_calls = self.calls(self.slots)
            self._ports = _ports_of(plan, self._moving_calls, self.own_calls)
            self.job = yield from self._making_job(runs)

    def _making_job(self, runs: Sequence[Run | None]) -> Steps[IJob | None]:
        """Make the job of a straight plan, if it can be one, in steps.

        Engines may have to make their parts for it, which takes long.
        """
        are_native = all(
            type(run) is InterruptibleRun or type(step.kernel) is NativeKernel
            for step, run in zip(self.plan.steps, runs, strict=True)
        )
        if Job is None or not runs or not are_native:
            return None
        numbers = _numbers_of(self.plan)
        segments: list[Placed] = []
        for step, run in zip(self.plan.steps, runs, strict=True):
            reads: Sequence[int] = step.inputs
            segment: object
            kernel = step.kernel
            if (
                isinstance(kernel, NativeKernel | EngineKernel)
                and kernel.reads is not None
            ):
                reads = [step.inputs[place] for place in kernel.reads]
            if isinstance(kernel, NativeKernel):
                if not (len(segments) + 1) % OPERANDS_PER_STEP:
                    yield
                segment = KernelSegment(kernel)
            else:
                assert isinstance(run, InterruptibleRun)
                if segments:
                    yield
                segment = run.segment()
            if not isinstance(segment, JobSegment):
                return None
            inputs, outputs = (
                tuple(_argument(index, numbers, self.slots) for index in indexes)
                for indexes in (reads, step.outputs)
            )
            segments.append((segment, inputs, outputs))
        return Job(tuple(segments), len(self.plan.ports))

    def bind(self, arrays: Sequence[Array | None]) -> None:
        """Set the ports of a straight plan to arrays, inputs first, until `unbind`."""
        self.is_bound = True
        for arguments, position, port in self._ports:
            arguments[position] = arrays[port]

    def unbind(self) -> None:
        """Let go of the arrays of the last `bind`."""
        self.is_bound = False
        for arguments, position, _ in self._ports:
            arguments[position] = None

    def _instantiating(
        self, most_bytes: int | None
    ) -> Steps[tuple[list[Run | None], int]]:
        """Make every prepared kernel's run, all sharing one transient block."""
        prepared = [step.kernel for step in self.plan.steps]
        measuring = MeasuringScratch(self.plan.arena.size_bytes, most_bytes)
        for count, kernel in enumerate(prepared, 1):
            if kernel is not None:
                measuring.begin_kernel()
                kernel(measuring)
            if not count % OPERANDS_PER_STEP:
                yield
        scratch = _SharedScratch(aligned_bytes(measuring.transient_bytes))
        runs: list[Run | None] = []
        for count, kernel in enumerate(prepared, 1):
            scratch.begin_kernel()
            runs.append(None if kernel is None else kernel(scratch))
            if not count % OPERANDS_PER_STEP:
                yield
        return runs, measuring.transient_bytes + measuring.persistent_bytes

    def pieces(self) -> list[list[object]]:
        """Return lists of all of its small parts; see `Program.pieces`."""
        return [
            list(self.slots),
            list(self._fixed_calls),
            list(self._moving_calls),
            list(self.own_calls),
            list(self._ports),
        ]

    def calls(self, slots: list[Array | None]) -> list[Call | None]:
        """Bind the steps to ``slots``, a copy of `slots` with inputs and outputs set.

        None marks a step that is prepared when its turn comes.
        """
        calls = self._fixed_calls.copy()
        for position, run, step in self._moving_calls:
            calls[position] = _call(run, step, slots)
        return calls


def _call(run: Run, step: Step, slots: list[Array | None]) -> Call:
    return (
        run,
        [slots[index] for index in step.inputs],
        [slots[index] for index in step.outputs],
    )


def _ports_of(
    plan: Plan, moving: Sequence[tuple[int, Run, Step]], calls: Sequence[Call | None]
) -> list[tuple[list[Any], int, int]]:
    """Return where steps take a port: the list, the place there, the port's number."""
    numbers = _numbers_of(plan)
    places: list[tuple[list[Any], int, int]] = []
    for position, _, step in moving:
        call = calls[position]
        assert call is not None
        for arguments, indexes in (call[1], step.inputs), (call[2], step.outputs):
            places += [
                (arguments, place, numbers[index])
                for place, index in enumerate(indexes)
                if index in numbers
            ]
    return places


def _argument(
    index: int, numbers: Mapping[int, int], slots: Sequence[Array | None]
) -> int | Array:
    """Return where a job finds an operand: a port, or memory of the workspace."""
    if index in numbers:
        return numbers[index]
    memory = slots[index]
    assert memory is not None
    return memory


def _numbers_of(plan: Plan) -> dict[int, int]:
    """Return the numbers of ports by their operands."""
    # An operand that is an input and an output is written to: the output counts.
    return {port.index: n for n, port in enumerate(plan.ports)}


def outputs_for(plan: Plan, given: Sequence[Array | None]) -> list[Any]:
    """Return arrays for outputs: those that have the shape of their port, or new ones.

    None stands for one whose shape is open.
    """
    arrays: list[Any] = list(given)
    for number, port in enumerate(plan.outputs):
        array = arrays[number]
        if port.shape is not None and (array is None or array.shape != port.shape):
            arrays[number] = np.empty(port.shape, port.dtype)
    return arrays


class BoundPlan:
    """Binds a workspace to arrays for the inputs and outputs of its plan.

    An input of None is omitted; for outputs see `outputs_for`. Steps of a straight plan
    are called on the workspace's own lists.
    """

    __slots__ = ("_held_bytes", "calls", "plan", "position", "slots", "workspace")

    def __init__(
        self,
        workspace: Workspace,
        inputs: Sequence[Array | None],
        outputs: Sequence[Array | None],
    ) -> None:
        self.workspace = workspace
        self.plan: Plan = workspace.plan
        self.position, self._held_bytes = 0, workspace.size_bytes
        arrays = [*inputs, *outputs_for(self.plan, outputs)]
        self.slots: Slots = workspace.slots.copy()
        for port, array in zip(self.plan.ports, arrays, strict=True):
            self.slots[port.index] = array
        if self.plan.is_straight:
            workspace.bind(arrays)
        self.calls: list[Call | None] = (
            workspace.own_calls
            if self.plan.is_straight
            else workspace.calls(self.slots)
        )

    def grow(self, most_bytes: int | None, size: int) -> None:
        """Count what a step takes whose shapes only the run shows.

        :raises ResourceExhaustedPersistentError: as `check_memory`.
        """
        self._held_bytes += size
        check_memory(self._held_bytes, most_bytes)

    def outputs(self) -> list[Array]:
        """Return the arrays of the subgraph's outputs, all computed."""
        arrays = []
        for port in self.plan.outputs:
            array = self.slots[port.index]
            if array is not None:
                arrays.append(array)
        return arrays


def shapes_of(arrays: Sequence[Array | None]) -> tuple[Shape | None, ...]:
    """Return the shape of each array, None for None."""
    return tuple(None if array is None else array.shape for array in arrays)
