"""Statistics as families of metrics.

Devices, models and clients have families of their own, so that sums over the labels of
one count nothing twice. Times are seconds. Source: OpenMetrics 1.0.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.qos import BOUNDS_NS, WorkStatistics

Labels: TypeAlias = tuple[str, ...]
Rows: TypeAlias = Iterable[tuple[Labels, int]]

_LIMITS = (*(repr(bound / 1e9) for bound in BOUNDS_NS), "+Inf")


class DeviceCollector(Collector):
    """Collects the metrics of one record; a registry takes it."""

    def __init__(self, statistics: DeviceStatistics) -> None:
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        """Yield the families."""
        return _families(self._statistics)


def registry_of(statistics: DeviceStatistics) -> CollectorRegistry:
    """Return a registry with the metrics of one record, and no others."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(DeviceCollector(statistics))
    return registry


def openmetrics(statistics: DeviceStatistics) -> str:
    """Return a record as the text of OpenMetrics 1.0."""
    text: bytes = generate_latest(registry_of(statistics))  # type: ignore[no-untyped-call]
    return text.decode()


def _families(statistics: DeviceStatistics) -> Iterator[Metric]:
    yield from _of_device(statistics)
    yield from _of_models(statistics.device, statistics.models)
    yield from _of_clients(statistics.device, statistics.clients)


def _of_device(statistics: DeviceStatistics) -> Iterator[Metric]:
    names, key = ("device",), (statistics.device,)
    yield from _of_work("executions", names, [(key, statistics.executions)])
    yield from _of_work("preparations", names, [(key, statistics.preparations)])
    yield _gauge("threads", "Worker threads", names, [(key, statistics.threads)])
    resident = [(key, statistics.resident_bytes)]
    yield _gauge("resident_bytes", "Memory of the process", names, resident)
    fallbacks = [
        ((statistics.device, each.instead_of, each.status.name), each.count)
        for each in statistics.fallbacks
    ]
    if fallbacks:
        labels = ("device", "instead_of", "status")
        yield _counter("fallbacks", "The CPU computed instead", labels, fallbacks)


def _of_models(device: str, models: Iterable[ModelStatistics]) -> Iterator[Metric]:
    names = ("device", "model")
    rows = [((device, str(model.number)), model) for model in models]
    executions = [(key, model.executions) for key, model in rows]
    yield from _of_work("model_executions", names, executions)
    idle = [(key, model.idle_bytes) for key, model in rows]
    yield _gauge("model_idle_bytes", "Kept for the next executions", names, idle)
    info = InfoMetricFamily("asyncnn_model", "What a model is", labels=names)
    for key, model in rows:
        facts = {
            "client": str(model.client),
            "operations": str(model.operations),
            "priority": model.priority.name,
        }
        info.add_metric(key, facts)
    yield info


def _of_clients(device: str, clients: Iterable[ClientStatistics]) -> Iterator[Metric]:
    names = ("device", "client")
    rows = [((device, str(client.number)), client) for client in clients]
    executions = [(key, client.executions) for key, client in rows]
    yield from _of_work("client_executions", names, executions)
    held = [(key, client.buffer_bytes) for key, client in rows]
    yield _gauge("client_buffer_bytes", "Device-managed buffers", names, held)
    info = InfoMetricFamily("asyncnn_client", "Who a client is", labels=names)
    for key, client in rows:
        info.add_metric(key, {"name": client.name, "weight": f"{client.weight:g}"})
    yield info


def _of_work(
    what: str, names: Labels, rows: Sequence[tuple[Labels, WorkStatistics]]
) -> Iterator[Metric]:
    queued = [(key, work.queued) for key, work in rows]
    yield _gauge(f"{what}_queued", "Accepted and not begun", names, queued)
    running = [(key, work.running) for key, work in rows]
    yield _gauge(f"{what}_running", "Begun and not ended", names, running)
    done = [
        ((*key, status.name), count)
        for key, work in rows
        for status, count in work.done.items()
    ]
    yield _counter(what, "Ended, by HAL status", (*names, "status"), done)
    missed = [(key, work.deadline_misses) for key, work in rows]
    yield _counter(f"{what}_deadline_misses", "Missed a deadline", names, missed)
    preempted = [(key, work.preemptions) for key, work in rows]
    yield _counter(f"{what}_preemptions", "Made way for other work", names, preempted)
    latency = HistogramMetricFamily(
        f"asyncnn_{what}_latency", "Submission to end", labels=names, unit="seconds"
    )
    for key, work in rows:
        buckets = list(zip(_LIMITS, accumulate(work.latency.counts), strict=True))
        latency.add_metric(key, buckets, work.latency.total_ns / 1e9)
    yield latency


def _gauge(what: str, help_: str, names: Labels, rows: Rows) -> Metric:
    return _filled(GaugeMetricFamily(f"asyncnn_{what}", help_, labels=names), rows)


def _counter(what: str, help_: str, names: Labels, rows: Rows) -> Metric:
    return _filled(CounterMetricFamily(f"asyncnn_{what}", help_, labels=names), rows)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, rows: Rows) -> Metric:
    for key, value in rows:
        family.add_metric(key, value)
    return family
