"""Executions whose deadlines pass in an operation that nothing can stop."""

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncnn
from asyncnn.devices import DeviceSettings
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    GeneralFailureError,
    MissedDeadlineError,
    MissedDeadlineTransientError,
    ResourceExhaustedTransientError,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import FusedActivationFunc, Operand, OperationType
from asyncnn.qos import Client, acting_for
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import Server
from asyncnn.tracing import Span
from asyncnn.tracing.active import recording_to
from tests.held import LONGEST_S, Held
from tests.networks import F32, chain
from tests.waits import until

X = np.arange(1, 5, dtype=np.float32)
SENTINEL = 7.0
TIMEOUT = 0.05
PATHS = ("async", "sync", "fenced", "run_fenced", "reusable", "threadsafe", "burst")


class Opened(NamedTuple):
    """A device, what has its lanes, and the operation that it knows."""

    device: Device
    local: Device
    held: Held


@asynccontextmanager
async def opened(
    name: str, transport: str, folder: Path, **settings: Any
) -> AsyncIterator[Opened]:
    if name == "accelerated":
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    held = Held()
    settings = {"lanes": 1, "inline_below_us": 0, **settings}
    chosen = DeviceSettings(extensions=(held.extension,), **settings)
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        local = device = await stack.enter_async_context(
            open_device(name, settings=chosen)
        )
        if transport == "remote":
            path = folder / "driver.sock"
            await stack.enter_async_context(Server(local.hal, path))
            device = await stack.enter_async_context(connect(path))
        yield Opened(device, local, held)


@pytest.fixture(params=["reference", "accelerated"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["inprocess", "remote"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def place() -> Array:
    out = asyncnn.shared_array(X.shape, np.float32)
    out.fill(SENTINEL)
    return out


async def run(
    prepared: PreparedModel,
    path: str,
    out: Array,
    timeout: float | None,  # noqa: ASYNC109
    shape: tuple[int, ...] = X.shape,
) -> None:
    """Run once by a path, into ``out``."""
    x = asyncnn.shared_array(shape, np.float32)
    np.copyto(x, X)
    if path == "run_fenced":
        await prepared.run_fenced([x], out=[out], timeout=timeout)
    elif path == "burst":
        async with prepared.burst() as burst:
            await burst.reusable([x], out=[out]).run(timeout=timeout)
    elif path in ("reusable", "threadsafe"):
        reusable = prepared.reusable([x], out=[out])
        if path == "reusable":
            await reusable.run(timeout=timeout)
            return
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[AsyncnnError | None] = loop.create_future()

        def done(error: AsyncnnError | None) -> None:
            loop.call_soon_threadsafe(ended.set_result, error)

        await asyncio.to_thread(reusable.launch_threadsafe, done, timeout=timeout)
        error = await ended
        if error is not None:
            raise error
    else:
        options: Any = {"path": path, "timeout": timeout}
        await prepared.run([x], out=[out], **options)


@pytest.mark.parametrize("path", PATHS)
async def test_it_ends_at_the_deadline_and_writes_nothing_afterwards(
    name: str, transport: str, path: str, tmp_path: Path
) -> None:
    out = place()
    async with opened(name, transport, tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(4))
        with held.holding():
            said = await held.late(lambda timeout: run(prepared, path, out, timeout))
            assert "was missed by" in said
            # The lane that goes on with it is no obstacle to others.
            held.go_on()
            later = place()
            await run(prepared, path, later, None)
            np.testing.assert_array_equal(later, X)
    # The device waits for its lanes as it is closed.
    assert len(held.copied) == held.held + 1
    np.testing.assert_array_equal(out, SENTINEL)


async def test_nobody_is_told_that_it_may_still_write(
    name: str, transport: str, tmp_path: Path
) -> None:
    async with opened(name, transport, tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(4))
        ended: list[Any] = []

        async def run_late(timeout: float) -> None:  # noqa: ASYNC109
            ended.append(prepared.run_fenced([X], timeout=timeout))
            await ended[-1]

        with held.holding():
            await held.late(run_late)
        assert not ended[-1].may_still_write
        assert not ended[-1].result.is_left


@pytest.mark.parametrize("path", ["async", "sync", "fenced", "burst"])
async def test_a_step_of_a_session_that_is_late_has_not_happened(
    name: str, transport: str, path: Any, tmp_path: Path
) -> None:
    async with opened(name, transport, tmp_path) as (device, _, held):
        prepared = await device.prepare(held.counting(4))
        async with prepared.session(path=path, state={"total": X}) as session:
            with held.holding():
                await held.late(lambda timeout: session.run([100 * X], timeout=timeout))
                held.go_on()
                for steps in range(2, 6):
                    outputs = await session.run([X])
                    np.testing.assert_array_equal(outputs["y"], 2 * steps * X)
            assert session.steps == 4
            np.testing.assert_array_equal((await session.state())["total"], 5 * X)


async def test_what_it_uses_stays_until_it_has_stopped(
    name: str, tmp_path: Path
) -> None:
    async with opened(name, "inprocess", tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(4))
        inputs = [X.copy()]
        used = weakref.ref(inputs[0])
        with held.holding():
            await held.late(lambda timeout: prepared.run(inputs, timeout=timeout))
            inputs.clear()
            gc.collect()
            assert used() is not None
        await until(lambda: len(held.copied) == held.held)
        np.testing.assert_array_equal(held.copied[0], X)
        await until(lambda: used() is None)


async def late_run(prepared: PreparedModel, seconds: float, **options: Any) -> None:
    await prepared.run([X], timeout=seconds, **options)


async def test_as_many_as_there_are_lanes_have_others_in_their_places(
    name: str, tmp_path: Path
) -> None:
    async with opened(name, "inprocess", tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(4))
        short = await device.prepare(chain(2, 4))
        with held.holding():
            said = await held.late(partial(late_run, prepared))
            assert "HOLD (operation 0), the longest part" in said
            with acting_for(Client("other")):
                outputs = await short.run([X], timeout=30)
            np.testing.assert_array_equal(outputs["z"], X + 2)
            await held.late(partial(late_run, prepared))
            for _ in range(3):
                with pytest.raises(MissedDeadlineError):
                    await short.run([X], timeout=TIMEOUT)
            threads = (await device.statistics()).threads
            assert threads <= 3, "two that execute, and one that has prepared"
        outputs = await short.run([X], timeout=30)
        np.testing.assert_array_equal(outputs["z"], X + 2)


async def test_what_is_left_counts_until_it_has_stopped(
    name: str, tmp_path: Path
) -> None:
    async with opened(name, "inprocess", tmp_path, max_pending=2) as (device, _, held):
        prepared = await device.prepare(held.model(4))
        with held.holding():
            for _ in range(2):
                await held.late(partial(late_run, prepared))
            with pytest.raises(ResourceExhaustedTransientError, match="max_pending"):
                await prepared.run([X])
        while True:
            try:
                await prepared.run([X])
                break
            except ResourceExhaustedTransientError:
                await asyncio.sleep(0)


@pytest.mark.parametrize("path", PATHS)
async def test_to_be_compiled_for_new_shapes_is_within_the_deadline(
    name: str, transport: str, path: str, tmp_path: Path
) -> None:
    async with opened(name, transport, tmp_path) as (device, _, held):
        prepared = await device.prepare(held.summing(4))
        out = place()
        with held.compiling():
            await held.late(lambda timeout: run(prepared, path, out, timeout, (3, 4)))
        await run(prepared, path, out, 30, shape=(3, 4))
        np.testing.assert_array_equal(out, 3 * X)


@pytest.mark.parametrize("path", [path for path in PATHS if path != "threadsafe"])
async def test_it_is_compiled_beside_the_lanes_and_once(
    name: str, transport: str, path: str, tmp_path: Path
) -> None:
    async with opened(name, transport, tmp_path) as (device, _, held):
        prepared = await device.prepare(held.summing(4))
        short = await device.prepare(chain(2, 4))
        places = [place(), place()]
        async with asyncio.TaskGroup() as runs:
            with held.compiling():
                for out in places:
                    runs.create_task(run(prepared, path, out, 30, shape=(3, 4)))
                await asyncio.to_thread(held.wait_reached)
                outputs = await short.run([X], timeout=30)
                np.testing.assert_array_equal(outputs["z"], X + 2)
        for out in places:
            np.testing.assert_array_equal(out, 3 * X)
        assert held.compiled == 1


async def test_what_was_compiled_when_nobody_waited_any_more_is_kept(
    name: str, tmp_path: Path
) -> None:
    async with opened(name, "inprocess", tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(0))
        with held.compiling():
            said = await held.late(partial(late_run, prepared))
            assert "still being compiled for its shapes" in said
            held.go_on()
            late = asyncio.create_task(prepared.run([X], timeout=30))
        np.testing.assert_array_equal((await late)["y"], X)
        assert held.compiled == 1


async def test_a_buffer_that_it_reads_can_be_written_meanwhile(
    name: str, transport: str, tmp_path: Path
) -> None:
    async with opened(name, transport, tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(4))
        source = await device.buffer_for(prepared.input())
        target = await device.buffer_for(prepared.output())
        reusable = prepared.reusable([source], out=[target])
        await source.write(X)
        with held.holding():
            for _ in range(2):  # the second time, as a request that is known
                await held.late(lambda timeout: reusable.run(timeout=timeout))
                with pytest.raises(GeneralFailureError):
                    await target.read()
                await source.write(10 * X)
                np.testing.assert_array_equal(await source.read(), 10 * X)
            held.go_on()
        await until(lambda: len(held.copied) == held.held)
        await source.write(20 * X)
        await reusable.run()
        np.testing.assert_array_equal(await target.read(), 20 * X)
    copied = sorted(held.copied, key=lambda copied: float(copied[0]))
    np.testing.assert_array_equal(copied, [X, 10 * X, 20 * X])


async def test_what_is_known_to_be_short_is_computed_in_place(
    name: str, tmp_path: Path
) -> None:
    async with opened(name, "inprocess", tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(4))
        out = place()
        await prepared.run([X], out=[out], timeout=30)
        assert not np.shares_memory(held.places[0], out)
        while not np.shares_memory(held.places[-1], out):  # until one was quick
            await prepared.run([X], out=[out], timeout=30)
        await prepared.run([X], out=[out], timeout=30)
        assert np.shares_memory(held.places[-1], out)


@pytest.mark.parametrize("is_traced", [False, True])
async def test_many_outputs_come_to_their_places(
    name: str, is_traced: bool, tmp_path: Path
) -> None:
    async with opened(name, "inprocess", tmp_path) as (device, _, held):
        prepared = await device.prepare(held.model(3, 1_000_003))
        x = np.arange(3_000_009, dtype=np.float32).reshape(3, -1)
        spans: list[Sequence[Span]] = []
        with recording_to(spans.append) if is_traced else nullcontext():
            outputs = await prepared.run([x], timeout=30)
        np.testing.assert_array_equal(outputs["y"], x)
        assert not np.shares_memory(held.places[-1], outputs["y"])


async def test_closing_waits_for_it_no_longer_than_for_what_is_stuck(
    name: str, tmp_path: Path
) -> None:
    out = place()
    with ExitStack() as stack:
        async with opened(name, "inprocess", tmp_path, stuck_after_s=0.3) as (
            device,
            _,
            held,
        ):
            prepared = await device.prepare(held.model(4))
            stack.enter_context(held.holding())
            await held.late(partial(late_run, prepared, out=[out]))
        with pytest.raises(DeviceClosedError):
            await prepared.run([X])
        assert not held.copied
    await until(lambda: len(held.copied) == held.held)
    lanes = [each for each in threading.enumerate() if each.name == "asyncnn-lane"]
    for lane in lanes:
        lane.join(LONGEST_S)
    np.testing.assert_array_equal(out, SENTINEL)


async def test_a_client_that_goes_leaves_it_to_the_driver(
    name: str, tmp_path: Path
) -> None:
    async with opened(name, "inprocess", tmp_path) as (device, _, held):
        path = tmp_path / "driver.sock"
        async with Server(device.hal, path):
            with held.holding():
                async with connect(path) as client:
                    prepared = await client.prepare(held.model(4))
                    await held.late(partial(late_run, prepared))
                held.go_on()
                async with connect(path) as client:
                    prepared = await client.prepare(held.model(4))
                    outputs = await prepared.run([X], timeout=30)
                    np.testing.assert_array_equal(outputs["y"], X)


def with_one_huge_operation() -> NamedModel:
    """Three operations on any number of rows, the second of which takes nearly all."""
    builder = ModelBuilder()
    x, rows = builder.input("x", F32, (0, 1024)), Operand(F32, (0, 1024))
    none = builder.scalar(FusedActivationFunc.NONE)
    one = builder.constant(np.ones(1, np.float32))
    x = builder.operation(OperationType.ADD, [x, one, none], rows)
    for wide, narrow in ((4096, 1024), (4, 4096)):
        weights = builder.constant(np.full((wide, narrow), 1 / narrow, np.float32))
        bias = builder.constant(np.zeros(wide, np.float32))
        x = builder.operation(
            OperationType.FULLY_CONNECTED,
            [x, weights, bias, none],
            Operand(F32, (0, wide)),
        )
    builder.output(x, "y")
    return builder.build()


@pytest.mark.alone
@pytest.mark.exhaustive
async def test_what_an_engine_cannot_stop_is_named_at_the_deadline(
    name: str, transport: str, tmp_path: Path
) -> None:
    async with opened(name, transport, tmp_path) as (device, _, _):
        prepared = await device.prepare(with_one_huge_operation())
        rows = 500
        while True:  # until it takes long, wherever this runs
            x = np.ones((rows, 1024), np.float32)
            await prepared.run([x])
            began = time.monotonic()
            await prepared.run([x])
            took_s = time.monotonic() - began
            if took_s > 1:
                break
            rows = max(2 * rows, int(1.3 * rows / took_s))
        began = time.monotonic()
        with pytest.raises(MissedDeadlineTransientError) as missed:
            await prepared.run([x], timeout=took_s / 4)
        assert time.monotonic() - began < took_s / 2
        assert "FULLY_CONNECTED (operation 1), the longest part" in str(missed.value)
