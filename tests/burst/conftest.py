"""What tests of bursts share."""

import contextlib
import gc
import os
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from asyncnn.burst import BurstController
from asyncnn.devices import ReferenceDevice
from asyncnn.hal.interfaces import IPreparedModel
from asyncnn.runtime.device import Device
from tests.burst.ends import ScriptedModel
from tests.networks import addition


@pytest.fixture(autouse=True)
async def no_descriptor_is_left() -> AsyncIterator[None]:
    """Fail a test that leaves queues or bells open; pools are still its own."""
    before = _descriptors()
    yield
    if not _descriptors() <= before:
        gc.collect()  # an error that was raised may refer to itself
    assert _descriptors() <= before


def _descriptors() -> Counter[str]:
    names: Counter[str] = Counter()
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            name = os.readlink(f"/proc/self/fd/{fd}")
            is_kept = name == os.devnull  # by uvloop
            is_kept |= "asyncnn-pool" in name or "asyncnn-slab" in name
            names[name.split(":[")[0]] += not is_kept
    return names


@pytest.fixture
def scripted() -> ScriptedModel:
    return ScriptedModel()


@pytest.fixture
async def prepared() -> AsyncIterator[IPreparedModel]:
    """``z = x + y`` of four floats, on the reference device."""
    async with ReferenceDevice() as device:
        model = await Device("reference", device).prepare(addition(4))
        yield model.hal


@pytest.fixture
async def scripted_burst(scripted: ScriptedModel) -> AsyncIterator[BurstController]:
    with await BurstController.open(scripted) as burst:
        yield burst
