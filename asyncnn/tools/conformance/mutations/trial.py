"""Tries the mutants of cases on every way to a driver, over several processes.

Cases lie in memory that goes to a driver as it is, and must be unchanged afterwards. Of
the public suite's rows two are not here: every other mutant of a request asks to be
measured (VR6), and the cases that are to fail (VR4) are run by the conformance command
itself, on every path.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from asyncnn import hal
from asyncnn.burst import BurstController
from asyncnn.burst.packets import DATUM_BYTES, DEFAULT_QUEUE_LENGTH, RequestShape
from asyncnn.devices import OWN_PROCESS
from asyncnn.memory.pools import view
from asyncnn.memory.shared import shareable
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.tools.conformance.executing import build_request
from asyncnn.tools.conformance.mutations.bare import bare_burst, bare_client
from asyncnn.tools.conformance.mutations.model_rows import MODEL_ROWS, cyclic_mutant
from asyncnn.tools.conformance.mutations.mutant import (
    AnyMutant,
    Listed,
    Mutant,
    PacketMutant,
    RequestMutant,
    RequestRow,
    sample,
)
from asyncnn.tools.conformance.mutations.refusing import (
    PreparedWay,
    Way,
    answer_of,
    in_time,
    judge_model,
    judge_packet,
    judge_request,
    prepare,
)
from asyncnn.tools.conformance.mutations.request_rows import (
    BURST_ROWS,
    PACKET_ROWS,
    REQUEST_ROWS,
    BurstRow,
    NothingToLearnError,
    Sender,
    with_timing,
)
from asyncnn.tools.conformance.suite import CTS_ONLY, Selection, in_processes
from asyncnn.tools.conformance.vectors import Case

VERSION = hal.HalVersion.V1_3
"""The version of the calls that devices offer, and so of the mutants."""

CYCLE = "VM24"
"""The row of the one mutant that is made of no vector."""

ITSELF = "itself"
"""Stands for a row where a case cannot be used to make mutants of."""

_ROWS: tuple[tuple[Listed, ...], ...] = REQUEST_ROWS, PACKET_ROWS, BURST_ROWS

WORDS: dict[str, str] = {
    **{row.number: row.words for row in MODEL_ROWS},
    CYCLE: "two operations feed each other",
    **{row.number: row.words for rows in _ROWS for row in rows},
    ITSELF: "no mutation: the case is refused itself",
}
"""What each row does: of models, of requests, of packets and of bursts."""

_UNTOUCHED = 0xA5
"""Fills outputs until somebody writes them."""


class MutantPlan(Selection, frozen=True, kw_only=True):
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


def run_mutants(
    specs: Sequence[Path], plan: MutantPlan, workers: int | None = None
) -> Iterator[list[RowResult]]:
    """Yield the results of each file as it completes, in any order.

    Among them is the result of the mutant that is made of no file.
    """
    tasks = [partial(_try_spec, spec, plan) for spec in specs]
    return in_processes([partial(_try_spec, None, plan), *tasks], workers)


def _try_spec(spec: Path | None, plan: MutantPlan) -> list[RowResult]:
    cases = [] if spec is None else plan.load(spec)
    return asyncio.run(_try_all(cases, plan)) if cases or spec is None else []


async def _try_all(cases: Sequence[Case], plan: MutantPlan) -> list[RowResult]:
    """Try the mutants of each case, or the one that is made of none."""
    async with _ways(plan) as ways:
        if cases:
            return [
                each
                for case in cases
                for each in await CaseTrial(case, ways, plan).run()
            ]
        problems = await _judge(cyclic_mutant(), None, ways)
        failed = int(bool(problems))
        return [
            RowResult(
                *("", "", CYCLE, plan.transport),
                *(1 - failed, failed),
                problems=tuple(problems),
            )
        ]


@asynccontextmanager
async def _ways(plan: MutantPlan) -> AsyncIterator[list[Way]]:
    if plan.socket is None:
        async with open_device(
            "reference", settings=OWN_PROCESS, extensions=plan.extensions
        ) as device:
            yield [Way("device", device.hal)]
        return
    async with connect(plan.socket) as device, bare_client(plan.socket) as bare:
        yield [Way("client", device.hal), Way("driver", bare, is_bare=True)]


async def _judge(
    mutant: Mutant, original: hal.Model | None, ways: Sequence[Way]
) -> list[str]:
    return [p for way in ways for p in await judge_model(mutant, original, way)]


class TravellingRequest:
    """The request of a case; the second of its two pools, the outputs', is marked."""

    def __init__(self, case: Case) -> None:
        request = build_request(case).request
        inputs, outputs = (
            shareable(p) for p in request.pools if isinstance(p, hal.Memory)
        )
        view(outputs)[:] = bytes([_UNTOUCHED]) * outputs.size
        self.pools = (inputs, outputs)
        self.request = replace(request, pools=self.pools)
        self._shape = RequestShape.of(request.inputs, request.outputs, 2)

    @cached_property
    def packet(self) -> bytes:
        """The packet of the request, to be measured; its pools are slots 0 and 1."""
        return self._shape.encode((0, 1), hal.MeasureTiming.YES)

    @property
    def fits_in_a_packet(self) -> bool:
        """Whether queues of the usual length have room for the packet."""
        return self._shape.size_bytes <= DATUM_BYTES * DEFAULT_QUEUE_LENGTH

    def traces_of(self, label: str) -> list[str]:
        """Return that outputs have been written, if they have, by what ``label`` is."""
        _, outputs = self.pools
        if view(outputs).tobytes().count(_UNTOUCHED) == outputs.size:
            return []
        return [f"{label}: outputs were written"]


class CaseTrial:
    """Tries mutants of one case."""

    def __init__(self, case: Case, ways: Sequence[Way], plan: MutantPlan) -> None:
        self._case = case
        self._ways = ways
        self._plan = plan
        # Its pools need no copy on the way to a driver.
        pools = tuple(map(shareable, case.model.pools))
        self._model = replace(case.model, pools=pools)

    async def run(self) -> list[RowResult]:
        """Return a result for each row.

        There are none of models if the case is refused itself, as nothing would be
        learnt, and none of requests and bursts if it cannot be prepared.
        """
        results: list[RowResult] = []
        judge = partial(_judge, original=self._model, ways=self._ways)
        try:
            for way in self._ways:
                await self._ask(way)
            for row in MODEL_ROWS:
                mutants = row.mutants(self._model, VERSION)
                results.append(await self._of_each(row, mutants, judge))
            targets = [
                PreparedWay(way, await prepare(self._model, way.device))
                for way in self._ways
            ]
        except hal.AsyncnnError as error:
            if self._case.expect_failure or self._case.folder.endswith(CTS_ONLY):
                reason = "a driver may refuse the case itself"
                return [*results, self._result(ITSELF, skipped={reason: 1})]
            return [*results, self._result(ITSELF, [[str(error)]])]
        sent = TravellingRequest(self._case)
        results += await self._try_requests(sent, targets)
        return results + await self._try_bursts(TravellingRequest(self._case), targets)

    async def _ask(self, way: Way) -> None:
        """Make sure that a device finds no fault with the case itself.

        :raises AsyncnnError: if it does, or does not answer.
        """
        asked = way.device.get_supported_operations_1_3(self._model)
        status, _ = await answer_of(asked)
        if status is not hal.ErrorStatus.NONE:
            raise hal.error_for(status, f"the {way.name} refuses the case")

    async def _of_each(
        self,
        row: Listed,
        mutants: Iterator[AnyMutant],
        judge: Callable[[AnyMutant], Awaitable[list[str]]],
    ) -> RowResult:
        """Have as many mutants judged as the plan says."""
        seed = f"{self._case.name} {row.number}"
        chosen = sample(mutants, self._plan.limit, seed)
        answers = [await judge(mutant) for mutant in chosen.tried]
        return self._result(row.number, answers, skipped=Counter(chosen.exempt))

    def _result(
        self, row: str, answers: Sequence[list[str]] = (), **skipped: Any
    ) -> RowResult:
        """Return the result of tries by what was wrong with the answers to each."""
        case, wrong = self._case, sum(map(bool, answers))
        spec, transport = f"{case.folder}/{case.spec}", self._plan.transport
        return RowResult(
            *(spec, case.name, row, transport, len(answers) - wrong, wrong),
            problems=tuple(chain(*answers)),
            **skipped,
        )

    async def _try_requests(
        self, sent: TravellingRequest, targets: Sequence[PreparedWay]
    ) -> list[RowResult]:
        with ExitStack() as stack:
            if sent.fits_in_a_packet:
                targets = [await _with_burst(target, stack) for target in targets]

            async def judge(row: RequestRow, mutant: RequestMutant) -> list[str]:
                answers = [
                    await judge_request(mutant, target, by_burst=row.by_burst)
                    for target in targets
                ]
                return [*chain(*answers), *sent.traces_of(mutant.label)]

            results = []
            for row in REQUEST_ROWS:
                mutants = with_timing(row.mutate(sent.request, self._model))
                results.append(await self._of_each(row, mutants, partial(judge, row)))
            return results

    async def _try_bursts(
        self, sent: TravellingRequest, targets: Sequence[PreparedWay]
    ) -> list[RowResult]:
        """Return a result for each row of bursts.

        Altered packets come first: those that are valid show that the burst goes on.
        """
        if not sent.fits_in_a_packet:
            skipped = {"the packet is longer than the queue": 1}
            rows: Sequence[Listed] = (*PACKET_ROWS, *BURST_ROWS)
            return [self._result(row.number, skipped=skipped) for row in rows]
        async with AsyncExitStack() as stack:
            senders = []
            for way, prepared in ((each.way, each.prepared) for each in targets):
                if not way.is_bare:
                    opening = bare_burst(prepared, sent.pools)
                    burst = await stack.enter_async_context(opening)
                    senders.append(Sender(sent.packet, burst, prepared, sent.pools))

            async def judge(mutant: PacketMutant) -> list[str]:
                answers = [await judge_packet(mutant, each.burst) for each in senders]
                return [*chain(*answers), *sent.traces_of(mutant.label)]

            return [
                *[
                    await self._of_each(row, row.mutate(sent.packet), judge)
                    for row in PACKET_ROWS
                ],
                *[await self._try_burst(row, senders) for row in BURST_ROWS],
            ]

    async def _try_burst(self, row: BurstRow, senders: Sequence[Sender]) -> RowResult:
        problems: list[str] = []
        try:
            if self._case.expect_failure:
                raise NothingToLearnError("the case may fail itself")
            for sender in senders:
                problems += await in_time(row.judge(sender))
        except NothingToLearnError as reason:
            return self._result(row.number, skipped={str(reason): 1})
        return self._result(row.number, [problems])


async def _with_burst(target: PreparedWay, stack: ExitStack) -> PreparedWay:
    if target.way.is_bare:
        return target
    burst = stack.enter_context(await BurstController.open(target.prepared))
    return replace(target, burst=burst)
