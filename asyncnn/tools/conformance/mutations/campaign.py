"""Which mutants are tried (`Plan`), and the results of each row (`RowResult`).

Of the public suite's rows two are not here: every other mutant of a request asks to be
measured (VR6), and the cases that are to fail (VR4) are run by the conformance command
itself, on every path.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain

import msgspec
from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError
from asyncnn.tools.conformance.mutations.mutant import AnyMutant, Listed, Row, sample
from asyncnn.tools.conformance.mutations.operand_rows import OPERAND_ROWS
from asyncnn.tools.conformance.mutations.operation_rows import OPERATION_ROWS
from asyncnn.tools.conformance.mutations.request_rows import (
    BURST_ROWS,
    PACKET_ROWS,
    REQUEST_ROWS,
)
from asyncnn.tools.conformance.suite import CTS_ONLY, Selection
from asyncnn.tools.conformance.vectors import Case


class Plan(Selection, frozen=True, kw_only=True):
    """The ``limit`` of mutants to try of each row and case, None for all.

    The choice is the same every time. A driver is asked once by a client that checks
    like any other, and once by one that does not.
    """

    limit: int | None = 1


class RowResult(msgspec.Struct, frozen=True):
    """How the mutants of one row fared that were made of one case.

    ``problems`` has a line for each wrong answer, of which a failed mutant may have
    got several. ``skipped`` counts the mutants that may be legal, by the reason.
    """

    spec: str
    case: str
    row: str
    transport: str
    passed: int = 0
    failed: int = 0
    skipped: dict[str, int] = {}
    problems: tuple[str, ...] = ()


MODEL_ROWS: tuple[Row, ...] = tuple(
    sorted(
        (*OPERAND_ROWS, *OPERATION_ROWS),
        key=lambda row: int(row.number.removeprefix("VM")),
    )
)
"""Every mutation of models that is made from a vector: VM1 to VM23, in order."""

CYCLE = "VM24"
"""The row of the one mutant that is made of no vector."""

ITSELF = "itself"
"""Stands for a row where a case cannot be used to make mutants of."""

_OF_REQUESTS: tuple[Listed, ...] = (*REQUEST_ROWS, *PACKET_ROWS, *BURST_ROWS)

WORDS: dict[str, str] = {
    **{row.number: row.words for row in MODEL_ROWS},
    CYCLE: "two operations feed each other",
    **{row.number: row.words for row in _OF_REQUESTS},
    ITSELF: "no mutation: the case is refused itself",
}
"""What each row does: of models, of requests, of packets and of bursts."""


class RowResults(msgspec.Struct, frozen=True):
    """Makes the results of one case."""

    case: Case
    plan: Plan

    async def of_each(
        self,
        row: str,
        mutants: Iterator[AnyMutant],
        judge: Callable[[AnyMutant], Awaitable[list[str]]],
    ) -> RowResult:
        """Have as many mutants judged as the plan says."""
        chosen = sample(mutants, self.plan.limit, f"{self.case.name} {row}")
        answers = [await judge(mutant) for mutant in chosen.tried]
        return replace(self.of(row, answers), skipped=dict(Counter(chosen.exempt)))

    def of(self, row: str, answers: Sequence[list[str]]) -> RowResult:
        """Return the result of tries by what was wrong with the answers to each."""
        wrong = [problems for problems in answers if problems]
        return replace(
            self._empty(row),
            passed=len(answers) - len(wrong),
            failed=len(wrong),
            problems=tuple(chain.from_iterable(wrong)),
        )

    def skipped(self, row: str, reason: str) -> RowResult:
        """Return the result of a row that the case cannot be used for."""
        return replace(self._empty(row), skipped={reason: 1})

    def unusable(self, error: AsyncnnError) -> RowResult:
        """Return the result of a case that is refused itself."""
        if self.case.expect_failure or self.case.folder.endswith(CTS_ONLY):
            return self.skipped(ITSELF, "a driver may refuse the case itself")
        return self.of(ITSELF, [[str(error)]])

    def _empty(self, row: str) -> RowResult:
        case = self.case
        spec = f"{case.folder}/{case.spec}"
        return RowResult(spec, case.name, row, self.plan.transport)
