"""Steps that are given up late, and what they may still be using by then."""

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.run import Run
from asyncnn.hal.errors import ResourceExhaustedTransientError
from asyncnn.runtime import session as sessions
from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.states import Kept, StatePlaces
from tests.runtime.sessions.conftest import PATHS, check
from tests.runtime.stateful import X, counting
from tests.waits import cancelled


class Held:
    """A coroutine function that waits, once it was reached, and is then as ever."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.reached = asyncio.Event()
        self.is_held = True

    async def __call__(self, *arguments: Any) -> Any:
        if self.is_held:
            self.reached.set()
            await asyncio.Event().wait()
        return await self._function(*arguments)


async def given_up(session: Any, held: Held) -> None:
    """Check that a step which is cancelled where it is held has not happened."""
    for steps in range(2):
        held.is_held = True
        held.reached.clear()
        run = asyncio.create_task(session.run(X))
        await held.reached.wait()
        await cancelled(run)
        held.is_held = False
        await check(session, steps)
        np.testing.assert_array_equal((await session.run(X))["y"], 2 * (steps + 1) * X)


@pytest.mark.parametrize("path", PATHS)
async def test_cancelling_while_the_state_is_saved(
    prepared: PreparedModel, path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(StatePlaces.read)

    async def read(self: StatePlaces, index: int) -> Any:
        return await held(self, index)

    monkeypatch.setattr(StatePlaces, "read", read)
    async with prepared.session(path=path, checkpoint=1) as session:
        await given_up(session, held)


@pytest.mark.parametrize("path", PATHS)
async def test_cancelling_while_outputs_are_copied(
    prepared: PreparedModel, path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(sessions.copies_of)
    monkeypatch.setattr(sessions, "copies_of", held)
    monkeypatch.setattr("asyncnn.runtime.session_steps.SHORT_BYTES", 1)
    async with prepared.session(path=path) as session:
        await given_up(session, held)


async def test_a_state_that_cannot_be_saved_is_that_before_the_step(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared.session(checkpoint=1) as session:
        await session.run(X)
        with monkeypatch.context() as patch:

            async def read(self: StatePlaces, index: int) -> Any:
                raise ResourceExhaustedTransientError("no memory")

            patch.setattr(StatePlaces, "read", read)
            with pytest.raises(ResourceExhaustedTransientError):
                await session.run(X)
        await check(session, 1)


async def test_a_state_for_which_there_is_no_memory_is_not_taken(
    prepared: PreparedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with prepared.session() as session:
        await session.run(X)
        with monkeypatch.context() as patch:

            def placed(self: Kept, array: Any) -> Any:
                raise ResourceExhaustedTransientError("no memory")

            patch.setattr(Kept, "placed", placed)
            with pytest.raises(ResourceExhaustedTransientError):
                await session.reset()
        await check(session, 1)
        np.testing.assert_array_equal((await session.run(X))["y"], 4 * X)


async def test_one_that_goes_on_reading_keeps_its_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    advance, is_open, reached = (Run.advance, threading.Event(), threading.Event())
    waits = iter((True,))

    def gated(self: Run, *arguments: Any) -> bool:
        if next(waits, False):
            reached.set()
            assert is_open.wait(10)
        return advance(self, *arguments)

    settings = DeviceSettings(inline_below_us=0, lanes=2)
    async with ReferenceDevice(settings) as hal:
        prepared = await Device("reference", hal).prepare(counting())
        async with prepared.session() as session:
            await session.run(X)
            monkeypatch.setattr(Run, "advance", gated)
            run = asyncio.create_task(session.run(100 * X))
            assert await asyncio.to_thread(reached.wait, 10)
            await cancelled(run)
            try:
                for step in range(2, 6):
                    outputs = await session.run(X)
                    np.testing.assert_array_equal(outputs["y"], 2 * step * X)
            finally:
                is_open.set()
            await check(session, 5)
