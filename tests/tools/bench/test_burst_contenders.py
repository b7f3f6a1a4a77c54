"""Whole executions by burst and their parts, as the benchmark calls them."""

from asyncnn.burst.packets import DATUM_BYTES
from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.tools.bench.bench_burst import (
    PARTS,
    burst_execution,
    burst_parts,
    burst_run,
)
from tests.tools.bench.calling import CPU


async def test_a_burst_of_the_no_op_device_executes_and_runs() -> None:
    async with burst_execution(CPU) as execute:
        for _ in range(3):
            assert (await execute()).status is ErrorStatus.NONE
    async with burst_run(CPU) as run:
        assert len(await run()) == 1


async def test_every_part_does_its_part() -> None:
    async with burst_parts() as parts:
        assert parts.keys() == PARTS.keys()
        request, bind, execute, result = (parts[name] for name in PARTS)
        assert bind() is bind()
        assert request()
        assert len(request()) % DATUM_BYTES == 0
        assert execute() is ErrorStatus.NONE
        assert result() is NO_TIMING
