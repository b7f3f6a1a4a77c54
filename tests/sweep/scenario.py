"""The list of scenarios."""

from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

import msgspec

from tests.sweep.stages import Stage

Play: TypeAlias = Callable[[Stage], Coroutine[Any, Any, object]]
Given: TypeAlias = Callable[[Stage], AbstractAsyncContextManager[Any]]

IN_PROCESS = ("lane", "inline")
ON_ONE_LOOP = (*IN_PROCESS, "remote")
EVERYWHERE = (*ON_ONE_LOOP, "process")


class Scenario(msgspec.Struct, frozen=True):
    """What is played, in which homes, with what made before.

    One that ``is_slow`` is cancelled once in each place, and not played afterwards.
    """

    name: str
    play: Play
    homes: tuple[str, ...]
    given: Given | None
    is_slow: bool


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *homes: str, given: Given | None = None, slow: bool = False
) -> Callable[[Play], Play]:
    """List a function as a scenario under its name, with hyphens.

    :param given: a context whose value is the stage's ``given`` during the sweep.
    """

    def listed(play: Play) -> Play:
        add_scenario(
            play.__name__.replace("_", "-"), play, *homes, given=given, slow=slow
        )
        return play

    return listed


def add_scenario(
    name: str, play: Play, *homes: str, given: Given | None = None, slow: bool = False
) -> None:
    """List a scenario that has no function of its own."""
    assert name not in SCENARIOS, f"two scenarios are called {name}"
    SCENARIOS[name] = Scenario(name, play, homes, given, slow)
