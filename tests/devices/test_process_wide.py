"""What a device changes of its process: nothing, unless it is asked to."""

import gc
import threading
from pathlib import Path

import pytest

import asyncnn
from asyncnn.devices import OWN_PROCESS, DeviceSettings, ReferenceDevice
from tests.devices.process_facts import (
    ANYTHING,
    NAME,
    blas_threads,
    facts,
    frozen_count,
    switch_interval_s,
    telling,
)
from tests.networks import chain
from tests.processes import python

pytestmark = pytest.mark.usefixtures("thawed")

INTERVAL_S = 0.002
ASKING = DeviceSettings(switch_interval_s=INTERVAL_S, freezes_large_models=True)
LARGE = chain(600, 4)


def here() -> tuple[float, set[int], int]:
    """Return what is changed; no thread frees what was used: it switches sooner."""
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "asyncnn-release":
            thread.join()
    return switch_interval_s(), blas_threads(), frozen_count()


async def test_opening_and_using_a_device_changes_nothing_for_others() -> None:
    before = here()
    async with asyncnn.open_device(extensions=[facts]) as device:
        assert here() == before
        prepared = await device.prepare(telling())
        outputs = await prepared.run(ANYTHING)
        assert outputs["facts"] == pytest.approx([before[0], 1])
        assert here() == before
        assert await device.prepare(LARGE)
        assert here() == before
    assert here() == before


async def test_what_is_asked_for_holds_until_the_device_is_closed() -> None:
    before = here()
    async with asyncnn.open_device(settings=ASKING) as device:
        assert switch_interval_s() == pytest.approx(INTERVAL_S)
        kept = await device.prepare(LARGE)
        assert frozen_count() > before[2]
    assert here() == before
    del kept


@pytest.mark.parametrize("asks_first", [True, False])
@pytest.mark.parametrize("leaves_first", [0, 1])
async def test_one_that_asks_gets_it_beside_one_that_does_not(
    asks_first: bool, leaves_first: int
) -> None:
    before = here()
    plain = DeviceSettings()
    devices = [
        ReferenceDevice(settings)
        for settings in ((ASKING, plain) if asks_first else (plain, ASKING))
    ]
    for device in devices:
        await device.__aenter__()
    assert switch_interval_s() == pytest.approx(INTERVAL_S)
    await devices.pop(leaves_first).aclose()
    is_asking = asks_first == (leaves_first == 1)
    assert (switch_interval_s() == pytest.approx(INTERVAL_S)) is is_asking
    await devices.pop().aclose()
    assert here() == before


async def test_of_several_that_ask_the_least_counts() -> None:
    before = here()
    other = DeviceSettings(switch_interval_s=INTERVAL_S / 2)
    async with ReferenceDevice(ASKING):
        async with ReferenceDevice(other):
            assert switch_interval_s() == pytest.approx(INTERVAL_S / 2)
        assert switch_interval_s() == pytest.approx(INTERVAL_S)
    assert here() == before


@pytest.mark.parametrize("number", [0, False])
async def test_nothing_is_asked_for_by_zero(number: int) -> None:
    before = here()
    asking = DeviceSettings(
        blas_threads=int(number), switch_interval_s=float(number), extensions=(facts,)
    )
    async with asyncnn.open_device(settings=asking) as device:
        assert here() == before
        outputs = await (await device.prepare(telling())).run(ANYTHING)
    assert outputs["facts"] == pytest.approx([before[0], max(before[1])])


def test_a_process_of_its_own_fills_in_what_is_open() -> None:
    assert OWN_PROCESS.switch_interval_s == 0.001
    assert OWN_PROCESS.freezes_large_models is True
    given = DeviceSettings(freezes_large_models=False, max_pending=7)
    filled = given.for_own_process()
    assert filled.freezes_large_models is False
    assert (filled.switch_interval_s, filled.max_pending) == (0.001, 7)


class TestDriverProcesses:
    async def test_the_usual_one_is_changed(self) -> None:
        async with asyncnn.connect(extensions=[NAME]) as device:
            outputs = await (await device.prepare(telling())).run(ANYTHING)
        assert outputs["facts"] == pytest.approx([0.001, 1])

    async def test_settings_say_otherwise(self) -> None:
        settings = DeviceSettings(blas_threads=0, switch_interval_s=INTERVAL_S)
        async with asyncnn.connect(extensions=[NAME], settings=settings) as device:
            outputs = await (await device.prepare(telling())).run(ANYTHING)
        assert outputs["facts"] == pytest.approx([INTERVAL_S, max(blas_threads())])

    async def test_so_does_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "driver.toml"
        file.write_text(f'switch_interval_s = {INTERVAL_S}\nextensions = ["{NAME}"]\n')
        async with asyncnn.connect(settings=file, supervised=True) as device:
            outputs = await (await device.prepare(telling())).run(ANYTHING)
        assert outputs["facts"] == pytest.approx([INTERVAL_S, 1])


_HEAPS_OF_THREADS = """
import ctypes, sys, threading
from asyncnn.devices.process_wide import bound_heaps
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
if sys.argv[1:]:
    bound_heaps()
together = threading.Barrier(6)
def allocate():
    together.wait()
    library.malloc(1000)
    together.wait()
threads = [threading.Thread(target=allocate) for _ in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
out = ctypes.c_void_p(library.fdopen(1, b"w"))
library.malloc_info(0, out)
library.fflush(out)
"""


def heaps(*bounded: str) -> int:
    """Return how many heaps a process has six threads of which have allocated."""
    ran = python("-c", _HEAPS_OF_THREADS, *bounded, check=True)
    return ran.stdout.count("<heap nr=")


def test_threads_of_a_driver_share_two_heaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    assert heaps("bounded") <= 2 < heaps()
    monkeypatch.setenv("MALLOC_ARENA_MAX", "1")
    assert heaps("bounded") == 1
