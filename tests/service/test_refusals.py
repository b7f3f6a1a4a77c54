"""Connections that a driver does not serve, and messages that it has no room for."""

import asyncio
import errno
import os
from pathlib import Path

import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.hal.errors import NoDriverError, ResourceExhaustedTransientError
from asyncnn.hal.types import ErrorStatus, Model
from asyncnn.memory.handles import FIXED_CONTENTS, seal
from asyncnn.memory.shared import allocate
from asyncnn.runtime.opening_devices import connect
from asyncnn.service import Server, ServiceLimits, decoding, wire
from asyncnn.service.driver import server
from asyncnn.service.process import Peer
from asyncnn.service.wire import CacheInfo
from tests.networks import addition, chain
from tests.service.conftest import Connect, Service, is_served
from tests.service.raw import BY_FILE, RawClient, execute, ping, prepare
from tests.waits import until

EXHAUSTED = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
SUM = addition(4).model
PLACES = ((0, 0, 16), (0, 16, 16), (0, 32, 16))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "driver.sock"


class TestConnections:
    async def test_one_too_many_is_told_the_setting(self, path: Path) -> None:
        async with ReferenceDevice() as device, Server(device, path, max_connections=1):
            first = await RawClient.connect(path).greet()
            with pytest.raises(NoDriverError, match="max_connections is 1, and"):
                async with connect(path):
                    pass
            first.close()

    async def test_a_process_with_many_leaves_places_to_others(
        self, path: Path
    ) -> None:
        async with (
            ReferenceDevice() as device,
            Server(device, path, max_connections=16),
        ):
            ours = [await RawClient.connect(path).greet() for _ in range(14)]
            late = RawClient.connect(path)
            refused = await late.receive()
            assert isinstance(refused, wire.Refused)
            assert "max_connections is 16, and 14 are connected" in refused.reason
            others = [RawClient.of_another_process(path) for _ in range(2)]
            for other in others:
                await other.greet()
            full = RawClient.of_another_process(path)
            assert isinstance(await full.receive(), wire.Refused)
            for client in (*ours, late, *others, full):
                client.close()

    async def test_another_user_is_told_who_may(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "peer_of", lambda _: Peer(1, 12346))
        async with ReferenceDevice() as device, Server(device, path):
            with pytest.raises(NoDriverError, match="12346 is not allowed"):
                async with connect(path):
                    pass

    async def test_one_that_does_not_greet_is_told_so(self, path: Path) -> None:
        limits = ServiceLimits(max_greeting_s=0.05)
        async with (
            ReferenceDevice() as device,
            Server(device, path, limits=limits) as served,
        ):
            greeted = await RawClient.connect(path).greet()
            silent = RawClient.connect(path)
            refused = await silent.receive()
            assert isinstance(refused, wire.Refused)
            assert await silent.is_hung_up_on()
            await until(lambda: served.connections == 1)
            greeted.send(ping(1))
            assert await greeted.receive() == wire.SupportedOperations(1, 0, (True,))
            for client in (greeted, silent):
                client.close()

    async def test_many_refused_ones_do_not_add_up(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server, "_LINGER_S", 60)
        async with (
            ReferenceDevice() as device,
            Server(device, path, max_connections=0) as served,
        ):
            clients = [RawClient.connect(path) for _ in range(30)]
            for client in clients:
                assert isinstance(await client.receive(), wire.Refused)
            assert served._refusals is not None
            assert len(served._refusals._lingering) <= server._MAX_LINGERING
            for client in clients:
                client.close()
            await until(lambda: not served._refusals._lingering)


class TestMessages:
    """Their calls fail, and the connection goes on."""

    @pytest.fixture
    def full(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> pytest.MonkeyPatch:
        """Leaves no descriptor for clients, until it is undone."""

        def check(*_: object) -> None:
            raise ResourceExhaustedTransientError("no room: max_things")

        monkeypatch.setattr("asyncnn.service.driver.quotas.Holding.check_room", check)
        return monkeypatch

    async def test_with_pools(self, attach: Connect, full: pytest.MonkeyPatch) -> None:
        client = await attach().greet()
        assert (await client.prepare(1, SUM)).status == ErrorStatus.NONE
        pool = allocate(48)
        client.announce(2, pool)
        answer = await client.execute(execute(1, 1, *PLACES, pools=(2,)))
        assert (answer.status, answer.reason) == (EXHAUSTED, "no room: max_things")
        full.undo()
        client.send(wire.ForgetPools((2,)))
        client.announce(2, pool)
        answer = await client.execute(execute(2, 1, *PLACES, pools=(2,)))
        assert answer.status == ErrorStatus.NONE

    @pytest.mark.usefixtures("full")
    async def test_with_bursts_caches_and_fences(self, attach: Connect) -> None:
        client = await attach().greet()
        assert (await client.prepare(1, SUM)).status == ErrorStatus.NONE
        client.send(wire.ConfigureBurst(7, 1, (), (), 1), [0, 0])
        assert await client.receive() == wire.BurstConfigured(7, EXHAUSTED)
        cache = CacheInfo(1, 1, bytes(32))
        client.send(wire.PrepareModelFromCache(2, cache, None), [0, 0])
        answer = await client.receive()
        assert answer == wire.Prepared(2, EXHAUSTED, "no room: max_things")
        order = execute(3, 1, pools=(), outputs=0)
        client.send(wire.ExecuteFenced(order, (0,), None, 0), [0])
        answer = await client.receive()
        assert isinstance(answer, wire.FencedDone)
        assert answer.ends[0].status == EXHAUSTED
        assert answer.ends[0].reason == "no room: max_things"

    @pytest.mark.parametrize("is_asked", [False, True])
    async def test_with_models_that_memory_does_not_suffice_for(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch, is_asked: bool
    ) -> None:
        model = chain(1000, 2).model

        def fail(*_: object, **__: object) -> Model:
            raise MemoryError

        client = await attach().greet()
        with monkeypatch.context() as patch:
            patch.setattr(decoding, "joined", fail)
            if is_asked:
                client.send(wire.GetSupportedOperations(1, model, ()))
                answer = await client.receive()
                assert answer == wire.SupportedOperations(1, EXHAUSTED, ())
            else:
                answer = await client.prepare(1, model)
                assert answer.status == EXHAUSTED
                assert "memory" in answer.reason
        assert (await client.prepare(1, model)).status == ErrorStatus.NONE

    async def test_whose_answers_there_is_no_room_for(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        model = chain(21_000, 2).model
        client = await attach().greet()
        with monkeypatch.context() as patch:
            data = wire.encode(wire.GetSupportedOperations(1, model, ()))
            client.send_file(data)
            patch.setattr("asyncnn.service.decoding.create_file", fail)
            answer = await client.receive()
            assert answer == wire.SupportedOperations(1, EXHAUSTED, ())
        client.send(ping(2))
        assert await client.receive() == wire.SupportedOperations(2, 0, (True,))


class TestLargeMessages:
    async def test_a_sparse_file_is_not_read(
        self, service: Service, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await attach().greet()
        fd = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
        data = wire.encode(prepare(1, SUM))
        os.pwrite(fd, data, 0)
        os.truncate(fd, 2**23)
        seal(fd, FIXED_CONTENTS)
        monkeypatch.setattr(os, "pread", None)
        client.send_packet(BY_FILE + (2**23).to_bytes(8, "little"), [fd])
        os.close(fd)
        assert await client.is_hung_up_on()
        monkeypatch.undo()
        assert await is_served(service.path)

    async def test_those_of_a_process_are_decoded_one_after_the_other(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """However many connections it has; others need not wait for all of them."""
        together, most = 0, 0
        joined = decoding.joined

        def counted(*args: object, **kwargs: object) -> Model:
            nonlocal together, most
            together += 1
            most = max(most, together)
            try:
                return joined(*args, **kwargs)  # type: ignore[arg-type]
            finally:
                together -= 1

        monkeypatch.setattr(decoding, "joined", counted)
        clients = [await attach().greet() for _ in range(5)]
        for client in clients:
            client.send(prepare(1, chain(3000, 2).model))
        answers = await asyncio.gather(*[client.receive() for client in clients])
        assert answers == [wire.Prepared(1, 0, "")] * 5
        assert most == 1

    async def test_slices_of_more_than_a_model_may_have_are_refused(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(decoding, "MAX_SLICES_BYTES", 2**14)
        client = await attach().greet()
        client.send(prepare(1, chain(3000, 2).model))
        assert await client.is_hung_up_on()

    @pytest.mark.parametrize(
        "message",
        [
            wire.ForgetPools(tuple(range(wire.MAX_FORGOTTEN + 1))),
            wire.AnnouncePools(
                (wire.PoolInfo(1, "ashmem", 1, (), 0),) * (wire.MAX_ANNOUNCED + 1)
            ),
            wire.Several(
                (wire.ExecuteFenced(execute(1, 1, pools=(), outputs=0), (), None, 0),)
                * (wire.MAX_TOGETHER + 1)
            ),
        ],
        ids=["forgotten pools", "announced pools", "fenced executions"],
    )
    async def test_what_would_keep_the_loop_for_long_is_refused(
        self, attach: Connect, message: wire.ToDriver
    ) -> None:
        client = await attach().greet()
        client.send(message)
        assert await client.is_hung_up_on()
