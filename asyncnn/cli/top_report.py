"""The JSON of ``asyncnn top``: statistics in an operator's units."""

from typing import Generic, Self, TypeVar

import msgspec

from asyncnn.cli.options import made_of
from asyncnn.devices import DeviceStatistics, ModelStatistics
from asyncnn.qos import LatencyHistogram, WorkStatistics

Work = TypeVar("Work", bound=msgspec.Struct)
"""What is said of executions."""


class LatencyReport(msgspec.Struct, frozen=True):
    """Microseconds from submission to end; percentiles are upper bounds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, histogram: LatencyHistogram) -> "LatencyReport":
        """Return the report of a histogram; zeros if it is empty."""
        p50, p90, p99 = (histogram.quantile_ns(q) / 1000 for q in (0.5, 0.9, 0.99))
        count = max(histogram.count, 1)
        return cls(round(histogram.total_ns / count / 1000, 1), p50, p90, p99)


class WorkReport(msgspec.Struct, frozen=True):
    """Numbers of pieces of work; ``done`` has the numbers by HAL status that ended any.

    All count from the start of the driver, or of the model or client.
    """

    queued: int
    running: int
    done: dict[str, int]
    deadline_misses: int
    preemptions: int
    latency_us: LatencyReport


class ModelReport(msgspec.Struct, Generic[Work], frozen=True):
    """A prepared model; ``client`` is the number of the one it was prepared for."""

    number: int
    client: int
    operations: int
    priority: str
    idle_bytes: int
    executions: Work
    batching: str = ""

    @classmethod
    def of(cls, model: ModelStatistics, executions: Work) -> Self:
        """Return the report of a model."""
        return made_of(cls, model, priority=model.priority.name, executions=executions)


class ClientReport(msgspec.Struct, Generic[Work], frozen=True):
    """A client; ``weight`` is its share when clients compete."""

    number: int
    name: str
    weight: float
    buffer_bytes: int
    executions: Work


class TopReport(msgspec.Struct, frozen=True):
    """A device with its models and clients."""

    device: str
    threads: int
    resident_bytes: int
    buffer_bytes: int
    executions: WorkReport
    preparations: WorkReport
    models: list[ModelReport[WorkReport]]
    clients: list[ClientReport[WorkReport]]

    @classmethod
    def of(cls, statistics: DeviceStatistics) -> "TopReport":
        """Return the report of a device."""
        return made_of(
            cls,
            statistics,
            executions=_work(statistics.executions),
            preparations=_work(statistics.preparations),
            models=[
                ModelReport.of(model, _work(model.executions))
                for model in statistics.models
            ],
            clients=[
                made_of(ClientReport, client, executions=_work(client.executions))
                for client in statistics.clients
            ],
        )


def _work(work: WorkStatistics) -> WorkReport:
    return made_of(
        WorkReport,
        work,
        done={status.name: count for status, count in work.done.items() if count},
        latency_us=LatencyReport.of(work.latency),
    )
