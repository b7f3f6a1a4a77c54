"""What the public suite does to bursts with packets that are valid.

Source: HAL 1.3/vts/functional/ValidateBurst.cpp and ValidateRequest.cpp.
"""

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from asyncnn.burst.packets import DATUM_BYTES, ResultShape, decode_result
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import ErrorStatus, Memory
from asyncnn.tools.conformance.mutations.bare_burst import BareBurst, bare_burst
from asyncnn.tools.conformance.mutations.judging import refusal_problems
from asyncnn.tools.conformance.mutations.mutant import Listed

_SHORT_QUEUE = 8
_UNKNOWN_SLOT = 1000


class Sender(msgspec.Struct, frozen=True, eq=False):
    """A valid packet, the burst to send it by, and what another one is made of."""

    packet: bytes
    burst: BareBurst
    prepared: IPreparedModel
    pools: Sequence[Memory]


class NothingToLearnError(Exception):
    """What is done makes no difference to this case; the message says why."""


class BurstRow(Listed, frozen=True):
    """One thing that is done to bursts; ``judge`` returns what is wrong then.

    :raises NothingToLearnError: by ``judge``, if it could not be otherwise.
    """

    judge: Callable[[Sender], Awaitable[list[str]]]


async def _judge_freed_slots(sender: Sender) -> list[str]:
    for slot in (0, _UNKNOWN_SLOT, 0):
        sender.burst.free_memory(slot)
    result = await sender.burst.execute(sender.packet)
    if result.status is not ErrorStatus.NONE:
        return [f"{result.status!r} after slots were freed"]
    return []


async def _judge_short_queue(sender: Sender) -> list[str]:
    answer = await sender.burst.send(sender.packet)
    if len(answer) <= _SHORT_QUEUE * DATUM_BYTES:
        raise NothingToLearnError("a short queue has room for its result")
    async with bare_burst(sender.prepared, sender.pools, _SHORT_QUEUE) as short:
        return refusal_problems(await short.execute(sender.packet))


async def _judge_padding(sender: Sender) -> list[str]:
    answer = await sender.burst.send(sender.packet)
    said, timing = decode_result(answer)
    if said.status is not ErrorStatus.NONE:
        return [f"{said.status!r}"]
    written = ResultShape.of(said.status, said.output_shapes).encode(timing)
    return [] if answer == written else ["between the fields of the result are bytes"]


ROWS = (
    BurstRow("VR3", "a slot is freed twice, or is none", _judge_freed_slots),
    BurstRow("VB4", "the queue of results is too short", _judge_short_queue),
    BurstRow("VB5", "a result has stray bytes", _judge_padding),
)
