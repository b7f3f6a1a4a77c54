"""Bodies of cases that have devices run models: plainly, loaded, cached, in bursts.

Each result is compared with what the reference kernels give. What never ends is for the
watchdog to find.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

import asyncnn
from asyncnn.devices import OWN_PROCESS
from asyncnn.hal.errors import error_for
from asyncnn.hal.types import ErrorStatus, ExecutionPreference, Priority
from asyncnn.tools.bench.made_models import (
    convolutions,
    dense,
    long_model,
    tiny_addition,
)
from asyncnn.tools.bench.rounds import percentile
from asyncnn.tools.samples import random_sample
from asyncnn.tools.stress.place import (
    PATHS,
    FaultError,
    NotApplicableError,
    StressPlace,
    Subject,
    run_by_callback,
)

_MODELS: tuple[Callable[[], asyncnn.NamedModel], ...] = (
    tiny_addition,
    partial(long_model, 12, 1),
    dense(2, 48, 4).build,
    convolutions(2, 12, 8).build,
    lambda: asyncnn.load(asyncnn.bundled_file("digits_int8.asyncnn")),
)
_MAPPED = dense(2, 600, 1).build
"""Of a file that is large enough to be mapped."""

_SAMPLES, _STREAMS, _GRAPHS = 4, 3, 10
_CALLBACKS = 0.2
"""Share of runs that are executions by the HAL's own call."""

_WINDOW_S = 0.5
_SLOWEST = 10.0
"""Times the clients that each may be slower beside the others."""


async def subject_of(named: asyncnn.NamedModel) -> Subject:
    """Return a model with samples, and what the reference kernels give for each."""
    rng = np.random.default_rng(1)
    inputs = [random_sample(named.inputs, rng) for _ in range(_SAMPLES)]
    async with asyncnn.open_device("reference", settings=OWN_PROCESS) as device:
        prepared = await device.prepare(named)
        return Subject(
            named, [(sample, dict(await prepared.run(sample))) for sample in inputs]
        )


async def subjects(place: StressPlace) -> list[Subject]:
    """Return the models that most cases run, as far as the device computes them.

    :raises NotApplicableError: if it computes none.
    """
    found = []
    async with place.opened() as device:
        for make in _MODELS:
            named = make()
            with suppress(NotApplicableError):
                await place.require(device, named)
                found.append(await subject_of(named))
    if not found:
        raise NotApplicableError("the device computes none of the models")
    return found


class Ready(NamedTuple):
    """A model that was prepared."""

    subject: Subject
    model: asyncnn.PreparedModel


async def prepare(
    place: StressPlace, device: asyncnn.Device, subject: Subject
) -> asyncnn.PreparedModel:
    """Prepare a model in one of the ways that there are."""
    return await device.prepare(
        subject.named,
        priority=place.rng.choice([*Priority]),
        preference=place.rng.choice([*ExecutionPreference]),
    )


async def run_some(place: StressPlace, ready: Ready) -> None:
    """Run a model a few times on one path, and look at all outputs."""
    path = place.rng.choice(PATHS)
    subject, model = ready
    if place.rng.random() < _CALLBACKS:
        number = place.rng.randrange(_SAMPLES)
        status, outputs, callback = await run_by_callback(
            model, subject.samples[number][0]
        )
        if status is not ErrorStatus.NONE:
            raise error_for(status, callback.reason)
        subject.check(number, outputs, "callback")
        await asyncio.sleep(0)
        callback.check()
        place.done("callback")
        return
    async with model.runner(path) as run:
        for _ in range(place.rng.randrange(1, 9)):
            number = place.rng.randrange(_SAMPLES)
            subject.check(number, await run(subject.samples[number][0]), path)
            place.done(path)


async def mixed(place: StressPlace) -> None:
    """Run all models on all paths, several at once."""

    async def stream() -> None:
        while not place.is_over:
            await run_some(place, place.rng.choice(ready))

    chosen = await subjects(place)
    async with place.opened() as device:
        ready = [Ready(each, await prepare(place, device, each)) for each in chosen]
        async with asyncio.TaskGroup() as tasks:
            for _ in range(_STREAMS):
                tasks.create_task(stream())


async def threads(place: StressPlace) -> None:
    """Do so in threads of one process, each with a loop and a device of its own."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(place.order.width) as pool:
        calls = [
            loop.run_in_executor(pool, lambda: asyncio.run(mixed(place)))
            for _ in range(place.order.width)
        ]
        await asyncio.gather(*calls)


async def loading(place: StressPlace) -> None:
    """Load files that others load and replace, prepare and run their models."""
    chosen = await subjects(place)
    while not place.is_over:
        number = place.rng.randrange(len(chosen))
        file = place.folder / f"{number}.asyncnn"
        if not file.exists() or place.rng.random() < 0.3:
            asyncnn.save(chosen[number].named, file)
        async with place.opened() as device:
            for _ in range(4):
                model = await device.prepare(await asyncnn.load_model(file))
                await run_some(place, Ready(chosen[number], model))
                place.done("loaded")


async def mapping(place: StressPlace) -> None:
    """Map files, have them replaced or removed, and run what was mapped."""
    subject = await subject_of(_MAPPED())
    async with place.opened() as device:
        await place.require(device, subject.named)
        while not place.is_over:
            is_own = place.rng.random() < 0.5
            file = place.folder / f"{os.getpid() if is_own else 'shared'}.asyncnn"
            if is_own or not file.exists():
                asyncnn.save(subject.named, file)
            loaded = asyncnn.load(file)
            if is_own:
                file.unlink()
            else:
                asyncnn.save(subject.named, file)
            model = await device.prepare(loaded)
            del loaded
            await run_some(place, Ready(subject, model))
            place.done("mapped")


async def random_graphs(place: StressPlace) -> None:
    """Draw graphs, and compare each with the reference kernels."""
    try:
        from asyncnn.tools.conformance.random_graphs import search
    except ModuleNotFoundError as error:
        raise NotApplicableError(f"random graphs need {error.name}") from error
    from asyncnn.tools.conformance.suite import Selection

    order = place.order
    selection = Selection(device=order.device, socket=order.socket)
    while not place.is_over:
        path, seed = place.rng.choice(PATHS), place.rng.randrange(2**32)
        tried = await search(selection, path, _GRAPHS, seed, place.folder)
        if tried.problem:
            raise FaultError(
                f"{tried.model}, path {path}, seed {seed}: {tried.problem}"
            )
        place.done("graphs", tried.graphs)


async def degradation(place: StressPlace) -> None:
    """Time runs of one client, by turns alone and beside all others."""
    subject = await subject_of(_MODELS[2]())
    times: tuple[list[float], list[float]] = ([], [])
    async with place.opened() as device:
        await place.require(device, subject.named)
        model = await device.prepare(subject.named)
        while not place.is_over:
            passed = time.monotonic() - place.span.begin
            is_together = int(passed / _WINDOW_S) % 2
            if place.order.number and not is_together:
                await asyncio.sleep(_WINDOW_S - passed % _WINDOW_S)
                continue
            started = time.perf_counter_ns()
            outputs = await model.run(subject.samples[0][0])
            times[is_together].append((time.perf_counter_ns() - started) / 1000)
            subject.check(0, outputs, "async")
            place.done("together" if is_together else "alone")
    if place.order.number == 0 and all(times):
        _judge_degradation(place, times)


def _judge_degradation(place: StressPlace, times: Sequence[Sequence[float]]) -> None:
    alone, together = map(median, times)
    place.figures = {
        "alone_us": [alone, percentile(times[0], 0.99)],
        "together_us": [together, percentile(times[1], 0.99)],
        "ratio": [together / alone],
    }
    most = _SLOWEST * place.order.width
    if together > most * alone:
        raise FaultError(
            f"runs take {together / alone:.1f} times as long beside "
            f"{place.order.width - 1} clients, which is more than {most:g} times"
        )


async def caching(place: StressPlace) -> None:
    """Prepare from a cache that others use, and damage some of its files."""
    chosen = await subjects(place)
    folder = place.folder / "cache"
    while not place.is_over:
        async with place.opened(cache_dir=folder) as device:
            for _ in range(4):
                subject = place.rng.choice(chosen)
                # Alike each time, so that it is found.
                model = await device.prepare(subject.named)
                await run_some(place, Ready(subject, model))
                place.done("prepared")
        if place.rng.random() < 0.3:
            _damage(place, folder)


def _damage(place: StressPlace, folder: Path) -> None:
    files = sorted(folder.iterdir()) if folder.exists() else []
    if not files:
        return
    file = place.rng.choice(files)
    try:
        contents = bytearray(file.read_bytes())
        match place.rng.randrange(3):
            case 0:
                file.unlink()
            case 1:
                file.write_bytes(contents[: len(contents) // 2])
            case _ if contents:
                contents[place.rng.randrange(len(contents))] ^= 0xFF
                file.write_bytes(contents)
    except FileNotFoundError:
        return  # another process has removed it
    place.done("damaged")


async def bursts(place: StressPlace) -> None:
    """Open bursts, run several requests at once on each, cancel some."""
    chosen = await subjects(place)

    async def run(burst: asyncnn.Burst, subject: Subject) -> None:
        number = place.rng.randrange(_SAMPLES)
        outputs = await burst.run(subject.samples[number][0])
        subject.check(number, {k: v.copy() for k, v in outputs.items()}, "burst")
        place.done("burst")

    async with place.opened() as device:
        ready = [Ready(each, await prepare(place, device, each)) for each in chosen]
        while not place.is_over:
            subject, model = place.rng.choice(ready)
            async with model.burst(spins=place.rng.random() < 0.5) as burst:
                for _ in range(place.rng.randrange(20)):
                    if place.rng.random() < 0.2:
                        task = asyncio.create_task(run(burst, subject))
                        await asyncio.sleep(place.rng.random() * 1e-3)
                        task.cancel()
                        await asyncio.wait([task])
                        if not task.cancelled():
                            task.result()
                    else:
                        await run(burst, subject)
            place.done("bursts")
