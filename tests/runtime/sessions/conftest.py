"""Devices, in process and in a driver; executions that can be held on their lane."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.devices.run import Run
from asyncnn.hal.types import ErrorStatus
from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.session import Session
from tests.places import PLACES, REGIONS, faced, kind_at
from tests.runtime.stateful import after, counting, with_total_paired

PATHS = ("async", "sync", "fenced", "burst")
ON_LANES = DeviceSettings(inline_below_us=0)


class Opened(NamedTuple):
    device: Device
    hal: ReferenceDevice


@pytest.fixture(params=[*PLACES, *REGIONS])
async def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Opened]:
    with kind_at(request.param) as kind:
        hal = kind(ON_LANES)
        async with faced(request.param, hal, tmp_path) as device:
            yield Opened(device, hal)


@pytest.fixture(params=["hidden", "paired"])
async def prepared(opened: Opened, request: pytest.FixtureRequest) -> PreparedModel:
    """Return a model whose state runs do not see, or of which they are given a part."""
    model = counting()
    if request.param == "paired":
        model = with_total_paired(model)
    return await opened.device.prepare(model)


class Gate:
    """What executions wait for on their lane, once it is closed."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.reached = threading.Event()
        self.aborted = threading.Event()

    def close(self) -> None:
        self.reached.clear()
        self.aborted.clear()
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def wait(self) -> None:
        self.reached.set()
        assert self._is_open.wait(10)

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 10)

    async def until_aborted(self) -> None:
        """Wait until an execution has been told to stop since the gate was closed."""
        assert await asyncio.to_thread(self.aborted.wait, 10)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, advance, abort = Gate(), Run.advance, Run.abort

    def gated(self: Run, *arguments: Any) -> bool:
        gate.wait()
        return advance(self, *arguments)

    def aborted(self: Run, status: ErrorStatus) -> None:
        abort(self, status)
        gate.aborted.set()

    monkeypatch.setattr(Run, "offer", lambda *_: False)  # to a lane that has no gate
    monkeypatch.setattr(Run, "advance", gated)
    monkeypatch.setattr(Run, "abort", aborted)
    yield gate
    gate.open()


async def check(session: Session, steps: int) -> None:
    """Check that the state is that after so many steps with `X`."""
    total, count = after(steps)
    state = await session.state()
    np.testing.assert_array_equal(state["total"], total)
    assert state["steps"] == [count]
    assert session.steps == steps
