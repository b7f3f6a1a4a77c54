"""Verbose logging speaks of every call and execution, whichever way it went."""

import logging
from collections import Counter
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest

from asyncnn import logs
from asyncnn.hal.interfaces import IDevice
from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import AnyPath, PreparedModel
from asyncnn.service import RemoteDevice
from tests.networks import addition

X = np.ones(4, np.float32)
RUNS = 3


class Told:
    """What was said since `clear`, by tag and message."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def clear(self) -> None:
        self._caplog.clear()

    def __call__(self, tag: str, message: str) -> int:
        words = Counter(
            (getattr(record, "tag", ""), record.getMessage().split(" ")[0])
            for record in self._caplog.records
        )
        return words[tag, message]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Told]:
    caplog.set_level(logging.INFO)
    logs.set_tags("all")
    yield Told(caplog)
    logs.set_tags("")


async def prepare(device: IDevice) -> PreparedModel:
    return await Device("tested", device).prepare(addition(4))


async def test_preparing(device: IDevice, told: Told) -> None:
    assert await prepare(device)
    assert told("driver", "prepare_model") == 1
    assert told("model", "prepare") == 1
    assert told("compilation", "planned") == 1
    assert told("compilation", "prepared") == 1
    if isinstance(device, RemoteDevice):
        assert told("driver", "asked")
        assert told("compilation", "send") == 1
        assert told("compilation", "answered") == 1


async def test_asking_what_is_supported(device: IDevice, told: Told) -> None:
    await device.get_supported_operations_1_3(addition(4).model)
    assert told("driver", "get_supported_operations") == 1


@pytest.mark.parametrize("path", ["async", "sync", "fenced", "burst"])
async def test_executing(device: IDevice, told: Told, path: AnyPath) -> None:
    prepared = await prepare(device)
    async with prepared.runner(path) as run:
        for _ in range(2):  # from the second on, it may run inline
            await run([X, X])
        told.clear()
        for _ in range(RUNS):
            await run([X, X])
    call = "execute_fenced" if path == "fenced" else "execute"
    assert told("execution", call) == RUNS
    assert told("execution", "done") == RUNS
    assert told("cpuexe", "run") == RUNS
    is_remote, is_burst = isinstance(device, RemoteDevice), path == "burst"
    assert told("execution", "burst") == RUNS * (is_remote and is_burst)
    assert told("execution", "send") == RUNS * (is_remote and not is_burst)


async def test_a_fenced_launch_says_for_how_many_fences(
    device: IDevice, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    prepared = await prepare(device)
    told.clear()
    first = prepared.run_fenced([X, X])
    await prepared.run_fenced([X, X], wait_for=[first])
    counts = [
        record.fields["fences"]
        for record in caplog.records
        if record.getMessage().startswith("execute_fenced")
    ]
    assert counts in ([0, 1], [0, 0])  # the first may have ended by then


def test_no_path_is_left_out() -> None:
    paths = {each for part in get_args(AnyPath) for each in get_args(part) or (part,)}
    assert paths == {"async", "sync", "fenced", "burst"}
