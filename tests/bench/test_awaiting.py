"""The awaiting benchmark and the model that it awaits."""

import msgspec
import numpy as np
import pytest

from asyncnn.bench import awaiting
from asyncnn.bench.awaiting import (
    DESCRIPTIONS,
    GOAL,
    RUN,
    TO_THREAD,
    AwaitingReport,
    bench_awaiting,
    tiny_addition,
)
from asyncnn.runtime.device import open_device


async def test_the_model_adds() -> None:
    x, y = np.arange(4, dtype=np.float32), np.full(4, 0.5, np.float32)
    async with open_device() as device:
        prepared = await device.prepare(tiny_addition())
        outputs = await prepared.run([x, y])
    np.testing.assert_array_equal(outputs["sum"], x + y)


@pytest.fixture(scope="module")
def report() -> AwaitingReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(awaiting, "_BATCH_US", 500.0)
        return bench_awaiting(rounds=2)


def test_every_contender_has_a_figure_in_both_placements(
    report: AwaitingReport,
) -> None:
    assert len(report.placements) == 2
    for placed in report.placements:
        assert list(placed.us) == list(DESCRIPTIONS)
        assert all(us > 0 for us in placed.us.values())


def test_the_ratio_is_that_of_awaiting_a_run_to_awaiting_a_thread(
    report: AwaitingReport,
) -> None:
    for placed in report.placements:
        ratio = placed.figures[RUN].ratio_to(placed.figures[TO_THREAD])
        assert placed.ratio == ratio
        assert placed.met is (ratio <= GOAL)
    assert report.met is all(placed.met for placed in report.placements)


def test_the_report_survives_json(report: AwaitingReport) -> None:
    data = msgspec.json.encode(report)
    assert msgspec.json.decode(data, type=AwaitingReport) == report
