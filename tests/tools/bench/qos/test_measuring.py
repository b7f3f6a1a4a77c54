"""The benchmark of priorities and deadlines end to end."""

import msgspec
import pytest
from rich.console import Console

from asyncnn.tools.bench.qos import measuring
from asyncnn.tools.bench.qos.load import Stack
from asyncnn.tools.bench.qos.measuring import LOADS, bench_qos
from asyncnn.tools.bench.qos.report import DESCRIPTIONS, QosReport
from asyncnn.tools.bench.qos.table import qos_tables

TINY = Stack(layers=2, width=8, rows=2)


@pytest.fixture(scope="module")
def report() -> QosReport:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "BACKGROUND", Stack(layers=4, width=64, rows=64))
        patch.setattr(measuring, "URGENT", TINY)
        patch.setattr(measuring, "_URGENT_RUNS", 3)
        patch.setattr(measuring, "_PAUSE_S", 0.001)
        patch.setattr(measuring, "_DATED_RUNS", 10)
        patch.setattr(measuring, "_QUEUED_RUNS", 20)
        patch.setattr(measuring, "_OVERHEAD_BATCHES", 2)
        return bench_qos(rounds=1)


def test_everything_is_measured(report: QosReport) -> None:
    assert list(report.latencies) == list(DESCRIPTIONS)
    assert all(0 < each.p50_us <= each.p99_us for each in report.latencies.values())
    assert [each.load for each in report.misses] == list(LOADS)
    assert report.longest_operation_us > 0
    assert len(report.verdicts) == 4 + len(LOADS)


def test_the_report_survives_json_and_fits_a_table(report: QosReport) -> None:
    data = msgspec.json.encode(report)
    assert msgspec.json.decode(data, type=QosReport) == report
    console = Console(width=120)
    with console.capture() as capture:
        for table in qos_tables(report):
            console.print(table)
    for description in DESCRIPTIONS.values():
        assert description in capture.get()
