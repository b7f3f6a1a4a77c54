"""Runs tests on another event loop, or with eager tasks: a pytest plugin.

There, a test runs if it needs a loop, and its cases are some that have each value of
each parameter, or a dozen of its values: what a loop does differently is to wait, which
one parameter or another may be about, while all cases of both run on asyncio's.
"""

import asyncio
import random
import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

import pytest

FEWEST_CASES = 6
"""Of a test that has so many; others may have values that no case has had."""

MOST_VALUES = 12
"""Of a parameter; where it has more, such as operators, none is about waiting."""

RUNS_A_LOOP = re.compile(
    r"^\s+.*asyncio\.(run|Runner)\(|onnx_backend|tests\.fmq\.peer", re.MULTILINE
)
"""What files have whose tests run loops of their own, though they are no coroutines.

What begins a line is of a program, which is for a process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="the event loop of all tests, but not of processes that they start",
    )
    parser.addoption(
        "--eager",
        action="store_true",
        help="have tasks begin when they are created (Python 3.12 and newer)",
    )


def pytest_configure(config: pytest.Config) -> None:
    loop, eager = config.getoption("--loop"), config.getoption("--eager")
    if loop == "asyncio" and not eager:
        return
    config.pluginmanager.register(Choice(), "choice for other loops")
    with warnings.catch_warnings():  # policies go with Python 3.16
        warnings.simplefilter("ignore", DeprecationWarning)
        policy: type[asyncio.AbstractEventLoopPolicy] = asyncio.DefaultEventLoopPolicy
        if loop == "uvloop":
            import uvloop

            policy = uvloop.EventLoopPolicy
            uvloop.new_event_loop().close()  # what it opens but once is no test's leak
        asyncio.set_event_loop_policy((_eager(policy) if eager else policy)())


def _eager(
    policy: type[asyncio.AbstractEventLoopPolicy],
) -> type[asyncio.AbstractEventLoopPolicy]:
    if sys.version_info < (3, 12):
        raise pytest.UsageError("--eager needs Python 3.12 or newer")

    class EagerPolicy(policy):  # type: ignore[misc, valid-type]
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            loop = super().new_event_loop()
            loop.set_task_factory(asyncio.eager_task_factory)
            return loop

    return EagerPolicy


class Choice:
    """Chooses tests and cases where the loop is not asyncio's."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        runs_one = {
            path: RUNS_A_LOOP.search(path.read_text()) is not None
            for path in {item.path for item in items}
        }
        tests: dict[str, list[Any]] = defaultdict(list)
        for item in items:
            if item.get_closest_marker("asyncio") or runs_one[item.path]:
                tests[item.nodeid.partition("[")[0]].append(item)
        chosen = {
            item
            for test, cases in tests.items()
            for item in some(test, [c for c in cases if not is_of_many(c)] or cases)
        }
        config.hook.pytest_deselected(
            items=[each for each in items if each not in chosen]
        )
        items[:] = [item for item in items if item in chosen]


def is_of_many(case: Any) -> bool:
    """Return whether a parameter says that it is for exhaustive tests."""
    marks = case.callspec.marks if hasattr(case, "callspec") else ()
    return any(mark.name == "exhaustive" for mark in marks)


def some(test: str, cases: Collection[Any]) -> Iterator[Any]:
    """Yield cases that have values of all parameters; which, its name decides."""
    had: dict[str, set[int]] = defaultdict(set)
    passed_over = []
    count = 0
    for case in random.Random(test).sample(list(cases), len(cases)):
        callspec = getattr(case, "callspec", None)
        params = callspec.params.items() if callspec else ()
        if not any(
            id(value) not in had[name] and len(had[name]) < MOST_VALUES
            for name, value in params
        ):
            passed_over.append(case)
            continue
        for name, value in params:
            had[name].add(id(value))
        count += 1
        yield case
    yield from passed_over[: max(0, FEWEST_CASES - count)]
