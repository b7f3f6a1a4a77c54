"""What both ways of running LiteRT share: when a compiled graph may run, and when not.

A graph runs once at a time, and is freed by nobody but the one who makes sure that it
does not run: freeing it in the middle ends the process. So `CompiledGraph.close` leaves
it to a run that is under way, and the end of the process stops all runs first. It does
not free what is left then, nor does a forked child, whose parent it belongs to.
"""

import atexit
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from asyncnn.devices.litert.graph_file import Source, for_want_of_room
from asyncnn.devices.litert.weights import PackedWeights
from asyncnn.engine.costs import USUAL, Speeds
from asyncnn.hal.errors import (
    BusyError,
    DeviceClosedError,
    GeneralFailureError,
    InvalidArgumentError,
)
from asyncnn.interpreter_hooks import disown_in_children, forked_error

Array: TypeAlias = NDArray[Any]

LONGEST_END_S = 10.0
"""Seconds that the end of the process waits for runs that it has interrupted."""


class Tensor(NamedTuple):
    """An input or output of a graph: what an array has to be."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    nbytes: int

    @classmethod
    def of(cls, dtype: np.dtype[Any], shape: tuple[int, ...]) -> "Tensor":
        """Return the tensor of these elements.

        :raises GeneralFailureError: if it has none.
        """
        nbytes = dtype.itemsize * math.prod(shape)
        if not nbytes:
            raise GeneralFailureError(f"a tensor of shape {shape} has no elements")
        return cls(dtype, shape, nbytes)


class CompiledGraph(ABC):
    """A graph that is ready to run.

    ``inputs`` and ``outputs`` are in the order of the model's main subgraph.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

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
            raise DeviceClosedError("the compiled graph is closed")
        raise BusyError("the compiled graph runs in another thread")

    def _check(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Raise `InvalidArgumentError` if arrays do not fit."""
        _check_all("input", inputs, self.inputs)
        _check_all("output", outputs, self.outputs)
        for number, array in enumerate(outputs):
            if not array.flags.writeable:
                raise InvalidArgumentError(f"output {number} is read-only")


def _check_all(kind: str, arrays: Sequence[Array], tensors: Sequence[Tensor]) -> None:
    if len(arrays) != len(tensors):
        raise InvalidArgumentError(
            f"{len(arrays)} {kind}s were given; the graph has {len(tensors)}"
        )
    for number, (array, tensor) in enumerate(zip(arrays, tensors, strict=True)):
        if array.dtype != tensor.dtype or array.nbytes != tensor.nbytes:
            raise InvalidArgumentError(
                f"{kind} {number} is {array.dtype}{list(array.shape)}; "
                f"the graph has {tensor.dtype}{list(tensor.shape)}"
            )
        if not array.flags.c_contiguous:
            raise InvalidArgumentError(f"{kind} {number} is not C-contiguous")


class Engine(ABC):
    """Compiles flatbuffers that asyncnn has written; others may end the process."""

    name: str
    speeds: Speeds = USUAL
    """How fast it was measured to be."""

    def __init__(self, version: str) -> None:
        self.version = version
        self._is_forked = False
        disown_in_children(self)

    def disown(self) -> None:
        """Refuse all use: this is a forked child of the process that loaded it."""
        self._is_forked = True

    def compile(
        self,
        model: Source,
        *,
        threads: int = 1,
        weights: PackedWeights | None = None,
    ) -> CompiledGraph:
        """Return the graph of a TFLite flatbuffer, which is kept as long as needed.

        An open dimension counts as 1. ``weights`` keeps packed weights of this very
        model, of what lies apart too; engines that have no use for it ignore it.

        :raises GeneralFailureError: if it cannot be compiled.
        :raises ResourceExhaustedError: if memory or descriptors have run out.
        :raises ForkedError: in a child of the process that loaded the engine.
        """
        if self._is_forked:
            raise forked_error("an engine")
        with for_want_of_room(model):
            return self._compile(model, threads, weights)

    @abstractmethod
    def _compile(
        self, model: Source, threads: int, weights: PackedWeights | None
    ) -> CompiledGraph:
        """Do it, where there is room."""


class _Process:
    """The graphs of this process, and its end."""

    def __init__(self) -> None:
        self.is_ending = False
        self._lock = threading.Lock()
        self._graphs: WeakSet[CompiledGraph] = WeakSet()

    def add(self, graph: CompiledGraph) -> None:
        with self._lock:
            self._graphs.add(graph)

    def renew(self) -> None:
        """Begin anew in a forked child."""
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


_process = _Process()
atexit.register(_process.end)
os.register_at_fork(after_in_child=_process.renew)
