"""Tries the mutants of cases on every way to a driver, over several processes.

Cases lie in memory that goes to a driver as it is, and must be unchanged afterwards.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import cached_property, partial
from itertools import chain
from pathlib import Path

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
from asyncnn.tools.conformance.mutations.campaign import (
    CYCLE,
    MODEL_ROWS,
    Plan,
    RowResult,
    RowResults,
)
from asyncnn.tools.conformance.mutations.mutant import (
    Listed,
    Mutant,
    PacketMutant,
    RequestMutant,
    RequestRow,
    Row,
)
from asyncnn.tools.conformance.mutations.operation_rows import cyclic_mutant
from asyncnn.tools.conformance.mutations.refusing import (
    Target,
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
from asyncnn.tools.conformance.suite import in_processes
from asyncnn.tools.conformance.vectors import Case

VERSION = hal.HalVersion.V1_3
"""The version of the calls that devices offer, and so of the mutants."""

_UNTOUCHED = 0xA5
"""Fills outputs until somebody writes them."""


def run_mutants(
    specs: Sequence[Path], plan: Plan, workers: int | None = None
) -> Iterator[list[RowResult]]:
    """Yield the results of each file as it completes, in any order.

    Among them is the result of the mutant that is made of no file.
    """
    tasks = [partial(mutate_spec, spec, plan) for spec in specs]
    return in_processes([partial(mutate_nothing, plan), *tasks], workers)


def mutate_spec(spec: Path, plan: Plan) -> list[RowResult]:
    """Try the mutants of each case of one file."""
    cases = plan.load(spec)
    return asyncio.run(_mutate_cases(cases, plan)) if cases else []


async def _mutate_cases(cases: Sequence[Case], plan: Plan) -> list[RowResult]:
    async with _ways(plan) as ways:
        return [
            result for case in cases for result in await Trial(case, ways, plan).run()
        ]


def mutate_nothing(plan: Plan) -> list[RowResult]:
    """Try the mutant that is made of no case."""
    return [asyncio.run(_try_cycle(plan))]


async def _try_cycle(plan: Plan) -> RowResult:
    async with _ways(plan) as ways:
        problems = await _judge(cyclic_mutant(), None, ways)
    result = RowResult("", "", CYCLE, plan.transport, problems=tuple(problems))
    return replace(result, failed=1) if problems else replace(result, passed=1)


@asynccontextmanager
async def _ways(plan: Plan) -> AsyncIterator[list[Way]]:
    if plan.socket is None:
        async with open_device(
            "reference", settings=OWN_PROCESS, extensions=plan.extensions
        ) as device:
            yield [Way("device", device.hal)]
        return
    async with connect(plan.socket) as device, bare_client(plan.socket) as bare:
        yield [Way("client", device.hal), Way("driver", bare, is_bare=True)]


def travelling(model: hal.Model) -> hal.Model:
    """Return the model with pools that need no copy on the way to a driver."""
    return replace(model, pools=tuple(map(shareable, model.pools)))


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


class Trial:
    """Tries mutants of one case."""

    def __init__(self, case: Case, ways: Sequence[Way], plan: Plan) -> None:
        self._case = case
        self._ways = ways
        self._results = RowResults(case, plan)
        self._model = travelling(case.model)

    async def run(self) -> list[RowResult]:
        """Return a result for each row.

        There are none of models if the case is refused itself, as nothing would be
        learnt, and none of requests and bursts if it cannot be prepared.
        """
        results: list[RowResult] = []
        try:
            for way in self._ways:
                await self._ask(way)
            results = [await self._try_models(row) for row in MODEL_ROWS]
            targets = [
                Target(way, await prepare(self._model, way.device))
                for way in self._ways
            ]
        except hal.AsyncnnError as error:
            return [*results, self._results.unusable(error)]
        results += await self._try_all_requests(targets)
        return results + await try_bursts(self._case, targets, self._results)

    async def _ask(self, way: Way) -> None:
        """Make sure that a device finds no fault with the case itself.

        :raises AsyncnnError: if it does, or does not answer.
        """
        asked = way.device.get_supported_operations_1_3(self._model)
        status, _ = await answer_of(asked)
        if status is not hal.ErrorStatus.NONE:
            raise hal.error_for(status, f"the {way.name} refuses the case")

    async def _try_models(self, row: Row) -> RowResult:
        judge = partial(_judge, original=self._model, ways=self._ways)
        mutants = row.mutants(self._model, VERSION)
        return await self._results.of_each(row.number, mutants, judge)

    async def _try_all_requests(self, targets: Sequence[Target]) -> list[RowResult]:
        sent = TravellingRequest(self._case)
        with ExitStack() as stack:
            if sent.fits_in_a_packet:
                targets = [await _with_burst(target, stack) for target in targets]

            async def judge(row: RequestRow, mutant: RequestMutant) -> list[str]:
                answers = [
                    await judge_request(mutant, target, by_burst=row.by_burst)
                    for target in targets
                ]
                return [*chain(*answers), *sent.traces_of(mutant.label)]

            return [
                await self._results.of_each(
                    row.number,
                    with_timing(row.mutate(sent.request, self._model)),
                    partial(judge, row),
                )
                for row in REQUEST_ROWS
            ]


async def _with_burst(target: Target, stack: ExitStack) -> Target:
    if target.way.is_bare:
        return target
    burst = stack.enter_context(await BurstController.open(target.prepared))
    return replace(target, burst=burst)


async def _judge(
    mutant: Mutant, original: hal.Model | None, ways: Sequence[Way]
) -> list[str]:
    return [p for way in ways for p in await judge_model(mutant, original, way)]


async def try_bursts(
    case: Case, targets: Sequence[Target], results: RowResults
) -> list[RowResult]:
    """Return a result for each row of bursts.

    Altered packets come first: those that are valid show that the burst goes on.
    """
    sent = TravellingRequest(case)
    if not sent.fits_in_a_packet:
        reason = "the packet is longer than the queue"
        rows: Sequence[Listed] = (*PACKET_ROWS, *BURST_ROWS)
        return [results.skipped(row.number, reason) for row in rows]
    async with AsyncExitStack() as stack:
        senders = [
            await _sender(target, sent, stack)
            for target in targets
            if not target.way.is_bare
        ]

        async def judge(mutant: PacketMutant) -> list[str]:
            answers = [await judge_packet(mutant, each.burst) for each in senders]
            return [*chain(*answers), *sent.traces_of(mutant.label)]

        found = [
            await results.of_each(row.number, row.mutate(sent.packet), judge)
            for row in PACKET_ROWS
        ]
        if case.expect_failure:
            reason = "the case may fail itself"
            return found + [results.skipped(row.number, reason) for row in BURST_ROWS]
        return found + [await _try_burst(row, senders, results) for row in BURST_ROWS]


async def _sender(
    target: Target, sent: TravellingRequest, stack: AsyncExitStack
) -> Sender:
    burst = await stack.enter_async_context(bare_burst(target.prepared, sent.pools))
    return Sender(sent.packet, burst, target.prepared, sent.pools)


async def _try_burst(
    row: BurstRow, senders: Sequence[Sender], results: RowResults
) -> RowResult:
    problems: list[str] = []
    for sender in senders:
        try:
            problems += await in_time(row.judge(sender))
        except NothingToLearnError as reason:
            return results.skipped(row.number, str(reason))
    return results.of(row.number, [problems])
