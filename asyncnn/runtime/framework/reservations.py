"""Tensors between partitions that stay in memory of a device.

What partitions of one device hand to later ones of the same device, with others in
between, need not leave it. Where the device has memory of its own, or does not see that
of this process, it is asked for buffers with these roles when the model is prepared.
Memory that all see is as good as a buffer otherwise, and serves several executions at a
time.

Source: HAL 1.3/IDevice.hal (allocate).
"""

import logging
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from asyncnn.hal.interfaces import IBuffer
from asyncnn.hal.refusals import AllocateArguments
from asyncnn.hal.types import BufferDesc, BufferRole, BufferToken
from asyncnn.runtime.framework.fallback import Member
from asyncnn.runtime.framework.spaces import Reservation
from asyncnn.runtime.framework.steps import DeviceStep
from asyncnn.runtime.framework.submodels import Kind, SubModels

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
    tokens: dict[int, BufferToken] = {}
    buffers: list[IBuffer] = []
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
        tokens[intermediate] = BufferToken(token)
        buffers.append(buffer)
    return Reservation(tokens, tuple(buffers)) if tokens else None


async def _allocated(
    member: Member, steps: Sequence[DeviceStep], maker: _Use, readers: Sequence[_Use]
) -> tuple[IBuffer | None, int]:
    numbers = [maker.step, *(use.step for use in readers)]
    models = [steps[number].prepared for number in numbers]
    inputs = [BufferRole(k, use.argument, 1.0) for k, use in enumerate(readers, 1)]
    outputs = [BufferRole(0, maker.argument, 1.0)]
    asked = AllocateArguments(BufferDesc(()), models, inputs, outputs)
    try:
        return await asked.by(member.hal)
    except Exception as error:  # a stranger's
        logger.info("%s reserves no buffer: %s", member.name, error)
        return None, 0
