"""Packets that are altered, truncated or random, sent to one burst after the other."""

import os
import random
from itertools import chain

import pytest

from asyncnn.burst.packets import DATUM_BYTES, DEFAULT_QUEUE_LENGTH, RequestShape
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import (
    NO_TIMING,
    ErrorStatus,
    MeasureTiming,
    OutputShape,
    RequestArgument,
)
from asyncnn.runtime.device import Device
from asyncnn.tools.conformance.mutations.request_rows import (
    BAD_DATUMS,
    PACKET_ROWS,
    split,
)
from tests.burst.ends import (
    ADDITION,
    Ends,
    KnownPools,
    ScriptedModel,
    addition_pools,
    result_of,
    served,
)
from tests.mappings import resident_bytes
from tests.networks import addition
from tests.places import PLACES, device_at

REJECTED = {ErrorStatus.GENERAL_FAILURE, ErrorStatus.INVALID_ARGUMENT}


device = device_at(*PLACES)


async def check_all_refused(ends: Ends, packet: bytes) -> int:
    """Send every mutation, then the packet itself; return how many were sent."""
    count = 0
    for mutant in chain.from_iterable(row.mutate(packet) for row in PACKET_ROWS):
        result = await ends(mutant.packet)
        assert result.status in REJECTED, mutant.label
        assert result.output_shapes == (), mutant.label
        assert result.timing == NO_TIMING, mutant.label
        count += 1
    assert (await ends(packet)).status is ErrorStatus.NONE
    return count


def known_pools() -> KnownPools:
    inputs, outputs = addition_pools()
    return KnownPools({0: inputs, 1: outputs})


@pytest.mark.parametrize("dimensions", [(), (4,)], ids=["closed", "with dimensions"])
async def test_every_mutation_of_a_request_is_refused_and_the_burst_goes_on(
    device: Device, dimensions: tuple[int, ...]
) -> None:
    inputs, outputs = (
        tuple(RequestArgument(False, a.location, dimensions) for a in arguments)
        for arguments in (ADDITION.inputs, ADDITION.outputs)
    )
    shape = RequestShape.of(inputs, outputs, 2)
    prepared = (await device.prepare(addition(4))).hal
    pools = known_pools()
    async with served(prepared, pools) as ends:
        packet = shape.encode((0, 1), MeasureTiming.YES)
        assert await check_all_refused(ends, packet) > 100
    assert result_of(pools.pools[1]) == [11, 22, 33, 44]


async def test_padding_of_results_is_zero(scripted: ScriptedModel) -> None:
    shapes = (OutputShape((2, 3), True), OutputShape((), False))
    for status in (ErrorStatus.NONE, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE):
        scripted.outcome = (status, shapes, NO_TIMING)
        async with served(scripted, known_pools()) as ends:
            ends.requests.write_nowait(ADDITION.encode((0, 1), MeasureTiming.YES))
            datums = split(await ends.results.read(timeout=20))
        assert [datum[0] for datum in datums] == [0, 1, 2, 2, 1, 3]
        for datum in datums:
            assert datum[1:8] == bytes(7)
            if datum[0] == 1:
                assert datum[9:12] == bytes(3)
                assert datum[16:] == bytes(8)


MANY = int(os.environ.get("ASYNCNN_FUZZ_PACKETS", "100000"))

WARM_UP = 1000
"""Packets after which memory is not to grow any more."""


def random_packet(random_: random.Random, valid: list[bytes]) -> bytes:
    """Noise, a valid packet with noise in it, or valid datums in disorder."""
    match random_.randrange(4):
        case 0:
            return random_.randbytes(DATUM_BYTES * random_.randint(1, 12))
        case 1:
            packet = bytearray(b"".join(valid))
            for _ in range(random_.randint(1, 4)):
                packet[random_.randrange(len(packet))] = random_.randrange(256)
            return bytes(packet)
        case 2:
            choices = (*valid, *BAD_DATUMS)
            return b"".join(random_.choices(choices, k=random_.randint(1, 12)))
        case _:
            longest = random_.randint(1, DEFAULT_QUEUE_LENGTH)
            return (b"".join(valid) * longest)[: longest * DATUM_BYTES]


@pytest.mark.unrecorded
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(3000, id="some"),
        pytest.param(MANY, id="many", marks=pytest.mark.exhaustive),
    ],
)
async def test_random_packets_neither_crash_nor_hang_nor_leak(
    prepared: IPreparedModel, count: int
) -> None:
    """ASYNCNN_FUZZ_PACKETS sets how many are many; ASYNCNN_FUZZ_SEED which."""
    seed = int(os.environ.get("ASYNCNN_FUZZ_SEED", "1"))
    random_ = random.Random(seed)
    packet = ADDITION.encode((0, 1), MeasureTiming.YES)
    valid = split(packet)
    pools = known_pools()
    seen = set()
    async with served(prepared, pools) as ends:
        for number in range(count):
            if number == WARM_UP:
                before = resident_bytes()
            result = await ends(random_packet(random_, valid))
            seen.add(result.status)
            if result.status in REJECTED:
                assert (result.output_shapes, result.timing) == ((), NO_TIMING), (
                    f"seed {seed}, packet {number}: {result}"
                )
        assert (await ends(packet)).status is ErrorStatus.NONE
        assert resident_bytes() < before + 2**24
    assert seen <= {ErrorStatus.NONE, *REJECTED, ErrorStatus.OUTPUT_INSUFFICIENT_SIZE}
    assert seen >= REJECTED
