"""Says how much was swept, and lets no timer of the driver's delay each attempt."""

import pytest

from asyncnn.service.driver import turns
from tests.sweep.sweeping import totals


@pytest.fixture(autouse=True)
def short_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let connections that have ended count for a moment only."""
    monkeypatch.setattr(turns, "_MEMORY_S", 0.001)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if totals.cancellations:
        terminalreporter.write_line(f"cancellation sweep: {totals}")
