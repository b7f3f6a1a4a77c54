"""Clients that break every rule; `service` serves an honest one after each."""

import asyncio
import errno
import itertools
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from asyncnn.hal.operations.bound import BoundOperation
from asyncnn.hal.types import ErrorStatus, Model, Operand, OperandType, Subgraph
from asyncnn.kernels import registry as kernels
from asyncnn.kernels.kernel import PreparedKernel
from asyncnn.memory.shared import allocate
from asyncnn.service import channel, decoding, wire
from asyncnn.service.process import driver_process
from tests.networks import addition, chain
from tests.service.bad_models import BAD_MODELS
from tests.service.conftest import LIMITS, Connect, Service, is_served
from tests.service.raw import BY_FILE, RawClient, execute, ping, prepare

SUM = addition(4).model
X = np.array([1, 2, 3, 4], np.float32)
IN_ONE_POOL = ((0, 0, 16), (0, 16, 16), (0, 32, 16))


async def hung_up_on(client: RawClient, *messages: wire.ToDriver | bytes) -> bool:
    for message in messages:
        client.send(message)
    return await client.is_hung_up_on()


async def ready(client: RawClient) -> RawClient:
    """Prepare a sum under number 1 and announce a pool as number 2."""
    await client.greet()
    assert (await client.prepare(1, SUM)).status == ErrorStatus.NONE
    client.announce(2, allocate(4096))
    return client


class TestPackets:
    @pytest.mark.parametrize("size", [LIMITS.max_message_bytes + 1, 2**32, 2**64 - 1])
    async def test_a_length_of_gigabytes(self, attach: Connect, size: int) -> None:
        client = await attach().greet()
        client.send_file(b"small", size)
        assert await client.is_hung_up_on()

    @pytest.mark.parametrize(
        "send",
        [
            lambda client: client.send_file(wire.encode(ping(1)), 2**20),
            lambda client: client.socket.send(b""),
            lambda client: client.send(ping(1), [0] * 253),
            lambda client: client.send(ping(1), [0]),
        ],
        ids=[
            "a file shorter than its length",
            "an empty packet",
            "as many descriptors as the kernel takes",
            "descriptors beside a message that has none",
        ],
    )
    async def test_one_that_cannot_be(self, attach: Connect, send: Any) -> None:
        client = await attach().greet()
        send(client)
        assert await client.is_hung_up_on()

    async def test_a_file_of_a_pipe(self, attach: Connect) -> None:
        client = await attach().greet()
        pipe = os.pipe()
        client.send_packet(BY_FILE + (9).to_bytes(8, "little"), [pipe[0]])
        for fd in pipe:
            os.close(fd)
        assert await client.is_hung_up_on()

    @pytest.mark.parametrize("data", [b"", b"\xc1", b"\x91" * 10**4, b"\xff" * 999])
    async def test_garbage(self, attach: Connect, data: bytes) -> None:
        assert await hung_up_on(await attach().greet(), data)


class TestDescriptors:
    async def test_a_thousand_over_many_clients(self, attach: Connect) -> None:
        for _ in range(20):
            client = await attach().greet()
            client.send(wire.AnnouncePools(()), [0] * 50)
            assert await client.is_hung_up_on()

    @pytest.mark.parametrize("counts", [(2,), (0,), (1, 1), (-1, 2), (2**62,)])
    async def test_that_do_not_match_the_pools(
        self, attach: Connect, counts: tuple[int, ...]
    ) -> None:
        client = await attach().greet()
        infos = [wire.PoolInfo(i, "ashmem", 1, (), n) for i, n in enumerate(counts)]
        client.send(wire.AnnouncePools(tuple(infos)), [0])
        assert await client.is_hung_up_on()

    async def test_of_a_thousand_pools(self, attach: Connect) -> None:
        client = await ready(attach())
        fd = os.memfd_create("pool")
        os.truncate(fd, 4096)
        for number in range(100, 100 + 2 * LIMITS.max_pools - 1):
            client.announce_fd(number, fd, 4096)
        last = 100 + LIMITS.max_pools
        answer = await client.execute(execute(1, 1, *IN_ONE_POOL, pools=(last,)))
        assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        client.announce_fd(1000, fd, 4096)
        assert await client.is_hung_up_on()
        os.close(fd)


class TestModels:
    @pytest.mark.parametrize("model", BAD_MODELS.values(), ids=BAD_MODELS)
    async def test_ill_formed(self, attach: Connect, model: Model) -> None:
        client = await attach().greet()
        client.send_file(wire.encode(prepare(1, model)))
        answer = await client.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.status == ErrorStatus.INVALID_ARGUMENT
        client.send_file(wire.encode(wire.GetSupportedOperations(2, model, ())))
        answer = await client.receive()
        assert answer == wire.SupportedOperations(2, ErrorStatus.INVALID_ARGUMENT, ())

    async def test_of_100_000_operations(self, attach: Connect) -> None:
        # Built by hand: the builder would take as long as the driver.
        client = await attach().greet()
        main = chain(1, 4).model.main
        value = Operand(OperandType.TENSOR_FLOAT32, (4,), 1)
        operations = [main.operations[0]] * 100_000
        model = Model(
            Subgraph(
                (*main.operands, value),
                tuple(operations),
                main.input_indexes,
                main.output_indexes,
            ),
            operand_values=chain(1, 4).model.operand_values,
        )
        client.send_file(wire.encode(prepare(1, model)))
        answer = await client.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.status == ErrorStatus.INVALID_ARGUMENT

    async def test_more_than_a_client_may_prepare(self, attach: Connect) -> None:
        client = await attach().greet()
        for number in range(LIMITS.max_prepared_models):
            assert (await client.prepare(number, SUM)).status == ErrorStatus.NONE
        answer = await client.prepare(99, SUM)
        assert answer.status == ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT
        client.send(wire.ReleasePreparedModel(0))
        assert (await client.prepare(99, SUM)).status == ErrorStatus.NONE

    async def test_more_than_a_client_may_prepare_at_once(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepare_kernel = kernels.prepare

        def slowly(operation: BoundOperation) -> PreparedKernel:
            time.sleep(0.05)
            return prepare_kernel(operation)

        monkeypatch.setattr(kernels, "prepare", slowly)
        client = await attach().greet()
        # The first keeps the others waiting: models are prepared one after the other.
        for number in range(8):
            client.send(prepare(number, SUM))
            await asyncio.sleep(0)  # the driver takes one packet per turn
        answers = [await client.receive() for _ in range(8)]
        assert {answer.status for answer in answers} == {
            ErrorStatus.NONE,
            ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT,
        }

    async def test_released_while_they_are_prepared(self, attach: Connect) -> None:
        client = await attach().greet()
        model = chain(100, 4).model
        for _ in range(20):
            client.send(prepare(1, model))
            await asyncio.sleep(0)  # the driver takes one packet per turn
            client.send(wire.ReleasePreparedModel(1))
            await asyncio.sleep(0)
        client.send(prepare(1, SUM))
        client.announce(2, allocate(4096))
        client.send(ping(7))
        # A model that was ready before its release reached the driver is told of, too.
        answers = [await client.receive()]
        while not isinstance(answers[-1], wire.SupportedOperations):
            answers.append(await client.receive())
        await asyncio.sleep(0.1)
        client.send(execute(1, 1, *IN_ONE_POOL, pools=(2,)))
        answer = await client.receive()
        while isinstance(answer, wire.Prepared):
            answer = await client.receive()
        assert isinstance(answer, wire.Executed)
        assert answer.status == ErrorStatus.NONE


class TestNumbers:
    async def test_of_another_client(self, attach: Connect) -> None:
        await ready(attach())
        client = await attach().greet()
        answer = await client.execute(execute(1, 1, *IN_ONE_POOL, pools=(2,)))
        assert answer.status == ErrorStatus.INVALID_ARGUMENT
        assert (await client.prepare(1, SUM)).status == ErrorStatus.NONE
        answer = await client.execute(execute(1, 1, *IN_ONE_POOL, pools=(2,)))
        assert answer.status == ErrorStatus.INVALID_ARGUMENT

    async def test_of_pools_for_a_model(self, attach: Connect) -> None:
        client = await attach().greet()
        client.send(prepare(1, SUM, (7,)))
        answer = await client.receive()
        assert answer == wire.Prepared(
            1, ErrorStatus.INVALID_ARGUMENT, "there is no pool 7"
        )
        client.send(wire.GetSupportedOperations(2, SUM, (7,)))
        answer = await client.receive()
        assert answer == wire.SupportedOperations(2, ErrorStatus.INVALID_ARGUMENT, ())

    async def test_nobody_knows(self, attach: Connect) -> None:
        client = await ready(attach())
        client.send(wire.ForgetPools((99, -1, 2**63)))
        client.send(wire.ReleasePreparedModel(99))
        client.send(wire.CancelExecution(99))
        answer = await client.execute(execute(1, 1, *IN_ONE_POOL, pools=(2,)))
        assert answer.status == ErrorStatus.NONE

    async def test_twice(self, attach: Connect) -> None:
        client = await ready(attach())
        assert await hung_up_on(client, prepare(1, SUM))
        client = await ready(attach())
        client.announce(2, allocate(4096))
        assert await client.is_hung_up_on()
        client = await ready(attach())
        assert (await client.prepare(5, chain(3000, 64).model)).status == 0
        long = execute(1, 5, (0, 0, 256), (0, 256, 256), pools=(2,))
        assert await hung_up_on(client, long, long)


class TestGreetings:
    async def test_that_come_late(self, attach: Connect) -> None:
        for message in (ping(1), prepare(1, SUM), wire.AnnouncePools(())):
            assert await hung_up_on(attach(), message)

    async def test_in_another_version(self, attach: Connect) -> None:
        client = attach()
        client.send(wire.Hello(wire.PROTOCOL_VERSION + 1))
        answer = await client.receive()
        assert isinstance(answer, wire.Welcome)
        assert answer.version == wire.PROTOCOL_VERSION
        assert await client.is_hung_up_on()

    async def test_said_twice(self, attach: Connect) -> None:
        client = await attach().greet()
        assert await hung_up_on(client, wire.Hello(wire.PROTOCOL_VERSION))


class TestRequests:
    @pytest.mark.parametrize(
        "place",
        [(0, 4081, 16), (0, 2**62, 16), (0, -16, 16), (1, 0, 16), (0, 0, 2**63)],
    )
    async def test_beyond_their_pools(
        self, attach: Connect, place: tuple[int, int, int]
    ) -> None:
        client = await ready(attach())
        for position in range(3):
            places = list(IN_ONE_POOL)
            places[position] = place
            answer = await client.execute(execute(1, 1, *places, pools=(2,)))
            assert answer.status == ErrorStatus.INVALID_ARGUMENT

    @pytest.mark.parametrize("size", [2**40, -1, 2**63])
    async def test_for_pools_beyond_their_files(
        self, attach: Connect, size: int
    ) -> None:
        client = await ready(attach())
        fd = allocate(4096)
        client.announce_fd(3, fd.handle.fds[0], size)
        answer = await client.execute(execute(1, 1, *IN_ONE_POOL, pools=(3,)))
        assert answer.status == ErrorStatus.GENERAL_FAILURE

    @pytest.mark.parametrize("is_sealed", [True, False])
    async def test_for_outputs_in_a_file_that_is_read_only(
        self, attach: Connect, is_sealed: bool
    ) -> None:
        client = await ready(attach())
        pool = allocate(4096)
        source = pool.handle.fds[0]
        if not is_sealed:
            source = os.memfd_create("unsealed")
            os.truncate(source, 4096)
        fd = os.open(f"/proc/self/fd/{source}", os.O_RDONLY)
        client.announce_fd(3, fd, 4096)
        answer = await client.execute(execute(1, 1, *IN_ONE_POOL, pools=(3,)))
        assert answer.status == ErrorStatus.INVALID_ARGUMENT
        places = ((0, 0, 16), (0, 16, 16), (1, 0, 16))
        answer = await client.execute(execute(2, 1, *places, pools=(3, 2)))
        assert answer.status == ErrorStatus.NONE
        os.close(fd)
        if not is_sealed:
            os.close(source)

    async def test_more_than_a_client_may_have_pending(self, attach: Connect) -> None:
        client = await ready(attach())
        assert (await client.prepare(5, chain(3000, 64).model)).status == 0
        count = LIMITS.max_executions + 4
        for number in range(count):
            client.send(execute(number, 5, (0, 0, 256), (0, 256, 256), pools=(2,)))
        answers = [await client.receive() for _ in range(count)]
        statuses = [answer.status for answer in answers]
        assert statuses.count(ErrorStatus.NONE) >= LIMITS.max_executions
        assert ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT in statuses
        assert {answer.execution for answer in answers} == set(range(count))

    async def test_from_one_who_never_reads(
        self, attach: Connect, service: Service
    ) -> None:
        client = await ready(attach())
        numbers = itertools.count()
        async with asyncio.timeout(20):
            while service.server.connections:
                try:
                    client.send(execute(next(numbers), 1, pools=(), outputs=0))
                except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                    await asyncio.sleep(0)

    async def test_whose_answer_needs_a_descriptor_that_is_not_there(
        self, attach: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        client = await attach().greet()
        with monkeypatch.context() as patch:
            patch.setattr(channel, "MAX_PACKET_BYTES", 0)
            patch.setattr(decoding, "create_file", _fail_for_want_of_descriptors)
            assert await hung_up_on(client, ping(1))


def _fail_for_want_of_descriptors(_: str) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


class TestFilesThatShrink:
    """Files without seals are copied, as mapped ones would raise SIGBUS."""

    async def test_between_executions(self, attach: Connect) -> None:
        client = await ready(attach())
        fd = os.memfd_create("unsealed")
        os.write(fd, X.tobytes() * 2 + bytes(4064))
        client.announce_fd(3, fd, 4096)
        request = execute(1, 1, *IN_ONE_POOL, pools=(3,))
        assert (await client.execute(request)).status == ErrorStatus.NONE
        np.testing.assert_array_equal(
            np.frombuffer(os.pread(fd, 16, 32), np.float32), 2 * X
        )
        os.truncate(fd, 10)
        answer = await client.execute(request)
        assert answer.status == ErrorStatus.GENERAL_FAILURE
        os.truncate(fd, 4096)
        assert (await client.execute(request)).status == ErrorStatus.NONE
        os.close(fd)

    async def test_during_executions(self, attach: Connect) -> None:
        client = await ready(attach())
        size = 2**16
        assert (await client.prepare(5, chain(20, size // 4).model)).status == 0
        fd = os.memfd_create("unsealed")
        stop = threading.Event()

        def truncate() -> None:
            for length in itertools.cycle((2 * size, 10, 2 * size, size)):
                os.truncate(fd, length)
                if stop.wait(0.0003):
                    return

        thread = threading.Thread(target=truncate)
        thread.start()
        client.announce_fd(3, fd, 2 * size)
        request = execute(1, 5, (0, 0, size), (0, size, size), pools=(3,))
        answers = [await client.execute(request) for _ in range(100)]
        stop.set()
        thread.join()
        os.close(fd)
        assert {answer.status for answer in answers} <= {
            ErrorStatus.NONE,
            ErrorStatus.INVALID_ARGUMENT,
            ErrorStatus.GENERAL_FAILURE,
        }

    async def test_by_a_client_that_leaves(self, attach: Connect) -> None:
        client = await ready(attach())
        fd = os.memfd_create("unsealed")
        os.truncate(fd, 4096)
        client.announce_fd(3, fd, 4096)
        for number in range(5):
            client.send(execute(number, 1, *IN_ONE_POOL, pools=(3,)))
        client.send(prepare(9, SUM, (3,)))
        client.close()
        os.close(fd)

    async def test_as_constants_of_a_model(self, attach: Connect) -> None:
        client = await attach().greet()
        fd = os.memfd_create("unsealed")
        os.truncate(fd, 10)
        client.announce_fd(3, fd, 4096)
        client.send(prepare(9, SUM, (3,)))
        answer = await client.receive()
        assert isinstance(answer, wire.Prepared)
        assert answer.status == ErrorStatus.GENERAL_FAILURE
        client.send(wire.GetSupportedOperations(2, SUM, (3,)))
        answer = await client.receive()
        assert answer == wire.SupportedOperations(2, ErrorStatus.GENERAL_FAILURE, ())
        os.close(fd)


async def test_a_driver_process_outlives_a_client_that_truncates_its_files() -> None:
    with driver_process() as driver:
        client = await ready(RawClient.connect(driver.path))
        fd = os.memfd_create("unsealed")
        for length in (4096, 0, 4096, 10):
            os.truncate(fd, length)
            client.announce_fd(100 + length, fd, 4096)
            client.send(execute(length, 1, *IN_ONE_POOL, pools=(100 + length,)))
            os.truncate(fd, 0)
            client.send(wire.ForgetPools((100 + length,)))
            assert isinstance(await client.receive(), wire.Executed)
        client.send_file(b"small", 2**32)
        assert await client.is_hung_up_on()
        client.close()
        os.close(fd)
        assert await is_served(driver.path)
        assert driver.process.poll() is None
