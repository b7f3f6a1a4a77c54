"""Large arguments of the application's own memory are copied in pieces."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from asyncnn.callbacks import ExecutionFuture
from asyncnn.fences import SyncFence
from asyncnn.hal.errors import DeviceUnavailableError, ResourceExhaustedTransientError
from asyncnn.hal.types import (
    DataLocation,
    ErrorStatus,
    MeasureTiming,
    Request,
    RequestArgument,
)
from asyncnn.memory.pools import from_buffer
from asyncnn.memory.slabs import shared_array
from asyncnn.runtime.opening_devices import connect
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service.client.answers import DeferredExecutions
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.remote_model import RemotePreparedModel
from asyncnn.service.client.staging import Staged
from tests.networks import addition
from tests.service.restarting import Driver, running
from tests.waits import until

ELEMENTS = 900_000  # in four pieces
BYTES = 4 * ELEMENTS


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Driver]:
    async with running(tmp_path / "driver.sock") as driver:
        yield driver


@pytest.fixture
async def model(service: Driver) -> AsyncIterator[RemotePreparedModel]:
    async with connect(service.path) as device:
        prepared = (await device.prepare(addition(ELEMENTS))).hal
        assert isinstance(prepared, RemotePreparedModel)
        yield prepared


@pytest.fixture
async def fenced(service: Driver) -> AsyncIterator[PreparedModel]:
    async with connect(service.path) as device:
        yield await device.prepare(addition(ELEMENTS))


def request(x: NDArray[Any], z: NDArray[Any]) -> Request:
    places = [RequestArgument(False, DataLocation(k, 0, BYTES)) for k in (0, 0, 1)]
    return Request(tuple(places[:2]), (places[2],), (from_buffer(x), from_buffer(z)))


def launch(
    model: RemotePreparedModel, callback: ExecutionFuture, asked: Request
) -> ErrorStatus:
    return model.execute_1_3(asked, MeasureTiming.NO, None, None, callback)


class Copying:
    """Watches, and may hold up, the copies of one direction after their first piece."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str) -> None:
        self.pieces = 0
        self.may_go = True
        copying: Callable[[Staged], Iterator[None]] = getattr(Staged, name)

        def watched(staged: Staged) -> Iterator[None]:
            for _ in copying(staged):
                self.pieces += 1
                yield
                while not self.may_go:
                    yield

        patch.setattr(Staged, name, watched)


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[Staged]:
    """Lists what is given back, as often as it is."""
    given: list[Staged] = []
    give_back = Staged.give_back

    def watched(staged: Staged) -> None:
        given.append(staged)
        give_back(staged)

    monkeypatch.setattr(Staged, "give_back", watched)
    return given


async def test_they_are_copied_in_pieces_between_other_turns_of_the_loop(
    model: RemotePreparedModel,
    monkeypatch: pytest.MonkeyPatch,
    given_back: list[Staged],
) -> None:
    ways = Copying(monkeypatch, "filling"), Copying(monkeypatch, "copying_back")
    x = np.arange(ELEMENTS, dtype=np.float32)
    z = np.zeros_like(x)
    for way in ways:
        way.may_go = False
    for count in range(1, 4):
        x += 1
        callback = ExecutionFuture()
        assert launch(model, callback, request(x, z)) is ErrorStatus.NONE
        for way in ways:
            await until(partial(getattr, way, "pieces"))
            assert callback.result is None
            way.may_go = True
        assert (await callback).status is ErrorStatus.NONE
        np.testing.assert_array_equal(z, 2 * x)
        assert [way.pieces for way in ways] == [8, 4]  # one array is two inputs
        for way in ways:
            way.pieces, way.may_go = 0, False
        assert len(given_back) == count


async def test_a_read_only_output_is_refused_in_the_call(
    model: RemotePreparedModel,
) -> None:
    x = np.zeros(ELEMENTS, np.float32)
    z = np.zeros(ELEMENTS, np.float32)
    z.flags.writeable = False
    callback = ExecutionFuture()
    assert launch(model, callback, request(x, z)) is ErrorStatus.INVALID_ARGUMENT
    assert (await callback).status is ErrorStatus.INVALID_ARGUMENT


async def test_one_that_is_still_copied_at_its_deadline_is_reported_then(
    model: RemotePreparedModel,
    monkeypatch: pytest.MonkeyPatch,
    given_back: list[Staged],
) -> None:
    copying = Copying(monkeypatch, "filling")
    copying.may_go = False
    monkeypatch.setattr(Connection, "execute", _never)
    x, z = np.zeros(ELEMENTS, np.float32), np.ones(ELEMENTS, np.float32)
    callbacks = [ExecutionFuture(), ExecutionFuture()]  # the second waits for its turn
    for callback in callbacks:
        deadline = time.monotonic_ns() + 200_000_000
        model.execute_1_3(request(x, z), MeasureTiming.NO, deadline, None, callback)
    for callback in callbacks:
        result = await callback
        assert result.status is ErrorStatus.MISSED_DEADLINE_TRANSIENT
        assert "its inputs were being copied" in result.reason
    await until(lambda: len(given_back) == 2)  # though no piece was copied any more
    assert copying.pieces <= 2
    assert z.all()


async def test_one_that_is_cancelled_while_it_is_copied_is_not_sent(
    model: RemotePreparedModel,
    monkeypatch: pytest.MonkeyPatch,
    given_back: list[Staged],
) -> None:
    copying = Copying(monkeypatch, "filling")
    copying.may_go = False
    monkeypatch.setattr(Connection, "execute", _never)
    callback = ExecutionFuture()
    x = np.zeros(ELEMENTS, np.float32)
    launch(model, callback, request(x, x.copy()))
    await until(lambda: copying.pieces)
    callback.die()
    copying.may_go = True
    result = await callback
    assert result.status is ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert len(given_back) == 1


@pytest.mark.parametrize("way", ["filling", "copying_back"])
async def test_the_connection_may_end_while_it_is_copied(
    service: Driver, monkeypatch: pytest.MonkeyPatch, given_back: list[Staged], way: str
) -> None:
    copying = Copying(monkeypatch, way)
    copying.may_go = False
    x = np.ones(ELEMENTS, np.float32)
    z = np.zeros_like(x)
    async with connect(service.path) as device:
        model: Any = (await device.prepare(addition(ELEMENTS))).hal
        callback = ExecutionFuture()
        launch(model, callback, request(x, z))
        await until(lambda: copying.pieces)
        asyncio.get_running_loop().call_later(0.02, setattr, copying, "may_go", True)
    result = await callback
    assert len(given_back) == 1
    if way == "filling":
        assert result.status is ErrorStatus.DEVICE_UNAVAILABLE
    else:
        assert result.status is ErrorStatus.NONE
        np.testing.assert_array_equal(z, 2 * x)


class TestFenced:
    async def test_outputs_are_copied_before_the_fence_signals(
        self, fenced: PreparedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copying = Copying(monkeypatch, "copying_back")
        copying.may_go = False
        x = np.ones(ELEMENTS, np.float32)
        z = np.zeros_like(x)
        run = fenced.run_fenced([x, x], out=[z])
        await until(lambda: copying.pieces)
        assert run.status is None
        copying.may_go = True
        await run
        np.testing.assert_array_equal(z, 2 * x)

    async def test_others_may_wait_for_it_meanwhile(
        self, fenced: PreparedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The driver has told of its end, and so knows its number no more."""
        copying = Copying(monkeypatch, "copying_back")
        copying.may_go = False
        x = np.ones(ELEMENTS, np.float32)
        z, small = np.zeros_like(x), shared_array(ELEMENTS)
        first = fenced.run_fenced([x, x], out=[z])
        await until(lambda: copying.pieces)
        await fenced.run_fenced([small, small])
        second = fenced.run_fenced([small, small], wait_for=[first])
        exported = SyncFence.from_fd(first.fence.fileno())
        small[:] = 3
        await asyncio.sleep(0)
        assert (second.status, exported.status) == (None, None)
        copying.may_go = True
        assert ((await second)["z"] == 6).all()
        await exported
        assert (z == 2).all()

    async def test_a_copy_that_fails_fails_the_run(
        self, fenced: PreparedModel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: Staged) -> Iterator[None]:
            yield
            raise MemoryError("none left")

        monkeypatch.setattr(Staged, "copying_back", fail)
        x = np.ones(ELEMENTS, np.float32)
        run = fenced.run_fenced([x, x], out=[np.zeros_like(x)])
        with pytest.raises(ResourceExhaustedTransientError, match="none left"):
            await run

    async def test_the_connection_may_end_while_they_are_copied(
        self, service: Driver, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copying = Copying(monkeypatch, "copying_back")
        copying.may_go = False
        x = np.ones(ELEMENTS, np.float32)
        z = np.zeros_like(x)
        async with connect(service.path) as device:
            model = await device.prepare(addition(ELEMENTS))
            run = model.run_fenced([x, x], out=[z])
            await until(lambda: copying.pieces)
            asyncio.get_running_loop().call_later(
                0.02, setattr, copying, "may_go", True
            )
        await run
        np.testing.assert_array_equal(z, 2 * x)


async def test_the_connection_may_end_in_the_turn_of_the_call(
    service: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(service.path) as device:
        model: Any = (await device.prepare(addition(ELEMENTS))).hal
        x = np.ones(ELEMENTS, np.float32)
        callback = ExecutionFuture()
        status = launch(model, callback, request(x, x.copy()))
        assert status is ErrorStatus.NONE
    assert (await callback).status is ErrorStatus.DEVICE_UNAVAILABLE
    gc.collect()  # an error that nobody has asked for is logged then
    assert not [each for each in caplog.records if each.name == "asyncio"]


async def test_a_closed_connection_refuses_them_in_the_call(service: Driver) -> None:
    async with connect(service.path) as device:
        model: Any = (await device.prepare(addition(ELEMENTS))).hal
    x = np.ones(ELEMENTS, np.float32)
    callback = ExecutionFuture()
    status = launch(model, callback, request(x, x.copy()))
    assert status is ErrorStatus.DEVICE_UNAVAILABLE
    with pytest.raises(DeviceUnavailableError):
        (await callback).raise_for_status()


def _never(*_: object) -> int:
    raise AssertionError("sent")


@pytest.mark.parametrize("elements", [4, ELEMENTS])
async def test_outputs_that_the_application_has_released_fail_their_execution(
    service: Driver, elements: int, given_back: list[Staged]
) -> None:
    size = 4 * elements
    async with connect(service.path) as device:
        prepared = (await device.prepare(addition(elements))).hal
        assert isinstance(prepared, RemotePreparedModel)
        x, z = np.zeros(elements, np.float32), np.zeros(elements, np.float32)
        places = [RequestArgument(False, DataLocation(k, 0, size)) for k in (0, 0, 1)]
        pools = from_buffer(x), from_buffer(z)
        callback = ExecutionFuture()
        asked = Request(tuple(places[:2]), (places[2],), pools)
        assert launch(prepared, callback, asked) is ErrorStatus.NONE
        assert pools[1].buffer is not None
        pools[1].buffer.release()
        result = await asyncio.wait_for(callback, 20)
        assert result.status is ErrorStatus.GENERAL_FAILURE
        assert "released" in result.reason
    assert len(given_back) == 1


async def test_outputs_are_told_of_though_the_loop_ends_while_they_are_copied() -> None:
    late = DeferredExecutions(most=8)
    copied: list[str] = []
    told: list[str] = []

    def copying(name: str) -> Iterator[None]:
        for _ in range(3):
            copied.append(name)
            yield

    before = asyncio.all_tasks()
    for name in ("first", "second"):
        late.finish(copying(name), partial(told.append, name))
    await until(lambda: copied)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await late.wait_ended()
    assert sorted(copied) == 3 * ["first"] + 3 * ["second"]
    assert sorted(told) == ["first", "second"]
