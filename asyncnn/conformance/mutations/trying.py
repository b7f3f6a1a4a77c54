"""Tries the mutants of one case on every way to a driver, and tallies the answers."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain

from msgspec.structs import replace

from asyncnn.conformance.mutations.cyclic import cyclic_mutant
from asyncnn.conformance.mutations.judging import (
    Way,
    answer_of,
    judge_model,
    judge_request,
    prepare,
)
from asyncnn.conformance.mutations.mutant import (
    AnyMutant,
    Mutant,
    RequestMutant,
    RequestRow,
    Row,
    sample,
)
from asyncnn.conformance.mutations.plan import Plan, Tally
from asyncnn.conformance.mutations.requests import with_timing
from asyncnn.conformance.mutations.table import CYCLE, ITSELF, MODEL_ROWS, REQUEST_ROWS
from asyncnn.conformance.requests import build_request
from asyncnn.conformance.running import CTS_ONLY
from asyncnn.conformance.vectors import Case
from asyncnn.errors import AsyncnnError, error_for
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import ErrorStatus, HalVersion, Memory, Model, Request
from asyncnn.memory.pools import view
from asyncnn.memory.shared import shareable

VERSION = HalVersion.V1_3
"""The version of the calls that devices offer, and so of the mutants."""

_UNTOUCHED = 0xA5


class Trial:
    """Tries mutants of one case."""

    def __init__(self, case: Case, ways: Sequence[Way], plan: Plan) -> None:
        self._case = case
        self._ways = ways
        self._plan = plan
        self._model = _travelling(case.model)

    async def run(self) -> list[Tally]:
        """Return a tally for each row.

        There are none of models if the case is refused itself, as nothing would be
        learnt, and none of requests if it cannot be prepared.
        """
        tallies: list[Tally] = []
        try:
            for way in self._ways:
                await self._ask(way)
            tallies = [await self._try_models(row) for row in MODEL_ROWS]
            prepared = [await prepare(self._model, way.device) for way in self._ways]
        except AsyncnnError as error:
            return [*tallies, self._unusable(error)]
        return tallies + [
            await self._try_requests(row, prepared) for row in REQUEST_ROWS
        ]

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

        return await self._try(row.number, row.mutants(self._model, VERSION), judge)

    async def _try_requests(
        self, row: RequestRow, prepared: Sequence[IPreparedModel]
    ) -> Tally:
        request = _travelling_request(self._case)
        targets = list(zip(prepared, self._ways, strict=True))

        async def judge(mutant: RequestMutant) -> list[str]:
            problems = [
                p for target in targets for p in await judge_request(mutant, *target)
            ]
            if not _is_untouched(request):
                problems.append(f"{mutant.label}: outputs were written")
            return problems

        mutants = with_timing(row.mutate(request, self._model))
        return await self._try(row.number, mutants, judge)

    async def _try(
        self,
        row: str,
        mutants: Iterator[AnyMutant],
        judge: Callable[[AnyMutant], Awaitable[list[str]]],
    ) -> Tally:
        chosen = sample(mutants, self._plan.limit, f"{self._case.name} {row}")
        answers = [await judge(mutant) for mutant in chosen.tried]
        wrong = [problems for problems in answers if problems]
        return replace(
            self._tally(row),
            passed=len(answers) - len(wrong),
            failed=len(wrong),
            skipped=dict(Counter(chosen.exempt)),
            problems=tuple(chain.from_iterable(wrong)),
        )

    def _unusable(self, error: AsyncnnError) -> Tally:
        tally = self._tally(ITSELF)
        if self._case.expect_failure or self._case.folder.endswith(CTS_ONLY):
            return replace(tally, skipped={"a driver may refuse the case itself": 1})
        return replace(tally, failed=1, problems=(str(error),))

    def _tally(self, row: str) -> Tally:
        case = self._case
        spec = f"{case.folder}/{case.spec}"
        return Tally(spec, case.name, row, self._plan.transport)


async def try_cycle(ways: Sequence[Way], plan: Plan) -> Tally:
    """Try the mutant that is made of no case."""
    problems = await _judge(cyclic_mutant(), None, ways)
    tally = Tally("", "", CYCLE, plan.transport, problems=tuple(problems))
    return replace(tally, failed=1) if problems else replace(tally, passed=1)


async def _judge(
    mutant: Mutant, original: Model | None, ways: Sequence[Way]
) -> list[str]:
    return [p for way in ways for p in await judge_model(mutant, original, way)]


def _travelling(model: Model) -> Model:
    """Return the model with pools that need no copy on the way to a driver."""
    return replace(model, pools=tuple(map(shareable, model.pools)))


def _travelling_request(case: Case) -> Request:
    """Return a request of two pools, the second of which, the outputs', is marked."""
    request = build_request(case).request
    pools: list[Memory] = []
    for pool in request.pools:
        assert isinstance(pool, Memory)
        pools.append(shareable(pool))
    _, outputs = pools
    view(outputs)[:] = bytes([_UNTOUCHED]) * outputs.size
    return replace(request, pools=tuple(pools))


def _is_untouched(request: Request) -> bool:
    outputs = request.pools[1]
    assert isinstance(outputs, Memory)
    return view(outputs).tobytes().count(_UNTOUCHED) == outputs.size
