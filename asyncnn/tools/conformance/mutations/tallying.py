"""Counts how the mutants of one case fare."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from asyncnn.hal.errors import AsyncnnError
from asyncnn.tools.conformance.mutations.mutant import AnyMutant, sample
from asyncnn.tools.conformance.mutations.plan import Plan, Tally
from asyncnn.tools.conformance.mutations.table import ITSELF
from asyncnn.tools.conformance.running import CTS_ONLY
from asyncnn.tools.conformance.vectors import Case


class Tallies:
    """Makes the tallies of one case."""

    def __init__(self, case: Case, plan: Plan) -> None:
        self._case = case
        self._plan = plan

    async def of_each(
        self,
        row: str,
        mutants: Iterator[AnyMutant],
        judge: Callable[[AnyMutant], Awaitable[list[str]]],
    ) -> Tally:
        """Have as many mutants judged as the plan says."""
        chosen = sample(mutants, self._plan.limit, f"{self._case.name} {row}")
        answers = [await judge(mutant) for mutant in chosen.tried]
        return replace(self.of(row, answers), skipped=dict(Counter(chosen.exempt)))

    def of(self, row: str, answers: Sequence[list[str]]) -> Tally:
        """Return the tally of tries by what was wrong with the answers to each."""
        wrong = [problems for problems in answers if problems]
        return replace(
            self._empty(row),
            passed=len(answers) - len(wrong),
            failed=len(wrong),
            problems=tuple(chain.from_iterable(wrong)),
        )

    def skipped(self, row: str, reason: str) -> Tally:
        """Return the tally of a row that the case cannot be used for."""
        return replace(self._empty(row), skipped={reason: 1})

    def unusable(self, error: AsyncnnError) -> Tally:
        """Return the tally of a case that is refused itself."""
        if self._case.expect_failure or self._case.folder.endswith(CTS_ONLY):
            return self.skipped(ITSELF, "a driver may refuse the case itself")
        return self.of(ITSELF, [[str(error)]])

    def _empty(self, row: str) -> Tally:
        case = self._case
        spec = f"{case.folder}/{case.spec}"
        return Tally(spec, case.name, row, self._plan.transport)
