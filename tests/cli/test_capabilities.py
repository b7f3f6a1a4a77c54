"""``asyncnn capabilities`` shows, measures once, and measures again when told to."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncnn.devices import measured_capabilities
from asyncnn.devices.measured_capabilities import ModelTime, default_path
from asyncnn.tools import capabilities as tool
from asyncnn.tools.capabilities import (
    CapabilityMeasurement,
    ReferenceWorkload,
    load_measurement,
)
from tests.cli.conftest import Ran

Command = Callable[..., Ran]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that each measurement found, instead of measuring."""
    found: list[float] = []

    async def measure(*, models: bool, **_: object) -> CapabilityMeasurement:
        found.append(0.5 * (len(found) + 1))
        times = dict.fromkeys(ReferenceWorkload, found[-1])
        by_models = {"mobilenet": ModelTime(0.25, quantized=True)} if models else {}
        return CapabilityMeasurement.now(times, by_models)

    monkeypatch.setattr(tool, "measure_capabilities", measure)
    return found


def test_nothing_is_measured_unasked(
    asyncnn_command: Command, calls: list[float], state: Path
) -> None:
    ran = asyncnn_command("capabilities")
    assert ran.status == 0
    assert "not measured: asyncnn capabilities --measure" in ran.out
    assert not calls
    assert not list(state.iterdir())


def test_measuring_is_done_once_unless_told_otherwise(
    asyncnn_command: Command, calls: list[float]
) -> None:
    for option, expected in (("--measure", 0.5), ("--measure", 0.5), ("--again", 1.0)):
        report = json.loads(asyncnn_command("capabilities", option, "--json").out)
        assert set(report["exec_times"].values()) == {expected}
        shown = json.loads(asyncnn_command("capabilities", "--json").out)
        assert shown == report
    assert calls == [0.5, 1.0]


def test_devices_show_what_was_measured_from_the_next_boot_on(
    asyncnn_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown() -> set[float]:
        reports = json.loads(asyncnn_command("devices", "--json").out)
        performance = {report["name"]: report["performance"] for report in reports}
        return set(performance["reference"].values())

    ran = asyncnn_command("capabilities", "--measure")
    assert "in force from the next boot on" in ran.out
    assert shown() == {1.0}
    monkeypatch.setattr(measured_capabilities, "BOOT_ID", tmp_path / "none")
    assert "next boot" not in asyncnn_command("capabilities").out
    assert shown() == {0.5}


def test_the_document_says_where_figures_come_from(asyncnn_command: Command) -> None:
    before = json.loads(asyncnn_command("capabilities", "--json").out)
    assert before["measured_at"] is before["surroundings"] is None
    assert list(before["exec_times"]) == list(ReferenceWorkload)
    after = json.loads(asyncnn_command("capabilities", "--measure", "--json").out)
    measurement = load_measurement()
    assert measurement is not None
    assert after["surroundings"]["cpu"] == measurement.surroundings.cpu
    assert not after["ignored"]


def test_a_file_that_is_not_used_is_told_and_replaced(asyncnn_command: Command) -> None:
    asyncnn_command("capabilities", "--measure")
    default_path().write_text("{}")
    assert "not used" in asyncnn_command("capabilities").out
    ran = asyncnn_command("capabilities", "--measure")
    assert "measured on" in ran.out
    assert load_measurement() is not None


def test_nothing_is_measured_that_could_not_be_kept(
    asyncnn_command: Command, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool, "measure_capabilities", pytest.fail)
    (state / "asyncnn").touch()
    ran = asyncnn_command("capabilities", "--again", "--json")
    assert ran.status == 2
    assert ran.err.startswith("asyncnn: nothing could be kept: ")


def test_reference_models_can_be_left_out(asyncnn_command: Command) -> None:
    shown = asyncnn_command("capabilities", "--measure").out
    assert "mobilenet" in shown
    assert "0.25" in shown
    ran = asyncnn_command("capabilities", "--again", "--no-models", "--json")
    assert json.loads(ran.out)["model_times"] == {}


def test_a_driver_that_runs_is_measured_and_nothing_is_kept(
    asyncnn_command: Command, calls: list[float], state: Path
) -> None:
    ran = asyncnn_command("capabilities", "--socket", "/run/d.sock")
    assert ran.status == 0
    assert "of the driver at /run/d.sock, relative to plain NumPy" in ran.out
    assert "of the driver at /run/d.sock, relative to the reference" in ran.out
    assert calls == [0.5]
    assert not list(state.iterdir())
