"""Sessions: state from step to step, on every path, in process and to a driver."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, ReferenceDevice
from asyncnn.engine.execution import Execution
from asyncnn.runtime.device import Device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.session import Session
from asyncnn.service import Server
from tests.memory.foreign import leaks, traces
from tests.runtime.stateful import FIRST, X, after, counting, picking_sum
from tests.service.raw import until

PATHS = ("async", "sync", "fenced", "burst")
ON_LANES = DeviceSettings(inline_below_us=0)


class Opened(NamedTuple):
    device: Device
    hal: ReferenceDevice


@pytest.fixture(params=["inprocess", "remote"])
async def opened(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Opened]:
    async with ReferenceDevice(ON_LANES) as hal:
        if request.param == "inprocess":
            yield Opened(Device("reference", hal), hal)
            return
        path = tmp_path / "driver.sock"
        async with Server(hal, path), asyncnn.connect(path) as device:
            yield Opened(device, hal)


@pytest.fixture
async def prepared(opened: Opened) -> PreparedModel:
    return await opened.device.prepare(counting())


class Gate:
    """What executions wait for on their lane, once it is closed."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.reached = threading.Event()

    def close(self) -> None:
        self.reached.clear()
        self._is_open.clear()

    def open(self) -> None:
        self._is_open.set()

    def wait(self) -> None:
        self.reached.set()
        assert self._is_open.wait(10)

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 10)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate, advance = Gate(), Execution.advance

    def gated(self: Execution, *arguments: Any) -> bool:
        gate.wait()
        return advance(self, *arguments)

    monkeypatch.setattr(Execution, "advance", gated)
    yield gate
    gate.open()


async def check(session: Session, steps: int) -> None:
    """Check that the state is that after so many steps with `X`."""
    total, count = after(steps)
    state = await session.state()
    np.testing.assert_array_equal(state["total"], total)
    assert state["steps"] == [count]
    assert session.steps == steps


class TestPlainRuns:
    """See no state, and begin with the first values."""

    @pytest.mark.parametrize("path", ["async", "sync", "fenced"])
    async def test_begin_anew(self, prepared: PreparedModel, path: Any) -> None:
        for _ in range(3):
            outputs = await prepared.run(X, path=path)
            assert list(outputs) == ["y"]
            np.testing.assert_array_equal(outputs["y"], 2 * X)

    async def test_by_burst_too(self, prepared: PreparedModel) -> None:
        async with prepared.burst() as burst:
            for _ in range(3):
                outputs = await burst.run(X)
                assert list(outputs) == ["y"]
                np.testing.assert_array_equal(outputs["y"], 2 * X)
            assert burst.statistics().fallbacks == 0

    async def test_and_fenced_ones_and_reusable_ones(
        self, prepared: PreparedModel
    ) -> None:
        first = prepared.run_fenced(X)
        second = prepared.run_fenced(X, wait_for=[first])
        np.testing.assert_array_equal((await second)["y"], 2 * X)
        reusable = prepared.reusable([X])
        for _ in range(2):
            np.testing.assert_array_equal((await reusable.run())["y"], 2 * X)

    async def test_many_at_a_time_do_not_disturb_each_other(
        self, prepared: PreparedModel
    ) -> None:
        runs = [prepared.run(k * X) for k in range(50)]
        for k, outputs in enumerate(await asyncio.gather(*runs)):
            np.testing.assert_array_equal(outputs["y"], 2 * k * X)

    def test_names_of_the_state_are_apart(self) -> None:
        named = counting()
        assert [info.name for info in named.inputs] == ["x"]
        assert [info.name for info in named.outputs] == ["y"]

    async def test_the_prepared_model_names_it(self, prepared: PreparedModel) -> None:
        assert [info.name for info in prepared.states] == ["total", "steps"]
        with pytest.raises(asyncnn.InvalidArgumentError, match="unknown inputs: total"):
            await prepared.run({"x": X, "total": X})


class TestSteps:
    @pytest.mark.parametrize("path", PATHS)
    async def test_a_thousand_equal_the_formula(
        self, prepared: PreparedModel, path: Any
    ) -> None:
        total = np.zeros(4, np.float32)
        rng = np.random.default_rng(5)
        async with prepared.session(path=path) as session:
            for _ in range(1000):
                x = rng.integers(-100, 100, 4).astype(np.float32)
                total += x
                outputs = await session.run(x)
                np.testing.assert_array_equal(outputs["y"], 2 * total)
            assert session.is_managed
            state = await session.state()
            np.testing.assert_array_equal(state["total"], total)
            assert state["steps"] == [FIRST + 1000]

    async def test_paths_take_turns(self, prepared: PreparedModel) -> None:
        async with prepared.session() as session, session.burst():
            for step in range(40):
                outputs = await session.run(X, path=PATHS[step % 4])  # type: ignore[arg-type]
                np.testing.assert_array_equal(outputs["y"], 2 * (step + 1) * X)

    async def test_outputs_belong_to_the_caller(self, prepared: PreparedModel) -> None:
        async with prepared.session() as session:
            first = await session.run(X, measure=True)
            await session.run(X)
            np.testing.assert_array_equal(first["y"], 2 * X)
            assert first.timing.time_on_device < 10**9

    async def test_follow_one_another_in_the_order_of_the_calls(
        self, prepared: PreparedModel
    ) -> None:
        async with prepared.session() as session:
            runs = [session.run(k * X) for k in range(30)]
            total = 0
            for k, outputs in enumerate(await asyncio.gather(*runs)):
                total += k
                np.testing.assert_array_equal(outputs["y"], 2 * total * X)

    async def test_of_many_sessions_run_beside_each_other(
        self, prepared: PreparedModel
    ) -> None:
        async def steps(k: int) -> None:
            async with prepared.session(path=PATHS[k % 4]) as session:  # type: ignore[arg-type]
                for step in range(20):
                    outputs = await session.run(k * X)
                    np.testing.assert_array_equal(outputs["y"], 2 * (step + 1) * k * X)

        await asyncio.gather(*map(steps, range(12)))

    @pytest.mark.parametrize("path", PATHS)
    async def test_that_fail_have_not_happened(self, opened: Opened, path: Any) -> None:
        model = await opened.device.prepare(picking_sum())
        good, bad = np.arange(4, dtype=np.int32), np.full(4, 9, np.int32)
        async with model.session(path=path) as session:
            for step in range(4):
                with pytest.raises(asyncnn.AsyncnnError):
                    await session.run({"x": X, "index": bad})
                outputs = await session.run({"x": X, "index": good})
                np.testing.assert_array_equal(outputs["z"], (step + 1) * X)
                assert session.steps == step + 1

    async def test_with_wrong_inputs_do_not_happen(
        self, prepared: PreparedModel
    ) -> None:
        async with prepared.session() as session:
            await session.run(X)
            for wrong in (X[:2], {"x": X, "total": X}, X.astype(np.int32)):
                with pytest.raises(asyncnn.InvalidArgumentError):
                    await session.run(wrong)
            for path in ("burst", "telepathic"):
                with pytest.raises(asyncnn.InvalidArgumentError):
                    await session.run(X, path=path)  # type: ignore[arg-type]
            await check(session, 1)

    async def test_many_elements_do_as_well(self, opened: Opened) -> None:
        builder = asyncnn.ModelBuilder()
        size, floats = 50_000, asyncnn.OperandType.TENSOR_FLOAT32
        x, h = builder.input("x", floats, (size,)), builder.state("h", floats, (size,))
        y = builder.temporary(floats, (size,))
        none = builder.scalar(0)
        builder.operation(asyncnn.OperationType.ADD, [x, h, none], y)
        z = builder.temporary(floats, (size,))
        builder.operation(asyncnn.OperationType.ADD, [y, x, none], z)
        builder.output(z, "z")
        builder.next_state(h, y)
        prepared = await opened.device.prepare(builder.build())
        x_ = np.arange(size, dtype=np.float32)
        async with prepared.session() as session:
            for step in range(3):
                outputs = await session.run(x_)
                np.testing.assert_array_equal(outputs["z"], (step + 2) * x_)


class TestState:
    async def test_can_be_saved_and_loaded(
        self, prepared: PreparedModel, tmp_path: Path
    ) -> None:
        file = tmp_path / "state.npz"
        async with prepared.session() as session:
            await session.run(X)
            np.savez(file, **await session.state())
        with np.load(file) as saved:
            async with prepared.session(state=saved) as session:
                np.testing.assert_array_equal((await session.run(X))["y"], 4 * X)
                await session.load_state(saved)
                np.testing.assert_array_equal((await session.run(X))["y"], 4 * X)

    @pytest.mark.parametrize("path", PATHS)
    async def test_can_be_reset(self, prepared: PreparedModel, path: Any) -> None:
        async with prepared.session(path=path) as session:
            for _ in range(3):
                await check(session, 0)
                for step in range(1, 4):
                    outputs = await session.run(X)
                    np.testing.assert_array_equal(outputs["y"], 2 * step * X)
                await check(session, 3)
                await session.reset()

    async def test_is_copied_for_another_session(self, prepared: PreparedModel) -> None:
        async with prepared.session() as session:
            await session.run(X)
            async with session.copy() as other:
                assert other.steps == 1
                await other.run(X)
                await session.run(10 * X)
                np.testing.assert_array_equal((await other.state())["total"], 2 * X)
                np.testing.assert_array_equal((await session.state())["total"], 11 * X)

    async def test_comes_after_the_steps_asked_for_before(
        self, prepared: PreparedModel
    ) -> None:
        async with prepared.session() as session:
            runs = [asyncio.create_task(session.run(X)) for _ in range(5)]
            await asyncio.sleep(0)
            await check(session, 5)
            await asyncio.gather(*runs)

    async def test_that_is_not_the_models_is_refused(
        self, prepared: PreparedModel
    ) -> None:
        right = {"total": X, "steps": np.zeros(1, np.int32)}
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"total": X}, "consists of"),
            ({**right, "more": X}, "consists of"),
            ({**right, "total": X[:2]}, r"float32 \[4\]"),
            ({**right, "steps": np.zeros(1)}, "int32"),
        ]
        for state, reason in wrong:
            with pytest.raises(asyncnn.InvalidArgumentError, match=reason):
                prepared.session(state=state)
        async with prepared.session() as session:
            await session.run(X)
            with pytest.raises(asyncnn.InvalidArgumentError):
                await session.load_state({})
            await check(session, 1)

    def test_checkpoints_are_after_whole_steps(self) -> None:
        async def main() -> None:
            async with asyncnn.open_device() as device:
                prepared = await device.prepare(counting())
                with pytest.raises(asyncnn.InvalidArgumentError, match="checkpoint=0"):
                    prepared.session(checkpoint=0)
                with pytest.raises(asyncnn.InvalidArgumentError, match="no path"):
                    prepared.session(path="slow")  # type: ignore[arg-type]

        asyncio.run(main())

    async def test_stays_in_arrays_where_a_device_has_no_buffers(
        self, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refuse(*_: object) -> tuple[asyncnn.ErrorStatus, None, int]:
            return asyncnn.ErrorStatus.GENERAL_FAILURE, None, 0

        monkeypatch.setattr(opened.device.hal, "allocate", refuse)
        prepared = await opened.device.prepare(counting())
        for path in PATHS:
            async with prepared.session(path=path) as session:  # type: ignore[arg-type]
                assert not session.is_managed
                for step in range(1, 6):
                    outputs = await session.run(X)
                    np.testing.assert_array_equal(outputs["y"], 2 * step * X)
                await check(session, 5)

    async def test_of_a_model_without_any_is_empty(self, opened: Opened) -> None:
        from tests.networks import chain

        prepared = await opened.device.prepare(chain(2, 4))
        async with prepared.session(path="burst") as session:
            np.testing.assert_array_equal((await session.run(X))["z"], X + 2)
            assert await session.state() == {}


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
                run.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await run
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
            gate.close()
            late = asyncio.create_task(session.run(X, timeout=0.05))
            waiting = asyncio.create_task(session.run(X, timeout=0.05))
            await gate.until_reached()
            # It has its deadline although the step before it does not end.
            with pytest.raises(asyncnn.MissedDeadlinePersistentError):
                await waiting
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
