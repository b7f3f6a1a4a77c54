"""Runs of one model that wait, as a batch: what each gets, and who leaves or fails."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import asyncnn
from asyncnn.devices import DeviceSettings, batch_axis, batching
from asyncnn.engine import Program
from asyncnn.hal.errors import (
    AsyncnnError,
    DeviceClosedError,
    GeneralFailureError,
    MissedDeadlineError,
    MissedDeadlinePersistentError,
)
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    ErrorStatus,
    FusedActivationFunc,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.pacing import Pause, Steps
from asyncnn.qos import Client, acting_for
from asyncnn.qos.run_queue import RunQueue
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.opening_devices import connect, open_device
from asyncnn.runtime.prepared import PreparedModel
from asyncnn.service import Server
from tests.held import Held
from tests.networks import F32, chain, counting_up
from tests.runtime.tflite.files import Op, T, write
from tests.waits import cancelled, until

I32 = OperandType.TENSOR_INT32
X = [np.full((1, 4), number, np.float32) for number in range(11)]


class Opened(NamedTuple):
    """A device with one lane, two clients of it, and what holds that lane.

    ``sizes`` are those of the batches that there were.
    """

    device: Device
    clients: Sequence[Device]
    held: Held
    sizes: list[int]


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have batches pay, whatever the machine does; return the sizes that there are."""
    found: list[int] = []
    batch = batching.Batching.batch

    def noted(self: batching.Batching, members: Sequence[Any]) -> batching.Batch:
        found.append(len(members))
        return batch(self, members)

    def timing(self: batching.BatchPreparations, program: Program) -> Steps[int]:
        yield
        return 1000

    monkeypatch.setattr(batching.BatchPreparations, "_timing", timing)
    monkeypatch.setattr(batching.Batching, "observe", lambda *_: None)
    monkeypatch.setattr(batching.Batching, "batch", noted)
    return found


@asynccontextmanager
async def opened(
    name: str, transport: str, folder: Path, sizes: list[int], **settings: Any
) -> AsyncIterator[Opened]:
    if name == "accelerated":
        pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
    held = Held()
    given = {"lanes": 1, "inline_below_us": 0, "batching": 8, **settings}
    chosen = DeviceSettings(extensions=(held.extension,), **given)
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        local = await stack.enter_async_context(open_device(name, settings=chosen))
        clients = [local, local]
        if transport == "remote":
            path = folder / "driver.sock"
            await stack.enter_async_context(Server(local.hal, path))
            clients = [await stack.enter_async_context(connect(path)) for _ in range(2)]
        yield Opened(local, clients, held, sizes)


@asynccontextmanager
async def holding(opened: Opened) -> AsyncIterator[Callable[[], None]]:
    """Keep the lane busy until what is returned is called, or the block ends."""
    held, device = opened.held, opened.device
    holder = await device.prepare(held.model(4))
    with held.holding():
        running = asyncio.create_task(holder.run([X[0][0]]))
        await asyncio.to_thread(held.wait_reached)

        def let_go() -> None:
            gate, held._gate = held._gate, None
            assert gate is not None
            gate.set()

        yield let_go
    await running


async def waiting(opened: Opened, count: int) -> None:
    executions = opened.device.hal.statistics  # type: ignore[attr-defined]
    await until(lambda: executions().executions.queued == count)


async def start(
    models: Sequence[PreparedModel], inputs: Sequence[Array], **options: Any
) -> list[asyncio.Task[asyncnn.Outputs]]:
    """Run each input on the next of some models, of this or that client."""
    runs = [
        models[number % len(models)].run([x], **options)
        for number, x in enumerate(inputs)
    ]
    return list(map(asyncio.create_task, runs))


@pytest.mark.parametrize("transport", ["inprocess", "remote"])
@pytest.mark.parametrize("name", ["reference", "accelerated"])
async def test_what_waits_is_computed_together_and_gets_its_own(
    name: str, transport: str, tmp_path: Path, sizes: list[int]
) -> None:
    async with opened(name, transport, tmp_path, sizes) as one:
        models = [await device.prepare(chain(3, 1, 4)) for device in one.clients]
        # An idle lane takes a run at once, alone.
        await asyncio.gather(*await start(models, X[:1]))
        assert not sizes
        async with holding(one) as let_go:
            runs = await start(models, X, measure=True)
            await waiting(one, len(X))
            let_go()
            for x, outputs in zip(X, await asyncio.gather(*runs), strict=True):
                np.testing.assert_array_equal(outputs["z"], x + 3)
                assert outputs.timing is not None
        assert sizes == [8, 2]
        statistics = await one.device.statistics()
        assert statistics.executions.done[ErrorStatus.NONE] == len(X) + 2
        assert [m.batching for m in statistics.models[:2]] == ["up to 8, bit-equal"] * 2


async def test_who_leaves_costs_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], tmp_path: Path
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()
    advance, members = batching.Batch.advance, list[Any]()

    def held_up(self: batching.Batch, pause: Pause) -> bool:
        members.extend(self.members)
        begun.set()
        assert may_go_on.wait(20)
        return advance(self, pause)

    monkeypatch.setattr(batching.Batch, "advance", held_up)
    async with opened("reference", "inprocess", tmp_path, sizes) as one:
        model = await one.device.prepare(chain(3, 1, 4))
        spaces = [np.full((1, 4), 7, np.float32) for _ in range(6)]

        def run(number: int) -> Any:
            running = model.run([X[number]], out=[spaces[number]])
            return asyncio.create_task(running)

        async with holding(one) as let_go:
            runs = [*map(run, range(6))]
            await waiting(one, 6)
            await cancelled(runs.pop())  # before it begins
            let_go()
            await asyncio.to_thread(begun.wait)
            assert sizes == [4]
            await cancelled(runs[1])
            executions = one.device.hal._parts().executions  # type: ignore[attr-defined]
            executions.cancel(members[0], ErrorStatus.MISSED_DEADLINE_TRANSIENT)
            with pytest.raises(MissedDeadlineError):
                await runs[0]
            may_go_on.set()
            await asyncio.gather(*runs[2:])
        for number, space in enumerate(spaces):
            is_done = number in (2, 3, 4)
            expected = X[number] + 3 if is_done else np.full((1, 4), 7)
            np.testing.assert_array_equal(space, expected)
        counts = (await one.device.statistics()).executions
        assert (counts.queued, counts.running) == (0, 0)


async def test_a_batch_stops_that_nobody_waits_for(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], tmp_path: Path
) -> None:
    begun, stopped = threading.Event(), threading.Event()

    def endless(self: batching.Batch, pause: Pause) -> bool:
        begun.set()
        while not self._must_end:
            time.sleep(0.001)
        stopped.set()
        self._check()
        return True

    monkeypatch.setattr(batching.Batch, "advance", endless)
    async with opened("reference", "inprocess", tmp_path, sizes) as one:
        model = await one.device.prepare(chain(3, 1, 4))
        async with holding(one) as let_go:
            runs = await start([model], X[:2])
            await waiting(one, 2)
            let_go()
            await asyncio.to_thread(begun.wait)
            await cancelled(runs[0])
            assert not stopped.is_set()
            await cancelled(runs[1])
            assert await asyncio.to_thread(stopped.wait, 20)


async def test_a_batch_that_fails_is_run_one_by_one(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], tmp_path: Path
) -> None:
    def failing(self: batching.Batch, pause: Pause) -> bool:
        raise RuntimeError("the batch")

    monkeypatch.setattr(batching.Batch, "advance", failing)
    async with opened("reference", "inprocess", tmp_path, sizes) as one:
        model = await one.device.prepare(chain(3, 1, 4))
        async with holding(one) as let_go:
            runs = await start([model], X[:5], timeout=30)
            await waiting(one, 5)
            let_go()
            for x, outputs in zip(X, await asyncio.gather(*runs), strict=False):
                np.testing.assert_array_equal(outputs["z"], x + 3)
        assert sizes == [4]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (MemoryError(), ErrorStatus.RESOURCE_EXHAUSTED_TRANSIENT),
        (RuntimeError("the lanes"), ErrorStatus.GENERAL_FAILURE),
        (
            MissedDeadlinePersistentError("too late"),
            ErrorStatus.MISSED_DEADLINE_TRANSIENT,
        ),
    ],
)
async def test_who_cannot_run_alone_either_is_told_and_counted_once(
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    tmp_path: Path,
    refusal: Exception,
    status: ErrorStatus,
) -> None:
    add = RunQueue.add

    def adding(self: RunQueue[Any], job: Any, *rest: Any, **options: Any) -> Any:
        if job.is_alone and job is not spared[0]:
            raise refusal
        return add(self, job, *rest, **options)

    def failing(self: batching.Batch, pause: Pause) -> bool:
        spared.append(self.members[3])
        raise RuntimeError("the batch")

    spared: list[Any] = []
    monkeypatch.setattr(batching.Batch, "advance", failing)
    monkeypatch.setattr(RunQueue, "add", adding)
    async with opened("reference", "inprocess", tmp_path, sizes) as one:
        model = await one.device.prepare(chain(3, 1, 4))
        async with holding(one) as let_go:
            runs = await start([model], X[:4])
            await waiting(one, 4)
            let_go()
            for each in runs[:3]:
                with pytest.raises(AsyncnnError) as caught:
                    await each
                assert caught.value.status is status
            np.testing.assert_array_equal((await runs[3])["z"], X[3] + 3)
        counts = (await one.device.statistics()).executions
        assert (counts.queued, counts.running) == (0, 0)
        assert {key: n for key, n in counts.done.items() if n} == {
            status: 3,
            ErrorStatus.NONE: 2,
        }


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_members_hear_that_the_device_is_closed(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], tmp_path: Path, is_stuck: bool
) -> None:
    begun, may_go_on = threading.Event(), threading.Event()

    def held_up(self: batching.Batch, pause: Pause) -> bool:
        begun.set()
        while not may_go_on.wait(0.001) and (is_stuck or not self._must_end):
            pass
        self._check()
        return True

    monkeypatch.setattr(batching.Batch, "advance", held_up)
    async with opened(
        "reference", "inprocess", tmp_path, sizes, stuck_after_s=0.05 * is_stuck
    ) as one:
        model = await one.device.prepare(chain(3, 1, 4))
        async with holding(one) as let_go:
            runs = await start([model], X[:4])
            await waiting(one, 4)
            let_go()
            await asyncio.to_thread(begun.wait)
    for each in runs:
        with pytest.raises(DeviceClosedError):
            await each
    may_go_on.set()


async def test_clients_have_what_is_theirs(sizes: list[int], tmp_path: Path) -> None:
    async with opened("reference", "inprocess", tmp_path, sizes) as one:
        model = await one.device.prepare(chain(3, 1, 4))
        clients = [Client("one"), Client("two")]
        async with holding(one) as let_go:
            runs = []
            for number, client in enumerate([*clients, clients[0], clients[0]]):
                with acting_for(client):
                    runs += await start([model], X[number : number + 1])
            await waiting(one, 4)
            let_go()
            await asyncio.gather(*runs)
        assert sizes == [4]
        counted = {
            each.name: each.executions.done[ErrorStatus.NONE]
            for each in (await one.device.statistics()).clients
        }
        assert (counted["one"], counted["two"]) == (3, 1)


def built(
    type_: OperationType,
    shape: tuple[int, ...],
    made: tuple[int, ...],
    *arguments: Any,
    inputs: int = 1,
) -> NamedModel:
    """Return a model of one operation; arrays are constants, other things scalars."""
    builder = ModelBuilder()
    given = [builder.input(f"x{n}", F32, shape) for n in range(inputs)]
    given += [
        builder.constant(np.asarray(each, np.int32))
        if isinstance(each, list)
        else builder.scalar(each)
        for each in arguments
    ]
    builder.output(builder.operation(type_, given, Operand(F32, made)), "y")
    return builder.build()


OP = OperationType
NONE = FusedActivationFunc.NONE
VERDICTS = {
    "reshape": (built(OP.RESHAPE, (1, 2, 3), (1, 6), [1, 6]), "up to 8"),
    "reshape to open": (built(OP.RESHAPE, (2, 6), (3, 4), [-1, 4]), "up to 8"),
    "softmax": (built(OP.SOFTMAX, (1, 5), (1, 5), 1.0), "up to 8"),
    "mean": (built(OP.MEAN, (1, 3, 5), (1, 5), [1], 0), "up to 8"),
    "transpose": (built(OP.TRANSPOSE, (2, 3, 5), (2, 5, 3), [0, 2, 1]), "up to 8"),
    "pad": (built(OP.PAD, (1, 3), (1, 5), [[0, 0], [1, 1]]), "up to 8"),
    "joined": (built(OP.CONCATENATION, (1, 3), (1, 6), 1, inputs=2), "up to 8"),
    "softmax over the batch": (
        built(OP.SOFTMAX, (3, 5), (3, 5), 1.0, 0),
        "no: SOFTMAX may depend on the batch",
    ),
    "softmax of one axis": (
        built(OP.SOFTMAX, (5,), (5,), 1.0),
        "no: SOFTMAX may depend on the batch",
    ),
    "mean over the batch": (built(OP.MEAN, (3, 5), (1, 5), [-2], 1), "no: MEAN may"),
    "transposed batch": (
        built(OP.TRANSPOSE, (3, 5), (5, 3), [1, 0]),
        "no: TRANSPOSE may",
    ),
    "padded batch": (built(OP.PAD, (1, 3), (2, 3), [[1, 0], [0, 0]]), "no: PAD may"),
    "joined batches": (
        built(OP.CONCATENATION, (2, 3), (4, 3), 0, inputs=2),
        "no: CONCATENATION may",
    ),
    "tiles": (built(OP.TILE, (1, 3), (1, 6), [1, 2]), "no: TILE may"),
    "large": (chain(1, 1, 40_000), "no: its tensors take over 65536 bytes"),
    "open": (chain(1, 0, 4), "no: its shapes or its steps are not always the same"),
    "loop": (counting_up(), "no: its shapes or its steps are not always the same"),
}


@pytest.mark.parametrize("verdict", VERDICTS)
async def test_models_are_batched_only_where_members_are_told_apart(
    verdict: str, sizes: list[int]
) -> None:
    model, words = VERDICTS[verdict]
    settings = DeviceSettings(batching=8)
    async with open_device("reference", settings=settings) as device:
        prepared = await device.prepare(model)
        (said,) = (await device.statistics()).models
        assert said.batching.startswith(words)
        assert (await asyncnn.explain(device, model)).batching == said.batching
        del prepared


X_OF_FILES, Y_OF_FILES = T(np.float32, [1, 4]), T(np.float32, [1, 4])


@pytest.mark.parametrize(
    ("name", "constant", "is_apt"),
    [
        ("REDUCE_MAX", [1], True),
        ("REDUCE_MAX", [-2], False),
        ("RESHAPE", [-1, 4], True),
        ("RESHAPE", [1, -1], False),
        ("TRANSPOSE", [0, 1], True),
        ("TRANSPOSE", [1, 0], False),
        ("CONCATENATION", [-1], True),
        ("CONCATENATION", [0], False),
        ("CONCATENATION", [-2], False),
        ("TOPK_V2", [1], False),
    ],
)
def test_operators_of_files_leave_the_first_axis_alone(
    name: str, constant: list[int], is_apt: bool
) -> None:
    """What two requests mix may not show for most values: all below a bound, say."""
    inputs = [X_OF_FILES, T.constant(constant, np.int32)]
    operator = Op(name, inputs, [Y_OF_FILES])
    if name == "CONCATENATION":
        options = "ConcatenationOptions", {"Axis": constant[0]}
        operator = Op(name, [X_OF_FILES] * 2, [Y_OF_FILES], *options)
    data = write([operator], [X_OF_FILES], [Y_OF_FILES])
    with nullcontext() if is_apt else pytest.raises(GeneralFailureError, match=name):
        batch_axis._check_file(data)


async def test_outputs_that_depend_on_the_batch_are_noticed(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    """As with quantisation by the range of all members: shapes say nothing of it."""
    model = built(OP.SOFTMAX, (1, 5), (1, 5), 1.0)
    monkeypatch.setattr("asyncnn.devices.batch_axis._Stacking._check", lambda *_: None)
    mixing = built(OP.SOFTMAX, (2, 5), (2, 5), 1.0, 0)
    settings = DeviceSettings(batching=2)
    async with open_device("reference", settings=settings) as device:
        kept = [await device.prepare(each) for each in (model, mixing)]
        said = [each.batching for each in (await device.statistics()).models]
        assert said[0].startswith("up to 2")
        assert said[1] == "no: outputs of a batch differ from those of single runs"
        del kept
