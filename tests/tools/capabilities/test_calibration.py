"""Measuring gives a figure for each workload, and does not take long."""

from collections.abc import Iterable, Sequence

import pytest

from asyncnn.tools.capabilities import (
    Measurement,
    ReferenceWorkload,
    Surroundings,
    calibration,
    load_measurement,
    measure_capabilities,
    store_measurement,
)
from asyncnn.tools.capabilities.workload import Workload


@pytest.fixture
async def measured(monkeypatch: pytest.MonkeyPatch) -> tuple[Measurement, list[str]]:
    """A hasty measurement, and the workloads whose progress was told."""
    monkeypatch.setattr(calibration, "_BATCH_US", 1.0)
    told = []

    def progress(workloads: Sequence[Workload]) -> Iterable[Workload]:
        for workload in workloads:
            yield workload
            told.append(workload.name)

    return await measure_capabilities(rounds=1, progress=progress), told


async def test_a_measurement_can_be_stored_and_found_again(
    measured: tuple[Measurement, list[str]], tmp_path: object
) -> None:
    measurement, told = measured
    assert told == list(ReferenceWorkload)
    assert measurement.surroundings == Surroundings.present()
    path = f"{tmp_path}/figures.json"
    store_measurement(measurement, path)
    assert load_measurement(path) == measurement


async def test_figures_have_three_digits(
    measured: tuple[Measurement, list[str]],
) -> None:
    measurement, _ = measured
    for time in measurement.exec_times.values():
        assert time == float(f"{time:.3g}") > 0
