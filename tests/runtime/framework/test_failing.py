"""What happens when a device of a framework fails: by fault, path and fallback."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from msgspec.structs import replace

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    InvalidArgumentError,
    MissedDeadlineError,
    MissedDeadlinePersistentError,
)
from asyncnn.metrics.families import openmetrics
from asyncnn.runtime.device import Device
from asyncnn.runtime.framework import (
    Fallback,
    FrameworkSettings,
    Partitioning,
    whole_device,
)
from asyncnn.runtime.framework.opening import OpenDevice, open_framework
from tests.memory.foreign import leaks, traces
from tests.networks import picking
from tests.runtime.framework.crippled import EXECUTING, CrippledDevice, Fault
from tests.runtime.framework.mixed import (
    SHAPE,
    WHEREVER_BETTER,
    assert_same,
    expected,
    inputs,
    mixed,
)
from tests.waits import until

PATHS = ("async", "sync", "burst", "fenced")
T = asyncnn.OperationType
FLOATS_ONLY = {T.QUANTIZE, T.RELU6, T.DEQUANTIZE}


@asynccontextmanager
async def framework_with(
    fault: Fault,
    settings: FrameworkSettings = WHEREVER_BETTER,
    refuses: set[T] = FLOATS_ONLY,
    **others,
) -> AsyncIterator[tuple[Device, CrippledDevice]]:
    """Open a framework of a device for floats, crippled, and the CPU."""
    async with ReferenceDevice() as inner:
        odd = CrippledDevice(inner, refuses, fault, **others)
        async with open_framework(
            DeviceSettings(), devices=[OpenDevice("odd", odd)], framework=settings
        ) as hal:
            yield Device("framework", hal), odd
        odd.bursts.close()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fallback", [Fallback.PARTIAL, Fallback.FULL])
@pytest.mark.parametrize("fault", EXECUTING)
async def test_the_cpu_computes_what_a_device_fails_with(
    fault: Fault, fallback: Fallback, path: str
) -> None:
    settings = replace(WHEREVER_BETTER, fallback=fallback)
    given = inputs()
    wanted = await expected(given)
    async with framework_with(fault, settings, healthy=0) as (device, _):
        prepared = await device.prepare(mixed())
        async with prepared.runner(path) as run:
            outputs = await run(given)
        assert_same(outputs, wanted)
        route = outputs.route
        assert route.fell_back
        if fallback is Fallback.FULL:
            assert route.devices == ("reference",)
            assert route.steps[0].instead_of == "odd"
        else:
            assert route.devices == ("reference",) * 3
            assert [s.instead_of for s in route.steps] == ["odd", "", "odd"]
        assert EXECUTING[fault].name in route.steps[0].reason
        statistics = await device.statistics()
        assert sum(each.count for each in statistics.fallbacks) == len(
            [step for step in route.steps if step.instead_of]
        )
        text = openmetrics(statistics)
        assert 'asyncnn_fallbacks_total{device="asyncnn-framework"' in text


@pytest.mark.parametrize("path", PATHS)
async def test_a_model_on_one_device_falls_back_as_a_whole(path: str) -> None:
    given = inputs()
    wanted = await expected(given)
    async with framework_with(Fault.DYING, refuses=set(), healthy=2) as (device, odd):
        prepared = await device.prepare(mixed())
        assert prepared.hal.usual_route.devices == ("odd",)
        async with prepared.runner(path) as run:
            for number in range(5):
                outputs = await run(given)
                assert_same(outputs, wanted)
                assert outputs.route.fell_back == (number >= 2), number
        assert odd.executions == 3, "a device that died was asked again"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fault", EXECUTING)
async def test_without_fallback_the_error_is_reported(fault: Fault, path: str) -> None:
    settings = replace(WHEREVER_BETTER, partition=Partitioning.ONLY)
    async with framework_with(fault, settings) as (device, _):
        prepared = await device.prepare(mixed())
        with pytest.raises(AsyncnnError) as caught:
            async with prepared.runner(path) as run:
                await run(inputs())
        assert caught.value.status is EXECUTING[fault]


@pytest.mark.parametrize(
    "fault", [Fault.PREPARING, Fault.PREPARING_LATER, Fault.RAISES_AT_PREPARING]
)
async def test_a_device_that_prepares_nothing_is_made_up_for(
    fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    given = inputs()
    wanted = await expected(given)
    for fallback in (Fallback.PARTIAL, Fallback.FULL):
        settings = replace(WHEREVER_BETTER, fallback=fallback)
        async with framework_with(fault, settings) as (device, _):
            outputs = await (await device.prepare(mixed())).run(given)
            assert_same(outputs, wanted)
            assert outputs.route.devices == ("reference",)
            assert outputs.route.steps[0].instead_of == "odd"
    assert "the CPU computes instead of odd" in caplog.text
    caplog.clear()
    settings = replace(WHEREVER_BETTER, fallback=Fallback.FORBID)
    async with framework_with(fault, settings) as (device, _):
        with pytest.raises(AsyncnnError, match=r"partition \d, .* on odd: "):
            await device.prepare(mixed())
        assert not (await device.statistics()).fallbacks
    assert "the CPU computes" not in caplog.text


@pytest.mark.parametrize(
    "fault", [Fault.ANSWERING, Fault.ANSWERS_NONSENSE, Fault.RAISES_AT_ANSWERING]
)
async def test_a_device_that_does_not_answer_has_no_part(fault: Fault) -> None:
    async with framework_with(fault) as (device, _):
        prepared = await device.prepare(mixed())
        outputs = await prepared.run(inputs())
        assert outputs.route.devices == ("reference",)
        assert "odd" in (await device.hal.plan(mixed().model, 1)).refusals


async def test_an_error_that_the_cpu_gives_too_is_no_reason() -> None:
    async with framework_with(Fault.NONE, refuses=set()) as (device, odd):
        prepared = await device.prepare(picking(3))
        wrong = {"x": [1.0, 2.0, 3.0], "index": [0, 1, 7]}
        # GENERAL_FAILURE: the CPU is asked, fails too, and the device is not blamed.
        with pytest.raises(asyncnn.GeneralFailureError):
            await prepared.run(wrong)
        assert not (await device.statistics()).fallbacks
        with pytest.raises(InvalidArgumentError):
            await prepared.run({"x": [1.0]})
        assert odd.executions == 1


async def test_a_failing_device_is_left_out_and_comes_back() -> None:
    now = [0.0]
    settings = replace(WHEREVER_BETTER, failures_to_leave_out=2, pause_s=10.0)
    async with ReferenceDevice() as inner:
        odd = CrippledDevice(inner, FLOATS_ONLY, Fault.EXECUTING)
        async with open_framework(
            DeviceSettings(),
            devices=[OpenDevice("odd", odd)],
            framework=settings,
            clock=lambda: now[0],
        ) as hal:
            prepared = await Device("framework", hal).prepare(mixed())
            await prepared.run(inputs())
            asked = odd.executions
            assert asked == 2, "both of its partitions"
            outputs = await prepared.run(inputs())
            assert odd.executions == asked, "it was asked while left out"
            assert "left out" in outputs.route.steps[0].reason
            odd.fault = Fault.NONE
            now[0] += 11.0
            outputs = await prepared.run(inputs())
            assert not outputs.route.steps[0].instead_of
            outputs = await prepared.run(inputs())
            assert not outputs.route.fell_back


@pytest.mark.parametrize(
    ("fault", "limit", "is_left_out"),
    [
        (Fault.LATE, 0.05, False),
        (Fault.BUSY, None, False),
        (Fault.LATE, 600.0, True),
        (Fault.EXECUTING_LATER, 600.0, True),
        (Fault.EXECUTING, None, True),
    ],
)
@pytest.mark.parametrize("refuses", [FLOATS_ONLY, set()])
async def test_only_what_a_device_did_wrong_takes_it_from_others(
    fault: Fault, limit: float | None, is_left_out: bool, refuses: set[T]
) -> None:
    settings = replace(WHEREVER_BETTER, pause_s=60.0)
    async with framework_with(fault, settings, refuses) as (device, odd):
        prepared = await device.prepare(mixed())
        while not (await device.statistics()).fallbacks:  # prepared on the CPU as well
            with suppress(asyncnn.MissedDeadlineError):
                await prepared.run(inputs(), timeout=limit)
        for _ in range(9):
            with suppress(asyncnn.MissedDeadlineError):
                await prepared.run(inputs(), timeout=limit)
        odd.fault = Fault.NONE
        another = await device.prepare(mixed())
        outputs = await another.run(inputs())
        assert outputs.route.fell_back is False
        assert ("odd" not in outputs.route.devices) is is_left_out
        outputs = await prepared.run(inputs())
        assert outputs.route.fell_back is is_left_out


async def test_others_that_succeed_show_that_a_device_is_well() -> None:
    settings = replace(WHEREVER_BETTER, failures_to_leave_out=2, pause_s=60.0)
    async with framework_with(Fault.NONE, settings, set()) as (device, odd):
        prepared = await device.prepare(mixed())
        gate, source = asyncnn.fences.SyncFence.pair()
        odd.gate = gate
        waiting = asyncio.create_task(prepared.run(inputs()))
        await until(lambda: odd.executions == 1)
        odd.fault, odd.gate = Fault.EXECUTING, None
        assert (await prepared.run(inputs())).route.fell_back
        source.signal()
        assert not (await waiting).route.fell_back
        assert (await prepared.run(inputs())).route.fell_back
        odd.fault = Fault.NONE
        assert not (await prepared.run(inputs())).route.fell_back


async def test_a_deadline_that_has_passed_is_one_of_the_client() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed())
        for path in ("async", "sync", "fenced"):
            with pytest.raises(MissedDeadlinePersistentError):
                await prepared.run(inputs(), timeout=-1.0, path=path)


@pytest.mark.parametrize("path", ["async", "sync"])
async def test_a_device_that_says_nothing_keeps_nobody_beyond_a_deadline(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_device, "CLOSING_S", 0.3)
    async with framework_with(Fault.SILENT, refuses=set()) as (device, _):
        prepared = await device.prepare(mixed())
        async with prepared.runner(path) as run:
            async with asyncio.timeout(60):
                with pytest.raises(MissedDeadlineError, match="odd has not answered"):
                    await run(inputs(), timeout=0.01)


async def test_late_rather_than_never() -> None:
    async with framework_with(Fault.LATE) as (device, _):
        prepared = await device.prepare(mixed())
        outputs = await prepared.run(inputs(), timeout=30.0)
        assert "MISSED_DEADLINE_TRANSIENT" in outputs.route.steps[0].reason


async def test_cancelling_ends_every_part_of_it() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed((512, 512)))
        given = inputs((512, 512))
        for delay in (0.0, 0.0005, 0.002):
            task = asyncio.create_task(prepared.run(given))
            await asyncio.sleep(delay)
            if task.cancel() or not delay:  # else it has ended, on a quick machine
                with pytest.raises(asyncio.CancelledError):
                    await task
        await until(lambda: not device.hal._host.active)
        assert_same(await prepared.run(given), await expected(given, mixed((512, 512))))


async def test_closing_ends_what_runs() -> None:
    given = inputs((512, 512))
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed((512, 512)))
        tasks = [asyncio.create_task(prepared.run(given)) for _ in range(100)]
        await asyncio.sleep(0.002)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert any(isinstance(result, DeviceClosedError) for result in results)
    with pytest.raises(DeviceClosedError):
        await prepared.run(given)


@pytest.mark.parametrize("has_fences", [True, False])
async def test_fenced_runs_wait_and_follow_each_other(has_fences: bool) -> None:
    given = inputs()
    wanted = await expected(given)
    async with framework_with(Fault.NONE, has_fences=has_fences) as (device, _):
        prepared = await device.prepare(mixed())
        gate, source = asyncnn.fences.SyncFence.pair()
        first = prepared.run_fenced(given, wait_for=[gate], measure=True)
        second = prepared.run_fenced({"x": first.outputs["y"]}, wait_for=[first])
        await asyncio.sleep(0.01)
        assert first.status is None
        source.signal()
        assert_same(await first, wanted)
        assert_same(await second, await expected({"x": wanted["y"]}))
        assert first.timing.launched.in_driver_ns >= 10_000_000
        assert first.outputs.route.devices == ("odd", "reference", "odd")


async def test_fenced_runs_fail_with_what_they_wait_for() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed())
        gate, source = asyncnn.fences.SyncFence.pair()
        run = prepared.run_fenced(inputs(), wait_for=[gate])
        source.fail(asyncnn.ErrorStatus.DEVICE_UNAVAILABLE, "the camera is gone")
        with pytest.raises(asyncnn.GeneralFailureError, match="the camera is gone"):
            await run
        assert not (await device.statistics()).fallbacks


async def test_a_fenced_run_has_a_deadline_and_a_duration() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed())
        gate, source = asyncnn.fences.SyncFence.pair()
        run = prepared.run_fenced(inputs(), wait_for=[gate], timeout=0.02)
        with pytest.raises(asyncnn.MissedDeadlineTransientError):
            await run
        longer = prepared.run_fenced(inputs(), wait_for=[gate], duration=5.0)
        source.signal()
        await longer


async def test_timing_is_that_of_all_partitions() -> None:
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed((256, 256)))
        for path in ("async", "sync", "fenced"):
            timing = (
                await prepared.run(inputs((256, 256)), path=path, measure=True)
            ).timing
            assert 0 < timing.on_device_ns <= timing.in_driver_ns < 10**10


async def test_shapes_that_are_open_are_found_out() -> None:
    model = mixed(SHAPE, open_axis=1)
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(model)
        assert prepared.hal.usual_route.devices == ("odd", "reference", "odd")
        for columns in (3, 700, 5):
            given = inputs((SHAPE[0], columns))
            wanted = await expected(given, model)
            for path in ("async", "sync", "burst"):
                async with prepared.runner(path) as run:
                    assert_same(await run(given), wanted)


async def test_buffers_serve_models_that_are_divided() -> None:
    given = inputs()
    wanted = await expected(given)
    again = await expected({"x": wanted["y"]})
    async with framework_with(Fault.NONE) as (device, _):
        prepared = await device.prepare(mixed())
        buffer = await device.buffer_for(prepared.output("y"), prepared.input("x"))
        root = asyncnn.shared_array(SHAPE)
        await prepared.run(given, out={"y": buffer, "root": root})
        outputs = await prepared.run({"x": buffer})
        assert_same(outputs, again)


async def test_nothing_is_left_behind() -> None:
    async def all_of_it() -> None:
        for fault in (Fault.NONE, *EXECUTING):
            async with framework_with(fault) as (device, _):
                prepared = await device.prepare(mixed())
                for path in PATHS:
                    async with prepared.runner(path) as run:
                        await run(inputs())

    await all_of_it()
    gc.collect()
    tasks, before = len(asyncio.all_tasks()), traces()
    began = time.monotonic()
    while time.monotonic() - began < 0.5:
        await all_of_it()
    await until(lambda: len(asyncio.all_tasks()) == tasks and not leaks(before))


async def test_a_callback_that_fails_at_a_route_is_still_told_the_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = inputs()
    wanted = await expected(given)

    def fail(*_: object) -> None:
        raise RuntimeError("a callback's own failure")

    async with framework_with(next(iter(EXECUTING)), healthy=0) as (device, _):
        prepared = await device.prepare(mixed())
        monkeypatch.setattr(asyncnn.callbacks.ExecutionFuture, "took", fail)
        async with asyncio.timeout(10), prepared.runner("async") as run:
            assert_same(await run(given), wanted)
