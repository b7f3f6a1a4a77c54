"""A device of replicas, on a cluster without Ray: what users of the HAL see."""

import asyncio
import gc
import os
import struct
import threading
import time
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import asyncnn
from asyncnn import DriverDiedError, Priority
from asyncnn.callbacks import ExecutionFuture, launched
from asyncnn.cluster import cluster_runs, links
from asyncnn.cluster.exchange import Answer
from asyncnn.cluster.streams import ClientEnd, StreamedAnswer, forms
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    DataLocation,
    ErrorStatus,
    Request,
    RequestArgument,
)
from asyncnn.memory.mapping import Mapper
from asyncnn.runtime.cluster_settings import DispatchSettings
from tests.cluster.fake_cluster import FakeActor, FakeCluster, fake_device
from tests.memory.foreign import allocate_unsealed, sent
from tests.networks import AT_ONCE, FOREVER, addition, counting_up
from tests.waits import cancelled, until


def begun(cluster: FakeCluster) -> int:
    return sum(actor.begun for actor in cluster.actors)


def runs_of(cluster: FakeCluster) -> int:
    return sum(len(actor.host._tasks) for actor in cluster.actors)


def gate(actor: FakeActor, held: str, free: int = 0) -> asyncio.Event:
    """Keep calls of a name from beginning, but the first ones, until it is set."""
    gate, calls = asyncio.Event(), [0]

    async def before(name: str) -> None:
        calls[0] += name == held
        if name == held and calls[0] > free:
            await gate.wait()

    actor.before = before
    return gate


@pytest.mark.parametrize("path", ["async", "sync", "fenced"])
async def test_results_are_those_of_the_device(path: Any) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    async with fake_device(replicas=2) as (device, _):
        prepared = await device.prepare(addition(2, 3))
        inputs = {info.name: x for info in prepared.inputs}
        out = np.empty_like(x)
        results = await prepared.run(inputs, path=path, out=[out], measure=True)
        assert np.array_equal(results[0], x + x)
        assert results[0] is out


async def test_bursts_and_fenced_chains_work() -> None:
    x = np.ones((2, 3), np.float32)
    async with fake_device(replicas=2) as (device, _):
        prepared = await device.prepare(addition(2, 3))
        first, second = (info.name for info in prepared.inputs)
        async with prepared.burst() as burst:
            assert (await burst.run([x, x]))[0].max() == 2
        run = prepared.run_fenced({first: x, second: x})
        after = prepared.run_fenced(
            {first: run.outputs[0], second: x}, wait_for=[run], timeout=20
        )
        assert (await after)[0].max() == 3


async def test_a_cancelled_run_stops_on_the_far_side() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: runs_of(cluster))
        await cancelled(running)
        await until(lambda: not runs_of(cluster))
        running_there = 1
        async with asyncio.timeout(20):
            while running_there:
                (seen,) = await device.hal.replica_statistics()  # type: ignore[attr-defined]
                running_there = seen.executions.running
        assert (await prepared.run([AT_ONCE]))[0] == 0


async def test_a_deadline_ends_a_run_where_it_is() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        with pytest.raises(asyncnn.MissedDeadlineError):
            await prepared.run([FOREVER], timeout=0.05, loop_timeout=600)
        await until(lambda: not runs_of(cluster))
        with pytest.raises(asyncnn.MissedDeadlineError):
            await prepared.run([AT_ONCE], timeout=-1)


async def test_urgent_runs_pass_others_that_fill_the_replica() -> None:
    async with fake_device() as (device, cluster):
        low = await device.prepare(counting_up(), priority=Priority.LOW)
        high = await device.prepare(counting_up(), priority=Priority.HIGH)
        filling = [
            asyncio.ensure_future(low.run([FOREVER], loop_timeout=600))
            for _ in range(20)
        ]
        await until(lambda: runs_of(cluster))
        assert (await high.run([AT_ONCE], timeout=20))[0] == 0
        assert begun(cluster) < len(filling)  # the others wait here
        for each in filling:
            await cancelled(each)


async def test_what_a_lost_replica_has_begun_ends_once_and_the_rest_goes_on() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        first = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: runs_of(cluster))
        waiting = [asyncio.ensure_future(prepared.run([AT_ONCE])) for _ in range(9)]
        await until(lambda: device.hal.dispatcher.waiting)  # type: ignore[attr-defined]
        cluster.actors[0].die()
        with pytest.raises(DriverDiedError, match="may have run"):
            await first
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert any(not isinstance(each, Exception) for each in ended)
        assert all(
            isinstance(each, DriverDiedError)
            for each in ended
            if isinstance(each, Exception)
        )
        assert (await prepared.run([AT_ONCE]))[0] == 0


async def test_what_is_safe_runs_again_after_a_loss() -> None:
    async with fake_device(idempotent=True, replicas=2) as (device, cluster):
        prepared = await device.prepare(counting_up())
        slow = np.full(1, -2_000, np.float32)
        running = [
            asyncio.ensure_future(prepared.run([slow], loop_timeout=600))
            for _ in range(4)
        ]
        await until(lambda: runs_of(cluster) >= 2)
        cluster.actors[0].die(for_good=True)  # another is started in its place
        found = await asyncio.gather(*running)
        assert [float(each[0][0]) for each in found] == [0] * 4
        await until(lambda: len(cluster.actors) == 3)


async def test_a_replica_that_has_come_back_unnoticed_is_prepared_again() -> None:
    async with fake_device(address=None) as (device, cluster):
        prepared = await device.prepare(addition(1))
        cluster.actors[0].die()
        one = np.ones(1, np.float32)
        assert (await prepared.run([one, one], timeout=20))[0] == 2
        assert (await prepared.run([one, one], timeout=20))[0] == 2


async def test_a_replica_that_dies_right_behind_an_answer_is_not_taken_for_up() -> None:
    async with fake_device(address=None) as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: runs_of(cluster))
        actor = cluster.actors[0]
        actor.after = lambda name: name == "prepare" and actor.die(for_good=True)
        with pytest.raises(asyncnn.DeviceUnavailableError, match="they prepared"):
            await device.prepare(addition(1))
        with pytest.raises(DriverDiedError, match="may have run"):
            await running
        assert (await prepared.run([AT_ONCE]))[0] == 0


async def test_a_model_that_is_released_while_it_is_prepared_again_is_gone() -> None:
    async with fake_device(address=None) as (device, cluster):
        prepared = await device.prepare(counting_up())
        actor, hal = cluster.actors[0], device.hal
        actor.die()
        opened = gate(actor, "prepare")
        running = asyncio.ensure_future(prepared.run([AT_ONCE]))
        await until(lambda: opened._waiters)  # type: ignore[attr-defined]
        await cancelled(running)
        del prepared, running
        gc.collect()
        await until(lambda: not hal._models)  # type: ignore[attr-defined]
        opened.set()
        await until(lambda: not hal._recovering)  # type: ignore[attr-defined]
        assert not hal.dispatcher.replicas[0].ready  # type: ignore[attr-defined]
        await until(lambda: not actor.host._models)


async def test_what_goes_while_others_come_back_is_prepared_once_more() -> None:
    async with fake_device(address=None) as (device, cluster):
        one = np.ones(1, np.float32)
        first = await device.prepare(addition(1))
        second = await device.prepare(counting_up())
        actor = cluster.actors[0]
        actor.die()
        opened = gate(actor, "prepare", free=1)
        assert (await first.run([one, one], timeout=20))[0] == 2
        await until(lambda: opened._waiters)  # type: ignore[attr-defined]
        actor.host._models.clear()
        running = asyncio.ensure_future(first.run([one, one], timeout=20))
        await until(lambda: device.hal.dispatcher.waiting)  # type: ignore[attr-defined]
        opened.set()
        assert (await running)[0] == 2
        assert (await second.run([AT_ONCE]))[0] == 0


async def test_what_moved_while_its_inputs_were_put_is_sent_to_one_replica(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cluster_runs, "LARGE_BYTES", 0)
    async with fake_device(idempotent=True, replicas=2) as (device, cluster):
        prepared, hal, went = await device.prepare(counting_up()), device.hal, []
        is_moved = threading.Event()

        def put(thing: Any) -> Any:
            went.append(thing)
            if len(went) == 1:
                assert is_moved.wait(20)
            return thing

        cluster.put = put  # type: ignore[method-assign]
        running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: went)
        (place,) = [r.number for r in hal.dispatcher.replicas.values() if r.begun]  # type: ignore[attr-defined]
        cluster.actors[place].die(for_good=True)
        with pytest.raises(links.LostError):
            await hal.links[place].call("clock")  # type: ignore[attr-defined]
        await until(lambda: runs_of(cluster))
        is_moved.set()
        await until(lambda: len(hal._tasks) == 2)  # type: ignore[attr-defined]
        assert begun(cluster) == 1
        await cancelled(running)


async def test_a_replica_that_hangs_while_it_is_busy_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(links, "_WATCH_S", 0.01)
    async with fake_device(hang_after=0.05) as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: runs_of(cluster))
        opened = gate(cluster.actors[0], "clock")
        with pytest.raises(DriverDiedError, match="may have run"):
            await running
        opened.set()
        await until(lambda: device.hal.dispatcher.replicas[0].is_up)  # type: ignore[attr-defined]


async def test_runs_are_refused_where_too_many_wait() -> None:
    dispatch = DispatchSettings(window=1, max_waiting=1)
    async with fake_device(dispatch=dispatch) as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = [
            asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
            for _ in range(2)
        ]
        await until(lambda: runs_of(cluster))
        with pytest.raises(asyncnn.ResourceExhaustedTransientError, match="wait"):
            await prepared.run([AT_ONCE])
        for each in running:
            await cancelled(each)


async def test_a_closed_device_ends_what_is_pending() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = [
            asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
            for _ in range(9)
        ]
        await until(lambda: runs_of(cluster))
    for each in running:
        with pytest.raises(asyncnn.DeviceClosedError):
            await each
    with pytest.raises(asyncnn.DeviceUnavailableError):
        await prepared.run([AT_ONCE])


async def test_a_model_that_is_refused_is_refused_in_the_devices_words() -> None:
    async with fake_device(replicas=2) as (device, _):
        with pytest.raises(asyncnn.MissedDeadlineError):
            await device.prepare(addition(1), timeout=0)
        preparing = asyncio.ensure_future(device.prepare(addition(1)))
        await asyncio.sleep(0)
        await cancelled(preparing)


@pytest.mark.parametrize("is_there", [True, False])
async def test_pools_that_are_copied_never_keep_the_loop(
    monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    threads = list[int]()

    def noted(method: Any) -> Any:
        def call(*args: Any) -> Any:
            threads.append(threading.get_ident())
            return method(*args)

        return call

    monkeypatch.setattr(Mapper, "map", noted(Mapper.map))
    monkeypatch.setattr(Mapper, "flush", noted(Mapper.flush))
    given, got = allocate_unsealed(20), allocate_unsealed(20)
    assert given.buffer is not None
    given.buffer[:] = np.arange(5, dtype=np.float32).tobytes()
    a, b = (RequestArgument(location=DataLocation(n, 0, 20)) for n in (0, 1))
    request = Request((a, a), (b,), (sent(given), sent(got)))
    async with fake_device() as (device, _):
        prepared = await device.prepare(addition(5))
        if not is_there:
            os.ftruncate(given.handle.fds[0], 0)
        result = await launched(prepared.hal, request, DEFAULT_OPTIONS)
    assert (result.status is ErrorStatus.NONE) is is_there
    assert threads
    assert threading.get_ident() not in threads
    found = np.frombuffer(got.buffer or b"", np.float32)
    assert np.array_equal(found, np.arange(5) * 2 * is_there)


async def test_requests_of_the_hal_end_once_with_their_status() -> None:
    async with fake_device() as (device, _):
        prepared = await device.prepare(addition(1))
        built = prepared._target.build_request
        one, out = np.ones(1, np.float32), np.empty(1, np.float32)
        end = launched(prepared.hal, built([one, one], [out]), DEFAULT_OPTIONS)
        assert (await end).status is ErrorStatus.NONE
        assert out == 2
        late = ExecutionFuture()
        passed = time.monotonic_ns() - 1
        request = built([one, one], [out])
        status = prepared.hal.execute_1_3(request, 0, passed, None, late)
        assert status is ErrorStatus.NONE
        assert (await late).status is ErrorStatus.MISSED_DEADLINE_PERSISTENT
        assert prepared.hal.execute_1_3(request, 0, None, None, None) is (
            ErrorStatus.INVALID_ARGUMENT
        )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replicas": 2}, "replicas are of a device on a cluster"),
        ({"name": "ray://nowhere"}, "no address of a cluster"),
    ],
)
async def test_what_is_no_cluster_is_refused(given: Any, message: str) -> None:
    with pytest.raises(asyncnn.InvalidArgumentError, match=message):
        async with asyncnn.open_device(**given):
            pass


@pytest.mark.parametrize("address", [None, "127.0.0.1"])
@pytest.mark.parametrize("elements", [1, 3, 300_000, 800_000])
async def test_arrays_come_whole_by_streams_and_calls(
    address: str | None, elements: int
) -> None:
    x = np.random.default_rng(elements).random((2, elements), np.float32)
    async with fake_device(address) as (device, cluster):
        prepared = await device.prepare(addition(elements))
        found = await asyncio.gather(*(prepared.run([each, x[0]]) for each in x))
        assert np.array_equal([each[0] for each in found], x + x[0])
        assert begun(cluster) == 2


async def test_who_brings_no_token_or_no_frame_is_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with fake_device() as (device, cluster):
        port, token = await cluster.actors[0].host.listen("127.0.0.1")
        too_much = token + struct.pack("<II", 64, 2**31)
        head = msgspec.msgpack.encode((7, None, [(",", (1,))]))
        no_dtype = token + struct.pack("<II", len(head), 0) + head + bytes(64)
        no_token = b"x" * len(token)
        for given in (no_token, token + b"\0" * 64, too_much, no_dtype):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(given)
            with suppress(ConnectionResetError):
                assert not await reader.read()
            writer.close()
        prepared = await device.prepare(addition(1))
        one = np.ones(1, np.float32)
        assert (await prepared.run([one, one]))[0] == 2
    assert not [each for each in caplog.records if each.name == "asyncio"]


async def test_a_stream_that_breaks_ends_its_runs_once_and_is_opened_again() -> None:
    async with fake_device() as (device, cluster):
        prepared = await device.prepare(counting_up())
        running = asyncio.ensure_future(prepared.run([FOREVER], loop_timeout=600))
        await until(lambda: runs_of(cluster))
        (actor,) = cluster.actors
        for end in actor.host._listening._ends:
            end.transport.abort()
        with pytest.raises(DriverDiedError, match="may have run"):
            await running
        assert (await prepared.run([AT_ONCE], timeout=20))[0] == 0
        await until(lambda: not runs_of(cluster))
        assert cluster.actors == [actor]


@pytest.mark.parametrize("size", [1, 7, 40, 10**6])
def test_frames_are_found_whatever_comes_at_once(size: int) -> None:
    given = (np.arange(5, dtype=np.int8), None, np.ones((40, 300), np.float16))
    empty = np.ones((0, 3), np.float32), np.array(True)
    ends = ClientEnd(b"", lambda _: None), ClientEnd(b"", lambda _: None)
    pipe, found = bytearray(), dict[int, Answer]()
    ends[0].transport = SimpleNamespace(write=pipe.extend)  # type: ignore[assignment]
    for number, arrays in enumerate([given, (), empty, given]):
        answer = Answer(0, "", True, (((2, 3), True),), (4, 5))
        told = StreamedAnswer(number, answer, forms(arrays))
        ends[0].send(told, arrays)
        ends[1]._pending[number] = partial(found.__setitem__, number)
    while pipe:
        room = ends[1].get_buffer(-1)
        taken = pipe[: min(size, len(room))]
        room[: len(taken)] = taken
        del pipe[: len(taken)]
        ends[1].buffer_updated(len(taken))
    assert [*found] == [0, 1, 2, 3]
    for number, arrays in enumerate([given, (), empty, given]):
        assert found[number][:5] == (0, "", True, (((2, 3), True),), (4, 5))
        for one, other in zip(found[number].outputs, arrays, strict=True):
            assert (one is None) is (other is None)
            if one is not None and other is not None:
                assert one.dtype == other.dtype
                assert one.flags.aligned
                assert np.array_equal(one, other)
