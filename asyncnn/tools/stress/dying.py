"""Bodies of cases in which runs are cancelled, and clients or drivers die."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np

import asyncnn
from asyncnn.devices import OWN_PROCESS
from asyncnn.devices.own_devices import own_device
from asyncnn.hal.types import Operand, OperandType, OperationType, PerformanceInfo
from asyncnn.runtime.framework import FRAMEWORK
from asyncnn.runtime.framework.sample_devices import SampleDevice
from asyncnn.tools.bench.made_models import dense, long_model, tiny_addition
from asyncnn.tools.stress.bodies import (
    Ready,
    mixed,
    prepare,
    run_some,
    subject_of,
    subjects,
)
from asyncnn.tools.stress.place import (
    PATHS,
    FaultError,
    NotApplicableError,
    StressPlace,
    Subject,
    all_of,
)
from asyncnn.tools.watched_processes import served_driver

_LONG = dense(12, 256, 48).build
_RUNS_ON_S = 10.0
"""Seconds after which what was cancelled must have left the device."""

_RECOVERY_S = 30.0
_BATCH = 16
_DRIVER = b"asyncnn.service.start"
_REPLACED = "accelerated"
"""Stands for a framework where that is to have a driver of its own."""

_MORTAL = {FRAMEWORK: _REPLACED, "reference": "sample-float-fast"}
"""What dies in place of these, which are no part of a framework beside its CPU."""


class _Adder(SampleDevice):
    """Additions of floats, better than by any other device."""

    name = "asyncnn-adder"
    types = (OperandType.FLOAT32, OperandType.TENSOR_FLOAT32)
    operations = frozenset({OperationType.ADD})
    figures = PerformanceInfo(0.01, 0.01)


@asynccontextmanager
async def _divided(
    place: StressPlace, device: asyncnn.Device
) -> AsyncIterator[asyncnn.Device]:
    """Open a framework of a device, of one for additions, and of the CPU."""
    settings = asyncnn.FrameworkSettings(
        moving_weight=0, chains_drivers=place.rng.random() < 0.5
    )
    async with _Adder(OWN_PROCESS) as hal:
        adder = asyncnn.Device("adder", hal)
        async with asyncnn.open_devices(
            adder, device, framework=settings, settings=OWN_PROCESS
        ) as framework:
            yield framework


async def leaving(place: StressPlace) -> None:
    """Have runs pending, and leave without waiting for them, in several ways."""
    if place.order.number == 0:
        await mixed(place)
        return
    chosen = await subjects(place)
    while not place.is_over:
        async with place.opened() as device:
            ready = [Ready(each, await prepare(place, device, each)) for each in chosen]
            tasks = [
                asyncio.ensure_future(run_some(place, place.rng.choice(ready)))
                for _ in range(place.rng.randrange(1, 33))
            ]
            await asyncio.sleep(place.rng.random() * 5e-3)
            way = place.rng.choice(("exit", "close", "cancel"))
            if way == "exit":
                place.counts[way] += 1
                place.report()
                os._exit(0)
            if way == "cancel":
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        for outcome in await all_of(tasks):
            if isinstance(outcome, BaseException) and not isinstance(
                outcome, asyncio.CancelledError | asyncnn.DeviceUnavailableError
            ):
                raise outcome
        place.done(way)


async def cancels(place: StressPlace) -> None:
    """Cancel runs, or have them miss deadlines, at any moment and on each path."""
    subject = await subject_of(_LONG())
    async with place.opened() as device:
        await place.require(device, subject.named)
        model = await device.prepare(subject.named)
        started = time.monotonic()
        for _ in range(4):
            await model.run(subject.samples[0][0])
        usual = (time.monotonic() - started) / 4
        while not place.is_over:
            path = place.rng.choice(PATHS)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(place.rng.randrange(1, _BATCH)):
                    latest = usual * place.rng.uniform(0, 2)
                    tasks.create_task(_cut(place, Ready(subject, model), path, latest))
            await _none_runs_on(device)
            subject.check(0, await model.run(subject.samples[0][0]), "after cancels")


async def _cut(place: StressPlace, ready: Ready, path: str, after_s: float) -> None:
    """Run once, and cut that after some time; look at outputs if they are there."""
    subject, model = ready
    number = place.rng.randrange(len(subject.samples))
    by_deadline = place.rng.random() < 0.3
    limit = after_s if by_deadline else None
    async with model.runner(path, timeout=limit) as run:  # type: ignore[arg-type]
        task = asyncio.ensure_future(run(subject.samples[number][0]))
        if not by_deadline:
            await asyncio.sleep(after_s)
            task.cancel()
        await asyncio.wait([task])
        what = "ended"
        try:
            subject.check(number, task.result(), f"{path}, cut after {after_s:g} s")
        except asyncio.CancelledError:
            what = "cancelled"
        except asyncnn.MissedDeadlineError:
            what = "missed"
    place.done(f"{what} {path}")


async def _none_runs_on(device: asyncnn.Device) -> None:
    latest = time.monotonic() + _RUNS_ON_S
    while True:
        executions = (await device.statistics()).executions
        if executions.queued + executions.running == 0:
            return
        if time.monotonic() > latest:
            raise FaultError(
                f"{executions.running} runs go on and {executions.queued} wait "
                f"{_RUNS_ON_S:g} s after all have ended for their callers"
            )
        await asyncio.sleep(0.01)


async def fences(place: StressPlace) -> None:
    """Chain runs by fences, and cancel links of some chains."""
    named = tiny_addition()
    rng = np.random.default_rng(place.rng.randrange(2**32))
    async with place.opened() as device:
        await place.require(device, named)
        model = await device.prepare(named)
        while not place.is_over:
            x, y = rng.random((2, 4), np.float32)
            runs = [model.run_fenced({"x": x, "y": y})]
            for _ in range(place.rng.randrange(12)):
                given = {"x": runs[-1].outputs["sum"], "y": y}
                # Each second one waits for several, which have ended or not.
                wait_for = runs[-place.rng.randrange(1, 4) :]
                runs.append(model.run_fenced(given, wait_for=wait_for))
                if place.rng.random() < 0.2:
                    await asyncio.sleep(0)
            is_cut = place.rng.random() < 0.2
            if is_cut:
                place.rng.choice(runs).cancel()
            try:
                outputs = await runs[-1]
            except asyncnn.AsyncnnError:
                if not is_cut:
                    raise
            else:
                expected = x + np.float32(len(runs)) * y
                if not np.allclose(outputs["sum"], expected, 1e-4):
                    raise FaultError(f"a chain of {len(runs)} gives {outputs['sum']}")
            await all_of(runs)
            place.done("cut chains" if is_cut else "chains")


def _running_sum() -> asyncnn.NamedModel:
    """Return the model that gives twice the sum of all that it was given."""
    builder = asyncnn.ModelBuilder()
    vector = Operand(OperandType.TENSOR_FLOAT32, (4,))
    x = builder.input("x", vector.type, vector.dimensions)
    total = builder.state("total", vector.type, vector.dimensions)
    none = builder.scalar(0)
    added = builder.operation(OperationType.ADD, [x, total, none], vector)
    y = builder.operation(OperationType.ADD, [added, added, none], vector)
    builder.next_state(total, added)
    builder.output(y, "y")
    return builder.build()


async def sessions(place: StressPlace) -> None:
    """Step through sessions, copy and reset them, and look at their state."""
    named = _running_sum()
    rng = np.random.default_rng(place.rng.randrange(2**32))
    async with place.opened() as device:
        await place.require(device, named)
        model = await device.prepare(named)
        while not place.is_over:
            async with model.session(path=place.rng.choice(PATHS)) as session:
                await _step(place, session, rng)
            place.done("sessions")


async def _step(
    place: StressPlace, session: asyncnn.Session, rng: np.random.Generator
) -> None:
    total = np.zeros(4, np.float32)
    for _ in range(place.rng.randrange(1, 40)):
        x = rng.random(4, np.float32)
        total = total + x
        outputs = await session.run(x)
        if not np.allclose(outputs["y"], 2 * total, 1e-4):
            raise FaultError(f"a step gives {outputs['y']}, not {2 * total}")
        place.done("steps")
        match place.rng.randrange(20):
            case 0:
                await session.reset()
                total = np.zeros(4, np.float32)
            case 1:
                async with session.copy() as other:
                    await other.run(x)
                state = await session.state()
                if not np.allclose(state["total"], total, 1e-4):
                    raise FaultError(f"the state is {state['total']}, not {total}")


@asynccontextmanager
async def _mortal(
    place: StressPlace,
) -> AsyncIterator[tuple[asyncnn.Device, Callable[[], Awaitable[object]]]]:
    """Open a device that is one part of a framework, and yield how to end it."""
    name = place.order.device.partition(":")[0]
    name = _MORTAL.get(name, name)
    if not place.order.is_remote:
        device = await asyncnn.open_device(name, settings=OWN_PROCESS)
        try:
            yield device, device.aclose
        finally:
            await device.aclose()
        return
    with served_driver(name) as driver:

        async def end() -> None:
            driver.process.kill()

        async with asyncnn.connect(driver.path) as device:
            yield device, end


async def partitions(place: StressPlace) -> None:
    """Divide models among devices one of which dies; the CPU computes instead."""
    subject = await subject_of(long_model(24, 3))
    while not place.is_over:
        async with (
            _mortal(place) as (device, end),
            _divided(place, device) as framework,
        ):
            model = await framework.prepare(subject.named)
            outputs = await model.run(subject.samples[0][0])
            parts = () if outputs.route is None else outputs.route.devices
            if not {"adder", device.name} <= set(parts):
                raise NotApplicableError(f"the framework gives it nothing: {parts}")
            tasks = [
                asyncio.create_task(_run_many(place, Ready(subject, model)))
                for _ in range(4)
            ]
            await asyncio.sleep(place.rng.uniform(0, 0.05))
            await end()
            await asyncio.gather(*tasks)
            await _run_many(place, Ready(subject, model))
            place.done("devices that died")


async def _run_many(place: StressPlace, ready: Ready) -> None:
    subject, model = ready
    for _ in range(place.rng.randrange(1, 20)):
        number = place.rng.randrange(len(subject.samples))
        outputs = await model.run(subject.samples[number][0])
        subject.check(number, outputs, "in partitions")
        fell_back = outputs.route is not None and outputs.route.fell_back
        place.done("runs by the CPU" if fell_back else "runs")


async def restarts(place: StressPlace) -> None:
    """Kill the driver of a supervised device, again and again, while models run."""
    name = place.order.device.partition(":")[0]
    is_framework = name == FRAMEWORK
    name = _REPLACED if is_framework else name
    if own_device(name) is None:
        raise NotApplicableError("only devices of this package are supervised")
    chosen = await subjects(place)
    async with asyncnn.connect(device=name, supervised=True) as device:
        if is_framework:
            async with asyncnn.open_devices(device, settings=OWN_PROCESS) as divided:
                await _storm(place, divided, chosen)
        else:
            await _storm(place, device, chosen)


async def _storm(
    place: StressPlace, device: asyncnn.Device, chosen: list[Subject]
) -> None:
    ready = [Ready(each, await prepare(place, device, each)) for each in chosen]

    async def stream() -> None:
        while not place.is_over:
            try:
                await run_some(place, place.rng.choice(ready))
            except asyncnn.DeviceUnavailableError:
                place.done("lost")

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(stream())
        while not place.is_over:
            await asyncio.sleep(place.rng.uniform(0.05, 1.0))
            for pid in _drivers():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                place.counts["killed"] += 1
            # Drivers that all die soon would count as ones that never come.
            if place.rng.random() < 0.3:
                await asyncio.sleep(2.5)
    for each in ready:
        await _recovered(place, each)


async def _recovered(place: StressPlace, ready: Ready) -> None:
    latest = time.monotonic() + _RECOVERY_S
    while True:
        try:
            await run_some(place, ready)
        except asyncnn.DeviceUnavailableError as error:
            if time.monotonic() > latest:
                raise FaultError(f"lost for {_RECOVERY_S:g} s: {error}") from error
            await asyncio.sleep(0.05)
        else:
            return


def _drivers() -> list[int]:
    """Return the driver processes that this one has started."""
    found = []
    for file in Path("/proc/self/task").glob("*/children"):
        for pid in file.read_text().split():
            with suppress(OSError):
                if _DRIVER in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(pid))
    return found
