"""Tries mutants of vector files over several processes."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from asyncnn.devices import OWN_PROCESS
from asyncnn.runtime.device import connect, open_device
from asyncnn.tools.conformance.mutations.bare import bare_client
from asyncnn.tools.conformance.mutations.judging import Way
from asyncnn.tools.conformance.mutations.plan import Plan, Tally
from asyncnn.tools.conformance.mutations.trying import Trial, try_cycle
from asyncnn.tools.conformance.vectors import Case, load_cases


def run_mutants(
    specs: Sequence[Path], plan: Plan, workers: int | None = None
) -> Iterator[list[Tally]]:
    """Yield the tallies of each file as it completes, in any order.

    The first are those of the mutants that are made of no file.
    """
    count = min(workers or os.cpu_count() or 1, len(specs)) or 1
    # Spawned workers inherit neither threads nor event loops.
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        yield [pool.submit(mutate_nothing, plan).result()]
        futures = [pool.submit(mutate_spec, spec, plan) for spec in specs]
        for future in as_completed(futures):
            yield future.result()


def mutate_spec(spec: Path, plan: Plan) -> list[Tally]:
    """Try the mutants of each case of one file."""
    cases = [case for case in load_cases(spec) if plan.includes(case)]
    return asyncio.run(_mutate_cases(cases, plan)) if cases else []


async def _mutate_cases(cases: Sequence[Case], plan: Plan) -> list[Tally]:
    tallies: list[Tally] = []
    async with _ways(plan) as ways:
        for case in cases:
            tallies += await Trial(case, ways, plan).run()
    return tallies


def mutate_nothing(plan: Plan) -> Tally:
    """Try the mutant that is made of no case."""
    return asyncio.run(_mutate_nothing(plan))


async def _mutate_nothing(plan: Plan) -> Tally:
    async with _ways(plan) as ways:
        return await try_cycle(ways, plan)


@contextlib.asynccontextmanager
async def _ways(plan: Plan) -> AsyncIterator[list[Way]]:
    if plan.socket is None:
        async with open_device(
            settings=OWN_PROCESS, extensions=plan.extensions
        ) as device:
            yield [Way("device", device.hal)]
        return
    async with connect(plan.socket) as device, bare_client(plan.socket) as bare:
        yield [
            Way("client", device.hal),
            Way("driver", bare, is_bare=True),
        ]
