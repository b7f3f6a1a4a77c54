"""What devices tell of their work, in this process and behind a socket."""

import time
from pathlib import Path

import numpy as np
import pytest

from asyncnn.callbacks import ExecutionFuture
from asyncnn.devices import DeviceStatistics, IMeasured
from asyncnn.devices.statistics import resident_bytes
from asyncnn.hal.errors import MISSED, AsyncnnError
from asyncnn.hal.interfaces import IDevice
from asyncnn.hal.types import ErrorStatus, MeasureTiming, Priority
from tests.devices.test_execution import request_for
from tests.devices.test_quality_of_service import prepare
from tests.networks import FOREVER, chain, counting_up
from tests.service.test_descriptors import only

X = np.zeros(8, np.float32)
NONE = ErrorStatus.NONE


async def statistics_of(device: IDevice) -> DeviceStatistics:
    assert isinstance(device, IMeasured)
    return await device.get_statistics()


async def run(
    prepared: object, deadline: int | None = None, x: np.ndarray = X
) -> ErrorStatus:
    callback = ExecutionFuture()
    request = request_for([x], [np.empty_like(x)])
    prepared.execute_1_3(request, MeasureTiming.NO, deadline, None, callback)  # type: ignore[attr-defined]
    return (await callback).status


def soon() -> int:
    """Return a deadline that passes after a call is sent, and before it can end."""
    return time.monotonic_ns() + 2_000_000


async def test_a_device_that_did_nothing_says_so(device: IDevice) -> None:
    statistics = await statistics_of(device)
    for work in (statistics.preparations, statistics.executions):
        assert (work.queued, work.running, work.ended) == (0, 0, 0)
        assert work.latency.count == 0
    assert statistics.models == ()
    assert statistics.buffer_bytes == 0
    assert statistics.resident_bytes > 10 << 20


async def test_executions_count_for_device_model_and_client(device: IDevice) -> None:
    short, long = chain(2, 8), chain(3, 8)
    first = await prepare(device, short, Priority.HIGH)
    second = await prepare(device, long, Priority.LOW)
    for prepared in (first, second, second):
        assert await run(prepared) is NONE
    statistics = await statistics_of(device)
    assert statistics.preparations.done[NONE] == 2
    assert statistics.executions.done[NONE] == 3
    assert statistics.executions.latency.count == 3
    assert statistics.executions.latency.total_ns > 0
    (of_first, of_second) = statistics.models
    assert (of_first.priority, of_second.priority) == (Priority.HIGH, Priority.LOW)
    counts = [len(each.model.main.operations) for each in (short, long)]
    assert [of_first.operations, of_second.operations] == counts
    assert of_first.executions.done[NONE] == 1
    assert of_second.executions.done[NONE] == 2
    (client,) = (each for each in statistics.clients if each.executions.ended)
    assert client.executions.done[NONE] == 3
    assert {model.client for model in statistics.models} == {client.number}


async def test_missed_deadlines_are_counted_with_their_status(device: IDevice) -> None:
    prepared = await prepare(device, counting_up())
    missed = await run(prepared, soon(), FOREVER)
    assert missed in MISSED
    statistics = await statistics_of(device)
    for work in (statistics.executions, statistics.models[0].executions):
        assert work.done[missed] == work.deadline_misses == work.ended == 1


async def test_preparations_that_fail_are_counted(device: IDevice) -> None:
    with pytest.raises(AsyncnnError):
        await prepare(device, chain(1_000, 8), deadline=soon())
    statistics = await statistics_of(device)
    assert statistics.preparations.deadline_misses == 1
    assert statistics.models == ()


async def test_a_client_that_may_not_know_of_others_is_told_of_itself(
    device: IDevice,
) -> None:
    prepared = await prepare(device, chain(2, 8))
    await run(prepared)
    everything = await statistics_of(device)
    (model,) = everything.models
    own = everything.seen_by(model.client)
    assert own.models == (model,)
    assert [client.number for client in own.clients] == [model.client]
    foreign = everything.seen_by(0)
    assert foreign.models == foreign.clients == ()
    assert foreign.executions == everything.executions


def test_resident_bytes_are_those_that_the_kernel_tells() -> None:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmRSS"))
    assert resident_bytes() == pytest.approx(int(line.split()[1]) * 1024, rel=0.05)


def test_memory_is_told_where_no_descriptor_is_left_to_ask_by() -> None:
    before = resident_bytes()
    with only(0):
        assert resident_bytes() >= before - (1 << 20)
