"""The awaiting benchmark."""

import msgspec
import pytest

from asyncnn.tools.bench.awaiting import measuring
from asyncnn.tools.bench.awaiting.measuring import bench_awaiting
from asyncnn.tools.bench.awaiting.report import (
    DESCRIPTIONS,
    GOAL,
    RUN,
    TO_THREAD,
    AwaitingReport,
)


@pytest.fixture(scope="module")
def report() -> AwaitingReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "_BATCH_US", 500.0)
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
