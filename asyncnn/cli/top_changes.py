"""What ``asyncnn top`` shows of a running driver: as JSON, in a terminal, in a browser.

`TopReport` has statistics in an operator's units. `look` takes a snapshot, and
`LiveDevice` is the one model of the view: what there is, and what changed since the
look before.
"""

import asyncio
from collections.abc import Awaitable, Hashable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec

from asyncnn.cli.options import made_of
from asyncnn.devices import ClientStatistics, DeviceStatistics, ModelStatistics
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.hal.types import ErrorStatus
from asyncnn.qos import LatencyHistogram, WorkStatistics
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect

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


ANSWER_TIMEOUT_S = 5.0

MAX_ROWS = 100
"""Clients, and models, that are shown: the busiest ones lately."""

T = TypeVar("T")
Row = TypeVar("Row", ClientStatistics, ModelStatistics)


class LiveWork(msgspec.Struct, frozen=True):
    """Rates and latencies since the look before, all else since the start.

    Latencies are microseconds from submission to end, upper bounds; None if nothing
    ended lately, of which there were ``ended``. ``per_s`` is None at the first look, as
    nobody knows how long that was. ``failures`` are by the names of their statuses.
    """

    queued: int
    running: int
    ended: int
    per_s: float | None
    p50_us: float | None
    p90_us: float | None
    p99_us: float | None
    succeeded: int
    failed: int
    failures: dict[str, int]
    deadline_misses: int
    preemptions: int


class Changes:
    """Compares each look with the one before.

    A look begins with `look`; then `of` is asked once for everything that is seen.
    """

    def __init__(self) -> None:
        self._before: dict[Hashable, WorkStatistics] = {}
        self._now: dict[Hashable, WorkStatistics] = {}
        self._looked_at: float | None = None
        self._elapsed_s: float | None = None

    def look(self, now_s: float) -> None:
        """Begin the look of time ``now_s``."""
        self._before, self._now = self._now, {}
        if self._looked_at is not None:
            self._elapsed_s = now_s - self._looked_at
        self._looked_at = now_s

    def of(self, key: Hashable, work: WorkStatistics) -> LiveWork:
        """Return what became of ``work``, which has the name ``key`` in every look."""
        self._now[key] = work
        before = self._before.get(key)
        ended = work.ended - (before.ended if before else 0)
        latency = work.latency.since(before.latency) if before else work.latency
        p50, p90, p99 = (
            latency.quantile_ns(share) / 1000 if latency.count else None
            for share in (0.5, 0.9, 0.99)
        )
        succeeded = work.done.get(ErrorStatus.NONE, 0)
        return made_of(
            LiveWork,
            work,
            ended=ended,
            per_s=round(ended / self._elapsed_s, 2) if self._elapsed_s else None,
            p50_us=p50,
            p90_us=p90,
            p99_us=p99,
            succeeded=succeeded,
            failed=work.ended - succeeded,
            failures={
                status.name: count
                for status, count in work.done.items()
                if count and status is not ErrorStatus.NONE
            },
        )

    def busiest(self, what: str, rows: Sequence[Row]) -> list[tuple[LiveWork, Row]]:
        """Return clients, or models, of which most ended lately, then ever, first."""
        seen = [(self.of((what, row.number), row.executions), row) for row in rows]
        seen.sort(key=lambda each: (-each[0].ended, -each[1].executions.ended))
        return seen[:MAX_ROWS]


class LiveDevice(msgspec.Struct, frozen=True):
    """One look at a driver: the busiest of its clients and models first.

    ``clients_left`` and ``models_left`` are numbers of those that are not shown.
    """

    name: str
    threads: int
    resident_bytes: int
    buffer_bytes: int
    executions: LiveWork
    preparations: LiveWork
    clients: Sequence[ClientReport[LiveWork]]
    clients_left: int
    models: Sequence[ModelReport[LiveWork]]
    models_left: int

    @classmethod
    def of(cls, statistics: DeviceStatistics, changes: Changes) -> "LiveDevice":
        """Return what is shown of the look that ``changes`` has begun."""
        clients = changes.busiest("client", statistics.clients)
        models = changes.busiest("model", statistics.models)
        return made_of(
            cls,
            statistics,
            name=statistics.device,
            executions=changes.of("executions", statistics.executions),
            preparations=changes.of("preparations", statistics.preparations),
            clients=[made_of(ClientReport, c, executions=w) for w, c in clients],
            clients_left=len(statistics.clients) - len(clients),
            models=[ModelReport.of(model, w) for w, model in models],
            models_left=len(statistics.models) - len(models),
        )


async def connected(stack: AsyncExitStack, path: Path) -> Device:
    """Connect to the driver at ``path`` until the stack is closed.

    :raises AsyncnnError: if there is none, or it does not answer in time.
    """
    return await _in_time(stack.enter_async_context(connect(path)))


async def look(device: Device) -> DeviceStatistics:
    """Return the statistics of a driver.

    :raises AsyncnnError: if it has died, or does not answer in time.
    """
    return await _in_time(device.statistics())


async def _in_time(answer: Awaitable[T]) -> T:
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await answer
    except TimeoutError:
        raise DeviceUnavailableError("the driver does not answer") from None


async def statistics_of(path: Path) -> DeviceStatistics:
    """Return the statistics of the driver at ``path``.

    :raises AsyncnnError: if there is none, or it does not answer in time.
    """
    async with AsyncExitStack() as stack:
        return await look(await connected(stack, path))
