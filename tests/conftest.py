"""Fixtures that every part shares, and which event loop all tests run on."""

import asyncio
import os
import warnings
from itertools import count
from pathlib import Path

import pytest

from asyncnn.service.driver import quotas as clients

SHARED = Path(
    os.environ.get("ASYNCNN_SHARED", Path(__file__).parents[2] / "shared")
).resolve()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--loop",
        choices=("asyncio", "uvloop"),
        default="asyncio",
        help="the event loop of all tests, but not of processes that they start",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--loop") == "uvloop":
        import uvloop

        with warnings.catch_warnings():  # policies go with Python 3.16
            warnings.simplefilter("ignore", DeprecationWarning)
            asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        uvloop.new_event_loop().close()  # what it opens but once is no test's leak


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
