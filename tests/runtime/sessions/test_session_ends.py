"""Steps that are cancelled or late, sessions that are closed, and what they leave."""

import asyncio
import errno
import gc
import sys
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.devices import ReferenceDevice
from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.session import Session
from tests.memory.foreign import leaks, traces
from tests.runtime.sessions.conftest import PATHS, Gate, Opened, check
from tests.runtime.stateful import X, counting
from tests.waits import cancelled, until

MISSED = (asyncnn.MissedDeadlinePersistentError, asyncnn.MissedDeadlineTransientError)


class TestCancelling:
    @pytest.mark.parametrize("path", PATHS)
    async def test_at_any_turn_leaves_the_state_before_or_after(
        self, prepared: PreparedModel, path: Any
    ) -> None:
        outcomes = set()
        async with prepared.session(path=path) as session:
            steps = 0
            for turns in range(40):
                run = asyncio.create_task(session.run(X))
                for _ in range(turns):
                    await asyncio.sleep(0)
                run.cancel()
                (outcome,) = await asyncio.gather(run, return_exceptions=True)
                outcomes.add(type(outcome))
                steps += not isinstance(outcome, asyncio.CancelledError)
                await check(session, steps)
                np.testing.assert_array_equal(
                    (await session.run(X))["y"], 2 * (steps + 1) * X
                )
                steps += 1
        assert asyncio.CancelledError in outcomes

    @pytest.mark.parametrize("path", PATHS)
    async def test_in_the_middle_of_a_step(
        self, prepared: PreparedModel, path: Any, gate: Gate
    ) -> None:
        async with prepared.session(path=path) as session:
            await session.run(X)
            for step in range(1, 4):
                gate.close()
                run = asyncio.create_task(session.run(100 * X))
                await gate.until_reached()
                await cancelled(run)
                following = asyncio.create_task(session.run(X))
                await asyncio.sleep(0)
                gate.open()
                outputs = await following
                np.testing.assert_array_equal(outputs["y"], 2 * (step + 1) * X)

    async def test_one_that_waits_leaves_the_others_alone(
        self, prepared: PreparedModel, gate: Gate
    ) -> None:
        async with prepared.session() as session:
            gate.close()
            runs = [asyncio.create_task(session.run(X)) for _ in range(3)]
            await gate.until_reached()
            runs[1].cancel()
            gate.open()
            outcomes = await asyncio.gather(*runs, return_exceptions=True)
            assert isinstance(outcomes[1], asyncio.CancelledError)
            await check(session, 2)

    @pytest.mark.parametrize("path", PATHS)
    async def test_a_deadline_that_passes_leaves_the_state_before(
        self, prepared: PreparedModel, path: Any, gate: Gate
    ) -> None:
        async with prepared.session(path=path) as session:
            await session.run(X)
            # One that passes before the driver begins is not what is tested.
            for timeout in (0.02, 0.2, 2):
                gate.close()
                late = asyncio.create_task(session.run(X, timeout=timeout))
                await until(lambda: gate.reached.is_set() or late.done())  # noqa: B023
                if not late.done():
                    break
                gate.open()
                assert isinstance(late.exception(), MISSED)
            # It has its deadline although the step before it does not end.
            with pytest.raises(asyncnn.MissedDeadlinePersistentError):
                await session.run(X, timeout=0.01)
            # A burst's deadline reaches its driver as a message, which takes a while.
            await gate.until_aborted()
            gate.open()
            with pytest.raises(asyncnn.MissedDeadlineTransientError):
                await late
            await check(session, 1)
            np.testing.assert_array_equal((await session.run(X))["y"], 4 * X)

    async def test_a_deadline_that_has_passed_already(
        self, prepared: PreparedModel
    ) -> None:
        async with prepared.session() as session:
            with pytest.raises(asyncnn.AsyncnnError):
                await session.run(X, timeout=-1)
            await check(session, 0)


class TestClosing:
    @pytest.mark.parametrize("path", PATHS)
    async def test_at_any_turn_ends_the_step(
        self, prepared: PreparedModel, path: Any
    ) -> None:
        ended = 0
        for turns in range(25):
            async with prepared.session(path=path) as session:
                runs = [asyncio.create_task(session.run(X)) for _ in range(2)]
                for _ in range(turns):
                    await asyncio.sleep(0)
            for outcome in await asyncio.gather(*runs, return_exceptions=True):
                is_ended = isinstance(outcome, asyncnn.DeviceClosedError)
                assert is_ended or isinstance(outcome, dict), outcome
                ended += is_ended
        assert ended

    async def test_cancels_no_task_of_the_application(
        self, prepared: PreparedModel, gate: Gate
    ) -> None:
        cancelling: list[int] = []

        async def step(session: Session) -> None:
            try:
                await session.run(X)
            except asyncnn.DeviceClosedError:
                task = asyncio.current_task()
                assert task is not None
                cancelling.append(task.cancelling())
                await asyncio.sleep(0)

        async with prepared.session() as session:
            gate.close()
            run = asyncio.create_task(step(session))
            await gate.until_reached()
        await run
        assert cancelling == [0]

    async def test_refuses_all_that_comes_after(self, prepared: PreparedModel) -> None:
        async with prepared.session() as session:
            await session.run(X)
        for call in (
            session.run(X),
            session.state(),
            session.reset(),
            session.load_state({"total": X, "steps": np.zeros(1, np.int32)}),
        ):
            with pytest.raises(asyncnn.DeviceClosedError, match="session is closed"):
                await call
        session.close()

    async def test_a_closed_device_ends_sessions(self) -> None:
        async with asyncnn.open_device() as device:
            session = await (await device.prepare(counting())).session().__aenter__()
            await session.run(X)
        with pytest.raises(asyncnn.DeviceClosedError):
            await session.run(X)
        session.close()


@pytest.mark.parametrize("path", PATHS)
async def test_closing_frees_the_state_at_once(path: Any) -> None:
    gc.collect()
    gc.disable()  # what only a collection would free does not count
    try:
        async with ReferenceDevice() as hal:
            prepared = await Device("reference", hal).prepare(counting())
            async with prepared.session(path=path) as session:
                for _ in range(3):
                    await session.run(X)
                await session.reset()
                await session.run(X)
                assert len(hal._buffers._known) == 4
            # A thread may still hold what it has just finished with.
            await until(lambda: not hal._buffers._known)
    finally:
        gc.enable()


@pytest.mark.unrecorded
@pytest.mark.parametrize("path", PATHS)
async def test_sessions_leave_nothing_behind(opened: Opened, path: Any) -> None:
    prepared = await opened.device.prepare(counting())

    async def use() -> None:
        async with prepared.session(path=path) as session:
            for turns in range(12):
                await session.run(X)
                run = asyncio.create_task(session.run(X))
                for _ in range(turns):
                    await asyncio.sleep(0)
                run.cancel()
                await asyncio.gather(run, return_exceptions=True)

    def buffers() -> int:
        gc.collect()
        return len(opened.hal._buffers._known)

    await use()
    await until(lambda: buffers() == 0)
    gc.collect()
    before = traces()
    for _ in range(3):
        await use()
    await until(lambda: buffers() == 0 and not leaks(before))


@pytest.mark.parametrize("module", ["session", "session_steps"])
async def test_one_that_cannot_be_imported_for_want_of_descriptors_may_be_later(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoDescriptors:
        @staticmethod
        def find_spec(name: str, *_: Any) -> None:
            if name == f"asyncnn.runtime.{module}":
                raise OSError(errno.EMFILE, "Too many open files")

    async with asyncnn.open_device() as device:
        prepared = await device.prepare(counting())
        with monkeypatch.context() as starved:
            starved.delitem(sys.modules, f"asyncnn.runtime.{module}", raising=False)
            starved.setattr(sys, "meta_path", [NoDescriptors, *sys.meta_path])
            with pytest.raises(
                asyncnn.ResourceExhaustedTransientError, match=r"open files \(.*ulimit"
            ):
                prepared.session()
        async with prepared.session() as session:
            await session.run(X)
