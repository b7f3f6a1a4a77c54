"""Random calls of clients, drawn by a seed, to be recorded by a driver."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from msgspec.structs import replace

import asyncnn
from asyncnn.callbacks import ExecutionFuture
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.types import MeasureTiming, Model
from asyncnn.memory.shared import allocate
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.requests import RequestBuilder
from tests.networks import addition, chain
from tests.runtime.stateful import counting
from tests.service.raw import RawClient, execute, prepare

MODELS = {"small": addition(4), "deep": chain(12, 8), "wide": chain(3, 64, 16)}


class RandomCalls:
    """A client of the driver at ``path``; its calls are drawn by ``chance``."""

    def __init__(
        self, device: asyncnn.Device, path: Path, chance: random.Random
    ) -> None:
        self._device = device
        self._path = path
        self._chance = chance

    async def make(self, named: NamedModel, count: int) -> None:
        """Prepare a model, and make ``count`` draws of calls of it."""
        prepared = await self._device.prepare(named)
        draws = (
            self._run,
            self._run,
            self._at_once,
            self._fenced,
            self._burst,
            self._cancelled,
            self._late,
            self._reused,
            self._buffer,
        )
        for _ in range(count):
            await self._chance.choice(draws)(prepared)

    async def make_others(self, named: NamedModel) -> None:
        """Ask about a model, step through a session, and break rules."""
        supported = await self._device.hal.get_supported_operations_1_3(named.model)
        assert supported[1]
        stateful = await self._device.prepare(counting())
        path = self._chance.choice(("async", "burst"))
        async with stateful.session(path=path) as session:
            for _ in range(self._chance.randint(1, 4)):
                await session.run(self._arrays(stateful))
        await self._break_rules(named.model)

    def _arrays(self, prepared: asyncnn.PreparedModel) -> list[np.ndarray]:
        drawn = np.random.default_rng(self._chance.getrandbits(32))
        return [
            (drawn.random(each.shape) * 8).astype(each.dtype)
            for each in prepared.inputs
        ]

    async def _run(self, prepared: asyncnn.PreparedModel) -> None:
        path = self._chance.choice(("async", "sync", "fenced"))
        await prepared.run(self._arrays(prepared), path=path)

    async def _at_once(self, prepared: asyncnn.PreparedModel) -> None:
        runs = [self._run(prepared) for _ in range(self._chance.randint(2, 5))]
        await asyncio.gather(*runs)

    async def _fenced(self, prepared: asyncnn.PreparedModel) -> None:
        before: list[asyncnn.FencedRun] = []
        for _ in range(self._chance.randint(1, 4)):
            arrays: Sequence[object] = self._arrays(prepared)
            fed = before[-1].outputs[0] if before else arrays[0]
            if before and fed.shape == arrays[0].shape:  # type: ignore[attr-defined]
                arrays = [fed, *arrays[1:]]
            run = prepared.run_fenced(arrays, wait_for=before[-1:])  # type: ignore[arg-type]
            before.append(run)
        if self._chance.random() < 0.2:
            before[0].cancel()
        for run in before:
            with suppress(AsyncnnError):
                await run

    async def _burst(self, prepared: asyncnn.PreparedModel) -> None:
        async with prepared.burst() as burst:
            for _ in range(self._chance.randint(1, 4)):
                await burst.run(self._arrays(prepared))

    async def _cancelled(self, prepared: asyncnn.PreparedModel) -> None:
        x = [asyncnn.shared_array(each.shape) for each in prepared.inputs]
        out = [asyncnn.shared_array(each.shape) for each in prepared.outputs]
        request = RequestBuilder(prepared.inputs, prepared.outputs)(x, out)
        callback = ExecutionFuture()
        prepared.hal.execute_1_3(request, MeasureTiming.NO, None, None, callback)
        for _ in range(self._chance.randint(0, 2)):
            await asyncio.sleep(0)
        callback.die()
        await callback

    async def _late(self, prepared: asyncnn.PreparedModel) -> None:
        timeout = self._chance.choice((0.0, 1e-5, 1e-3, 5.0))
        path = self._chance.choice(("async", "fenced"))
        with suppress(AsyncnnError):
            await prepared.run(self._arrays(prepared), timeout=timeout, path=path)

    async def _reused(self, prepared: asyncnn.PreparedModel) -> None:
        reusable = prepared.reusable()
        for _ in range(self._chance.randint(1, 4)):
            for place, array in enumerate(self._arrays(prepared)):
                reusable.input(place)[...] = array
            await reusable.run()

    async def _buffer(self, prepared: asyncnn.PreparedModel) -> None:
        given = await self._device.buffer_for(prepared.input(0))
        result = await self._device.buffer_for(prepared.output(0))
        first, *others = self._arrays(prepared)
        await given.write(first)
        out = {prepared.outputs[0].name: result}
        await prepared.run([given, *others], out=out)
        await result.read()

    async def _break_rules(self, model: Model) -> None:
        """Send what a client of the package refuses to send."""
        client = RawClient.connect(self._path)
        try:
            await client.greet()
            small = MODELS["small"].model
            await client.prepare(1, small)
            pool = allocate(64)
            client.announce(2, pool)
            right = (0, 0, 16), (0, 16, 16), (0, 32, 16)
            wrong = (0, 0, 16), (0, 16, self._chance.choice((0, 4, 15, 17, 400)))
            await client.execute(execute(3, 1, *right, pools=(2,)))
            await client.execute(execute(4, 1, *wrong, right[2], pools=(2,)))
            await client.execute(execute(5, 1, *right[:2], pools=(2,)))
            client.send(prepare(6, replace(small, operand_values=b"")))
            await client.receive()
        finally:
            client.close()
