"""Every scenario, cancelled everywhere; `sweeping` tells how."""

import itertools
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from asyncnn.service.process import DriverProcess
from tests.places import driver_of
from tests.sweep import (  # noqa: F401 - they list themselves
    scenarios_bursts,
    scenarios_executions,
    scenarios_fences,
    scenarios_lives,
    scenarios_messages,
    scenarios_models,
    scenarios_pipelines,
)
from tests.sweep.cutting import Order
from tests.sweep.loops import LOOPS, run_on
from tests.sweep.scenario import SCENARIOS, Scenario
from tests.sweep.stages import HOMES
from tests.sweep.sweeping import Swept, sweep, totals

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("thawed")]


driver = driver_of()


@pytest.fixture
def driver_if_needed(request: pytest.FixtureRequest, home: str) -> DriverProcess | None:
    return request.getfixturevalue("driver") if home == "process" else None


async def swept(
    scenario: Scenario,
    home: str,
    order: Order,
    folder: Path,
    driver: DriverProcess | None,
) -> Swept:
    async with AsyncExitStack() as stack:
        stage = await stack.enter_async_context(HOMES[home](folder, driver))
        if scenario.given is not None:
            stage.given = await stack.enter_async_context(scenario.given(stage))
        stack.enter_context(stage.witness.watching())
        play = partial(scenario.play, stage)
        is_slow = scenario.is_slow
        return await sweep(play, order, stage.witness, stage.check, is_slow=is_slow)


def cases() -> Iterator[ParameterSet]:
    """Yield all cases; of each scenario that is not slow, one is not exhaustive."""
    turns = itertools.count()
    for number, (name, scenario) in enumerate(SCENARIOS.items()):
        chosen = next(turns) if scenario.is_slow else None
        those = [
            (home, loop, order)
            for home, (place, loop), (turn, order) in itertools.product(
                scenario.homes, enumerate(LOOPS), enumerate(Order)
            )
            if chosen is None
            or (place, turn) == (chosen % len(LOOPS), chosen % len(Order))
        ]
        for position, (home, loop, order) in enumerate(those):
            is_sample = position == number % len(those) and not scenario.is_slow
            marks = [] if is_sample else [pytest.mark.exhaustive]
            case = f"{name}-{home}-{loop}-{order.value}"
            yield pytest.param(name, home, loop, order, id=case, marks=marks)


@pytest.mark.parametrize(("name", "home", "loop", "order"), list(cases()))
def test_nothing_is_lost_by_a_cancellation(
    name: str,
    home: str,
    loop: str,
    order: Order,
    tmp_path: Path,
    driver_if_needed: DriverProcess | None,
) -> None:
    main = swept(SCENARIOS[name], home, order, tmp_path, driver_if_needed)
    result = run_on(loop, main)
    totals.scenarios.add(name)
    totals.cancellations += result.cancellations
    assert not result.faults, "\n".join(result.faults)
