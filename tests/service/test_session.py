import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from asyncnn.devices import ReferenceDevice
from asyncnn.devices.prepared import InProcessPreparedModel
from asyncnn.hal.types import ErrorStatus
from asyncnn.memory.pools import as_array
from asyncnn.memory.shared import allocate
from asyncnn.service import Server, wire
from asyncnn.service.driver import reporting
from tests.memory.foreign import traces
from tests.networks import FOREVER, addition, chain, counting_up
from tests.service.conftest import LIMITS, Connect, Service
from tests.service.raw import RawClient, execute, ping, prepare

SUM = addition(4).model
PLACES = ((0, 0, 16), (0, 16, 16), (0, 32, 16))
X = np.array([1, 2, 3, 4], np.float32)


async def test_supported_operations_are_told(attach: Connect) -> None:
    client = await attach().greet()
    client.send(wire.GetSupportedOperations(7, chain(3, 4).model, ()))
    answer = await client.receive()
    assert answer == wire.SupportedOperations(7, ErrorStatus.NONE, (True,) * 3)


async def test_outputs_lie_in_the_clients_pool(attach: Connect) -> None:
    client = await attach().greet()
    await client.prepare(1, SUM)
    pool = allocate(48)
    client.announce(2, pool)
    values = as_array(pool, np.float32, (3, 4))
    for factor in range(3):
        values[:2] = X * factor
        answer = await client.execute(execute(1, 1, *PLACES, pools=(2,)))
        assert answer.status == ErrorStatus.NONE
        np.testing.assert_array_equal(values[2], 2 * factor * X)


async def test_outputs_are_written_back_to_files_that_cannot_be_mapped(
    attach: Connect, tmp_path: Path
) -> None:
    client = await attach().greet()
    await client.prepare(1, SUM)
    data = bytearray(X.tobytes() * 2 + b"?" * 32)
    file = tmp_path / "pool"
    for number in range(2, 5):  # on disk, by other numbers each time
        file.write_bytes(data)
        fd = os.open(file, os.O_RDWR)
        client.announce_fd(number, fd, 64)
        os.close(fd)
        answer = await client.execute(execute(1, 1, *PLACES, pools=(number,)))
        assert answer.status == ErrorStatus.NONE
        data[32:48] = (2 * X).tobytes()
        assert file.read_bytes() == data


async def test_executions_with_copies_overlap(attach: Connect) -> None:
    client = await attach().greet()
    await client.prepare(1, SUM)
    count = LIMITS.max_executions
    fd = os.memfd_create("unsealed")
    os.write(fd, X.tobytes() * 2 + bytes(16 * count))
    client.announce_fd(2, fd, 16 * (count + 2))
    for number in range(count):
        places = ((0, 0, 16), (0, 16, 16), (0, 32 + 16 * number, 16))
        client.send(execute(number, 1, *places, pools=(2,)))
    client.send(wire.ForgetPools((2,)))  # holds for later calls only
    for _ in range(count):
        answer = await client.receive()
        assert isinstance(answer, wire.Executed)
        assert answer.status == ErrorStatus.NONE
    written = os.pread(fd, 16 * count, 32)
    assert written == (2 * X).tobytes() * count
    os.close(fd)


async def test_a_file_of_a_trusted_client_is_mapped(tmp_path: Path) -> None:
    path = tmp_path / "driver.sock"
    async with ReferenceDevice() as device, Server(device, path, trust_same_uid=True):
        client = await RawClient.connect(path).greet()
        await client.prepare(1, SUM)
        fd = os.memfd_create("trusted")
        os.truncate(fd, 48)
        client.announce_fd(2, fd, 48)
        await client.execute(execute(1, 1, *PLACES, pools=(2,)))
        assert any("memfd:trusted" in trace for trace in traces())
        client.close()
        os.close(fd)


async def test_pools_that_are_forgotten_are_unknown(attach: Connect) -> None:
    client = await attach().greet()
    await client.prepare(1, SUM)
    client.announce(2, allocate(48))
    client.send(wire.ForgetPools((2,)))
    answer = await client.execute(execute(1, 1, *PLACES, pools=(2,)))
    assert answer.status == ErrorStatus.INVALID_ARGUMENT
    client.announce(2, allocate(48))  # the number is free again
    answer = await client.execute(execute(1, 1, *PLACES, pools=(2,)))
    assert answer.status == ErrorStatus.NONE


async def test_a_pool_that_cannot_be_used_says_why(attach: Connect) -> None:
    client = await attach().greet()
    await client.prepare(1, SUM)
    client.announce(2, allocate(2 * LIMITS.max_pool_bytes))
    answer = await client.execute(execute(1, 1, *PLACES, pools=(2,)))
    assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_PERSISTENT
    assert "ServiceLimits.max_pool_bytes is" in answer.reason


async def test_pools_that_do_not_fit_now_do_later(attach: Connect) -> None:
    client = await attach().greet()
    await client.prepare(1, SUM)
    half = LIMITS.max_pool_bytes * 3 // 4
    client.announce(2, allocate(half))
    client.announce(3, allocate(half))
    request = execute(1, 1, *PLACES, pools=(3,))
    answer = await client.execute(request)
    assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    client.send(wire.ForgetPools((2,)))
    assert (await client.execute(request)).status == ErrorStatus.NONE


async def test_a_cancelled_execution_is_answered_once(attach: Connect) -> None:
    client = await attach().greet()
    await client.prepare(1, counting_up().model)
    pool = allocate(8)
    as_array(pool, np.float32, (2,))[:1] = FOREVER
    client.announce(2, pool)
    places = ((0, 0, 4), (0, 4, 4))
    for number in range(4):
        client.send(execute(number, 1, *places, pools=(2,)))
    for number in range(4):
        client.send(wire.CancelExecution(number))
    client.send(ping(9))
    answers = [await client.receive() for _ in range(5)]
    executed = [answer for answer in answers if isinstance(answer, wire.Executed)]
    assert {answer.execution for answer in executed} == set(range(4))
    cancelled = ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
    assert {answer.status for answer in executed} == {cancelled}


async def test_a_released_model_is_unknown_and_its_number_free(attach: Connect) -> None:
    client = await attach().greet()
    await client.prepare(1, SUM)
    client.send(wire.ReleasePreparedModel(1))
    client.announce(2, allocate(48))
    request = execute(1, 1, *PLACES, pools=(2,))
    assert (await client.execute(request)).reason == "no prepared model 1"
    await client.prepare(1, SUM)
    assert (await client.execute(request)).status == ErrorStatus.NONE


async def test_what_a_client_had_pending_ends_with_it(
    attach: Connect, service: Service
) -> None:
    client = await attach().greet()
    await client.prepare(1, chain(300, 64, 64).model)
    client.announce(2, allocate(2**15))
    places = ((0, 0, 2**14), (0, 2**14, 2**14))
    for number in range(LIMITS.max_executions):
        client.send(execute(number, 1, *places, pools=(2,)))
    client.send(prepare(2, SUM))
    await asyncio.sleep(0)
    client.close()
    await service.all_have_gone()


class TestDevicesThatFail:
    """Whatever a device raises, the call is answered."""

    async def test_to_prepare(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await attach().greet()
        with monkeypatch.context() as patch:
            patch.setattr(ReferenceDevice, "prepare_model_1_3", _fail)
            answer = await client.prepare(1, SUM)
        assert answer == wire.Prepared(
            1, ErrorStatus.GENERAL_FAILURE, "ZeroDivisionError: of the device"
        )

    async def test_to_tell_supported_operations(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await attach().greet()
        with monkeypatch.context() as patch:
            patch.setattr(ReferenceDevice, "get_supported_operations_1_3", _fail)
            client.send(wire.GetSupportedOperations(1, SUM, ()))
            answer = await client.receive()
        assert answer == wire.SupportedOperations(1, ErrorStatus.GENERAL_FAILURE, ())

    async def test_to_execute(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await attach().greet()
        await client.prepare(1, SUM)
        client.announce(2, allocate(48))
        request = execute(1, 1, *PLACES, pools=(2,))
        with monkeypatch.context() as patch:
            # A record of the error would keep the pools.
            patch.setattr(reporting.logger, "disabled", True)
            patch.setattr(InProcessPreparedModel, "execute_1_3", _fail)
            answer = await client.execute(request)
        assert answer.status == ErrorStatus.GENERAL_FAILURE
        assert (await client.execute(request)).status == ErrorStatus.NONE

    async def test_to_tell_their_version(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = attach()
        with monkeypatch.context() as patch:
            patch.setattr(ReferenceDevice, "get_version_string", _fail)
            client.send(wire.Hello(wire.PROTOCOL_VERSION))
            assert await client.is_hung_up_on()


def _fail(*_: object) -> None:
    raise ZeroDivisionError("of the device")
