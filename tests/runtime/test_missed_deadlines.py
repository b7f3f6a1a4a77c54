"""Whoever misses a deadline is told that, on every path, and by how much."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.callbacks import ExecutionFuture, PreparedModelFuture
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import MissedDeadlineError
from asyncnn.hal.types import NO_TIMING, ErrorStatus
from asyncnn.runtime.device import Device
from asyncnn.runtime.execution_options import AnyPath
from tests.networks import FOREVER, addition, counting_up
from tests.places import REGIONS, faced, kind_at

ONE = np.ones(4, np.float32)
MISSED = r"the deadline of [\d.]+ m?s was missed by [\d.]+ .?s"


@pytest.fixture(params=["reference", "remote", "framework", *REGIONS])
async def device(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Device]:
    if request.param == "framework":
        # Without a fallback, which computes with no deadline what has missed one.
        async with asyncnn.open_devices("reference", fallback="forbid") as device:
            yield device
        return
    with kind_at(request.param) as kind:
        async with faced(request.param, kind(), tmp_path) as device:
            yield device


@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
async def test_a_call_that_is_too_late_is_told_so(
    device: Device, path: AnyPath
) -> None:
    prepared = await device.prepare(addition(4))
    with pytest.raises(MissedDeadlineError, match="the deadline has passed already"):
        await prepared.run([ONE, ONE], path=path, timeout=0)  # type: ignore[arg-type]


async def test_a_run_of_a_burst_is_told_by_how_much(device: Device) -> None:
    prepared = await device.prepare(counting_up())
    async with prepared.burst() as burst:
        with pytest.raises(MissedDeadlineError, match=MISSED):
            await burst.run([FOREVER], timeout=0.02)


async def test_a_run_that_waits_is_told_what_has_not_ended(device: Device) -> None:
    prepared = await device.prepare(addition(4))
    gate, source = SyncFence.pair()
    run = prepared.run_fenced([ONE, ONE], wait_for=[gate], timeout=0.5)
    with pytest.raises(
        MissedDeadlineError, match=f"{MISSED}; it was waiting for fences"
    ):
        await run
    source.signal()


async def test_one_of_which_only_the_status_is_known_is_told_as_well() -> None:
    status = ErrorStatus.MISSED_DEADLINE_TRANSIENT
    execution, preparation = ExecutionFuture(), PreparedModelFuture()
    execution.notify_1_3(status, (), NO_TIMING)
    with pytest.raises(MissedDeadlineError, match="the execution has missed its deadl"):
        (await execution).raise_for_status()
    preparation.notify_1_3(status, None)
    with pytest.raises(MissedDeadlineError, match="the preparation has missed its dea"):
        await preparation
