"""A forked child leaves the bursts that it inherits to its parent."""

import asyncio

import pytest

from asyncnn.burst import BurstController
from asyncnn.hal.errors import ForkedError
from asyncnn.hal.types import ErrorStatus
from tests.burst.ends import ADDITION, ScriptedModel, addition_pools, served
from tests.burst.test_controller import a_request
from tests.burst.test_server import PACKET, KnownPools
from tests.forks import in_child_blocking


def is_refused(burst: BurstController) -> None:
    execution = burst.execute(a_request())
    with pytest.raises(StopIteration) as stopped:
        execution.send(None)
    result = stopped.value.value
    assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
    with pytest.raises(ForkedError, match="a burst belongs to the process"):
        result.raise_for_status()


async def test_the_burst_of_an_application_is_refused_at_once(
    scripted: ScriptedModel,
) -> None:
    with await BurstController.open(scripted) as burst:
        assert (await burst.execute(a_request())).status is ErrorStatus.NONE

        def act() -> None:
            is_refused(burst)
            burst.free_memory(addition_pools()[0])
            burst.statistics()
            burst.close()
            is_refused(burst)

        in_child_blocking(act)
        assert (await burst.execute(a_request())).status is ErrorStatus.NONE
        assert burst.statistics().reopened == 0


async def test_one_that_is_in_use_is_refused_as_well(scripted: ScriptedModel) -> None:
    with await BurstController.open(scripted) as burst:
        scripted.outcome = None
        running = asyncio.create_task(burst.execute(a_request()))
        await scripted.launched()
        in_child_blocking(lambda: is_refused(burst))
        assert scripted.killed == 0
        scripted.end()
        assert (await running).status is ErrorStatus.NONE


async def test_closing_the_side_of_the_driver_stops_nothing(
    scripted: ScriptedModel,
) -> None:
    inputs, outputs = addition_pools()
    assert ADDITION.pool_count == 2
    async with served(scripted, KnownPools({4: inputs, 9: outputs})) as ends:
        scripted.outcome = None
        ends.requests.write_nowait(PACKET)
        await scripted.launched()

        def act() -> None:
            deaths: list[str] = []
            ends.context.link_to_death(lambda: deaths.append("dead"))
            ends.context.close()
            scripted.bursts.close()
            assert scripted.killed == 0

        in_child_blocking(act)
        scripted.end()
        assert (await ends.receive()).status is ErrorStatus.NONE
