"""Fenced runs that wait for one another, on a driver that dies while one is at work."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings
from asyncnn.fenced_run import FencedRun
from asyncnn.fences import SyncFence, merge
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.hal.types import DeviceStatus
from asyncnn.pipeline import Pipeline, Stage
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import Fallback, FrameworkSettings
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from asyncnn.runtime.framework.steps import OnCpu
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service.process import running_driver
from tests.networks import FOREVER, addition, chain, counting_up
from tests.runtime.framework.crippled import CrippledDevice
from tests.runtime.framework.mixed import (
    WHEREVER_BETTER,
    assert_same,
    expected,
    inputs,
    mixed,
)
from tests.service.restarting import BRIEFLY, back
from tests.waits import until

T = asyncnn.OperationType
ONE = np.ones(1, np.float32)
FULL = replace(WHEREVER_BETTER, fallback=Fallback.FULL)
PARTIAL = replace(WHEREVER_BETTER, fallback=Fallback.PARTIAL)
FORBIDDEN = replace(WHEREVER_BETTER, fallback=Fallback.FORBID)
LONG = -20_000.0
"""With it, a run of `counting_up` takes the CPU some hundred milliseconds."""

died = partial(pytest.raises, asyncnn.DriverDiedError)
late = partial(pytest.raises, asyncnn.MissedDeadlineError)
cancelled = partial(
    pytest.raises, asyncnn.ResourceExhaustedTransientError, match="cancelled"
)


class Scene:
    """A framework of a driver process and the CPU, and a run that is at work there."""

    def __init__(self, pid: int, remote: Device, device: Device) -> None:
        self.pid = pid
        self.remote = remote
        self.device = device
        self.x = asyncnn.shared_array((1,))

    async def prepare(self) -> None:
        self.counting = await self.device.prepare(counting_up())
        self.adding = await self.device.prepare(addition(1))

    async def plus_two(self) -> PreparedModel:
        return await self.device.prepare(chain(2, 1))

    async def at_work(self) -> FencedRun:
        """Return a run that would last for ever; wait until the driver is at it."""
        self.x[:] = FOREVER
        run = self.counting.run_fenced(self.x, loop_timeout=100.0)

        while not (await self.remote.statistics()).executions.running:
            pass  # the driver answers
        return run

    def kill(self, x: float = 5.0) -> None:
        """Kill the driver; whoever computes instead counts up from ``x``."""
        os.kill(self.pid, signal.SIGKILL)
        self.x[:] = x

    async def known(self) -> None:
        """Wait until this process knows of the driver's death."""
        await until(lambda: self.remote.hal.get_status() is DeviceStatus.OFFLINE)

    def plus(self, run: FencedRun, *others: FencedRun | SyncFence, **options):
        """Launch a run that adds 1 to the result of another."""
        return self.adding.run_fenced(
            [run.outputs["z"], ONE], wait_for=[run, *others], **options
        )


@asynccontextmanager
async def framework_of(
    remote: Device, settings: FrameworkSettings, refuses: set[T] = frozenset()
) -> AsyncIterator[Device]:
    partial = CrippledDevice(remote.hal, refuses)  # type: ignore[arg-type]
    async with open_framework(
        DeviceSettings(),
        devices=[OpenDevice("driver", partial, is_remote=True)],
        framework=settings,
    ) as hal:
        yield Device("framework", hal, make_array=asyncnn.shared_array)
    assert not hal._host.active
    partial.bursts.close()


@asynccontextmanager
async def scene(settings: FrameworkSettings = FULL) -> AsyncIterator[Scene]:
    async with (
        running_driver() as driver,
        asyncnn.connect(driver.path) as remote,
        framework_of(remote, settings) as device,
    ):
        scene = Scene(driver.pid, remote, device)
        await scene.prepare()
        yield scene


@pytest.mark.parametrize("settings", [FULL, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize("order", ["before", "killed", "known"])
@pytest.mark.parametrize("attempt", range(12))
async def test_what_waits_for_a_run_that_falls_back_waits_on(
    attempt: int, order: str, settings: FrameworkSettings
) -> None:
    async with scene(settings) as it:
        a = await it.at_work()
        if order == "before":
            q = it.plus(a)
            it.kill()
        else:
            it.kill(LONG)
            if order == "known":
                await it.known()  # the CPU is at work now
            q = it.plus(a)
        z = 0.0 if order != "before" else 5.0
        assert (await q)["z"] == [z + 1]
        assert a.status is asyncnn.ErrorStatus.NONE
        assert (await a)["z"] == [z]
        for run in (a, q):
            assert run.outputs.route.devices == ("reference",)
            assert run.outputs.route.steps[0].instead_of == "driver"


async def test_chains_and_several_that_wait_come_to_their_ends() -> None:
    async with scene() as it:
        a = await it.at_work()
        q, other = it.plus(a), it.plus(a)
        r = it.plus(q, other)
        it.kill()
        s = it.plus(r, a)
        for run, z in ((s, 8), (r, 7), (q, 6), (other, 6), (a, 5)):
            assert (await run)["z"] == [z]


async def test_a_run_on_another_device_waits_as_well() -> None:
    async with (
        asyncnn.open_device("reference") as here,
        asyncnn.connect() as there,
        scene() as it,
    ):
        a = await it.at_work()
        runs = [
            (await device.prepare(addition(1))).run_fenced(
                [a.outputs["z"], ONE], wait_for=[a]
            )
            for device in (here, there)
        ]
        it.kill()
        for run in runs:
            assert (await run)["z"] == [6]


Pair = tuple[SyncFence, Callable[[], object]]


def own_fence() -> Pair:
    fence, source = SyncFence.pair()
    return fence, source.signal


def foreign_fence() -> Pair:
    reader, writer = os.pipe()
    fence = SyncFence.from_fd(reader)
    os.close(reader)

    def signal_it() -> None:
        os.write(writer, b"\1")
        os.close(writer)

    return fence, signal_it


@pytest.mark.parametrize("make", [own_fence, foreign_fence])
async def test_every_other_fence_is_waited_for(make: Callable[[], Pair]) -> None:
    gate, signal_it = make()
    async with scene() as it:
        a = await it.at_work()
        q = it.plus(a, gate)
        it.kill()
        assert (await a)["z"] == [5]
        r = it.plus(q)
        assert q.status is None
        signal_it()
        assert (await r)["z"] == [7]


@pytest.mark.parametrize("way", ["merged", "exported"])
async def test_fences_that_stand_for_it_tell_the_same(way: str) -> None:
    async with scene() as it:
        a = await it.at_work()
        gate, source = SyncFence.pair()
        if way == "merged":
            stand_in = merge(a.fence, gate)
        else:
            stand_in = SyncFence.from_fd(a.fence.fileno())
        q = it.adding.run_fenced([a.outputs["z"], ONE], wait_for=[stand_in])
        exported = SyncFence.from_fd(q.fence.fileno())
        it.kill()
        source.signal()
        await exported
        assert q.outputs["z"] == [6]


async def test_it_is_cancelled_and_late_while_the_other_falls_back() -> None:
    gate, source = SyncFence.pair()
    async with scene() as it:
        a = await it.at_work()
        runs = [it.plus(a, gate) for _ in range(2)]
        limited = it.plus(a, gate, timeout=0.3)
        it.kill()
        await a
        runs[0].cancel()
        with cancelled():
            await runs[0]
        with late():
            await limited
        assert runs[1].status is None
        source.signal()
        assert (await runs[1])["z"] == [6]


async def test_what_fails_after_all_is_named_by_what_waits_for_it() -> None:
    gate, source = SyncFence.pair()
    async with scene() as it:
        a = await it.at_work()
        chained = it.plus(it.plus(a))
        gated = it.plus(a, gate)
        it.kill(LONG)
        await it.known()
        a.cancel()
        source.fail(asyncnn.ErrorStatus.GENERAL_FAILURE, "the lens is covered")
        with cancelled():
            await a
        for run, reason in ((chained, "cancelled"), (gated, "cancelled|lens")):
            with pytest.raises(asyncnn.GeneralFailureError, match=reason):
                await run


async def test_closing_ends_what_waits_again() -> None:
    gate, _source = SyncFence.pair()
    async with scene() as it:
        a = await it.at_work()
        q = it.plus(a, gate)
        it.kill()
        await a
    with pytest.raises(asyncnn.DeviceUnavailableError):
        await q


@pytest.mark.parametrize("settings", [FULL, PARTIAL], ids=["full", "partial"])
@pytest.mark.parametrize("floats_are_there", [True, False], ids=["ends", "middle"])
async def test_models_in_several_partitions_follow_each_other(
    floats_are_there: bool, settings: FrameworkSettings
) -> None:
    """The driver is stopped first, so that it dies with both before it."""
    floats = {T.ABS, T.SQRT, T.NEG}
    refuses = set(T) - floats if floats_are_there else floats
    given = inputs()
    first = await expected(given)
    async with (
        running_driver() as driver,
        asyncnn.connect(driver.path) as remote,
        framework_of(remote, settings, refuses) as device,
    ):
        prepared = await device.prepare(mixed())
        assert len(prepared.hal.steps) == 3
        os.kill(driver.pid, signal.SIGSTOP)
        a = prepared.run_fenced(given)
        q = prepared.run_fenced({"x": a.outputs["y"]}, wait_for=[a])
        r = prepared.run_fenced({"x": q.outputs["root"]}, wait_for=[q])
        os.kill(driver.pid, signal.SIGKILL)
        second = await expected({"x": first["y"]})
        assert_same(await r, await expected({"x": second["root"]}))
        assert_same(await q, second)
        assert_same(await a, first)
        for run in (a, q, r):
            assert run.outputs.route.fell_back


async def test_a_buffer_between_them_is_read_when_it_is_written() -> None:
    async with scene() as it:
        buffer = await it.device.buffer_for(
            it.counting.output("z"), it.adding.input("x")
        )
        it.x[:] = LONG
        a = it.counting.run_fenced(it.x, out=[buffer], loop_timeout=15)
        q = it.adding.run_fenced([buffer, ONE], wait_for=[a])
        it.kill(LONG)
        assert (await q)["z"] == [1]


@pytest.mark.parametrize("settings", [FULL, FORBIDDEN], ids=["full", "forbid"])
async def test_a_pipeline_loses_no_frame_or_names_the_death(
    settings: FrameworkSettings,
) -> None:
    async with scene(settings) as it:
        stages = [Stage("count", it.counting), Stage("add", await it.plus_two())]
        async with Pipeline(*stages, in_flight=3, when_failed="skip") as pipeline:
            os.kill(it.pid, signal.SIGSTOP)
            for number in range(2):
                await pipeline.put(np.full(1, number, np.float32))
            os.kill(it.pid, signal.SIGKILL)
            await pipeline.put(np.full(1, 2, np.float32))
            pipeline.finish()
            results = [result["z"][0] async for result in pipeline]
        assert results == ([2, 3, 4] if settings is FULL else [])
        if settings is FORBIDDEN:
            with died():
                async with Pipeline(*stages) as pipeline:
                    await pipeline.put(ONE)
                    await anext(pipeline)


async def test_a_driver_that_comes_back_does_not_take_the_chain_with_it() -> None:
    supervision = replace(BRIEFLY, wait=0.0)
    async with (
        asyncnn.connect(supervised=supervision) as remote,
        framework_of(remote, FULL) as device,
    ):
        it = Scene(int(remote.name.rpartition("-")[2]), remote, device)
        await it.prepare()
        gate, source = SyncFence.pair()
        a = await it.at_work()
        q, gated = it.plus(a), it.plus(a, gate)
        it.kill()
        await back(remote)
        source.signal()
        for run in (q, gated):
            assert (await run)["z"] == [6]


async def nobody_can(self: OnCpu) -> IPreparedModel:
    raise asyncnn.GeneralFailureError("the CPU has no such operation")


@pytest.mark.parametrize("path", ["async", "sync", "burst", "fenced"])
@pytest.mark.parametrize("refuses", [set(), {T.QUANTIZE, T.RELU6}], ids=["all", "part"])
@pytest.mark.parametrize("settings", [FULL, FORBIDDEN], ids=["full", "forbid"])
async def test_the_death_is_the_error_where_nothing_computes_instead(
    settings: FrameworkSettings,
    refuses: set[T],
    path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with (
        running_driver() as driver,
        asyncnn.connect(driver.path) as remote,
        framework_of(remote, settings, refuses) as device,
    ):
        prepared: PreparedModel = await device.prepare(mixed())
        monkeypatch.setattr(OnCpu, "prepare", nobody_can)
        async with prepared.runner(path) as run:
            await run(inputs())
            os.kill(driver.pid, signal.SIGKILL)
            with died():
                await run(inputs())
        if path == "fenced":
            with pytest.raises(asyncnn.AsyncnnError):
                await prepared.run_fenced(inputs())
