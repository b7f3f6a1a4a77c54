"""Device-managed buffers of the framework itself: memory of this process.

A buffer serves inputs and outputs of models that are divided, or may have to go to the
CPU, so no single device could manage it. Devices get its memory as a pool of a request.
Where one device has all of the models, the buffer is that device's own instead, see
`FrameworkDevice.allocate`.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from asyncnn import hal
from asyncnn.devices.buffer_use import BufferUse
from asyncnn.devices.device_buffers import Buffers, ModelBuffers
from asyncnn.hal.operands import size_of_data_bytes
from asyncnn.hal.refusals import AllocateArguments
from asyncnn.memory.managed import ClaimedBuffer
from asyncnn.memory.pools import from_buffer
from asyncnn.runtime.framework.fallback import Member
from asyncnn.runtime.framework.spaces import Reservation
from asyncnn.runtime.framework.steps import DeviceStep
from asyncnn.runtime.framework.submodels import Kind, SubModels


class BuffersInUse:
    """The buffers that one execution uses, as memory; see `IBufferUse`."""

    def __init__(self, use: BufferUse, model: hal.Model) -> None:
        self._use = use
        self._main = model.main

    def begin(self, request: hal.Request) -> hal.Request:
        """Return the request with memory in place of the buffers, which are claimed.

        :raises GeneralFailureError: if another execution or copy uses one, an input is
            uninitialised, or the shape of an output in one is not known.
        """
        claimed = self._use.claim()
        pools: list[hal.Memory | hal.BufferToken] = list(claimed.pools)
        inputs = [
            self._placed(each, each.location.length, pools) for each in claimed.inputs
        ]
        outputs: list[hal.RequestArgument] = []
        for position, argument in enumerate(claimed.outputs):
            length = argument.location.length
            at = argument.location.pool_index
            if not (argument.has_no_value or isinstance(pools[at], hal.Memory)):
                operand = self._main.operands[self._main.output_indexes[position]]
                dimensions = argument.dimensions or operand.dimensions
                length = size_of_data_bytes(operand.type, dimensions)
                if not length:
                    raise hal.GeneralFailureError(
                        f"the shape of output {position}, which is in a buffer, is open"
                    )
            outputs.append(self._placed(argument, length, pools))
        return hal.Request(tuple(inputs), tuple(outputs), tuple(pools))

    def end(self, status: hal.ErrorStatus, shapes: Sequence[hal.OutputShape]) -> None:
        """Give the buffers up: the execution has ended with ``status``."""
        self._use.settle(status, shapes)

    def _placed(
        self,
        argument: hal.RequestArgument,
        length: int,
        pools: list[hal.Memory | hal.BufferToken],
    ) -> hal.RequestArgument:
        if argument.has_no_value:
            return argument
        at = argument.location
        pool = pools[at.pool_index]
        if isinstance(pool, ClaimedBuffer):
            pools[at.pool_index] = from_buffer(pool.storage.reserve(length))
        elif at.length == length:
            return argument
        return hal.RequestArgument(
            location=hal.DataLocation(at.pool_index, 0, length),
            dimensions=argument.dimensions,
        )


class BufferUser:
    """A prepared model whose ``buffers`` are memory of this process.

    It ``has_buffers`` as soon as a request may name one; None if there can be none.
    """

    buffers: ModelBuffers | None = None
    has_buffers = False

    def in_use(self, request: hal.Request) -> BuffersInUse | None:
        """Return what a validated request does with buffers, not begun, if it has any.

        :raises InvalidArgumentError: if one is unknown, or has no such role.
        """
        found = self.buffers.found(request) if self.buffers is not None else {}
        if self.buffers is None or not found:
            return None
        return BuffersInUse(self.buffers.use(request, found), self.buffers.model)


def allocate_fixed(
    buffers: Buffers, asked: AllocateArguments, own: type[BufferUser]
) -> tuple[hal.IBuffer, int]:
    """Allocate a buffer of a known shape for models that are all ``own``.

    :raises AsyncnnError: as `Buffers.allocate`, and if the shape is open.
    """
    desc, prepared_models, *roles = asked
    users: list[BufferUser | None]
    users = [each if isinstance(each, own) else None for each in prepared_models]
    models = [None if each is None else each.buffers for each in users]
    buffer, token = buffers.allocate(desc, models, *roles)
    if not buffer.is_fixed:
        raise hal.GeneralFailureError("the shape of the buffer is open")
    for each in users:
        if each is not None:
            each.has_buffers = True
    return buffer, token


logger = logging.getLogger(__name__)


class _Use(msgspec.Struct, frozen=True):
    """An argument of a partition: the partition's number, and its own."""

    step: int
    argument: int


async def reserved(
    submodels: SubModels, steps: Sequence[DeviceStep]
) -> Reservation | None:
    """Have devices reserve buffers for what they alone make and read.

    Those that have none, or no room, are not asked again; None if there is no buffer.
    """
    made: dict[int, _Use] = {}
    read: defaultdict[int, list[_Use]] = defaultdict(list)
    for number, step in enumerate(submodels.steps):
        for position, source in enumerate(step.outputs):
            if source.kind is Kind.INTERMEDIATE:
                made[source.position] = _Use(number, position)
        for position, source in enumerate(step.inputs):
            if source.kind is Kind.INTERMEDIATE:
                read[source.position].append(_Use(number, position))
    tokens: dict[int, hal.BufferToken] = {}
    buffers: list[hal.IBuffer] = []
    for intermediate, maker in made.items():
        member = steps[maker.step].member
        readers = read[intermediate]
        is_inside = all(steps[use.step].member is member for use in readers)
        size = submodels.intermediates[intermediate].size
        if not size or not is_inside or not member.has_own_memory:
            continue
        buffer, token = await _allocated(member, steps, maker, readers)
        if buffer is None:
            continue
        tokens[intermediate] = hal.BufferToken(token)
        buffers.append(buffer)
    return Reservation(tokens, tuple(buffers)) if tokens else None


async def _allocated(
    member: Member, steps: Sequence[DeviceStep], maker: _Use, readers: Sequence[_Use]
) -> tuple[hal.IBuffer | None, int]:
    numbers = [maker.step, *(use.step for use in readers)]
    models = [steps[number].prepared for number in numbers]
    inputs = [hal.BufferRole(k, use.argument, 1.0) for k, use in enumerate(readers, 1)]
    outputs = [hal.BufferRole(0, maker.argument, 1.0)]
    asked = AllocateArguments(hal.BufferDesc(()), models, inputs, outputs)
    try:
        return await asked.by(member.hal)
    except Exception as error:  # a stranger's
        logger.info("%s reserves no buffer: %s", member.name, error)
        return None, 0
