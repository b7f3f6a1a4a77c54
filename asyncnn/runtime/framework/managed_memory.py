"""Device-managed buffers of the framework itself: memory of this process.

A buffer serves inputs and outputs of models that are divided, or may have to go to the
CPU, so no single device could manage it. Devices get its memory as a pool of a request.
Where one device has all of the models, the buffer is that device's own instead, see
`FrameworkDevice.allocate`.
"""

from collections.abc import Sequence

from asyncnn.devices.buffer_use import BufferUse
from asyncnn.devices.device_buffers import Buffers, ModelBuffers
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.interfaces import IBuffer
from asyncnn.hal.operands import size_of_data_bytes
from asyncnn.hal.refusals import AllocateArguments
from asyncnn.hal.types import (
    BufferToken,
    DataLocation,
    ErrorStatus,
    Memory,
    Model,
    OutputShape,
    Request,
    RequestArgument,
)
from asyncnn.memory.managed import ClaimedBuffer
from asyncnn.memory.pools import from_buffer


class BuffersInUse:
    """The buffers that one execution uses, as memory; see `IBufferUse`."""

    def __init__(self, use: BufferUse, model: Model) -> None:
        self._use = use
        self._main = model.main

    def begin(self, request: Request) -> Request:
        """Return the request with memory in place of the buffers, which are claimed.

        :raises GeneralFailureError: if another execution or copy uses one, an input is
            uninitialised, or the shape of an output in one is not known.
        """
        claimed = self._use.claim()
        pools: list[Memory | BufferToken] = list(claimed.pools)
        inputs = [
            self._placed(each, each.location.length, pools) for each in claimed.inputs
        ]
        outputs: list[RequestArgument] = []
        for position, argument in enumerate(claimed.outputs):
            length = argument.location.length
            if self._is_managed(argument, pools):
                operand = self._main.operands[self._main.output_indexes[position]]
                dimensions = argument.dimensions or operand.dimensions
                length = size_of_data_bytes(operand.type, dimensions)
                if not length:
                    raise GeneralFailureError(
                        f"the shape of output {position}, which is in a buffer, is open"
                    )
            outputs.append(self._placed(argument, length, pools))
        return Request(tuple(inputs), tuple(outputs), tuple(pools))

    def end(self, status: ErrorStatus, shapes: Sequence[OutputShape]) -> None:
        """Give the buffers up: the execution has ended with ``status``."""
        self._use.settle(status, shapes)

    def _is_managed(
        self, argument: RequestArgument, pools: Sequence[Memory | BufferToken]
    ) -> bool:
        if argument.has_no_value:
            return False
        return not isinstance(pools[argument.location.pool_index], Memory)

    def _placed(
        self, argument: RequestArgument, length: int, pools: list[Memory | BufferToken]
    ) -> RequestArgument:
        """Return an argument with the memory of its buffer, if it lies in one."""
        if argument.has_no_value:
            return argument
        at = argument.location
        pool = pools[at.pool_index]
        if isinstance(pool, ClaimedBuffer):
            pools[at.pool_index] = from_buffer(pool.storage.reserve(length))
        elif at.length == length:
            return argument
        return RequestArgument(
            location=DataLocation(at.pool_index, 0, length),
            dimensions=argument.dimensions,
        )


class BufferUser:
    """A prepared model whose ``buffers`` are memory of this process.

    It ``has_buffers`` as soon as a request may name one; None if there can be none.
    """

    buffers: ModelBuffers | None = None
    has_buffers = False

    def in_use(self, request: Request) -> BuffersInUse | None:
        """Return what a validated request does with buffers, not begun, if it has any.

        :raises InvalidArgumentError: if one is unknown, or has no such role.
        """
        found = self.buffers.found(request) if self.buffers is not None else {}
        if self.buffers is None or not found:
            return None
        return BuffersInUse(self.buffers.use(request, found), self.buffers.model)


def allocate_fixed(
    buffers: Buffers, asked: AllocateArguments, own: type[BufferUser]
) -> tuple[IBuffer, int]:
    """Allocate a buffer of a known shape for models that are all ``own``.

    :raises AsyncnnError: as `Buffers.allocate`, and if the shape is open.
    """
    desc, prepared_models, *roles = asked
    users: list[BufferUser | None]
    users = [each if isinstance(each, own) else None for each in prepared_models]
    models = [None if each is None else each.buffers for each in users]
    buffer, token = buffers.allocate(desc, models, *roles)
    if not buffer.is_fixed:
        raise GeneralFailureError("the shape of the buffer is open")
    for each in users:
        if each is not None:
            each.has_buffers = True
    return buffer, token
