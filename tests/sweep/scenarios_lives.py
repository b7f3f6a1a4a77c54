"""Devices that open and close, connections, and drivers that come and go."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import DeviceUnavailableError
from asyncnn.runtime.device import Device
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.service import Server
from tests.networks import chain
from tests.service.restarting import BRIEFLY, Driver, running
from tests.sweep.scenario import scenario
from tests.sweep.stages import LENGTH, ON_LANES, SIZE, Stage, X, check, tended

LONG = 300


async def use(device: Device) -> None:
    model = await device.prepare(chain(LENGTH, SIZE))
    check(await model.run(X))


@scenario("alone")
async def device_from_end_to_end(stage: Stage) -> None:
    async with open_device(settings=ON_LANES) as device:
        stage.devices.append(device)
        await use(device)


@scenario("alone")
async def device_left_with_work_under_way(stage: Stage) -> None:
    async with open_device(settings=ON_LANES) as device:
        stage.devices.append(device)
        model = await device.prepare(chain(LONG, SIZE))
        runs = [tended(asyncio.ensure_future(model.run(X))) for _ in range(3)]
        await asyncio.sleep(0)
    await unavailable(*runs)


async def unavailable(*tasks: "asyncio.Future[object]") -> None:
    """Await tasks that a closed device has ended, if not before."""
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        error = isinstance(outcome, BaseException)
        assert not error or isinstance(outcome, DeviceUnavailableError), outcome


@scenario("alone")
async def device_left_with_a_pending_preparation(stage: Stage) -> None:
    async with open_device(settings=ON_LANES) as device:
        stage.devices.append(device)
        preparing = tended(asyncio.ensure_future(device.prepare(chain(LONG, 4))))
        await asyncio.sleep(0)
    await unavailable(preparing)


@scenario("alone")
async def device_left_with_a_fenced_run(stage: Stage) -> None:
    async with open_device(settings=ON_LANES) as device:
        stage.devices.append(device)
        model = await device.prepare(chain(LONG, SIZE))
        run = model.run_fenced(X)
        after = model.run_fenced(run.outputs["z"], wait_for=[run])
        await asyncio.sleep(0)
    assert run.status is not None
    assert after.status is not None


@scenario("alone")
async def device_left_with_an_open_burst(stage: Stage) -> None:
    async with AsyncExitStack() as stack:
        async with open_device(settings=ON_LANES) as device:
            stage.devices.append(device)
            model = await device.prepare(chain(LONG, SIZE))
            burst = await stack.enter_async_context(model.burst())
            run = tended(asyncio.ensure_future(burst.run(X)))
            await asyncio.sleep(0)
        await unavailable(run)


@scenario("alone")
async def device_with_two_closers(stage: Stage) -> None:
    hal = await ReferenceDevice(ON_LANES).__aenter__()
    device = Device("twice", hal)
    stage.devices.append(device)
    closers: list[asyncio.Task[None]] = []
    try:
        model = await device.prepare(chain(LONG, SIZE))
        run = tended(asyncio.ensure_future(model.run(X)))
        await asyncio.sleep(0)
    finally:
        closers += [
            asyncio.create_task(hal.__aexit__(None, None, None)) for _ in range(2)
        ]
        await asyncio.wait(closers)
    await unavailable(run)


@asynccontextmanager
async def driver_here(stage: Stage) -> AsyncIterator[Server]:
    async with ReferenceDevice(ON_LANES) as hal, Server(hal, stage.path) as server:
        yield server


@scenario("alone", given=driver_here)
async def connection_from_end_to_end(stage: Stage) -> None:
    stage.witness.notice(
        lambda: "a connection is left" if stage.given.connections else ""
    )
    async with connect(stage.path) as device:
        stage.devices.append(device)
        await use(device)


@scenario("alone", given=driver_here)
async def connection_left_with_work_under_way(stage: Stage) -> None:
    stage.witness.notice(
        lambda: "a connection is left" if stage.given.connections else ""
    )
    async with connect(stage.path) as device:
        stage.devices.append(device)
        model = await device.prepare(chain(LONG, SIZE))
        runs = [tended(asyncio.ensure_future(model.run(X))) for _ in range(3)]
        preparing = tended(asyncio.ensure_future(device.prepare(chain(LONG, 4))))
        await asyncio.sleep(0)
    await unavailable(*runs, preparing)


@scenario("alone")
async def driver_from_end_to_end(stage: Stage) -> None:
    async with (
        ReferenceDevice(ON_LANES) as hal,
        Server(hal, stage.path),
        connect(stage.path) as device,
    ):
        stage.devices.append(device)
        await use(device)


@scenario("alone", slow=True)
async def connection_with_a_driver_of_its_own(stage: Stage) -> None:
    async with connect() as device:
        stage.devices.append(device)
        await asyncio.sleep(0)


@asynccontextmanager
async def driver_that_comes_and_goes(stage: Stage) -> AsyncIterator[Driver]:
    async with running(stage.path) as driver:
        yield driver


@scenario("alone", given=driver_that_comes_and_goes)
async def supervised_from_end_to_end(stage: Stage) -> None:
    async with connect(stage.path, supervised=BRIEFLY) as device:
        stage.devices.append(device)
        await use(device)


async def started(driver: Driver) -> None:
    """Start a driver to the end, also if cancelled: what comes next finds it."""
    starting = asyncio.ensure_future(driver.start())
    was_cancelled = False
    while not starting.done():
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            was_cancelled = True
    if was_cancelled:
        raise asyncio.CancelledError


@scenario("alone", given=driver_that_comes_and_goes)
async def supervised_reconnection(stage: Stage) -> None:
    async with connect(stage.path, supervised=BRIEFLY) as device:
        stage.devices.append(device)
        model = await device.prepare(chain(LENGTH, SIZE))
        check(await model.run(X))
        try:
            await stage.given.stop()
            run = tended(asyncio.ensure_future(model.run(X)))
        finally:
            await started(stage.given)
        await asyncio.wait([run])
        check(await model.run(X))


@scenario("alone", slow=True)
async def supervised_driver_of_its_own(stage: Stage) -> None:
    async with connect(supervised=BRIEFLY) as device:
        stage.devices.append(device)
        await asyncio.sleep(0)
