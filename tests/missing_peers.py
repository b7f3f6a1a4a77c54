"""Tests that need a package which is not installed are skipped, and say so.

Only packages that users may do without count: those of `PEERS`. With
``ASYNCNN_REQUIRE_PEERS=1`` such a test fails as any other.
"""

import os
import re
from collections.abc import Generator
from importlib.util import find_spec

import pytest

PEERS = frozenset(
    {
        *(
            "ai_edge_litert",
            "grpc",
            "grpc_health",
            "grpc_reflection",
            "httpx",
            "iceoryx2",
            "mlperf_loadgen",
            "onnx",
        ),
        *("onnxruntime", "opentelemetry", "playwright", "prometheus_client", "pyright"),
        *(
            "ray",
            "schemathesis",
            "sklearn",
            "starlette",
            "tritonclient",
            "uvicorn",
            "uvloop",
            "zmq",
        ),
    }
)
"""Packages of the optional dependencies, as they are imported."""

_MISSING = re.compile(r"ModuleNotFoundError: (?:No module named|import of) '?(\w+)")

_TOLD = re.compile(r"\b([\w-]+) is not installed|No module named '(\w+)")


def _missing(name: str | None) -> str | None:
    package = (name or "").partition(".")[0]
    if package in PEERS and os.environ.get("ASYNCNN_REQUIRE_PEERS") != "1":
        return f"{package} is not installed"
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    found = _MISSING.findall(report.longreprtext) if report.failed else []
    reason = _missing(found[-1]) if found else None
    if reason:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 1, f"Skipped: {reason}")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if report.failed and error is not None:
        reason = reason_of(error)
        if reason:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 1, f"Skipped: {reason}")
    return report


def reason_of(error: BaseException) -> str | None:
    """Return which peer an error says is missing, if that is so."""
    if isinstance(error, ModuleNotFoundError):
        return _missing(error.name)
    # The project's own errors name the package, as `pip` or as Python does.
    named = _TOLD.search(str(error))
    package = (named[1] or named[2]).replace("-", "_") if named else ""
    return _missing(package) if package and find_spec(package) is None else None
