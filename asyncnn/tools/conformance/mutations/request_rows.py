"""Mutations of requests, of the packets they travel in by burst, and of bursts.

VR1 to VR5 and VB1 to VB5 are from the public suite (HAL 1.3,
``ValidateRequest.cpp`` and ``ValidateBurst.cpp``); R2 to R7 break the validation rules
of these numbers. Every other mutant of a request asks for timing, of which none may be
reported.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from struct import pack

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.burst.packets import (
    DATUM_BYTES,
    DEFAULT_QUEUE_LENGTH,
    MEASURE_FORMAT,
    POOL_FORMAT,
    REQUEST_DIMENSION,
    REQUEST_OPERAND,
    REQUEST_PACKET,
    RequestKind,
    ResultShape,
    decode_result,
)
from asyncnn.fences import SyncFence
from asyncnn.hal.operands import SCALAR_TYPES
from asyncnn.tools.conformance.mutations.bare import BareBurst, bare_burst
from asyncnn.tools.conformance.mutations.mutant import (
    Listed,
    PacketMutant,
    PacketRow,
    RequestMutant,
    RequestRow,
    removed,
    replaced,
)
from asyncnn.tools.conformance.mutations.refusing import refusal_problems

_UINT32_MAX = 0xFFFF_FFFF
_SHORT_QUEUE = 8
_SLOT_NEVER_USED = 1000
_UNKNOWN_SLOT = 2**31 - 1

BAD_DATUMS = (
    REQUEST_PACKET.pack(RequestKind.PACKET, 10, 10, 10, 10),
    REQUEST_OPERAND.pack(RequestKind.INPUT, False, 0, 0, 0, 10),
    REQUEST_DIMENSION.pack(RequestKind.INPUT_DIMENSION, 0),
    REQUEST_OPERAND.pack(RequestKind.OUTPUT, False, 0, 0, 0, 10),
    REQUEST_DIMENSION.pack(RequestKind.OUTPUT_DIMENSION, 0),
    pack("<" + POOL_FORMAT, RequestKind.POOL, _UNKNOWN_SLOT),
    pack("<" + MEASURE_FORMAT, RequestKind.MEASURE, hal.MeasureTiming.YES),
)
"""One datum of each kind, which is wrong almost anywhere."""

_DIMENSIONS = frozenset({RequestKind.INPUT_DIMENSION, RequestKind.OUTPUT_DIMENSION})

_Mutants = Iterator[RequestMutant]


def _without(kind: str, request: hal.Request, model: hal.Model) -> _Mutants:
    arguments = getattr(request, kind)
    for position in range(len(arguments)):
        changed = replace(request, **{kind: removed(arguments, position)})
        yield RequestMutant(f"without {kind[:-1]} {position}", changed)


def _omitted_in_place(request: hal.Request, model: hal.Model) -> _Mutants:
    for place in _places(request, model):
        changed = replace(place.argument, has_no_value=True)
        yield place.with_argument("is omitted, but lies somewhere", changed)


def _outside_of_pools(request: hal.Request, model: hal.Model) -> _Mutants:
    for place in _places(request, model):
        location = place.argument.location
        size = request.pools[location.pool_index].size  # type: ignore[union-attr]
        for words, field, wrong in (
            ("lies in no pool", "pool_index", len(request.pools)),
            ("ends beyond its pool", "offset", size - location.length + 1),
            ("starts beyond its pool", "offset", _UINT32_MAX),
        ):
            elsewhere = replace(location, **{field: wrong})
            changed = replace(place.argument, location=elsewhere)
            yield place.with_argument(words, changed)


def _other_dimensions(request: hal.Request, model: hal.Model) -> _Mutants:
    for place in _places(request, model):
        for dimensions in _conflicting(place.operand):
            changed = replace(place.argument, dimensions=dimensions)
            yield place.with_argument(f"has dimensions {dimensions}", changed)


def _short_inputs(request: hal.Request, model: hal.Model) -> _Mutants:
    for place in _places(request, model):
        if place.kind == "input":
            location = place.argument.location
            shorter = replace(location, length=location.length - 1)
            changed = replace(place.argument, location=shorter)
            yield place.with_argument("is one byte short", changed)


def _empty_fences(request: hal.Request, model: hal.Model) -> _Mutants:
    yield RequestMutant("waits for an empty fence", request, wait_for=(None,))
    both = (SyncFence.signalled(), None)
    yield RequestMutant("waits for an empty fence, too", request, wait_for=both)


def with_timing(mutants: _Mutants) -> _Mutants:
    """Ask every other mutant to measure."""
    for mutant, measure in zip(mutants, cycle(hal.MeasureTiming), strict=False):
        yield replace(mutant, measure=measure)


class _Place(msgspec.Struct, frozen=True):
    """An argument of a request that has a value, and its operand in the model."""

    request: hal.Request
    kind: str
    position: int
    argument: hal.RequestArgument
    operand: hal.Operand

    def with_argument(self, words: str, argument: hal.RequestArgument) -> RequestMutant:
        """Return the mutant whose request has another argument in this place."""
        field = f"{self.kind}s"
        arguments = replaced(getattr(self.request, field), self.position, argument)
        changed = replace(self.request, **{field: arguments})
        return RequestMutant(f"{self.kind} {self.position} {words}", changed)


def _places(request: hal.Request, model: hal.Model) -> Iterator[_Place]:
    main = model.main
    for kind, arguments, indexes in (
        ("input", request.inputs, main.input_indexes),
        ("output", request.outputs, main.output_indexes),
    ):
        pairs = zip(arguments, indexes, strict=True)
        for position, (argument, index) in enumerate(pairs):
            if not argument.has_no_value:
                yield _Place(request, kind, position, argument, main.operands[index])


def _conflicting(operand: hal.Operand) -> Iterator[hal.Dimensions]:
    """Yield dimensions that contradict those that the model states."""
    declared = operand.dimensions
    if declared or operand.type in SCALAR_TYPES:
        yield (1,) * (len(declared) + 1)
    for axis, length in enumerate(declared):
        if length:
            yield replaced(declared, axis, length + 1)


def split(packet: bytes) -> list[bytes]:
    """Return the datums of a packet."""
    return [packet[at : at + DATUM_BYTES] for at in range(0, len(packet), DATUM_BYTES)]


def _missing(packet: bytes) -> Iterator[PacketMutant]:
    datums = split(packet)
    for at in range(len(datums)):
        yield _mutant(f"without datum {at}", datums[:at], datums[at + 1 :])


def _inserted(packet: bytes) -> Iterator[PacketMutant]:
    datums = split(packet)
    if len(datums) == DEFAULT_QUEUE_LENGTH:
        return
    for at in range(len(datums) + 1):
        for number, bad in enumerate(BAD_DATUMS):
            words = f"bad datum {number} before datum {at}"
            yield _mutant(words, datums[:at], [bad], datums[at:])


def _replaced(packet: bytes) -> Iterator[PacketMutant]:
    datums = split(packet)
    for at, datum in enumerate(datums):
        for number, bad in enumerate(BAD_DATUMS):
            # Any number is a dimension: what it means is another matter.
            is_dimension = datum[0] == bad[0] and bad[0] in _DIMENSIONS
            if datum != bad and not is_dimension:
                words = f"bad datum {number} for datum {at}"
                yield _mutant(words, datums[:at], [bad], datums[at + 1 :])


def _mutant(words: str, *parts: Sequence[bytes]) -> PacketMutant:
    return PacketMutant(words, b"".join([datum for part in parts for datum in part]))


class Sender(msgspec.Struct, frozen=True, eq=False):
    """A valid packet, the burst to send it by, and what another one is made of."""

    packet: bytes
    burst: BareBurst
    prepared: hal.IPreparedModel
    pools: Sequence[hal.Memory]


class NothingToLearnError(Exception):
    """What is done makes no difference to this case; the message says why."""


class BurstRow(Listed, frozen=True):
    """One thing that is done to bursts; ``judge`` returns what is wrong then.

    :raises NothingToLearnError: by ``judge``, if it could not be otherwise.
    """

    judge: Callable[[Sender], Awaitable[list[str]]]


async def _judge_freed_slots(sender: Sender) -> list[str]:
    for slot in (0, _SLOT_NEVER_USED, 0):
        sender.burst.free_memory(slot)
    result = await sender.burst.execute(sender.packet)
    if result.status is not hal.ErrorStatus.NONE:
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
    if said.status is not hal.ErrorStatus.NONE:
        return [f"{said.status!r}"]
    written = ResultShape.of(said.status, said.output_shapes).encode(timing)
    return [] if answer == written else ["between the fields of the result are bytes"]


REQUEST_ROWS = (
    RequestRow("VR1", "an input is missing", partial(_without, "inputs")),
    RequestRow("VR2", "an output is missing", partial(_without, "outputs")),
    RequestRow("VR5", "a fence to wait for is empty", _empty_fences, False),
    # Packets are written without the location of what is omitted.
    RequestRow("R2", "an omitted argument has a location", _omitted_in_place, False),
    RequestRow("R3", "an argument lies outside of its pool", _outside_of_pools),
    RequestRow("R4", "an argument has other dimensions", _other_dimensions),
    RequestRow("R7", "an input is too short", _short_inputs),
)
"""Every mutation of requests."""

PACKET_ROWS = (
    PacketRow("VB1", "a datum is missing", _missing),
    PacketRow("VB2", "a datum is inserted", _inserted),
    PacketRow("VB3", "a datum is another", _replaced),
)
"""Every mutation of the packets of bursts."""

BURST_ROWS = (
    BurstRow("VR3", "a slot is freed twice, or is none", _judge_freed_slots),
    BurstRow("VB4", "the queue of results is too short", _judge_short_queue),
    BurstRow("VB5", "a result has stray bytes", _judge_padding),
)
"""What else is done to bursts."""
