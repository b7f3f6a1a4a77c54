import asyncio
import gc
import os
import socket
import threading
import weakref
from collections.abc import AsyncIterator, Callable

import pytest

from asyncnn.callbacks import ExecutionFuture, ExecutionResult, PreparedModelFuture
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceUnavailableError,
    GeneralFailureError,
    InvalidArgumentError,
    ResourceExhaustedPersistentError,
)
from asyncnn.hal.refusals import PrepareArguments
from asyncnn.hal.routes import Route
from asyncnn.hal.types import (
    DEFAULT_OPTIONS,
    ErrorStatus,
    ExecutionOptions,
    ExecutionPreference,
    Handle,
    MeasureTiming,
    Memory,
    Priority,
    Request,
)
from asyncnn.memory.shared import allocate
from asyncnn.service import wire
from asyncnn.service.client.connection import Connection
from asyncnn.service.client.remote_device import _PreparationEnd
from asyncnn.service.client.remote_model import RemoteExecution, RemotePreparedModel
from asyncnn.service.client.sent_pools import Sendable
from tests.networks import addition
from tests.service.fake_driver import FakeDriver, executed, welcome
from tests.waits import until

MODEL = addition(2).model
NOTHING = Request((), (), ())
UNAVAILABLE = ErrorStatus.DEVICE_UNAVAILABLE


class Recorder:
    """Takes the outcomes of preparations and executions."""

    def __init__(self) -> None:
        self.outcomes: list[tuple[ErrorStatus, str]] = []

    def link_to_death(self, cancel: Callable[[], None]) -> None:
        pass

    def done(self, outcome: wire.Prepared) -> None:
        self.outcomes.append((ErrorStatus(outcome.status), outcome.reason))

    def took(self, route: Route) -> None:
        pass

    def __call__(
        self, status: ErrorStatus, shapes: object, timing: object, reason: str
    ) -> None:
        self.outcomes.append((status, reason))


class FailingAtRoutes(Recorder):
    def took(self, route: Route) -> None:
        raise RuntimeError("a callback's own failure")


class Failing(Recorder):
    """Fails when it is told."""

    def done(self, *_: object) -> None:
        raise InvalidArgumentError("a listener's own failure")

    def __call__(self, *_: object) -> None:
        raise RuntimeError("a listener's own failure")


class Told(RemoteExecution):
    """Leaves its outcome to a recorder."""

    recorder: Recorder

    def took(self, route: Route) -> None:
        self.recorder.took(route)

    def take(self, result: ExecutionResult, *_: object) -> None:
        outcome = result.status, result.output_shapes, result.timing, result.reason
        self.let_go(result.status)
        self.recorder(*outcome)


def execute(
    connection: Connection,
    request: Request,
    recorder: Recorder | None = None,
    options: ExecutionOptions = DEFAULT_OPTIONS,
) -> int:
    execution = Told(connection, request, Sendable())
    execution.recorder = recorder or Recorder()
    connection.execute(1, execution, options)
    return execution.number


def prepare(connection: Connection, listener: object) -> None:
    order = ExecutionPreference.LOW_POWER, Priority.MEDIUM, None
    asked = PrepareArguments(MODEL, *order)
    connection.preparations.prepare(asked, listener)  # type: ignore[arg-type]


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Connection, FakeDriver]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection, driver = Connection(ours), FakeDriver(theirs)
    yield connection, driver
    connection.close()
    driver.die()


Ends = tuple[Connection, FakeDriver]


class TestDeath:
    async def test_everything_that_is_pending_is_answered_once(
        self, ends: Ends
    ) -> None:
        connection, driver = ends
        recorders = [Recorder() for _ in range(4)]
        for recorder in recorders[:2]:
            prepare(connection, recorder)
        for recorder in recorders[2:]:
            execute(connection, NOTHING, recorder)
        asked = asyncio.ensure_future(connection.queries.supported_operations(MODEL))
        await asyncio.sleep(0)
        driver.die()
        with pytest.raises(DeviceUnavailableError, match="DEAD_OBJECT"):
            await asked
        connection.close()
        for recorder in recorders:
            ((status, reason),) = recorder.outcomes
            assert status is UNAVAILABLE
            assert "DEAD_OBJECT" in reason
        assert "DEAD_OBJECT" in connection.reason

    async def test_closing_answers_what_is_pending(self, ends: Ends) -> None:
        connection, _ = ends
        recorder = Recorder()
        execute(connection, NOTHING, recorder)
        connection.close()
        assert recorder.outcomes == [(UNAVAILABLE, "the device is closed")]
        await connection.wait_closed()

    @pytest.mark.parametrize("notices", [True, False])
    async def test_a_later_call_raises_and_is_not_answered(
        self, ends: Ends, notices: bool
    ) -> None:
        connection, driver = ends
        driver.die()
        if notices:
            await connection.wait_closed()
        recorder = Recorder()
        with pytest.raises(DeviceUnavailableError, match="DEAD_OBJECT"):
            prepare(connection, recorder)
        with pytest.raises(DeviceUnavailableError, match="DEAD_OBJECT"):
            execute(connection, NOTHING, recorder)
        with pytest.raises(DeviceUnavailableError, match="DEAD_OBJECT"):
            await connection.queries.supported_operations(MODEL)
        assert recorder.outcomes == []

    async def test_a_listener_may_call_again_while_it_is_told(self, ends: Ends) -> None:
        connection, driver = ends
        refused: list[AsyncnnError] = []

        class Insisting(Recorder):
            def __call__(self, *_: object) -> None:
                try:
                    execute(connection, NOTHING)
                except AsyncnnError as error:
                    refused.append(error)

        execute(connection, NOTHING, Insisting())
        driver.die()
        await connection.wait_closed()
        assert [error.status for error in refused] == [UNAVAILABLE]

    async def test_a_failing_listener_does_not_keep_others_from_being_told(
        self, ends: Ends, caplog: pytest.LogCaptureFixture
    ) -> None:
        connection, driver = ends
        recorder = Recorder()
        prepare(connection, Failing())
        prepare(connection, recorder)
        execute(connection, NOTHING, Failing())
        execute(connection, NOTHING, recorder)
        driver.die()
        await connection.wait_closed()
        assert [status for status, _ in recorder.outcomes] == [UNAVAILABLE] * 2
        assert caplog.text.count("a listener failed") == 2


class TestAnswers:
    async def test_a_failing_listener_does_not_end_the_connection(
        self, ends: Ends, caplog: pytest.LogCaptureFixture
    ) -> None:
        connection, driver = ends
        recorder = Recorder()
        failing = execute(connection, NOTHING, Failing())
        number = execute(connection, NOTHING, recorder)
        driver.send(executed(failing), executed(number))
        await until(lambda: recorder.outcomes)
        assert recorder.outcomes == [(ErrorStatus.NONE, "")]
        assert "a listener failed" in caplog.text

    async def test_unknown_and_repeated_ones_are_ignored(self, ends: Ends) -> None:
        connection, driver = ends
        recorder = Recorder()
        number = execute(connection, NOTHING, recorder)
        driver.send(
            welcome(),
            executed(number + 7),
            wire.Prepared(99, 0, ""),
            wire.SupportedOperations(99, 0, ()),
            executed(number),
            executed(number, 2),
        )
        again = execute(connection, NOTHING, recorder)
        driver.send(executed(again))
        await until(lambda: len(recorder.outcomes) == 2)
        assert recorder.outcomes == [(ErrorStatus.NONE, "")] * 2

    async def test_a_callback_that_fails_at_a_route_is_still_told_the_outcome(
        self, ends: Ends
    ) -> None:
        connection, driver = ends
        recorders = [FailingAtRoutes(), Recorder()]
        for recorder in recorders:
            number = execute(connection, NOTHING, recorder)
            driver.send(wire.Took(number, Route(())), executed(number))
            await until(lambda: recorder.outcomes)  # noqa: B023 - in this round
        assert not connection.is_closed

    async def test_an_unknown_status_is_a_general_failure(self, ends: Ends) -> None:
        connection, driver = ends
        recorder = Recorder()
        driver.send(executed(execute(connection, NOTHING, recorder), 4711, "new"))
        await until(lambda: recorder.outcomes)
        assert recorder.outcomes == [(ErrorStatus.GENERAL_FAILURE, "new")]

    async def test_garbage_ends_the_connection(self, ends: Ends) -> None:
        connection, driver = ends
        recorder = Recorder()
        execute(connection, NOTHING, recorder)
        driver.end.send(b"\0garbage")
        await connection.wait_closed()
        ((status, reason),) = recorder.outcomes
        assert status is UNAVAILABLE
        assert "not a message" in reason

    async def test_descriptors_that_come_along_are_closed(self, ends: Ends) -> None:
        connection, driver = ends
        reader, writer = os.pipe()
        packet = b"\0" + wire.encode(executed(1))
        socket.send_fds(driver.end, [packet], [writer])
        os.close(writer)
        await connection.wait_closed()
        assert os.read(reader, 1) == b""  # nobody has the other end any more
        os.close(reader)


class TestSending:
    async def test_what_cannot_be_encoded_is_refused(self, ends: Ends) -> None:
        connection, _ = ends
        recorder = Recorder()
        options = ExecutionOptions(deadline=2**70)
        with pytest.raises(InvalidArgumentError, match="cannot be sent"):
            execute(connection, NOTHING, recorder, options)
        connection.close()
        assert recorder.outcomes == []

    async def test_a_message_that_the_driver_would_not_take_is_refused(
        self, ends: Ends
    ) -> None:
        connection, _ = ends
        ints = (2**40,) * 8_000_000
        with pytest.raises(ResourceExhaustedPersistentError, match="too large"):
            execute(
                connection, Request((), (), (Memory("ashmem", 1, Handle((), ints)),))
            )
        assert not connection.is_closed

    @pytest.mark.parametrize("fds", [(10**6,), (-1,), (2**40,), (0,) * 1000])
    async def test_descriptors_that_cannot_be_sent_are_refused(
        self, ends: Ends, fds: tuple[int, ...]
    ) -> None:
        connection, _ = ends
        memory = Memory("ashmem", 1, Handle(fds))
        with pytest.raises(GeneralFailureError, match="descriptor"):
            execute(connection, Request((), (), (memory,)))
        assert not connection.is_closed


class TestPools:
    async def test_each_is_announced_once(self, ends: Ends) -> None:
        connection, driver = ends
        request = Request((), (), (allocate(64), allocate(64)))
        for _ in range(2):
            execute(connection, request)
        messages = [await driver.receive() for _ in range(4)]
        kinds = [type(message) for message in messages]
        assert kinds == [wire.AnnouncePools] * 2 + [wire.Execute] * 2
        announced = tuple(m.pools[0].number for m in messages[:2])
        assert [m.pools for m in messages[2:]] == [announced] * 2

    @pytest.mark.parametrize("elsewhere", [False, True])
    async def test_a_pool_that_is_gone_is_forgotten_without_another_call(
        self, ends: Ends, elsewhere: bool
    ) -> None:
        connection, driver = ends
        pools, recorder = [allocate(64)], Recorder()
        number = execute(connection, Request((), (), tuple(pools)), recorder)
        announced = await driver.receive()
        await driver.receive()
        driver.send(executed(number))
        await until(lambda: recorder.outcomes)
        if elsewhere:
            thread = threading.Thread(target=pools.clear)
            thread.start()
            thread.join()
        else:
            pools.clear()
        assert await driver.receive() == wire.ForgetPools((announced.pools[0].number,))

    async def test_a_closed_connection_is_not_kept_alive_by_its_pools(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection = Connection(ours)
        pool = allocate(64)
        execute(connection, Request((), (), (pool,)))
        connection.close()
        theirs.close()
        closed = weakref.ref(connection)
        del connection, ours
        await asyncio.sleep(0)
        gc.collect()
        assert closed() is None
        assert pool.size == 64


class TestCancellation:
    async def test_an_execution_that_nobody_awaits_is_cancelled(
        self, ends: Ends
    ) -> None:
        connection, driver = ends
        empty = addition(2)
        prepared = RemotePreparedModel(connection, 1, empty.model)
        prepared._rules.check = lambda *_, **__: None
        callback = ExecutionFuture()
        prepared.execute_1_3(NOTHING, MeasureTiming.NO, None, None, callback)
        waiting = asyncio.ensure_future(_await(callback))
        sent = await driver.receive()
        await asyncio.sleep(0)
        waiting.cancel()
        assert await driver.receive() == wire.CancelExecution(sent.execution)
        driver.send(executed(sent.execution, 7))  # it is still notified

    async def test_a_preparation_that_nobody_awaits_is_released(
        self, ends: Ends
    ) -> None:
        connection, driver = ends
        callback = PreparedModelFuture()
        prepare(connection, _PreparationEnd(connection, callback, MODEL))
        waiting = asyncio.ensure_future(_await(callback))
        sent = await driver.receive()
        await asyncio.sleep(0)
        waiting.cancel()
        assert await driver.receive() == wire.ReleasePreparedModel(sent.prepared)
        driver.send(wire.Prepared(sent.prepared, 0, ""))  # crossed on the way
        recorder = Recorder()
        driver.send(executed(execute(connection, NOTHING, recorder)))
        await until(lambda: recorder.outcomes)

    async def test_a_callback_that_was_dead_already_is_told_at_once(
        self, ends: Ends
    ) -> None:
        connection, driver = ends
        callback = PreparedModelFuture()
        callback.die()
        prepare(connection, _PreparationEnd(connection, callback, MODEL))
        sent = await driver.receive()
        assert await driver.receive() == wire.ReleasePreparedModel(sent.prepared)
        with pytest.raises(AsyncnnError, match="cancelled"):
            await callback


async def _await(callback: object) -> None:
    await callback  # type: ignore[misc]
