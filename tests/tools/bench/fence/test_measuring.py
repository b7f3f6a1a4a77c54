"""The fence benchmark end to end."""

import msgspec
import pytest

from asyncnn.tools.bench.fence import measuring
from asyncnn.tools.bench.fence.measuring import bench_fence
from asyncnn.tools.bench.fence.report import DESCRIPTIONS, FenceReport
from tests.tools.bench.calling import CPU


def test_every_contender_has_a_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "_BATCH_US", 500.0)
    monkeypatch.setattr(measuring, "cpu_pairs", lambda: [(CPU, CPU)])
    report = bench_fence(rounds=2)
    (placed,) = report.placements
    assert list(placed.us) == list(DESCRIPTIONS)
    assert all(us > 0 for us in placed.us.values())
    assert msgspec.json.decode(msgspec.json.encode(report), type=FenceReport) == report
