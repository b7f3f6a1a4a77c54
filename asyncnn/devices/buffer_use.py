"""One execution's use of device-managed buffers.

What it may do with each by its roles, what it claims while it runs, and whether the
contents are valid afterwards.

Source: HAL 1.3/types.hal (BufferRole) and 1.3/IBuffer.hal.
"""

import weakref
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from asyncnn.engine.arguments import bound_array
from asyncnn.engine.plan import Plan
from asyncnn.execution import Execution
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.operands import combine_dimensions, is_scalar
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    Dimensions,
    ErrorStatus,
    Memory,
    Model,
    Operand,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.hal.validate.buffers import BufferPlan, BufferSlot
from asyncnn.memory.managed import ManagedBuffer, Storage, begin_all, end_all

_ANY_LENGTH = 0xFFFF_FFFF
"""Length of outputs in buffers: they take up what they need."""


class KnownBuffer(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A buffer of the device, and the roles that it was allocated for."""

    managed: ManagedBuffer
    plan: BufferPlan


class IBufferUse(ABC):
    """The use that one execution makes of the buffers that its request names.

    Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._claimed: Request | None = None
        self._is_settled = False

    def claim(self) -> Request:
        """Claim the buffers; return the request with memory in place of the tokens.

        A second call returns the same.

        :raises GeneralFailureError: if an input is uninitialised, or another execution
            or copy uses a buffer in a way that excludes this one.
        :raises InvalidArgumentError: if dimensions of the request contradict a buffer.
        :raises ResourceExhaustedTransientError: if there is no memory for an output.
        """
        if self._claimed is None:
            self._claimed = self._claim()
        return self._claimed

    def settle(
        self, status: ErrorStatus, shapes: Sequence[OutputShape], is_left: bool = False
    ) -> None:
        """Give up the claims: the execution has ended with ``status``.

        Its outputs are uninitialised unless that is NONE, even if it has never begun.
        A lane to which it ``is_left`` may still read its inputs.
        """
        if not self._is_settled:
            self._is_settled = True
            has_begun, self._claimed = self._claimed is not None, None
            written = shapes if status is ErrorStatus.NONE else None
            self._end(written, is_left, has_begun=has_begun)

    @abstractmethod
    def _claim(self) -> Request:
        """Claim the buffers, or none if that fails."""

    @abstractmethod
    def _end(
        self, written: Sequence[OutputShape] | None, is_left: bool, *, has_begun: bool
    ) -> None:
        """Give up what was claimed; outputs have these shapes, or are discarded."""


class BufferUse(IBufferUse):
    """The use of buffers of any shapes.

    ``known`` are these buffers by the position of their pool; ``identity`` stands for
    the prepared model in their roles.

    :raises InvalidArgumentError: if one has no such role, or is used as an output
        beside something else.
    """

    def __init__(
        self,
        identity: Hashable,
        model: Model,
        request: Request,
        known: Mapping[int, KnownBuffer],
    ) -> None:
        super().__init__()
        self._main = model.main
        self._request = request
        self._inputs = uses_of(request.inputs, known)
        self._outputs = uses_of(request.outputs, known)
        _check_roles(identity, False, self._inputs)
        _check_roles(identity, True, self._outputs)
        written = [used.managed for used in self._outputs.values()]
        read = {used.managed for used in self._inputs.values()}
        if len(set(written)) < len(written) or not read.isdisjoint(written):
            raise InvalidArgumentError("an output shares its buffer with an argument")

    def _claim(self) -> Request:
        reading: set[ManagedBuffer] = set()
        try:
            return self._with_memory(reading)
        except AsyncnnError:
            for managed in reading:
                managed.end_reading()
            raise

    def _end(
        self, written: Sequence[OutputShape] | None, is_left: bool, *, has_begun: bool
    ) -> None:
        if has_begun:
            for managed in {used.managed for used in self._inputs.values()}:
                managed.end_reading(is_left)
        for position, used in self._outputs.items():
            if has_begun:
                shape = None if written is None else written[position].dimensions
                used.managed.end_writing(shape)
            else:
                used.managed.discard()

    def _with_memory(self, reading: set[ManagedBuffer]) -> Request:
        request, main = self._request, self._main
        inputs, outputs = list(request.inputs), list(request.outputs)
        pools: list[Memory | BufferToken] = list(request.pools)
        for position, used in self._inputs.items():
            managed, argument = used.managed, inputs[position]
            operand = main.operands[main.input_indexes[position]]
            pools[argument.location.pool_index] = (
                managed.claimed if managed in reading else managed.begin_reading()
            )
            reading.add(managed)
            inputs[position] = _input(argument, operand, managed)
        # Checked first: a buffer that was claimed for writing loses its contents.
        for position, used in self._outputs.items():
            used.managed.check_unused()
            outputs[position] = _output(outputs[position], used.plan)
        for position, used in self._outputs.items():
            index = outputs[position].location.pool_index
            pools[index] = used.managed.begin_writing()
        return Request(tuple(inputs), tuple(outputs), tuple(pools))


def uses_of(
    arguments: Sequence[RequestArgument], known: Mapping[int, KnownBuffer]
) -> dict[int, KnownBuffer]:
    """Return the buffers that arguments lie in, by position of the argument."""
    return {
        position: known[argument.location.pool_index]
        for position, argument in enumerate(arguments)
        if not argument.has_no_value and argument.location.pool_index in known
    }


def _check_roles(
    identity: Hashable, is_output: bool, uses: Mapping[int, KnownBuffer]
) -> None:
    for position, used in uses.items():
        if BufferSlot(identity, is_output, position) not in used.plan.slots:
            kind = "output" if is_output else "input"
            raise InvalidArgumentError(
                f"buffer {used.managed.token} was not allocated for {kind} {position} "
                "of this model"
            )


def _input(
    argument: RequestArgument, operand: Operand, managed: ManagedBuffer
) -> RequestArgument:
    current = managed.current
    assert current is not None
    combine_dimensions(current, argument.dimensions)
    size = managed.size_bytes(current)
    is_declared = is_scalar(operand.type) or operand.dimensions == current
    return replace(
        argument,
        location=DataLocation(argument.location.pool_index, 0, size),
        dimensions=() if is_declared else current,
    )


def _output(argument: RequestArgument, plan: BufferPlan) -> RequestArgument:
    """Return an output that any shape suffices which the buffer was allocated for."""
    dimensions: Dimensions = ()
    if not is_scalar(plan.operand.type):
        dimensions = combine_dimensions(plan.operand.dimensions, argument.dimensions)
    return replace(
        argument,
        location=DataLocation(argument.location.pool_index, 0, _ANY_LENGTH),
        dimensions=dimensions,
    )


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
