"""The JSON of ``asyncnn top``: statistics in an operator's units."""

import msgspec

from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.qos import LatencyHistogram, WorkStatistics


class LatencyReport(msgspec.Struct, frozen=True):
    """Microseconds from submission to end; those of shares are upper bounds."""

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
    """Numbers of pieces of work; ``done`` has those of each HAL status that ended any.

    All count from the start of the driver, or of the model or client.
    """

    queued: int
    running: int
    done: dict[str, int]
    deadline_misses: int
    preemptions: int
    latency_us: LatencyReport

    @classmethod
    def of(cls, work: WorkStatistics) -> "WorkReport":
        """Return the report of some work."""
        return cls(
            queued=work.queued,
            running=work.running,
            done={status.name: count for status, count in work.done.items() if count},
            deadline_misses=work.deadline_misses,
            preemptions=work.preemptions,
            latency_us=LatencyReport.of(work.latency),
        )


class ModelReport(msgspec.Struct, frozen=True):
    """A prepared model; ``client`` is the number of the one it was prepared for."""

    number: int
    client: int
    operations: int
    priority: str
    idle_bytes: int
    executions: WorkReport

    @classmethod
    def of(cls, model: ModelStatistics) -> "ModelReport":
        """Return the report of a model."""
        return cls(
            number=model.number,
            client=model.client,
            operations=model.operations,
            priority=model.priority.name,
            idle_bytes=model.idle_bytes,
            executions=WorkReport.of(model.executions),
        )


class ClientReport(msgspec.Struct, frozen=True):
    """A client; ``weight`` is its share when clients compete."""

    number: int
    name: str
    weight: float
    buffer_bytes: int
    executions: WorkReport

    @classmethod
    def of(cls, client: ClientStatistics) -> "ClientReport":
        """Return the report of a client."""
        return cls(
            number=client.number,
            name=client.name,
            weight=client.weight,
            buffer_bytes=client.buffer_bytes,
            executions=WorkReport.of(client.executions),
        )


class TopReport(msgspec.Struct, frozen=True):
    """A device with its models and clients."""

    device: str
    threads: int
    resident_bytes: int
    buffer_bytes: int
    executions: WorkReport
    preparations: WorkReport
    models: list[ModelReport]
    clients: list[ClientReport]

    @classmethod
    def of(cls, statistics: DeviceStatistics) -> "TopReport":
        """Return the report of a device."""
        return cls(
            device=statistics.device,
            threads=statistics.threads,
            resident_bytes=statistics.resident_bytes,
            buffer_bytes=statistics.buffer_bytes,
            executions=WorkReport.of(statistics.executions),
            preparations=WorkReport.of(statistics.preparations),
            models=[ModelReport.of(model) for model in statistics.models],
            clients=[ClientReport.of(client) for client in statistics.clients],
        )
