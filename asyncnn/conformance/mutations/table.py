"""All rows of mutations."""

from asyncnn.conformance.mutations import operands, operations, requests, settings
from asyncnn.conformance.mutations.mutant import RequestRow, Row


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

WORDS: dict[str, str] = {
    **{row.number: row.words for row in MODEL_ROWS},
    CYCLE: "two operations feed each other",
    **{row.number: row.words for row in REQUEST_ROWS},
    ITSELF: "no mutation: the case is refused itself",
}
"""What each row does, in the order of the tables above."""
