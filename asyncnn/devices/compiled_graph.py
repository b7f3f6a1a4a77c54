"""What all engines have in common: their libraries, and when a compiled graph may run.

A graph runs once at a time, and is freed by nobody but the one who makes sure that it
does not run: freeing it in the middle ends the process. So `CompiledGraph.close` leaves
it to a run that is under way, and the end of the process stops all runs first. It does
not free what is left then, nor does a forked child, whose parent it belongs to.

A step of a plan that an engine computes is a `GraphKernel`: it has a graph for each
workspace, and for each number of threads.
"""

import atexit
import ctypes
import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from asyncnn import hal
from asyncnn.hal.errors import shortage_of
from asyncnn.interpreter_hooks import disown_in_children, forked_error
from asyncnn.kernels.kernel import (
    EngineKernel,
    Inputs,
    InterruptibleRun,
    Outputs,
    Scratch,
)

logger = logging.getLogger(__name__)

Array: TypeAlias = NDArray[Any]

_KEPT = 2
"""Compiled graphs of one step that are kept while nothing uses them."""

LONGEST_END_S = 10.0
"""Seconds that the end of the process waits for runs that it has interrupted."""


class CApiUnavailableError(Exception):
    """The C API of an engine cannot be used, and why."""


class EngineLibrary(ABC):
    """A shared library of an engine: its functions return a status, 0 if they work.

    ``title`` is what stands before their names in messages. ctypes lets go of the
    interpreter lock while a function runs.

    :raises CApiUnavailableError: if it is not there.
    :raises OSError: if memory or descriptors have run out.
    """

    title: ClassVar[str]
    _functions: Mapping[str, Any]

    def __init__(self, path: Path) -> None:
        self._is_forked = False
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            if shortage_of(error) is not None:
                raise
            raise CApiUnavailableError(f"{path} cannot be loaded: {error}") from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function.

        :raises GeneralFailureError: if it fails.
        :raises ResourceExhaustedError: if it does for want of memory.
        """
        status = self._functions[name](*arguments)
        if status:
            raise self.failure(name, status)

    def create(self, name: str, *arguments: Any) -> int:
        """Call a function that hands an object over, and return the object.

        :raises AsyncnnError: if it fails.
        """
        made = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        if not made.value:
            raise hal.GeneralFailureError(f"{self.title}{name} has made nothing")
        return made.value

    def number(self, name: str, *arguments: Any) -> int:
        """Call a function that returns a number by an argument, and return it.

        :raises AsyncnnError: if it fails.
        """
        number = ctypes.c_size_t()
        self.call(name, *arguments, ctypes.byref(number))
        return number.value

    def disown(self) -> None:
        """Free nothing from now on: this is a child of the process that made it."""
        self._is_forked = True

    @abstractmethod
    def failure(self, name: str, status: int) -> hal.AsyncnnError:
        """Return the error for a status that a function has returned."""


class NoElementsError(hal.GeneralFailureError):
    """A graph has an input or output without elements, for which there is no memory."""


class CompiledTensor(NamedTuple):
    """An input or output of a graph: what an array has to be."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, dtype: np.dtype[Any], shape: tuple[int, ...]) -> "CompiledTensor":
        """Return the tensor of these elements.

        :raises NoElementsError: if it has none.
        """
        nbytes = dtype.itemsize * math.prod(shape)
        if not nbytes:
            raise NoElementsError(f"a tensor of shape {shape} has no elements")
        return cls(dtype, shape, nbytes)


class CompiledGraph(ABC):
    """A graph that is ready to run.

    ``inputs`` and ``outputs`` are in the order of the model's main subgraph.
    """

    inputs: tuple[CompiledTensor, ...]
    outputs: tuple[CompiledTensor, ...]

    def __init__(self) -> None:
        # Held by the run that is under way; by nobody to be released once it is closed.
        self._turn = threading.Lock()
        self._acquire, self._release = self._turn.acquire, self._turn.release
        self._is_closing = False
        self._is_freed = False
        self._is_forked = False
        _process.add(self)
        disown_in_children(self)

    @abstractmethod
    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> bool:
        """Compute ``outputs`` from ``inputs``; return False if it was interrupted.

        Arrays are C-contiguous and of the tensors' data types and sizes, whatever their
        shapes. Inputs may be read-only. No other thread may change them meanwhile;
        nothing refers to their memory afterwards. What an interrupted run leaves in
        outputs is undefined. The interpreter lock is free while it computes.

        :raises InvalidArgumentError: if an array does not fit.
        :raises GeneralFailureError: if it fails.
        :raises BusyError: if another thread runs it.
        :raises DeviceClosedError: if it is closed.
        :raises ForkedError: in a child of the process that compiled it.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Have runs end at their next barrier, and before their first operation.

        From any thread; until `clear_interrupt`.
        """

    @abstractmethod
    def clear_interrupt(self) -> None:
        """Let runs go on to their ends again."""

    @abstractmethod
    def end(self) -> None:
        """Have runs end as `interrupt` does, for good."""

    @abstractmethod
    def forget(self) -> None:
        """Forget the memory that it has run on. Only while nobody else can run it."""

    @abstractmethod
    def _free(self) -> None:
        """Free all that it holds; it does not run."""

    def close(self) -> None:
        """Free it, at the end of the run that is under way if there is one. Idempotent.

        Such a run is not interrupted.
        """
        self._is_closing = True
        self._free_if_idle()

    def stop(self, timeout_s: float) -> bool:
        """Let no run begin any more; return whether none is under way, at last."""
        return self._is_freed or self._turn.acquire(timeout=timeout_s)

    def disown(self) -> None:
        """Refuse all use: this is a forked child of the process that compiled it."""
        self._is_forked = True
        self._turn = threading.Lock()  # a thread of the parent may hold the other
        self._turn.acquire()
        self._acquire = self._turn.acquire

    def __del__(self) -> None:
        if hasattr(self, "_acquire"):
            self.close()

    def _free_if_idle(self) -> None:
        # A run looks for ``_is_closing`` after it has released the lock: either it sees
        # it, or the lock is free here. Whoever gets the lock keeps it.
        if self._acquire(False):
            self._is_freed = True
            self._free()

    def _refuse(self) -> bool:
        """Say why it cannot run now; as the process ends, all runs are interrupted."""
        if self._is_forked:
            raise forked_error("a compiled graph")
        if _process.is_ending:
            return False
        if self._is_closing:
            raise hal.DeviceClosedError("the compiled graph is closed")
        raise hal.BusyError("the compiled graph runs in another thread")

    def _check(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        _check_all("input", inputs, self.inputs)
        _check_all("output", outputs, self.outputs)
        for number, array in enumerate(outputs):
            if not array.flags.writeable:
                raise hal.InvalidArgumentError(f"output {number} is read-only")


def _check_all(
    kind: str, arrays: Sequence[Array], tensors: Sequence[CompiledTensor]
) -> None:
    if len(arrays) != len(tensors):
        raise hal.InvalidArgumentError(
            f"{len(arrays)} {kind}s were given; the graph has {len(tensors)}"
        )
    for number, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        if array.dtype != tensor.dtype or array.nbytes != tensor.nbytes:
            raise hal.InvalidArgumentError(
                f"{kind} {number} is {array.dtype}{list(array.shape)}; "
                f"the graph has {tensor.dtype}{list(tensor.shape)}"
            )
        if not array.flags.c_contiguous:
            raise hal.InvalidArgumentError(f"{kind} {number} is not C-contiguous")


class GraphKernel(EngineKernel):
    """Computes a step by graphs, which ``compiled`` makes for a number of threads.

    Each workspace has one; those that are freed leave theirs here for the next ones.
    ``graph`` is the first: what is wrong with a graph is an error of the preparation.
    Graphs of an engine that loses all in a pause are not to be paused.
    """

    may_pause = True

    def __init__(
        self, compiled: Callable[[int], CompiledGraph], graph: CompiledGraph
    ) -> None:
        self._compiled = compiled
        self._widened = 1
        # By the number of their threads.
        self._spare: defaultdict[int, deque[CompiledGraph]] = defaultdict(deque)
        self._spare[1].append(graph)

    def __call__(self, scratch: Scratch) -> InterruptibleRun:
        """See `PreparedKernel`."""
        run = GraphRun(self)
        return InterruptibleRun(
            run.attempt,
            run.interrupt,
            run.clear,
            run.spread,
            run.segment,
            may_pause=self.may_pause,
        )

    def widen(self, threads: int) -> None:
        """See `EngineKernel`."""
        self.give_back(self._compiled(threads), threads)
        self._widened = threads

    def trim(self) -> None:
        """Free all graphs that no workspace has, but for one, and what that knows."""
        self._widened = 1
        for threads, spare in list(self._spare.items()):
            while len(spare) > (threads == 1):
                with suppress(IndexError):  # a workspace has taken it
                    spare.pop().close()
        with suppress(IndexError):
            graph = self._spare[1].pop()  # so that no workspace takes it meanwhile
            graph.forget()
            self._spare[1].append(graph)

    def take(self, threads: int) -> CompiledGraph | None:
        """Return a graph for one workspace; None if there is none for ``threads``.

        There is always one for a single thread.

        :raises AsyncnnError: if that cannot be compiled.
        """
        if threads not in (1, self._widened):
            return None
        with suppress(IndexError):
            return self._spare[threads].pop()
        try:
            return self._compiled(threads)
        except (hal.AsyncnnError, OSError, MemoryError) as error:
            if threads == 1:
                raise
            self._widened = 1  # one thread does as well
            logger.info("a graph keeps to one thread: %s", error)
            return None

    def give_back(self, graph: CompiledGraph, threads: int) -> None:
        """Keep a graph for another workspace, or close it."""
        if len(self._spare[threads]) < _KEPT:
            self._spare[threads].append(graph)
        else:
            graph.close()


class GraphRun:
    """The graphs of one workspace, each of which is taken when it runs first."""

    def __init__(self, kernel: GraphKernel) -> None:
        self._kernel = kernel
        self._threads = 1
        self._graphs: dict[int, CompiledGraph] = {}
        self._graph: CompiledGraph | None = None

    def attempt(self, inputs: Inputs, outputs: Outputs) -> bool:
        """See `InterruptibleRun`."""
        graph = self._graph
        if graph is None:
            graph = self._taken()
        reads = self._kernel.reads
        if reads is not None:
            inputs = [inputs[place] for place in reads]
        return graph.run(inputs, outputs)

    def interrupt(self) -> None:
        """See `InterruptibleRun`."""
        graph = self._graph  # the thread that runs may let go of it meanwhile
        if graph is not None:
            graph.interrupt()

    def clear(self) -> None:
        """See `InterruptibleRun`."""
        graph = self._graph
        if graph is None:
            graph = self._taken()
        graph.clear_interrupt()

    def segment(self) -> CompiledGraph:
        """See `InterruptibleRun`."""
        return self._graph or self._taken()

    def spread(self, threads: int) -> None:
        """See `InterruptibleRun`."""
        self._threads = threads
        self._graph = self._graphs.get(threads)

    def _taken(self) -> CompiledGraph:
        graph = self._kernel.take(self._threads)
        if graph is None:
            self.spread(1)
            return self._graph or self._taken()
        self._graph = self._graphs[self._threads] = graph
        return graph

    def __del__(self) -> None:
        for threads, graph in self._graphs.items():
            self._kernel.give_back(graph, threads)


class _LivingGraphs:
    """The graphs of this process, and its end."""

    def __init__(self) -> None:
        self.is_ending = False
        self._lock = threading.Lock()
        self._graphs: WeakSet[CompiledGraph] = WeakSet()

    def add(self, graph: CompiledGraph) -> None:
        with self._lock:
            self._graphs.add(graph)

    def renew(self) -> None:
        self.__init__()  # type: ignore[misc]  # the very same object is registered

    def end(self) -> None:
        """Interrupt all runs and let none begin.

        The libraries' own end in the middle of a run, in a thread that nobody has
        joined, would end the process by a signal.
        """
        self.is_ending = True
        due = time.monotonic() + LONGEST_END_S
        with self._lock:
            graphs = list(self._graphs)
        for graph in graphs:
            graph.end()
        for graph in graphs:
            while not graph.stop(0.01) and time.monotonic() < due:
                pass


_process = _LivingGraphs()
atexit.register(_process.end)
os.register_at_fork(after_in_child=_process.renew)
