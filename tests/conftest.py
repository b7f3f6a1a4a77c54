"""Fixtures that every part shares, and which event loop all tests run on."""

import asyncio
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from asyncnn.service.driver import quotas as clients

pytest_plugins = ["tests.time_limit"]

SHARED = Path(
    os.environ.get("ASYNCNN_SHARED", Path(__file__).parents[2] / "shared")
).resolve()


def one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which all but each ``count``-th are exhaustive."""
    return [
        pytest.param(case, marks=[pytest.mark.exhaustive] if number % count else [])
        for number, case in enumerate(cases)
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="the event loop of all tests, but not of processes that they start",
    )
    parser.addoption(
        "--cases",
        type=int,
        metavar="N",
        help="run N cases of each parametrised test, spread over all of them",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--loop") == "uvloop":
        import uvloop

        with warnings.catch_warnings():  # policies go with Python 3.16
            warnings.simplefilter("ignore", DeprecationWarning)
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        uvloop.new_event_loop().close()  # what it opens but once is no test's leak


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Refuse marks that `tests.tiers` would not find; drop cases beyond ``--cases``."""
    for path in {item.path for item in items if item.get_closest_marker("alone")}:
        if "mark.alone" not in path.read_text():
            raise pytest.UsageError(f"{path} has tests that run alone, but no mark")
    most = config.getoption("--cases")
    if most is not None:
        kept = set(_spread(items, most))
        config.hook.pytest_deselected(items=[i for i in items if i not in kept])
        items[:] = [item for item in items if item in kept]


def _spread(items: Iterable[pytest.Item], most: int) -> Iterator[pytest.Item]:
    """Yield at most so many cases of each test, from its first to its last."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    for of_one_test in cases.values():
        step = max(1.0, len(of_one_test) / most)
        yield from (
            of_one_test[int(n * step)] for n in range(min(most, len(of_one_test)))
        )


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of conformance vectors and trained models beside the project."""
    if SHARED.is_dir():
        return SHARED
    if os.environ.get("ASYNCNN_REQUIRE_SHARED") == "1":
        pytest.fail(f"{SHARED} is missing but ASYNCNN_REQUIRE_SHARED=1")
    pytest.skip(f"{SHARED} is missing; set ASYNCNN_SHARED to the folder of the data")


@pytest.fixture
def as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each connection pass for one of another process, of the same number."""
    starts = count(1)
    monkeypatch.setattr(clients, "started_at", lambda pid: next(starts))
