"""Opening by ``async with`` and by ``await``, and what becomes of what is forgotten."""

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.pipeline import Pipeline, Stage
from tests.forks import in_child, in_child_blocking
from tests.mappings import children
from tests.networks import addition
from tests.runtime.stateful import counting
from tests.waits import cancelled, until

X = np.arange(4, dtype=np.float32)

OPENINGS: dict[str, Callable[[], asyncnn.Opening[asyncnn.Device]]] = {
    "open_device": asyncnn.open_device,
    "isolated": lambda: asyncnn.open_device("reference", isolated=True),
    "open_devices": lambda: asyncnn.open_devices("reference", "sample-quant"),
    "connect": asyncnn.connect,
    "supervised": lambda: asyncnn.connect(supervised=True),
}

every_opening = pytest.mark.parametrize(
    "opening", [pytest.param(each, id=name) for name, each in OPENINGS.items()]
)


def threads() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("asyncnn")}


async def works(device: asyncnn.Device) -> bool:
    prepared = await device.prepare(addition(4))
    return bool(np.array_equal((await prepared.run([X, X]))["z"], 2 * X))


class TestDevices:
    @every_opening
    async def test_are_opened_by_await(self, opening: Any) -> None:
        before = children()
        device = await opening()
        assert await works(device)
        await device.aclose()
        with pytest.raises(asyncnn.DeviceUnavailableError, match="closed"):
            await works(device)
        await device.aclose()
        await until(lambda: not threads())
        await until(lambda: children() == before)

    @every_opening
    async def test_may_be_closed_before_the_end_of_their_block(
        self, opening: Any
    ) -> None:
        async with opening() as device:
            await asyncio.gather(device.aclose(), device.aclose())
            with pytest.raises(asyncnn.DeviceUnavailableError, match="closed"):
                await works(device)
        await until(lambda: not threads())

    async def test_are_context_managers_themselves(self) -> None:
        async with await asyncnn.open_device() as device:
            assert await works(device)
        with pytest.raises(asyncnn.DeviceClosedError):
            await works(device)

    @every_opening
    async def test_may_be_closed_by_another_task(self, opening: Any) -> None:
        device = await asyncio.create_task(_awaited(opening()))
        assert await works(device)
        await asyncio.create_task(device.aclose())
        await until(lambda: not threads())

    @every_opening
    @pytest.mark.parametrize("is_block", [True, False])
    async def test_are_closed_on_their_own_loop(
        self, opening: Any, is_block: bool
    ) -> None:
        async with opening() if is_block else await opening() as device:

            async def close() -> None:
                async with asyncio.timeout(20):
                    await device.aclose()

            with pytest.raises(asyncnn.WrongLoopError, match="another thread"):
                await asyncio.to_thread(asyncio.run, close())
            assert await works(device)
        await asyncio.to_thread(asyncio.run, close())

    @every_opening
    async def test_that_are_forgotten_warn_and_leave_nothing(
        self, opening: Any
    ) -> None:
        before, tasks = children(), len(asyncio.all_tasks())
        device = await opening()
        assert await works(device)
        with pytest.warns(ResourceWarning, match="aclose"):  # noqa: PT031
            del device
            gc.collect()
        await until(lambda: not threads() and children() == before)
        await until(lambda: len(asyncio.all_tasks()) == tasks)

    async def test_stay_open_for_what_they_have_prepared(self) -> None:
        device = await asyncnn.open_device()
        prepared = await device.prepare(addition(4))
        del device
        gc.collect()
        assert (await prepared.run([X, X]))["z"][1] == 2
        reusable = prepared.reusable([X, X])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del prepared
            gc.collect()
            await asyncio.sleep(0)
        assert (await reusable.run())["z"][1] == 2
        with pytest.warns(ResourceWarning, match="device"):  # noqa: PT031
            del reusable
            gc.collect()
        await until(lambda: not threads())

    def test_end_with_the_loop_if_nobody_closes_them(self) -> None:
        kept: list[asyncnn.Device] = []

        async def main() -> None:
            kept.append(await asyncnn.open_device())
            assert await works(kept[0])

        asyncio.run(main())
        deadline = time.monotonic() + 10
        while threads() and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not threads()
        with pytest.warns(ResourceWarning):  # noqa: PT031
            kept.clear()
            gc.collect()

    async def test_that_cannot_be_opened_say_why(self) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError, match="no device 'gpu'"):
            await asyncnn.open_device("gpu")
        with pytest.raises(asyncnn.NoDriverError, match=r"no\.sock"):
            await asyncnn.connect("/tmp/no.sock")

    @pytest.mark.parametrize("turns", range(1, 8))
    async def test_whose_opening_is_cancelled_leave_nothing(self, turns: int) -> None:
        before, tasks = children(), len(asyncio.all_tasks())
        task = asyncio.create_task(_awaited(asyncnn.connect()))
        for _ in range(turns):
            await asyncio.sleep(0)
        await cancelled(task)
        await until(lambda: children() == before)
        await until(lambda: len(asyncio.all_tasks()) == tasks)

    async def test_are_opened_once(self) -> None:
        opening = asyncnn.open_device()
        device = await opening
        with pytest.raises(asyncnn.InvalidArgumentError, match="was opened before"):
            await opening
        await device.aclose()


async def _awaited(opening: Awaitable[Any]) -> Any:
    return await opening


class TestSessionsAndBursts:
    async def test_are_opened_by_await(self) -> None:
        async with asyncnn.open_device() as device:
            prepared = await device.prepare(addition(4))
            burst = await prepared.burst()
            assert (await burst.run([X, X]))["z"][1] == 2
            await burst.aclose()
            with pytest.raises(asyncnn.DeviceClosedError):
                await burst.run([X, X])
            model = await device.prepare(counting())
            session = await model.session()
            await session.run(X)
            copy = await session.copy()
            assert copy.steps == 1
            for each in (session, copy):
                await each.aclose()
                with pytest.raises(asyncnn.DeviceClosedError, match="session"):
                    await each.run(X)

    @pytest.mark.parametrize("what", ["burst", "session", "copy"])
    async def test_that_are_forgotten_warn(self, what: str) -> None:
        async with asyncnn.open_device() as device:
            model = await device.prepare(counting())
            session = await model.session(path="burst")
            opened: Any = session if what == "session" else None
            if what != "session":
                maker: Any = model if what == "burst" else session
                opened = await getattr(maker, what)()
            tasks = len(asyncio.all_tasks())
            if what == "session":
                del session
            with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031
                del opened
                gc.collect()
            await until(lambda: len(asyncio.all_tasks()) < tasks)
            if what != "session":
                await session.aclose()

    async def test_that_are_forgotten_in_a_circle_are_closed_in_order(self) -> None:
        told: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, it: told.append(it))
        async with asyncnn.open_device() as device:
            model = await device.prepare(counting())
            tasks = len(asyncio.all_tasks())
            circle: list[Any] = [await model.session()]
            circle.append(circle)
            with pytest.warns(ResourceWarning, match="was not closed"):  # noqa: PT031
                del circle
                gc.collect()
            await until(lambda: len(asyncio.all_tasks()) == tasks)
        assert told == []

    async def test_a_session_that_is_closed_is_not_missed(self) -> None:
        async with asyncnn.open_device() as device:
            session = await (await device.prepare(counting())).session()
            session.close()
            del session
            gc.collect()

    async def test_say_what_to_do_if_they_are_used_unopened(self) -> None:
        async with asyncnn.open_device() as device:
            prepared = await device.prepare(addition(4))
            keeping = await device.prepare(counting())
            for opening in (keeping.session(), prepared.burst()):
                with pytest.raises(asyncnn.InvalidArgumentError, match="async with"):
                    await opening.run([X, X])  # type: ignore[attr-defined]
                assert not hasattr(opening, "run")
            async with keeping.session() as session:
                with pytest.raises(asyncnn.InvalidArgumentError, match="async with"):
                    await session.burst().run(X)  # type: ignore[attr-defined]
                with pytest.raises(asyncnn.InvalidArgumentError, match="for a block"):
                    await session.burst()
                async with session.burst() as same:
                    assert same is session
                await session.run(X)
        with pytest.raises(asyncnn.InvalidArgumentError, match="not open yet"):
            asyncnn.open_device().prepare(addition(4))  # type: ignore[attr-defined]


async def test_a_pipeline_is_opened_by_await() -> None:
    async with asyncnn.open_device() as device:
        unopened = Pipeline(Stage("add", await device.prepare(addition(4))))
        with pytest.raises(RuntimeError, match="async with pipeline"):
            await unopened.put([X, X])
        await unopened.aclose()
        pipeline = await unopened
        await pipeline.put([X, X])
        assert (await anext(pipeline))["z"][1] == 2
        await pipeline.aclose()
        await pipeline.aclose()


Use = Callable[[], Any]


class Everything:
    """One of all that can be opened, and each of its public calls that needs a loop."""

    async def open(self) -> None:
        self.device = device = await asyncnn.open_device()
        self.prepared = prepared = await device.prepare(addition(4))
        self.burst = burst = await prepared.burst()
        keeping = await device.prepare(counting())
        self.session = session = await keeping.session()
        self.buffer = buffer = await device.buffer_for(prepared.input("x"))
        self.pipeline = pipeline = await Pipeline(Stage("add", prepared))
        reusable = prepared.reusable([X, X])
        one = X
        self.uses: dict[str, Use] = {
            "prepare": lambda: device.prepare(addition(4)),
            "statistics": device.statistics,
            "buffer_for": lambda: device.buffer_for(prepared.input("x")),
            "run": lambda: prepared.run([X, X]),
            "run sync": lambda: prepared.run([X, X], path="sync"),
            "run_fenced": lambda: prepared.run_fenced([X, X]),
            "reusable.run": reusable.run,
            "reusable.run_fenced": reusable.run_fenced,
            "opening a burst": prepared.burst,
            "opening a session": keeping.session,
            "burst.run": lambda: burst.run([X, X]),
            "burst.run_in_place": burst.run_in_place,
            "session.run": lambda: session.run(one),
            "session.state": session.state,
            "session.reset": session.reset,
            "session.load_state": session.state,
            "session.copy": session.copy,
            "buffer.write": lambda: buffer.write(X),
            "buffer.read": buffer.read,
            "pipeline.put": lambda: pipeline.put([X, X]),
            "pipeline.put_nowait": lambda: pipeline.put_nowait([X, X]),
            "opening a pipeline": lambda: Pipeline(Stage("add", prepared)),
        }

    async def aclose(self) -> None:
        await self.pipeline.aclose()
        for each in (self.burst, self.session, self.device):
            await each.aclose()

    def outcomes(self) -> dict[str, str]:
        """Return how each use ends on a new event loop."""

        async def outcome(use: Use) -> str:
            try:
                outcome = use()
                if hasattr(outcome, "__await__"):
                    await outcome
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            return "it works"

        async def main() -> dict[str, str]:
            async with asyncio.timeout(10):
                return {name: await outcome(use) for name, use in self.uses.items()}

        return asyncio.run(main())


class TestAnotherLoop:
    async def test_of_another_thread_is_refused_by_every_call(self) -> None:
        everything = Everything()
        await everything.open()
        found = await asyncio.to_thread(everything.outcomes)
        for name, outcome in found.items():
            assert outcome.startswith("WrongLoopError: the "), name
            assert "belongs to the event loop of another thread (" in outcome, name
        assert await works(everything.device)
        await everything.aclose()

    def test_of_this_thread_is_refused_by_every_call(self) -> None:
        everything = Everything()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(everything.open())
        for name, outcome in everything.outcomes().items():
            assert "belongs to another event loop than the one that runs" in outcome, (
                name
            )
        loop.run_until_complete(everything.aclose())
        loop.close()

    async def test_in_a_forked_child_is_refused_by_every_call(self) -> None:
        everything = Everything()
        await everything.open()

        def child() -> dict[str, str]:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = everything.outcomes()
                asyncio.run(everything.aclose())
                everything.__dict__.clear()
                gc.collect()
            return found

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found = await in_child(child)
        for name, outcome in found.items():
            assert outcome.startswith("ForkedError: "), (name, outcome)
            assert "this is a fork of it (open a device in this process" in outcome
        assert await works(everything.device)
        await everything.aclose()

    def test_that_is_none_of_asyncio_is_refused(self) -> None:
        """What trio does first: it sends None to the coroutine."""
        for opening in (asyncnn.open_device(), asyncnn.connect()):
            with pytest.raises(asyncnn.WrongLoopError, match=r"asyncio\.run\(main"):
                _awaited(opening).send(None)
            with pytest.raises(asyncnn.WrongLoopError, match="needs the event loop"):
                opening.__aenter__().send(None)
        for begun in (
            asyncnn.named_array("trio", 4).__aenter__(),
            asyncnn.open_named_array("trio"),
            asyncnn.memory.FrameQueue("trio", 4).__aenter__(),
        ):
            with pytest.raises(asyncnn.WrongLoopError, match="needs the event loop"):
                begun.send(None)

    def test_none_at_all_is_refused(self) -> None:
        everything = Everything()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(everything.open())
        for name in ("run_fenced", "pipeline.put_nowait"):
            with pytest.raises(asyncnn.WrongLoopError, match="does not run here"):
                everything.uses[name]()
        loop.run_until_complete(everything.aclose())
        loop.close()


def test_a_child_opens_its_own() -> None:
    async def main() -> bool:
        async with asyncnn.open_device() as device:
            return await works(device)

    assert in_child_blocking(lambda: asyncio.run(main()))
