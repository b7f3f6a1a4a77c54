"""All rows of mutations.

Of the public suite's rows two are not here: every other mutant of a request asks to be
measured (VR6), and the cases that are to fail (VR4) are run by the conformance command
itself, on every path.
"""

from asyncnn.tools.conformance.mutations import (
    bursts,
    operands,
    operations,
    packets,
    requests,
    settings,
)
from asyncnn.tools.conformance.mutations.bursts import BurstRow
from asyncnn.tools.conformance.mutations.mutant import (
    Listed,
    PacketRow,
    RequestRow,
    Row,
)


def _number(row: Row) -> int:
    return int(row.number.removeprefix("VM"))


MODEL_ROWS: tuple[Row, ...] = tuple(
    sorted((*operands.ROWS, *operations.ROWS, *settings.ROWS), key=_number)
)
"""Every mutation of models that is made from a vector: VM1 to VM23, in order."""

CYCLE = "VM24"
"""The row of the one mutant that is made of no vector."""

ITSELF = "itself"
"""Stands for a row where a case cannot be used to make mutants of."""

REQUEST_ROWS: tuple[RequestRow, ...] = requests.ROWS
"""Every mutation of requests."""

PACKET_ROWS: tuple[PacketRow, ...] = packets.ROWS
"""Every mutation of the packets of bursts."""

BURST_ROWS: tuple[BurstRow, ...] = bursts.ROWS
"""What else is done to bursts."""

_OF_REQUESTS: tuple[Listed, ...] = (*REQUEST_ROWS, *PACKET_ROWS, *BURST_ROWS)

WORDS: dict[str, str] = {
    **{row.number: row.words for row in MODEL_ROWS},
    CYCLE: "two operations feed each other",
    **{row.number: row.words for row in _OF_REQUESTS},
    ITSELF: "no mutation: the case is refused itself",
}
"""What each row does, in the order of the tables above."""
