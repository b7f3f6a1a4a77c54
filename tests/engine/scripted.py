"""Graphs of an engine in C that waits, fails and computes as a test says."""

import ctypes
import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pytest

from asyncnn.devices.compiled_graph import CompiledGraph, CompiledTensor
from asyncnn.engine import Program
from asyncnn.engine.delegation import DelegatedKernel, KernelRecord, Segment, Step
from asyncnn.engine.job import (
    FLAG_BYTES,
    MUST_END,
    Bound,
    JobSegment,
    PythonSegment,
    StopCalls,
    TensorCalls,
)
from asyncnn.engine.plan_execution import PlanExecution
from asyncnn.engine.workspace import aligned_bytes
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import Array, BoundOperation
from asyncnn.hal.types import Operand, OperationType
from asyncnn.kernels.kernel import InterruptibleRun, Scratch
from asyncnn.pacing import Pause
from asyncnn.runtime.builder import ModelBuilder
from tests.networks import F32

SOURCE = Path(__file__).with_name("scripted_engine.c")

INTERRUPTED = 100
"""The status of a run that has seen its flag."""


class PauseAfter(Pause):
    """Asks for a pause after some boundaries."""

    def __init__(self, boundaries: int, threads: int = 1) -> None:
        self.threads = threads
        self._left = boundaries

    @property
    def requested(self) -> bool:  # type: ignore[override]
        self._left -= 1
        return self._left < 0


@cache
def engine() -> Any:
    """Return the library, which the system's compiler has made."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        reason = "there is no C compiler for the engine of these tests"
        if os.environ.get("ASYNCNN_REQUIRE_SHARED") == "1":
            pytest.fail(reason)
        pytest.skip(reason)
    with ExitStack() as stack:  # what is loaded needs its file no more
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        library = Path(folder) / "engine.so"
        command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        subprocess.run([*command, SOURCE, "-o", library], check=True)
        return ctypes.CDLL(str(library))


class Script(ctypes.Structure):
    """What a graph does; see the C file."""

    _fields_ = (
        ("flag", ctypes.c_void_p),
        ("must_end", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("parts", ctypes.c_int),
        ("waits", ctypes.c_int),
        ("fails_with", ctypes.c_int),
        ("begun", ctypes.c_int),
        ("ended", ctypes.c_int),
        ("is_freed", ctypes.c_int),
        ("stopped", ctypes.c_int),
        ("number", ctypes.c_float),
        ("made", ctypes.c_int),
        ("unmade", ctypes.c_int),
        ("refuses", ctypes.c_int),
        ("input", ctypes.c_size_t),
    )


def address(function: Any) -> int:
    """Return where a function of the library is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class _Scripted:
    """Adds ``number`` to the sum of its inputs, as its `script` says."""

    kind: Any
    """The class of segments that it is."""

    has_stop_calls = False
    """Whether it does not look at its flag."""

    has_tensors = False
    """Whether a tensor is made over each array; it has stop calls, too."""

    def __init__(
        self, number: float, elements: int, *, inputs: int = 1, outputs: int = 1
    ) -> None:
        made: Any = self
        CompiledGraph.__init__(made)
        self.byte = ctypes.create_string_buffer(FLAG_BYTES)
        asked = ctypes.addressof(self.byte), MUST_END
        self.script = Script(*asked, elements, 4, number=number)
        tensor = CompiledTensor.of(np.dtype(np.float32), (elements,))
        self.inputs, self.outputs = (tensor,) * inputs, (tensor,) * outputs
        function, stop_by = engine().run_script, None
        if self.has_stop_calls:
            function, self.script.flag = engine().run_stopped, None
            calls = address(engine().stop), address(engine().go_on)
            stop_by = StopCalls(*calls, ctypes.addressof(self.script))
        tensors = None
        if self.has_tensors:
            function, tensors = engine().run_tensors, self._tensor_calls(elements)
        ends = self.inputs, self.outputs
        way_of_calling = address(function), self.byte, *ends, stop_by
        self.kind.__init__(self, *way_of_calling, tensors)

    def _tensor_calls(self, elements: int) -> TensorCalls:
        split, count = len(self.inputs), len(self.inputs + self.outputs)
        self.cells = (ctypes.c_void_p * count)()
        self.lengths = (ctypes.c_int64 * 1)(elements)
        begin, maker = ctypes.addressof(self.cells), ctypes.addressof(self.script)
        return TensorCalls(
            (maker, split, begin, count - split, begin + 8 * split),
            address(engine().make_tensor),
            address(engine().unmake_tensor),
            maker,
            tuple(range(begin, begin + 8 * count, 8)),
            ((ctypes.addressof(self.lengths), 1, 7),) * count,
            16,
        )

    def _bind(self, addresses: tuple[int, ...]) -> Bound:
        array = (ctypes.c_void_p * len(addresses))(*addresses)
        begin, split = ctypes.addressof(array), len(self.inputs)
        words = (split, begin, len(addresses) - split, begin + 8 * split)
        return (ctypes.addressof(self.script), *words), array

    def _ended(self, status: int) -> None:
        if status != INTERRUPTED:
            raise GeneralFailureError(f"the engine says {status}")

    def _free(self) -> None:
        self.script.is_freed = 1

    def wait_until_begun(self, times: int = 1) -> None:
        """Wait until it has begun to run so many times."""
        while self.script.begun < times:
            time.sleep(0.0001)


class PythonGraph(_Scripted, PythonSegment, CompiledGraph):
    """One that Python runs."""

    kind = PythonSegment


class BuiltGraph(_Scripted, JobSegment, CompiledGraph):
    """One that is run by what was compiled, if that was."""

    kind = JobSegment


Graph: TypeAlias = PythonGraph | BuiltGraph

Way = Literal["job", "segments", "python"]
"""Plans run all segments in one call, or one by one, even with nothing compiled."""


class Chain:
    """A program of so many segments, each of which adds its number to ``x``."""

    def __init__(self, way: Way, links: int, elements: int = 4) -> None:
        self._way, self._elements = way, elements
        self.graphs: list[Graph] = []
        self.total = links * (links + 1) // 2
        builder = ModelBuilder()
        value = builder.input("x", F32, (elements,))
        for number in range(1, links + 1):
            constant = builder.constant(np.full(elements, number, np.float32))
            operands = [value, constant, builder.scalar(0)]
            value = builder.operation(
                OperationType.ADD, operands, Operand(F32, (elements,))
            )
        builder.output(value, "y")
        self.program = Program(builder.build().model, delegate=self)
        self.plan = self.program.plan(((elements,),))

    def execution(
        self, x: Array, y: Array, deadline_ns: int | None = None
    ) -> PlanExecution:
        return PlanExecution(self.program, self.plan, [x], [y], deadline_ns=deadline_ns)

    def version_for(self, *, relaxed: bool) -> str:
        return "scripted 1"

    def claims(self, operation: BoundOperation) -> int | None:
        return 1

    def cuts(self, steps: Sequence[Step]) -> Iterable[int]:
        return range(1, len(steps))

    def prepare(
        self, segment: Segment, identity: bytes, record: KernelRecord | None = None
    ) -> "_Computing":
        kind = PythonGraph if self._way == "python" else BuiltGraph
        number = len(self.graphs) + 1
        graph = kind(number, self._elements)
        self.graphs.append(graph)
        return _Computing(graph, is_job=self._way == "job")


class _Computing(DelegatedKernel):
    def __init__(self, graph: Graph, *, is_job: bool) -> None:
        self._run = InterruptibleRun(
            graph.run,
            graph.interrupt,
            graph.clear_interrupt,
            segment=lambda: graph if is_job else None,
        )

    def __call__(self, scratch: Scratch) -> InterruptibleRun:
        return self._run

    def record(self) -> KernelRecord:
        return KernelRecord(b"")


def arrays(elements: int = 4, *, offset: int = 0) -> tuple[Array, Array]:
    """Return an input, and an output that shows whether it was written to."""
    x, y = (
        aligned_bytes(4 * elements + offset + 64)[offset : offset + 4 * elements]
        for _ in range(2)
    )
    x, y = x.view(np.float32), y.view(np.float32)
    x[:], y[:] = np.arange(elements), np.nan
    return x, y


def is_untouched(y: Array) -> bool:
    return bool(np.isnan(y).all())


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do ``work`` on a thread, and fail if that does."""
    failed: list[BaseException] = []

    def begin() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert not failed, failed
