"""Lets LiteRT compute the parts of plans that it does well."""

import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec

from asyncnn.devices.compiled_graph import GraphKernel
from asyncnn.devices.litert.claims import WrittenOperation, written
from asyncnn.devices.litert.cuts import SEGMENT_NS, barriers, cuts
from asyncnn.devices.litert.graph_file import GraphFile
from asyncnn.devices.litert.segment_record import recorded, restored
from asyncnn.devices.litert.tflite_engine import Engine
from asyncnn.devices.litert.weights import PackedWeights, weights_key
from asyncnn.devices.litert.writer import write_file
from asyncnn.engine.costs import estimated_ns
from asyncnn.engine.delegation import DelegatedKernel, KernelRecord, Segment, Step
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operations.bound import BoundOperation

WRITER_VERSION = 6
"""Counts the changes to what is claimed, divided and written."""

WORTHWHILE_NS = 3_000.0
WORTHWHILE_STEPS = 3
"""Of shorter segments, a call of the engine takes longer than the kernels do.

They are compiled all the same if the plan is a job by that.
"""

WORTH_SHARING_BYTES = 2**20
"""To find and check weights of smaller files takes longer than to pack them again."""


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
        if size >= WORTH_SHARING_BYTES:
            weights = self._weights(segment, identity)
        return _SegmentKernel(self._engine, segment, file, weights)

    def _weights(self, segment: Segment, identity: bytes) -> PackedWeights:
        # Of one subgraph there are several segments; shapes are in the file.
        told = f"{segment.inputs} {segment.outputs}".encode()
        key = weights_key((identity or secrets.token_bytes(16)) + told, self.version)
        return PackedWeights(key, self._weights_folder if identity else None)


class _SegmentKernel(GraphKernel, DelegatedKernel):
    """A segment as a graph of the engine."""

    def __init__(
        self,
        engine: Engine,
        segment: Segment,
        file: GraphFile,
        weights: PackedWeights | None,
    ) -> None:
        self._segment = segment
        self._file = file
        # There may never be another one, and to pack for this one alone takes half as
        # long.
        is_shared = weights is not None and weights.is_kept
        super().__init__(
            lambda threads: engine.compile(file, threads=threads, weights=weights),
            engine.compile(file, weights=weights if is_shared else None),
        )

    def record(self) -> KernelRecord:
        """Return what it is prepared of again."""
        return recorded(self._file, self._segment)
