"""Lets LiteRT compute the parts of plans that it does well."""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakKeyDictionary

import msgspec

from asyncnn.devices.compiled_graph import CompiledGraph, GraphKernel
from asyncnn.devices.litert.claims import WrittenOperation, written
from asyncnn.devices.litert.cuts import SEGMENT_NS, barriers, cuts
from asyncnn.devices.litert.graph_file import Engine, GraphFile
from asyncnn.devices.litert.segment_record import recorded, restored
from asyncnn.devices.litert.weights import PackedWeights, weights_key
from asyncnn.devices.litert.writer import write_file
from asyncnn.engine.costs import estimated_ns
from asyncnn.engine.delegation import DelegatedKernel, KernelRecord, Segment, Step
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.operands import dtype_of
from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import OperationType

WRITER_VERSION = 8
"""Counts the changes to what is claimed, divided and written."""

WORTHWHILE_NS = 3_000.0
WORTHWHILE_STEPS = 3
"""Of shorter segments, a call of the engine takes longer than the kernels do.

They are compiled all the same if the plan is a job by that.
"""

WORTH_SHARING_BYTES = 2**20
"""To find and check weights of smaller files takes longer than to pack them again."""

_IN_FLOAT16 = "float32", "int32", "bool"
"""What segments consist of that may be computed so: codes keep their precision."""


def version_with(engine: Engine) -> str:
    """Return the version of all that is decided about graphs of ``engine``."""
    speeds = msgspec.json.encode(engine.speeds).decode()
    return f"{engine.name} {engine.version}, writer {WRITER_VERSION}, speeds {speeds}"


class LiteRtDelegate:
    """A `Delegate` that has segments computed by an `Engine`.

    Packed weights of models that are cached are kept in ``weights_folder``, if any, and
    mapped from there; see `PackedWeights`. With ``float16``, segments of relaxed models
    that have no other type of numbers are computed as that.
    """

    def __init__(
        self,
        engine: Engine,
        weights_folder: Path | None = None,
        *,
        float16: bool = False,
    ) -> None:
        self._engine = engine
        self._float16 = float16
        self._weights_folder = weights_folder
        # What is claimed but in no plan in the end goes with the operation.
        self._made: WeakKeyDictionary[BoundOperation, WrittenOperation]
        self._made = WeakKeyDictionary()
        self.version = version_with(engine)

    def version_for(self, *, relaxed: bool) -> str:
        """See `Delegate`."""
        is_other = relaxed and self._float16
        return f"{self.version}, float16" if is_other else self.version

    def claims(self, operation: BoundOperation) -> int | None:
        """See `Delegate`: LiteRT computes what it can as the HAL wants it."""
        if not isinstance(operation.type, OperationType):
            return None
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
        float16 = self._float16 and all(
            _may_be_float16(step.operation) for step in segment.steps
        )
        weights = None
        if size >= WORTH_SHARING_BYTES:
            # Of one subgraph there are several segments; shapes are in the file.
            ports = f"{segment.inputs} {segment.outputs}".encode()
            content = (identity or os.urandom(16)) + ports
            key = weights_key(content, self.version_for(relaxed=float16))
            weights = PackedWeights(key, self._weights_folder if identity else None)
        compile_file = partial(self._engine.compile, file, float16=float16)
        return _SegmentKernel(compile_file, segment, file, weights)


def _may_be_float16(operation: BoundOperation) -> bool:
    """Return whether it is relaxed, with no numbers but those that this is about."""
    return operation.relaxed and all(
        operand is None or dtype_of(operand.type).name in _IN_FLOAT16
        for operand in (*operation.inputs, *operation.outputs)
    )


class _SegmentKernel(GraphKernel, DelegatedKernel):
    """A segment as a graph of the engine."""

    def __init__(
        self,
        compile_file: Callable[..., CompiledGraph],
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
            lambda threads: compile_file(threads=threads, weights=weights),
            compile_file(weights=weights if is_shared else None),
        )

    def record(self) -> KernelRecord:
        """Return what it is prepared of again."""
        return recorded(self._file, self._segment)
