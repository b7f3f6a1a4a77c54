"""Tries a test on random graphs, and keeps the one that it fails on."""

import functools
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from asyncnn.tools.conformance.random_graphs.checking import interpret
from asyncnn.tools.conformance.random_graphs.dumping import dump
from asyncnn.tools.conformance.random_graphs.families import RandomGraph, graphs
from tests.random_graphs.naive import evaluate_stored

THOROUGH = "thorough"
"""Profile of many new graphs instead of a few that are always the same:
``pytest tests/random_graphs --hypothesis-profile=thorough``.
"""

_CHECKS = (HealthCheck.too_slow, HealthCheck.data_too_large)
"""A graph takes a few hundred choices, and is run several times."""

_FEW = settings(
    max_examples=300,
    derandomize=True,
    database=None,
    deadline=None,
    print_blob=True,
    phases=set(Phase) - {Phase.explain},  # which traces every line, and says little
    suppress_health_check=_CHECKS,
)
_MANY = settings(_FEW, max_examples=5000, derandomize=False)


_DEPTHS = [
    pytest.param(0.1, id="some"),
    pytest.param(1.0, id="all", marks=pytest.mark.exhaustive),
]
"""Shares of the graphs that each test is run with."""


def register_profiles() -> None:
    """Make `THOROUGH` known to Hypothesis."""
    settings.register_profile(THOROUGH, _MANY)


def on_graphs(
    share: float = 1.0,
    strategy: SearchStrategy[RandomGraph] | None = None,
    *,
    shrinks: bool = True,
    **others: SearchStrategy[Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function of ``graph`` a test that tries a share of the usual number.

    The graph on which it fails, the smallest one if it ``shrinks``, is dumped, and the
    error tells how to replay it. Any ``others`` are drawn beside it. pytest runs it
    with some of the graphs and, as an exhaustive test, with all of them.
    """
    is_thorough = settings.get_current_profile_name() == THOROUGH
    profile = _MANY if is_thorough else _FEW
    phases = [phase for phase in profile.phases if shrinks or phase != Phase.shrink]
    drawn = {"graph": graphs() if strategy is None else strategy, **others}

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        failing: list[RandomGraph] = []

        @functools.wraps(check)
        def remember(**arguments: Any) -> None:
            try:
                check(**arguments)
            except Exception:
                failing[:] = [arguments["graph"]]
                raise

        def test_of(count: int) -> Callable[..., None]:
            tried = settings(profile, max_examples=count, phases=phases)
            return tried(given(**drawn)(remember))  # settings are given but once

        whole = test_of(max(round(profile.max_examples * share), 1))

        @pytest.mark.parametrize("depth", _DEPTHS)
        @functools.wraps(whole)
        def run(*, depth: float = 1.0, **arguments: Any) -> None:
            count = max(round(profile.max_examples * share * depth), 1)
            try:
                test_of(count)(**arguments)
            except Exception as error:
                for graph in failing:
                    error.add_note(f"replay with: {_dump(graph)}")
                raise

        named = inspect.signature(whole).parameters.values()
        depth = inspect.Parameter("depth", inspect.Parameter.KEYWORD_ONLY)
        run.__signature__ = inspect.Signature([*named, depth])  # type: ignore[attr-defined]
        return run

    return decorate


def _dump(graph: RandomGraph) -> str:
    """Write the graph, with what the formulas expect of it, and return a command."""
    test = os.environ["PYTEST_CURRENT_TEST"].partition("::")[2].partition(" ")[0]
    name = re.sub(r"\W+", "_", test).strip("_")
    outputs = interpret(graph.named.model, graph.inputs, evaluate_stored)
    return dump(graph.named, graph.inputs, outputs, name).command
