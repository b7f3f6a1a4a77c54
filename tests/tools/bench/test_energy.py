"""Energy is that of all packages, where the machine says it."""

from pathlib import Path

from asyncnn.tools.bench.rounds import EnergyMeter


def zone(root: Path, name: str, microjoules: int, most: int = 1_000_000_000) -> Path:
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{most}\n")
    return folder


def test_packages_are_added_and_their_parts_are_not(tmp_path: Path) -> None:
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0", "intel-rapl-mmio:0"):
        zone(tmp_path, name, 1_000_000)
    (tmp_path / "intel-rapl").mkdir()  # the control type itself
    meter = EnergyMeter.found(tmp_path)
    assert meter is not None
    zone(tmp_path, "intel-rapl:0", 3_500_000)
    zone(tmp_path, "intel-rapl:1", 1_250_000)
    zone(tmp_path, "intel-rapl:0:0", 9_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", 3_500_000)
    assert meter.joules() == 2.75
    assert meter.joules() == 0.0


def test_a_counter_that_began_anew_goes_on(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", 9_000_000, most=10_000_000)
    meter = EnergyMeter.found(tmp_path)
    assert meter is not None
    zone(tmp_path, "intel-rapl:0", 500_000, most=10_000_000)
    assert meter.joules() == 1.5


def test_a_machine_that_does_not_say_has_no_meter(tmp_path: Path) -> None:
    assert EnergyMeter.found(tmp_path / "nowhere") is None
    assert EnergyMeter.found(tmp_path) is None
    folder = zone(tmp_path, "intel-rapl:0", 1)
    (folder / "energy_uj").write_text("?")
    assert EnergyMeter.found(tmp_path) is None


def test_a_counter_that_is_gone_is_no_error(tmp_path: Path) -> None:
    folder = zone(tmp_path, "intel-rapl:0", 1)
    meter = EnergyMeter.found(tmp_path)
    assert meter is not None
    (folder / "energy_uj").unlink()
    assert meter.joules() is None
