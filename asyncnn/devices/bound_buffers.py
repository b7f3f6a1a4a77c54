"""Requests on device-managed buffers that are executed again and again.

A request that was checked once, and whose buffers have fixed shapes, has arrays over
the memory of its buffers from then on: it costs about what one without buffers does.
What can change from one execution to the next is asked each time: whether the buffers
are still there, have contents, and are free.
"""

import weakref
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from asyncnn.devices.buffer_use import IBufferUse, KnownBuffer, uses_of
from asyncnn.engine.arguments import bound_array
from asyncnn.engine.plan import Plan
from asyncnn.execution import Execution
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import BufferToken, Dimensions, OutputShape, Request
from asyncnn.memory.managed import ManagedBuffer, Storage, begin_all, end_all

_Port = tuple[int, Array | None]
"""Of a request: the number of its buffer, or -1 and the array over its memory."""


class BoundBuffers:
    """The buffers of fixed shapes that a checked request names, read ones first.

    Keeps none alive. The arrays of the last run are kept, as to make them takes as long
    as all else that is done for a request that is repeated; they are over the memory of
    buffers, which is theirs until a run fails.
    """

    __slots__ = ("_claimed", "_ports", "_reads", "_storages", "_writes", "_written")

    def __init__(
        self,
        ports: Sequence[_Port],
        reads: Sequence[KnownBuffer],
        writes: Sequence[KnownBuffer],
    ) -> None:
        self._ports = ports
        self._reads = tuple([weakref.ref(known.managed) for known in reads])
        self._writes = tuple([weakref.ref(known.managed) for known in writes])
        self._written = tuple([known.plan.operand.dimensions for known in writes])
        self._storages: list[Storage] = []
        self._claimed: Execution | None = None

    @classmethod
    def of(
        cls, plan: Plan, request: Request, known: Mapping[int, KnownBuffer]
    ) -> "BoundBuffers | None":
        """Return the arrays of a request to a fixed plan that was found correct.

        ``known`` has them by the position of their pool. None if the request has to be
        looked at more closely each time.
        """
        reads = {k.managed: k for k in uses_of(request.inputs, known).values()}
        writes = {k.managed: k for k in uses_of(request.outputs, known).values()}
        if not all(used.plan.is_fixed for used in (*reads.values(), *writes.values())):
            return None
        numbers = {managed: n for n, managed in enumerate((*reads, *writes))}
        arguments = *request.inputs, *request.outputs
        ports: list[_Port] = []
        for port, argument in zip(plan.ports, arguments, strict=True):
            if argument.has_no_value or argument.dimensions:
                return None
            used = known.get(argument.location.pool_index)
            if used is not None:
                size = used.managed.size_bytes(used.plan.operand.dimensions)
                if size != port.size_bytes:
                    return None
                ports.append((numbers[used.managed], None))
                continue
            pool = request.pools[argument.location.pool_index]
            data = None if isinstance(pool, BufferToken) else pool.buffer
            is_read = len(ports) < len(plan.inputs)
            array = bound_array(port, argument, data, is_read=is_read)
            if array is None:
                return None
            ports.append((-1, array))
        return cls(ports, list(reads.values()), list(writes.values()))

    def use(self, execution: Execution) -> "BoundUse | None":
        """Return the use of one more run; None if a buffer has gone."""
        # Strong from here on: they stay for as long as the execution uses them.
        reads = [reference() for reference in self._reads]
        writes = [reference() for reference in self._writes]
        if not (all(reads) and all(writes)):
            return None
        return BoundUse(execution, self, reads, writes, self._written)  # type: ignore[arg-type]

    def claimed(self, execution: Execution, storages: list[Storage]) -> Execution:
        """Return the execution with arrays over the memory of its buffers.

        :raises ResourceExhaustedTransientError: if there is none for one.
        """
        # The memory of a buffer of fixed shape is its storage's, and stays.
        if self._claimed is None or self._storages != storages:
            plan = execution.plan
            assert plan is not None
            arrays: list[Array] = []
            for port, (number, array) in zip(plan.ports, self._ports, strict=True):
                if array is None:
                    assert port.shape is not None
                    memory = storages[number].reserve(port.size_bytes)
                    array = memory.view(port.dtype).reshape(port.shape)
                    if len(arrays) < len(plan.inputs):
                        array.setflags(write=False)
                arrays.append(array)
            self._claimed = replace(execution, arrays=arrays, buffers=None)
            self._storages = storages
        return self._claimed


class BoundUse(IBufferUse):
    """What `BufferUse` is to a request that is executed for the first time."""

    def __init__(
        self,
        execution: Execution,
        buffers: BoundBuffers,
        reads: Sequence[ManagedBuffer],
        writes: Sequence[ManagedBuffer],
        written: Sequence[Dimensions],
    ) -> None:
        super().__init__()
        self._execution = execution
        self._buffers = buffers
        self._reads = reads
        self._writes = writes
        self._written = written

    def _claim(self) -> Request:
        storages = begin_all(self._reads, self._writes)
        try:
            return self._buffers.claimed(self._execution, storages)
        except AsyncnnError:
            end_all(self._reads, self._writes, None)
            raise

    def _end(
        self, written: Sequence[OutputShape] | None, is_left: bool, *, has_begun: bool
    ) -> None:
        if has_begun:
            shapes = None if written is None else self._written
            end_all(self._reads, self._writes, shapes, is_left)
        else:
            for managed in self._writes:
                managed.discard()
