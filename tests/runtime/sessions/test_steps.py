"""Sessions: state from step to step, on every path, in process and to a driver."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.memory.managed import Storage
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.runtime.session import Session
from tests.networks import chain
from tests.runtime.sessions.conftest import PATHS, Opened, check
from tests.runtime.stateful import FIRST, X, counting, picking_sum


class TestPlainRuns:
    @pytest.fixture
    async def prepared(self, opened: Opened) -> PreparedModel:
        return await opened.device.prepare(counting())

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
        with pytest.raises(asyncnn.InvalidArgumentError, match="unknown input: total"):
            await prepared.run({"x": X, "total": X})


class TestSteps:
    @pytest.mark.unrecorded
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
            assert first.timing.on_device_ns < 10**12

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

    @pytest.mark.parametrize("path", ["async", "burst"])
    async def test_find_their_arrays_made(
        self, opened: Opened, path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepared = await opened.device.prepare(counting())
        made: list[object] = []
        reserve = Storage.reserve
        monkeypatch.setattr(
            Storage, "reserve", lambda *of: made.append(of) or reserve(*of)
        )

        async def step(session: Session) -> None:
            taken = session.steps + 1
            y = (await session.run(X))["y"]
            np.testing.assert_array_equal(y, 2 * taken * X)

        async with AsyncExitStack() as stack:
            open_one = partial(prepared.session, path=path)
            sessions = [await stack.enter_async_context(open_one()) for _ in range(5)]
            for _ in range(8):  # a client binds what it has seen twice
                for session in sessions:
                    await step(session)
            assert made
            made.clear()
            for _ in range(10):
                for session in sessions:
                    await step(session)
            assert not made

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
                with pytest.raises(asyncnn.InvalidArgumentError, match="fenced, burst"):
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

    async def test_a_model_without_any_has_no_sessions(self, opened: Opened) -> None:
        prepared = await opened.device.prepare(chain(2, 4))
        with pytest.raises(asyncnn.InvalidArgumentError, match="no state") as found:
            prepared.session(path="burst")
        assert "load(path, states={'x': 'z'})" in found.value.hint
