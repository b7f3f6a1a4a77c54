"""Tries the mutants of one case on every way to a driver, and tallies the answers."""

from collections.abc import Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from asyncnn.burst import BurstController
from asyncnn.hal.errors import AsyncnnError, error_for
from asyncnn.hal.types import ErrorStatus, HalVersion, Model
from asyncnn.tools.conformance.mutations.cyclic import cyclic_mutant
from asyncnn.tools.conformance.mutations.judging import (
    Target,
    Way,
    answer_of,
    judge_model,
    judge_request,
    prepare,
)
from asyncnn.tools.conformance.mutations.mutant import (
    Mutant,
    RequestMutant,
    RequestRow,
    Row,
)
from asyncnn.tools.conformance.mutations.plan import Plan, Tally
from asyncnn.tools.conformance.mutations.requests import with_timing
from asyncnn.tools.conformance.mutations.table import CYCLE, MODEL_ROWS, REQUEST_ROWS
from asyncnn.tools.conformance.mutations.tallying import Tallies
from asyncnn.tools.conformance.mutations.travelling import TravellingRequest, travelling
from asyncnn.tools.conformance.mutations.trying_bursts import try_bursts
from asyncnn.tools.conformance.vectors import Case

VERSION = HalVersion.V1_3
"""The version of the calls that devices offer, and so of the mutants."""


class Trial:
    """Tries mutants of one case."""

    def __init__(self, case: Case, ways: Sequence[Way], plan: Plan) -> None:
        self._case = case
        self._ways = ways
        self._tallies = Tallies(case, plan)
        self._model = travelling(case.model)

    async def run(self) -> list[Tally]:
        """Return a tally for each row.

        There are none of models if the case is refused itself, as nothing would be
        learnt, and none of requests and bursts if it cannot be prepared.
        """
        tallies: list[Tally] = []
        try:
            for way in self._ways:
                await self._ask(way)
            tallies = [await self._try_models(row) for row in MODEL_ROWS]
            targets = [
                Target(way, await prepare(self._model, way.device))
                for way in self._ways
            ]
        except AsyncnnError as error:
            return [*tallies, self._tallies.unusable(error)]
        tallies += await self._try_all_requests(targets)
        return tallies + await try_bursts(self._case, targets, self._tallies)

    async def _ask(self, way: Way) -> None:
        """Make sure that a device finds no fault with the case itself.

        :raises AsyncnnError: if it does, or does not answer.
        """
        asked = way.device.get_supported_operations_1_3(self._model)
        status, _ = await answer_of(asked)
        if status is not ErrorStatus.NONE:
            raise error_for(status, f"the {way.name} refuses the case")

    async def _try_models(self, row: Row) -> Tally:
        async def judge(mutant: Mutant) -> list[str]:
            return await _judge(mutant, self._model, self._ways)

        mutants = row.mutants(self._model, VERSION)
        return await self._tallies.of_each(row.number, mutants, judge)

    async def _try_all_requests(self, targets: Sequence[Target]) -> list[Tally]:
        sent = TravellingRequest.of(self._case)
        with ExitStack() as stack:
            if sent.fits_in_a_packet:
                targets = [await _with_burst(target, stack) for target in targets]
            return [
                await self._try_requests(row, sent, targets) for row in REQUEST_ROWS
            ]

    async def _try_requests(
        self, row: RequestRow, sent: TravellingRequest, targets: Sequence[Target]
    ) -> Tally:
        async def judge(mutant: RequestMutant) -> list[str]:
            problems: list[str] = []
            for target in targets:
                problems += await judge_request(mutant, target, by_burst=row.by_burst)
            return problems + sent.traces_of(mutant.label)

        mutants = with_timing(row.mutate(sent.request, self._model))
        return await self._tallies.of_each(row.number, mutants, judge)


async def _with_burst(target: Target, stack: ExitStack) -> Target:
    if target.way.is_bare:
        return target
    burst = stack.enter_context(await BurstController.open(target.prepared))
    return replace(target, burst=burst)


async def try_cycle(ways: Sequence[Way], plan: Plan) -> Tally:
    """Try the mutant that is made of no case."""
    problems = await _judge(cyclic_mutant(), None, ways)
    tally = Tally("", "", CYCLE, plan.transport, problems=tuple(problems))
    return replace(tally, failed=1) if problems else replace(tally, passed=1)


async def _judge(
    mutant: Mutant, original: Model | None, ways: Sequence[Way]
) -> list[str]:
    return [p for way in ways for p in await judge_model(mutant, original, way)]
