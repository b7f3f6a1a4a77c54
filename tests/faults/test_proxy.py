"""Between client and driver, packets are delayed, split, lost, doubled and changed."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Collection
from typing import Any

import numpy as np
import pytest

from asyncnn import AsyncnnError, connect
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.runtime.device import Device
from asyncnn.service import Server
from asyncnn.service.process import private_address
from tests.faults.proxy import FAULTS, proxied
from tests.networks import addition, chain
from tests.service.conftest import Service, watched

X = np.arange(4, dtype=np.float32)
LARGE = np.ones(2**17, np.float32)
LIMIT_S = 0.4
"""Deadline of each call: what gets no answer ends so."""
PATIENCE_S = 20.0

Wrong = list[str]


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """A driver that still serves in the end, and holds no more than before."""
    path = private_address()
    settings = DeviceSettings(inline_below_us=0)
    async with (
        ReferenceDevice(settings) as device,
        Server(device, path) as server,
        watched(server, path) as service,
    ):
        yield service


async def use(device: Device, wrong: Wrong) -> None:
    """Do with a device what there is to do; note what ends as it must not."""

    async def ends(what: str, call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await call
        except AsyncnnError:
            return None
        except Exception as error:
            wrong.append(f"{what} ends with {error!r}")
            return None

    async def in_a_burst(model: Any) -> Any:
        async with asyncio.timeout(2 * LIMIT_S), model.burst() as burst:
            await burst.run([X, X], timeout=LIMIT_S)
            return await burst.run([X, X], timeout=LIMIT_S)

    async def fenced(model: Any) -> Any:
        first = model.run_fenced([X, X], timeout=LIMIT_S)
        second = model.run_fenced([X, X], wait_for=[first], timeout=LIMIT_S)
        second.fence.fileno()
        return await second

    async def late(call: Awaitable[Any]) -> Any:
        try:
            async with asyncio.timeout(2 * LIMIT_S):
                return await call
        except TimeoutError:
            return None

    model = await ends("preparing", device.prepare(addition(4), timeout=LIMIT_S))
    if model is None:
        return
    calls = {
        "run": model.run([X, X], timeout=LIMIT_S),
        "sync": model.run([X, X], path="sync", timeout=LIMIT_S),
        "fenced": fenced(model),
        "burst": late(in_a_burst(model)),
        "large model": device.prepare(chain(600, 4), timeout=LIMIT_S),
        "statistics": late(device.statistics()),
        "buffer": late(device.buffer_for(model.output("z"), model.input("x"))),
    }
    found = await asyncio.gather(*(ends(*call) for call in calls.items()))
    wrong += [
        f"{what} gives {outputs['z']}"
        for what, outputs in zip(calls, found, strict=True)
        if what in ("run", "sync", "fenced", "burst")
        and outputs is not None
        and not np.array_equal(outputs["z"], 2 * X)
    ]


async def used_through(
    service: Service, faults: Collection[str], seed: int, done: list[str]
) -> list[str]:
    """Use the service by a proxy; return what was wrong, and note what was ``done``."""
    wrong: list[str] = []
    often = {"each": 2 + seed % 9, "spared": 1 + seed % 4}
    async with proxied(service.path, faults, seed, **often) as (path, proxy):
        try:
            async with asyncio.timeout(PATIENCE_S), connect(path) as device:
                await use(device, wrong)
        except AsyncnnError:
            pass
    done += proxy.done
    return [f"seed {seed}, {','.join(proxy.done)}: {each}" for each in wrong]


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged that nobody expects."""
    return [
        f"{record.getMessage()}: {record.exc_info}"
        for record in caplog.records
        if record.levelno >= logging.ERROR
    ]


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(1, id="one"),
        pytest.param(
            40, id="many", marks=(pytest.mark.exhaustive, pytest.mark.timeout(600))
        ),
    ],
)
@pytest.mark.parametrize("fault", FAULTS)
async def test_each_call_ends_and_the_driver_serves_on(
    service: Service, fault: str, seeds: int, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: list[str] = []
    done: list[str] = []
    for seed in range(seeds):
        wrong += await used_through(service, {fault}, seed, done)
    if fault == "shuffle-descriptors":  # then memory is other memory, see security.md
        wrong = [each for each in wrong if " gives " not in each]
    assert not wrong
    assert not errors(caplog)
    assert set(done) == {fault}
