import pytest

from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import BOUNDS_NS, LatencyHistogram, WorkAccounting
from asyncnn.qos.accounting import count_end

NONE, EXHAUSTED = ErrorStatus.NONE, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT


def histogram(*latencies_ns: int) -> LatencyHistogram:
    accounting = WorkAccounting()
    for latency_ns in latencies_ns:
        count_end((accounting,), latency_ns)
    return accounting.statistics().latency


@pytest.mark.parametrize(
    ("latency_ns", "bucket"),
    [(0, 0), (1023, 0), (1024, 1), (2047, 1), (2048, 2), (1 << 62, len(BOUNDS_NS))],
)
def test_a_latency_lies_below_the_bound_of_its_bucket(
    latency_ns: int, bucket: int
) -> None:
    counts = histogram(latency_ns).counts
    assert counts.index(1) == bucket
    assert sum(counts) == 1


@pytest.mark.parametrize(
    ("share", "bound_ns"),
    [(0.0, 1024), (0.5, 1024), (0.9, 1024), (0.95, 1 << 20), (1.0, 1 << 20)],
)
def test_a_quantile_is_a_bound_that_so_many_did_not_exceed(
    share: float, bound_ns: int
) -> None:
    latencies = histogram(*[100] * 9, 1_000_000)
    assert latencies.quantile_ns(share) == bound_ns


def test_an_empty_histogram_has_no_quantiles() -> None:
    assert histogram().quantile_ns(0.99) == 0


def test_beyond_the_last_bound_a_quantile_is_twice_that() -> None:
    assert histogram(1 << 62).quantile_ns(0.5) == 2 * BOUNDS_NS[-1]


def test_what_was_added_since_an_earlier_record_is_a_histogram() -> None:
    accounting = WorkAccounting()
    count_end((accounting,), 100)
    earlier = accounting.statistics().latency
    count_end((accounting,), 5000)
    assert accounting.statistics().latency.since(earlier) == histogram(5000)


def test_refusals_end_work_that_has_no_latency() -> None:
    accounting = WorkAccounting()
    accounting.count_refusal(EXHAUSTED)
    count_end((accounting,), 100, EXHAUSTED)
    statistics = accounting.statistics()
    assert statistics.done[EXHAUSTED] == statistics.ended == 2
    assert statistics.done[NONE] == 0
    assert statistics.latency.count == 1
