"""Tries altered packets of one case, all by one burst of each way to a driver."""

from collections.abc import Sequence
from contextlib import AsyncExitStack

from asyncnn.tools.conformance.mutations.bare_burst import bare_burst
from asyncnn.tools.conformance.mutations.bursts import (
    BurstRow,
    NothingToLearnError,
    Sender,
)
from asyncnn.tools.conformance.mutations.judging import Target, in_time, judge_packet
from asyncnn.tools.conformance.mutations.mutant import Listed, PacketMutant, PacketRow
from asyncnn.tools.conformance.mutations.plan import Tally
from asyncnn.tools.conformance.mutations.table import BURST_ROWS, PACKET_ROWS
from asyncnn.tools.conformance.mutations.tallying import Tallies
from asyncnn.tools.conformance.mutations.travelling import TravellingRequest
from asyncnn.tools.conformance.vectors import Case


async def try_bursts(
    case: Case, targets: Sequence[Target], tallies: Tallies
) -> list[Tally]:
    """Return a tally for each row of bursts.

    Altered packets come first: those that are valid show that the burst goes on.
    """
    sent = TravellingRequest.of(case)
    if not sent.fits_in_a_packet:
        reason = "the packet is longer than the queue"
        return _skipped((*PACKET_ROWS, *BURST_ROWS), reason, tallies)
    async with AsyncExitStack() as stack:
        senders = [
            await _sender(target, sent, stack)
            for target in targets
            if not target.way.is_bare
        ]
        found = [await _try_packets(row, sent, senders, tallies) for row in PACKET_ROWS]
        if case.expect_failure:
            return found + _skipped(BURST_ROWS, "the case may fail itself", tallies)
        return found + [await _try_burst(row, senders, tallies) for row in BURST_ROWS]


async def _sender(
    target: Target, sent: TravellingRequest, stack: AsyncExitStack
) -> Sender:
    burst = await stack.enter_async_context(bare_burst(target.prepared, sent.pools))
    return Sender(sent.packet, burst, target.prepared, sent.pools)


def _skipped(rows: Sequence[Listed], reason: str, tallies: Tallies) -> list[Tally]:
    return [tallies.skipped(row.number, reason) for row in rows]


async def _try_packets(
    row: PacketRow,
    sent: TravellingRequest,
    senders: Sequence[Sender],
    tallies: Tallies,
) -> Tally:
    async def judge(mutant: PacketMutant) -> list[str]:
        problems: list[str] = []
        for sender in senders:
            problems += await judge_packet(mutant, sender.burst)
        return problems + sent.traces_of(mutant.label)

    return await tallies.of_each(row.number, row.mutate(sent.packet), judge)


async def _try_burst(
    row: BurstRow, senders: Sequence[Sender], tallies: Tallies
) -> Tally:
    problems: list[str] = []
    for sender in senders:
        try:
            problems += await in_time(row.judge(sender))
        except NothingToLearnError as reason:
            return tallies.skipped(row.number, str(reason))
    return tallies.of(row.number, [problems])
