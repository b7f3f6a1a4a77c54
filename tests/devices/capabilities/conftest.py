"""Measurements that were never made, and a place where devices look for them."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from asyncnn.devices import measured_capabilities
from asyncnn.devices.measured_capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
)


@pytest.fixture
def measurement() -> CapabilityMeasurement:
    """A measurement of this machine in which no two workloads took the same time.

    It was made before the machine was booted.
    """
    times = {name: 0.25 * (i + 1) for i, name in enumerate(ReferenceWorkload)}
    return replace(CapabilityMeasurement.now(times), boot="an earlier one")


@pytest.fixture
def reboot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], object]:
    """Boot the machine, as far as measurements know."""
    boots = count()
    boot_id = tmp_path / "boot_id"
    monkeypatch.setattr(measured_capabilities, "BOOT_ID", boot_id)

    def again() -> object:
        return boot_id.write_text(f"boot {next(boots)}\n")

    again()
    return again


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The state directory of this user's programs, new and empty."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "asyncnn"
