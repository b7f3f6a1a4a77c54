"""Measurements that were never made, and a place where devices look for them."""

from pathlib import Path

import pytest

from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
)


@pytest.fixture
def measurement() -> CapabilityMeasurement:
    """A measurement of this machine in which no two workloads took the same time."""
    times = {name: 0.25 * (i + 1) for i, name in enumerate(ReferenceWorkload)}
    return CapabilityMeasurement.now(times)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of this user's programs, new and empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "asyncnn"
