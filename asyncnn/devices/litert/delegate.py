"""Lets LiteRT compute the parts of plans that it does well."""

import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec

from asyncnn.devices.litert.claims import WrittenOperation, written
from asyncnn.devices.litert.compiled_graph import CompiledGraph, Engine
from asyncnn.devices.litert.cuts import SEGMENT_NS, barriers, cuts
from asyncnn.devices.litert.graph_file import GraphFile
from asyncnn.devices.litert.segment_record import recorded, restored
from asyncnn.devices.litert.weights import PackedWeights, weights_key
from asyncnn.devices.litert.writer import write_file
from asyncnn.engine.costs import estimated_ns
from asyncnn.engine.delegation import KernelRecord, Segment, Step
from asyncnn.hal.errors import AsyncnnError, GeneralFailureError
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.kernels.kernel import (
    Inputs,
    InterruptibleRun,
    Outputs,
    Scratch,
)

logger = logging.getLogger(__name__)

WRITER_VERSION = 5
"""Counts the changes to what is claimed, divided and written."""

WORTHWHILE_NS = 3_000.0
WORTHWHILE_STEPS = 3
"""Of shorter segments, a call of the engine takes longer than the kernels do.

They are compiled all the same if the plan is a job by that.
"""

_WORTH_SHARING_BYTES = 2**20
"""To find and check weights of smaller files takes longer than to pack them again."""

_KEPT = 2
"""Compiled graphs of one segment that are kept while nothing uses them."""


class LiteRtDelegate:
    """A `Delegate` that has segments computed by an `Engine`.

    Packed weights of models that are cached are kept in ``weights_folder``, if any, and
    mapped from there; see `PackedWeights`.
    """

    def __init__(self, engine: Engine, weights_folder: Path | None = None) -> None:
        self._engine = engine
        self._weights_folder = weights_folder
        # What is claimed but in no plan in the end goes with the operation.
        self._made: WeakKeyDictionary[BoundOperation, WrittenOperation]
        self._made = WeakKeyDictionary()
        told = msgspec.json.encode(engine.speeds).decode()
        self.version = (
            f"{engine.name} {engine.version}, writer {WRITER_VERSION}, speeds {told}"
        )

    def claims(self, operation: BoundOperation) -> int | None:
        """See `Delegate`: LiteRT computes what it can as the HAL wants it."""
        try:
            self._made[operation] = written(operation)
        except GeneralFailureError:
            return None
        return estimated_ns(operation, self._engine.speeds)

    def cuts(self, steps: Sequence[Step]) -> Iterable[int]:
        """Return where to divide ``steps``, so that a pause costs little."""
        return cuts(steps, SEGMENT_NS)

    def prepare(
        self, segment: Segment, identity: bytes, record: KernelRecord | None = None
    ) -> "_SegmentKernel | None":
        """Compile ``segment``; None if the kernels are faster.

        :raises GeneralFailureError: if it cannot be written or compiled, or the record
            is of another one.
        """
        if record is not None:
            return self._compiled(segment, identity, restored(record))
        made = {
            step.operation: own
            for step in segment.steps
            if (own := self._made.pop(step.operation, None)) is not None
        }
        is_short = not segment.completes_job and len(segment.steps) < WORTHWHILE_STEPS
        if is_short and sum(step.cost_ns for step in segment.steps) < WORTHWHILE_NS:
            return None
        file = write_file(segment, barriers(segment.steps), made)
        return self._compiled(segment, identity, file)

    def _compiled(
        self, segment: Segment, identity: bytes, file: GraphFile
    ) -> "_SegmentKernel":
        size = len(file.content) + sum(each.data.size for each in file.apart)
        weights = None
        if size >= _WORTH_SHARING_BYTES:
            weights = self._weights(segment, identity)
        return _SegmentKernel(self._engine, segment, file, weights)

    def _weights(self, segment: Segment, identity: bytes) -> PackedWeights:
        # Of one subgraph there are several segments; shapes are in the file.
        told = f"{segment.inputs} {segment.outputs}".encode()
        key = weights_key((identity or secrets.token_bytes(16)) + told, self.version)
        return PackedWeights(key, self._weights_folder if identity else None)


class _SegmentKernel:
    """A segment as a graph of the engine, compiled as often as it runs at a time.

    Workspaces that are freed leave their graphs here for the next ones.
    """

    def __init__(
        self,
        engine: Engine,
        segment: Segment,
        file: GraphFile,
        weights: PackedWeights | None,
    ) -> None:
        self._engine = engine
        self._segment = segment
        self._file = file
        self._weights = weights
        # Compiled at once: what is wrong with it is an error of the preparation. There
        # may never be another one, and to pack for this one alone takes half as long.
        is_shared = weights is not None and weights.is_kept
        graph = engine.compile(file, weights=weights if is_shared else None)
        self._widened = 1
        # By the number of their threads.
        self._spare: defaultdict[int, deque[CompiledGraph]] = defaultdict(deque)
        self._spare[1].append(graph)

    def __call__(self, scratch: Scratch) -> InterruptibleRun:
        run = _SegmentRun(self)
        return InterruptibleRun(
            run.attempt, run.interrupt, run.clear, run.spread, run.segment
        )

    def record(self) -> KernelRecord:
        """Return what it is prepared of again."""
        return recorded(self._file, self._segment)

    def widen(self, threads: int) -> None:
        """Compile a graph that runs on ``threads`` threads.

        :raises GeneralFailureError: if it cannot be compiled.
        """
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
        except (AsyncnnError, OSError, MemoryError) as error:
            if threads == 1:
                raise
            self._widened = 1  # one thread does as well
            logger.info("a segment keeps to one thread: %s", error)
            return None

    def give_back(self, graph: CompiledGraph, threads: int) -> None:
        """Keep a graph for another workspace, or close it."""
        if len(self._spare[threads]) < _KEPT:
            self._spare[threads].append(graph)
        else:
            graph.close()

    def _compiled(self, threads: int) -> CompiledGraph:
        return self._engine.compile(self._file, threads=threads, weights=self._weights)


class _SegmentRun:
    """The graphs of one workspace, each of which is taken when it runs first."""

    def __init__(self, kernel: _SegmentKernel) -> None:
        self._kernel = kernel
        self._threads = 1
        self._graphs: dict[int, CompiledGraph] = {}
        self._graph: CompiledGraph | None = None

    def attempt(self, inputs: Inputs, outputs: Outputs) -> bool:
        graph = self._graph
        if graph is None:
            graph = self._taken()
        return graph.run(inputs, outputs)

    def interrupt(self) -> None:
        graph = self._graph  # the thread that runs may let go of it meanwhile
        if graph is not None:
            graph.interrupt()

    def clear(self) -> None:
        graph = self._graph
        if graph is None:
            graph = self._taken()
        graph.clear_interrupt()

    def segment(self) -> CompiledGraph:
        return self._graph or self._taken()

    def spread(self, threads: int) -> None:
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
