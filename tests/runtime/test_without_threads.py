"""Devices where no thread can be started, however they are opened."""

import asyncio
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.runtime.opening import Opening
from tests.limits import output_of
from tests.networks import addition, chain

X = np.ones(4, np.float32)

OPENERS: dict[str, Callable[[], Opening[Any]]] = {
    "default": asyncnn.open_device,
    "accelerated": lambda: asyncnn.open_device("accelerated"),
    "reference": lambda: asyncnn.open_device("reference"),
    "framework": lambda: asyncnn.open_device("framework"),
    "sample": lambda: asyncnn.open_devices("sample-float-fast"),
    "connect": asyncnn.connect,
    "supervised": lambda: asyncnn.connect(supervised=True),
    "isolated": lambda: asyncnn.open_device(isolated=True),
}
"""Ways to open a device."""


class Outcomes:
    """How calls have ended: nothing, or the error of each."""

    def __init__(self) -> None:
        self.errors: dict[str, Exception | None] = {}

    async def of(self, what: str, call: Any) -> Any:
        self.errors[what] = None
        try:
            async with asyncio.timeout(60):
                return await call
        except Exception as error:
            self.errors[what] = error
            return None

    def check(self) -> None:
        """Check that each call went well or tells what was missing."""
        for what, error in self.errors.items():
            if what == "burst" and type(error) is asyncnn.ExecutionFailedError:
                continue  # whose packets have no such status
            if error is not None:
                assert isinstance(error, asyncnn.ResourceExhaustedError), (what, error)
                said = re.search("thread|process", str(error))
                assert what == "sync" or said, (what, error)


async def runs(prepared: asyncnn.PreparedModel, outcomes: Outcomes) -> None:
    """Run a sum by every path."""
    inputs = {"x": X, "y": X}
    for path in ("async", "sync", "fenced"):
        await outcomes.of(path, prepared.run(inputs, path=path))
    async with prepared.burst() as burst:
        await outcomes.of("burst", burst.run(inputs))


async def use(opening: Opening[Any]) -> None:
    """Open a device and do all that it is for."""
    outcomes = Outcomes()
    device = await outcomes.of("open", opening)
    if device is not None:
        async with device:
            prepared = await outcomes.of("prepare", device.prepare(addition(4)))
            await outcomes.of("long", device.prepare(chain(300, 4)))
            if prepared is not None:
                await runs(prepared, outcomes)
    outcomes.check()


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Lets no thread be started, until it is undone."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return monkeypatch


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the default device be what it is for users."""
    monkeypatch.delenv("ASYNCNN_DEVICE", raising=False)


@pytest.mark.parametrize("opener", OPENERS)
async def test_each_call_works_or_says_what_is_missing_and_works_later(
    opener: str, refused: pytest.MonkeyPatch
) -> None:
    before = threading.active_count(), len(asyncio.all_tasks())
    await use(OPENERS[opener]())
    assert (threading.active_count(), len(asyncio.all_tasks())) == before
    refused.undo()
    async with OPENERS[opener]() as device:
        prepared = await device.prepare(addition(4))
        outputs = await prepared.run({"x": X, "y": X})
    assert (outputs["z"] == 2).all()


async def test_the_default_device_opens_and_goes_on(
    refused: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncnn.open_device() as device:
        assert device.name == "reference"
        with pytest.raises(asyncnn.ResourceExhaustedTransientError, match="thread"):
            await device.prepare(addition(4))
        refused.undo()
        prepared = await device.prepare(addition(4))
        await prepared.run({"x": X, "y": X})
    (record,) = [each for each in caplog.records if "accelerated" in each.name]
    assert "no thread can be started" in record.getMessage()


PROGRAM = """
import asyncio, resource, sys
import asyncnn
from tests.limits import become_ordinary, limit
from tests.runtime.test_without_threads import OPENERS, use

become_ordinary()
usual = resource.getrlimit(resource.RLIMIT_NPROC)[0]

async def main():
    # As many threads as there are, and a few more.
    limit(resource.RLIMIT_NPROC, 1 + int(sys.argv[2]))
    await use(OPENERS[sys.argv[1]]())
    limit(resource.RLIMIT_NPROC, usual)
    await use(OPENERS[sys.argv[1]]())

asyncio.run(main())
print("went on")
"""


@pytest.mark.parametrize(
    ("opener", "more"),
    [
        *((o, n) for o in ("default", "accelerated", "framework") for n in range(5)),
        # With 1 or 2, NumPy's BLAS, which starts threads, ends the driver.
        *(("connect", n) for n in (0, 3, 4)),
    ],
)
def test_where_the_system_refuses_threads_it_is_the_same(
    opener: str, more: int
) -> None:
    assert output_of(PROGRAM, opener, more) == "went on\n"
