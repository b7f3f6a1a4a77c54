import math
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.hal.types import ErrorStatus, Priority
from asyncnn.metrics import DeviceCollector, openmetrics
from asyncnn.qos import BOUNDS_NS, WorkAccounting, WorkStatistics
from asyncnn.qos.accounting import count_end

NONE, MISSED = ErrorStatus.NONE, ErrorStatus.MISSED_DEADLINE_TRANSIENT


def work(*latencies_ns: int, misses: int = 0, queued: int = 0) -> WorkStatistics:
    accounting = WorkAccounting()
    for latency_ns in latencies_ns:
        count_end((accounting,), latency_ns, preemptions=2)
    for _ in range(misses):
        count_end((accounting,), 1, MISSED)
    return accounting.statistics(queued, running=1)


STATISTICS = DeviceStatistics(
    device="tested",
    threads=3,
    resident_bytes=4096,
    preparations=work(10**6),
    executions=work(1023, 1024, 10**12, misses=4, queued=5),
    models=(ModelStatistics(9, 2, 17, Priority.HIGH, work(7), 640),),
    clients=(
        ClientStatistics(2, "twin", 1.0, work(), 0),
        ClientStatistics(3, "twin", 2.5, work(7, 8), 320),
    ),
)


@pytest.fixture(scope="module")
def families() -> dict[str, Metric]:
    parsed = text_string_to_metric_families(openmetrics(STATISTICS))
    return {family.name: family for family in parsed}


def values(family: Metric, suffix: str = "") -> Iterator[tuple[dict[str, str], float]]:
    for sample in family.samples:
        if sample.name == family.name + suffix:
            yield sample.labels, sample.value


def test_work_is_counted_by_status(families: dict[str, Metric]) -> None:
    ended = {
        labels["status"]: value
        for labels, value in values(families["asyncnn_executions"], "_total")
    }
    assert set(ended) == {status.name for status in ErrorStatus}
    assert {name: value for name, value in ended.items() if value} == {
        NONE.name: 3,
        MISSED.name: 4,
    }


@pytest.mark.parametrize(
    ("name", "suffix", "value"),
    [
        ("executions_queued", "", 5),
        ("executions_running", "", 1),
        ("executions_deadline_misses", "_total", 4),
        ("executions_preemptions", "_total", 6),
        ("threads", "", 3),
        ("resident_bytes", "", 4096),
    ],
)
def test_a_device_has_one_value_of(
    families: dict[str, Metric], name: str, suffix: str, value: float
) -> None:
    expected = ({"device": "tested"}, value)
    assert list(values(families[f"asyncnn_{name}"], suffix)) == [expected]


def test_latencies_are_cumulative_and_in_seconds(families: dict[str, Metric]) -> None:
    family = families["asyncnn_executions_latency_seconds"]
    buckets = {
        float(labels["le"]): value for labels, value in values(family, "_bucket")
    }
    assert len(buckets) == len(BOUNDS_NS) + 1
    assert buckets[BOUNDS_NS[0] / 1e9] == 5
    assert buckets[BOUNDS_NS[1] / 1e9] == buckets[BOUNDS_NS[-1] / 1e9] == 6
    assert buckets[math.inf] == 7
    assert list(buckets.values()) == sorted(buckets.values())
    ((_, total),) = values(family, "_sum")
    assert total == pytest.approx(1000, rel=1e-6)


def test_models_are_told_with_their_facts(families: dict[str, Metric]) -> None:
    assert list(values(families["asyncnn_model_idle_bytes"])) == [
        ({"device": "tested", "model": "9"}, 640)
    ]
    ((facts, _),) = values(families["asyncnn_model"], "_info")
    assert facts == {
        "device": "tested",
        "model": "9",
        "client": "2",
        "operations": "17",
        "priority": "HIGH",
    }


def test_clients_of_one_name_are_told_apart(families: dict[str, Metric]) -> None:
    held = {
        labels["client"]: value
        for labels, value in values(families["asyncnn_client_buffer_bytes"])
    }
    assert held == {"2": 0, "3": 320}
    names = [
        labels["name"] for labels, _ in values(families["asyncnn_client"], "_info")
    ]
    assert names == ["twin", "twin"]


def test_a_name_cannot_break_out_of_its_label() -> None:
    name = 'x"} 1\n# EOF\nfalse{a="\\'
    client = ClientStatistics(1, name, 1.0, work(), 0)
    text = openmetrics(replace(STATISTICS, clients=(client,)))
    families = {each.name: each for each in text_string_to_metric_families(text)}
    ((labels, _),) = values(families["asyncnn_client"], "_info")
    assert labels["name"] == name


def test_an_application_collects_it_beside_its_own() -> None:
    registry = CollectorRegistry()
    registry.register(DeviceCollector(STATISTICS))
    assert registry.get_sample_value("asyncnn_threads", {"device": "tested"}) == 3
