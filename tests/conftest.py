"""Fixtures that every part shares, and what all tests begin with."""

import gc
import importlib
import os
import pkgutil
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import asyncnn
from asyncnn.service.driver import quotas as clients

pytest_plugins = [
    "tests.browser",
    "tests.forked_starts",
    "tests.missing_peers",
    "tests.other_loops",
    "tests.time_limit",
]

MANY_CASES = 6
"""Of a test that has more, those beyond are exhaustive; which, its name decides."""

RECORDED_CASES = 2
"""Of a test, while coverage is recorded: more run the same lines, and take long."""

OF_ONE_CASE_EACH = tuple(
    f"tests/{part}"
    for part in (
        *("cli/", "extensions/", "fences/", "fmq/", "kernels/embedding/"),
        *("runtime/onnx/test_node_tests.py", "runtime/tflite/"),
    )
)
"""Where each case of a test runs lines of its own: all are recorded."""

LONG_S = 120.0
"""Beyond this time limit, a test is of those that begin first."""

SHARED = Path(
    os.environ.get("ASYNCNN_SHARED", Path(__file__).parents[2] / "shared")
).resolve()


def one_in(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which all but each ``count``-th are exhaustive."""
    return [
        pytest.param(case, marks=[pytest.mark.exhaustive] if number % count else [])
        for number, case in enumerate(cases)
    ]


def pytest_configure(config: pytest.Config) -> None:
    # What is exact to the bit is said of this device; tests of others name them.
    os.environ.setdefault("ASYNCNN_DEVICE", "reference")
    # What is kept of this machine and user, such as measured capabilities, would decide
    # where models run.
    state = config.rootpath / ".pytest_cache/state"
    state.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_STATE_HOME"] = str(state)
    # Its threads open descriptors at any time, which look like leaks of a test.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what is collected and imported, and stays, out of garbage collections.

    It is half a million objects; many tests collect garbage before they count what is
    left.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        _freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector,
) -> Generator[None, object, object]:
    """Record no coverage of how tests are found in a module that is imported."""
    with _untraced(collector.config, True):
        return (yield)


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases that are exhaustive or not recorded; refuse what tiers do not find."""
    for path in {item.path for item in items if item.get_closest_marker("alone")}:
        if "mark.alone" not in path.read_text():
            raise pytest.UsageError(f"{path} has tests that run alone, but no mark")
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("exhaustive"):
            cases[item.nodeid.partition("[")[0]].append(item)
    recorded: set[pytest.Item] = set()
    for test, of_it in cases.items():
        # The same ones in all processes; at even distances all might be of one path.
        chosen = random.Random(test).sample(of_it, min(MANY_CASES, len(of_it)))
        recorded.update(chosen[:RECORDED_CASES])
        for item in set(of_it).difference(chosen):
            item.add_marker(pytest.mark.exhaustive)
    for item in items:
        if item not in recorded and not item.nodeid.startswith(OF_ONE_CASE_EACH):
            item.add_marker(pytest.mark.unrecorded)
    # Those that may take longest first: the last ones have other processors wait.
    items.sort(key=_time_limit, reverse=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record no coverage of what is marked so, nor of what is set up for it."""
    with _untraced(item.config, item.get_closest_marker("unrecorded") is not None):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """Record no coverage of what hands tests to workers, but of imports alone.

    A worker may import a module first in a test of which no coverage is recorded.
    """
    hands_out = session.config.getoption("dist", "no") != "no"
    if hands_out and session.config.pluginmanager.hasplugin("_cov"):
        for module in pkgutil.walk_packages(asyncnn.__path__, "asyncnn."):
            if not module.name.endswith("__main__"):
                with suppress(ImportError):
                    importlib.import_module(module.name)
    with _untraced(session.config, hands_out):
        return (yield)


@contextmanager
def _untraced(config: pytest.Config, is_wanted: bool) -> Iterator[None]:
    """Have coverage trace nothing.

    In workers, two of it are there, and pytest-cov pauses one: the other goes on.
    """
    if not (is_wanted and config.pluginmanager.hasplugin("_cov")):
        yield
        return
    tracer, of_threads = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        yield
    finally:
        threading.settrace(of_threads)  # type: ignore[arg-type]
        sys.settrace(tracer)


def _time_limit(item: pytest.Item) -> float:
    """Return the time limit of a test, 0 if it is no longer than usual."""
    mark = item.get_closest_marker("timeout")
    seconds = float(mark.args[0]) if mark and mark.args else 0.0
    return seconds if seconds > LONG_S else 0.0


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of conformance vectors and trained models beside the project."""
    if SHARED.is_dir():
        return SHARED
    if os.environ.get("ASYNCNN_REQUIRE_SHARED") == "1":
        pytest.fail(f"{SHARED} is missing but ASYNCNN_REQUIRE_SHARED=1")
    pytest.skip(f"{SHARED} is missing; set ASYNCNN_SHARED to the folder of the data")


@pytest.fixture(scope="module", autouse=True)
def frozen() -> Iterator[None]:
    """Keep what a module leaves, and has imported, out of collections as well."""
    yield
    _freeze()


@pytest.fixture(scope="module")
def thawed() -> Iterator[None]:
    """Have no object kept out of garbage collections when the module begins."""
    gc.unfreeze()
    gc.collect()
    yield
    gc.unfreeze()
    _freeze()


@pytest.fixture
def as_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each connection pass for one of another process, of the same number."""
    starts = count(1)
    monkeypatch.setattr(clients, "started_at", lambda pid: next(starts))
