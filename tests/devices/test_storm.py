"""Many executions of many clients at once, of which each must end exactly once."""

import asyncio
import gc
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, nullcontext
from pathlib import Path

import numpy as np
import pytest

from asyncnn.callbacks import IExecutionCallback
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.statistics import resident_bytes
from asyncnn.hal.interfaces import IDevice, IPreparedModel
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    OutputShape,
    Priority,
    Request,
    RequestArgument,
    Timing,
)
from asyncnn.memory.shared import allocate
from asyncnn.qos import Client, acting_for
from asyncnn.service import RemoteDevice, Server
from tests.devices.test_quality_of_service import MISSED, Gate, prepare
from tests.memory.foreign import leaks, traces
from tests.networks import chain
from tests.waits import until

CLIENTS = 20
MS = 1_000_000
LEGAL = {ErrorStatus.NONE, *MISSED, ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT}

Caller = tuple[IDevice, Callable[[], AbstractContextManager[None]]]
"""A client's device, and the context that its calls are made in."""


class Storm:
    """A device and those who use it at the same time."""

    def __init__(self, hal: ReferenceDevice, callers: list[Caller]) -> None:
        self.hal = hal
        self.callers = callers


@pytest.fixture(
    params=[
        pytest.param(2_000, id="some"),
        pytest.param(10_000, id="many", marks=pytest.mark.exhaustive),
    ]
)
def executions(request: pytest.FixtureRequest) -> int:
    """How many executions there are; as many as four fifths of them may wait."""
    count: int = request.param
    return count


@pytest.fixture(params=["inprocess", "remote"])
async def storm(
    request: pytest.FixtureRequest, tmp_path: Path, as_processes: None, executions: int
) -> AsyncIterator[Storm]:
    """Twenty clients; whatever they do, nothing of it may be left in the end."""
    gc.collect()
    before, threads = traces(), threading.active_count()
    async with AsyncExitStack() as stack:
        settings = DeviceSettings(max_pending=executions * 4 // 5, inline_below_us=0)
        hal = await stack.enter_async_context(ReferenceDevice(settings))
        callers: list[Caller] = []
        if request.param == "inprocess":
            clients = [
                Client(f"client {n}", weight=1.0 + n % 3) for n in range(CLIENTS)
            ]
            callers += [(hal, lambda client=c: acting_for(client)) for c in clients]
        else:
            path = tmp_path / "driver.sock"
            await stack.enter_async_context(Server(hal, path))
            for _ in range(CLIENTS):
                remote = await stack.enter_async_context(RemoteDevice(path))
                callers.append((remote, nullcontext))
        yield Storm(hal, callers)
    callers.clear()
    await until(lambda: not leaks(before), 30)
    await until(lambda: threading.active_count() == threads)


class Told(IExecutionCallback):
    """Keeps every notification that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[ErrorStatus] = []

    def notify_1_3(
        self,
        status: ErrorStatus,
        output_shapes: tuple[OutputShape, ...],
        timing: Timing,
    ) -> None:
        self.statuses.append(status)


class Launcher:
    """Launches one client's executions, each with a deadline or without."""

    def __init__(self, caller: Caller, models: list[IPreparedModel]) -> None:
        self._acting = caller[1]
        self._models = models
        x, z = (RequestArgument(False, DataLocation(0, at, 32)) for at in (0, 32))
        self._request = Request((x,), (z,), (allocate(64),))

    @classmethod
    async def of(cls, caller: Caller) -> "Launcher":
        device, acting = caller
        with acting():
            models = [
                await prepare(device, chain(length, 8), priority)
                for priority in Priority
                for length in (1, 100)
            ]
        return cls(caller, models)

    def launch(self, rng: np.random.Generator) -> Told:
        told = Told()
        model = self._models[rng.integers(len(self._models))]
        deadline = None
        if rng.random() < 0.3:
            deadline = time.monotonic_ns() + int(rng.integers(0, 400)) * MS
        with self._acting():
            model.execute_1_3(self._request, MeasureTiming.NO, deadline, None, told)
        return told


async def test_each_execution_ends_exactly_once_with_a_legal_status(
    storm: Storm, executions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    launchers = [await Launcher.of(caller) for caller in storm.callers]
    before_bytes = resident_bytes()
    gate = Gate(monkeypatch)
    told: list[Told] = []
    for number in range(executions):
        told.append(launchers[number % CLIENTS].launch(rng))
        if rng.random() < 0.1:
            told[number - rng.integers(min(number + 1, CLIENTS))].die()  # a recent one
    in_flight = sum(not each.statuses for each in told)
    # None ends before more have come than may wait, however slowly they are read.
    exhausted = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    await until(lambda: any(exhausted in each.statuses for each in told), 30)
    gate.open()
    while not all(each.statuses for each in told):
        await asyncio.sleep(0.01)
        told[rng.integers(executions)].die()
    await asyncio.sleep(0.05)  # for what might come twice

    assert in_flight > executions / 2
    assert resident_bytes() - before_bytes < 64 << 20
    assert {len(each.statuses) for each in told} == {1}
    outcomes = Counter(each.statuses[0] for each in told)
    assert set(outcomes) <= LEGAL
    assert outcomes[ErrorStatus.NONE] > executions / 4
    assert outcomes[exhausted] > 0
    assert sum(outcomes[status] for status in MISSED) > 0
    statistics = storm.hal.statistics()
    counts = statistics.executions
    assert (counts.queued, counts.running) == (0, 0)
    assert counts.ended == executions
    ended = [each.executions.ended for each in statistics.clients]
    assert [count for count in ended if count] == [executions // CLIENTS] * CLIENTS
