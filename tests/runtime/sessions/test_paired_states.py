"""State that is an ordinary input and output of a file, as ONNX files have it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import asyncnn
from asyncnn.hal.types import Operand, OperandType, OperationType
from asyncnn.pipeline import Pipeline, Stage
from asyncnn.runtime.states import pairs_by_name
from tests.runtime.onnx.files import written
from tests.runtime.tflite.files import Op, Signature, T, write
from tests.service.restarting import BRIEFLY, running

node = helper.make_node
F32 = OperandType.TENSOR_FLOAT32
X = np.arange(8, dtype=np.float32).reshape(1, 8)


def detector(batch: int | str = "batch") -> bytes:
    """Return an ONNX file like those that detect voices: half a state stays.

    Its state is neither the last of its inputs nor of its outputs.
    """
    proto = written(
        f"float[2, {batch}, 8] state, float[{batch}, 8] input, float[{batch}, 1] gain"
        f" => float[2, {batch}, 8] stateN, float[{batch}, 1] output",
        "less = Mul(state, half); row = Unsqueeze(input, first);"
        "stateN = Add(less, row); louder = Mul(input, gain);"
        "output = ReduceMean<axes=[1], keepdims=1>(louder)",
        {"half": np.array([0.5], np.float32), "first": np.array([0], np.int64)},
    )
    content: bytes = proto.SerializeToString()
    return content


def step(x: Any, state: Any) -> Any:
    """Return the state after a step."""
    return state / 2 + x[None]


def feed(x: Any) -> dict[str, Any]:
    """Return what a step is given."""
    return {"input": x, "gain": np.full((len(x), 1), 2, np.float32)}


@pytest.fixture(params=["reference", "accelerated", "driver"])
async def device(request: pytest.FixtureRequest) -> AsyncIterator[asyncnn.Device]:
    if request.param == "driver":
        async with asyncnn.connect(supervised=True) as remote:
            yield remote
    else:
        async with asyncnn.open_device(request.param) as local:
            yield local


class TestSessions:
    @pytest.mark.parametrize("path", ["async", "sync", "fenced", "burst"])
    async def test_keep_what_a_file_is_given_and_returns(
        self, device: asyncnn.Device, path: Any
    ) -> None:
        # A fenced execution has outputs of fixed shapes.
        content = detector(1) if path == "fenced" else detector()
        prepared = await device.prepare(asyncnn.load(content))
        state = np.zeros((2, 1, 8), np.float32)
        async with prepared.session(path=path) as session:
            assert [info.name for info in session.inputs] == ["input", "gain"]
            assert [info.name for info in session.outputs] == ["output"]
            for number in range(5):
                state = step(X + number, state)
                outputs = await session.run(feed(X + number))
                assert list(outputs) == ["output"]
                np.testing.assert_allclose(outputs[0], [[2 * (3.5 + number)]])
            kept = await session.state()
            np.testing.assert_allclose(kept["state"], state)
            assert repr(session) == "<Session state, step 5>"

    async def test_take_the_length_of_an_open_axis_from_the_state(
        self, device: asyncnn.Device
    ) -> None:
        prepared = await device.prepare(asyncnn.load(detector()))
        x = np.concatenate([X, -X, X])
        zeros = np.zeros((2, 3, 8), np.float32)
        async with prepared.session(state={"state": zeros}) as session:
            await session.run(feed(x))
            with pytest.raises(
                asyncnn.InvalidArgumentError, match="batch is 1 in a step, but 3 in"
            ):
                await session.run(feed(X))
            await session.run(feed(x))
            kept = (await session.state())["state"]
            np.testing.assert_allclose(kept, step(x, step(x, zeros)))
            assert session.steps == 2
            await session.load_state({"state": zeros[:, :2]})
            await session.run(feed(x[:2]))
            kept = (await session.state())["state"]
            np.testing.assert_allclose(kept, step(x[:2], zeros[:, :2]))
            await session.reset()
            await session.run(feed(X))
            np.testing.assert_allclose((await session.state())["state"][0], X)

    async def test_begin_with_copies_of_others(self, device: asyncnn.Device) -> None:
        prepared = await device.prepare(asyncnn.load(detector(1)))
        async with prepared.session() as session:
            await session.run(feed(X))
            async with session.copy() as other:
                await session.run(feed(X))
                kept = (await other.state())["state"]
                np.testing.assert_allclose(kept[0], X)

    async def test_many_keep_to_themselves(self, device: asyncnn.Device) -> None:
        prepared = await device.prepare(asyncnn.load(detector(1)))

        async def walk(number: int) -> None:
            state = np.zeros((2, 1, 8), np.float32)
            async with prepared.session() as session:
                for _ in range(4):
                    state = step(X * number, state)
                    await session.run(feed(X * number))
                np.testing.assert_allclose((await session.state())["state"], state)

        await asyncio.gather(*map(walk, range(8)))

    async def test_go_on_in_the_next_driver_from_a_checkpoint(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "driver.sock"
        async with (
            running(path) as driver,
            asyncnn.connect(path, supervised=BRIEFLY) as device,
        ):
            prepared = await device.prepare(asyncnn.load(detector()))
            async with (
                prepared.session(checkpoint=1) as saved,
                prepared.session() as other,
            ):
                await saved.run(feed(X))
                await other.run(feed(X))
                await driver.restart(device)
                await prepared.run([np.zeros((2, 1, 8), np.float32), *feed(X).values()])
                with pytest.raises(asyncnn.DriverDiedError, match="reset the session"):
                    await other.run(feed(X))
                await saved.run(feed(X))
                kept = (await saved.state())["state"]
                np.testing.assert_allclose(kept[0], 1.5 * X)
                await other.reset()
                await other.run(feed(X))
                kept = (await other.state())["state"]
                np.testing.assert_allclose(kept[0], X)


class TestRuns:
    async def test_take_and_return_the_state_as_before(
        self, device: asyncnn.Device
    ) -> None:
        named = asyncnn.load(detector())
        assert [info.name for info in named.inputs] == ["state", "input", "gain"]
        assert [info.name for info in named.outputs] == ["stateN", "output"]
        prepared = await device.prepare(named)
        assert [info.name for info in prepared.states] == ["state"]
        state = np.ones((2, 1, 8), np.float32)
        by_name = await prepared.run({"state": state, **feed(X)})
        in_order = await prepared.run([state, *feed(X).values()])
        for outputs in (by_name, in_order):
            assert list(outputs) == ["stateN", "output"]
            np.testing.assert_allclose(outputs["stateN"], step(X, state))
        with pytest.raises(asyncnn.InvalidArgumentError, match="missing input: state"):
            await prepared.run(feed(X))

    async def test_a_pipeline_keeps_it(self, device: asyncnn.Device) -> None:
        prepared = await device.prepare(asyncnn.load(detector(1)))
        async with Pipeline(Stage("vad", prepared, keeps_state=True)) as pipeline:
            for _ in range(3):
                await pipeline.put(feed(X))
            pipeline.finish()
            results = [np.array(frame["output"]) async for frame in pipeline]
        assert len(results) == 3
        states = Stage("vad", prepared, keeps_state=True).opened().state
        assert states == {"stateN": "state"}


class TestFiles:
    def test_are_told_which_inputs_are_state(self) -> None:
        odd = written(
            "float[1, 4] a, float[1, 4] b => float[1, 4] y, float[1, 4] z",
            "y = Add(a, b); z = Neg(a)",
        ).SerializeToString()
        assert asyncnn.load(odd).pairs == ()
        named = asyncnn.load(odd, states={"a": "z"})
        assert named.pairs == (("a", "z"),)
        assert [state.info.name for state in named.kept] == ["a"]

    def test_keep_nothing_if_they_are_told_so(self) -> None:
        assert asyncnn.load(detector()).pairs == (("state", "stateN"),)
        assert asyncnn.load(detector(), states={}).pairs == ()

    @pytest.mark.parametrize(
        ("states", "message"),
        [
            ({"stat": "stateN"}, "no input 'stat' (known: state, input, gain)"),
            ({"state": "s"}, "no output 's' (known: stateN, output)"),
            (
                {"input": "stateN"},
                "state input is input: TENSOR_FLOAT32 [batch, 8] bef",
            ),
            ({"state": "stateN", 0: "stateN"}, "two states are one input or output"),
        ],
    )
    def test_are_told_what_is_wrong(
        self, states: Mapping[Any, str], message: str
    ) -> None:
        with pytest.raises(asyncnn.InvalidArgumentError) as found:
            asyncnn.load(detector(), states=states)
        assert message in str(found.value)

    async def test_a_container_has_what_was_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "vad.asyncnn"
        for states in ({"state": "stateN"}, {}):
            asyncnn.save(asyncnn.load(detector(), states=states), path)
            assert dict(asyncnn.load(path).pairs) == states
        assert path.read_bytes()[8] == 1  # what older readers know
        assert dict(asyncnn.load(path, states={"state": "stateN"}).pairs)
        asyncnn.save(asyncnn.load(detector(1)), path)
        async with asyncnn.open_device("reference") as device:
            prepared = await device.prepare(asyncnn.load(path))
            async with prepared.session() as session:
                await session.run(feed(X))
                np.testing.assert_allclose((await session.state())["state"][0], X)

    async def test_of_tflite_are_told_as_well(self) -> None:
        x, h = T(np.float32, (1, 4), name="x:0"), T(np.float32, (1, 4), name="h:0")
        y, after = T(np.float32, (1, 4), name="y:0"), T(np.float32, (1, 4), name="n:0")
        content = write(
            [Op("ADD", [x, h], [after]), Op("ABS", [after], [y])],
            [x, h],
            [after, y],
            signatures=[Signature("step", {"x": x, "h": h}, {"hn": after, "y": y})],
        )
        assert asyncnn.load(content).pairs == ()
        named = asyncnn.load(content, states={"h:0": "n:0"})
        async with asyncnn.open_device("reference") as device:
            prepared = await device.prepare(named)
            async with prepared.signature("step").session() as session:
                for number in (1, 2):
                    outputs = await session.run([np.full((1, 4), -1, np.float32)])
                    assert list(outputs) == ["y"]
                    np.testing.assert_array_equal(outputs["y"], np.full((1, 4), number))


def with_borders(
    inputs: Sequence[tuple[str, tuple[int, ...]]],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
) -> asyncnn.NamedModel:
    """Return a model with inputs and outputs of these names and shapes."""
    builder = asyncnn.ModelBuilder()
    for name, shape in inputs:
        builder.input(name, F32, shape)
    one = builder.constant(np.ones(1, np.float32))
    for name, shape in outputs:
        made = builder.operation(
            OperationType.ADD, [one, one, builder.scalar(0)], Operand(F32, shape)
        )
        builder.output(made, name)
    return builder.build()


def paired(before: Sequence[str], after: Sequence[str]) -> dict[str, str]:
    """Return what is paired of a model with these, all of one shape, and others."""
    state = (2, 4)
    return pairs_by_name(
        with_borders(
            [("x", (1, 3)), *((name, state) for name in before)],
            [("y", (1, 3)), *((name, state) for name in after)],
        )
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["state"], ["stateN"]),
        (["h", "c"], ["hn", "cn"]),
        (["h_0", "c_0"], ["h_n", "c_n"]),
        (["h0", "c0"], ["hn", "cn"]),
        (["hx", "cx"], ["hx_out", "cx_out"]),
        (["h0", "c0"], ["next_h0", "next_c0"]),
        (["x1"], ["new_x1"]),
        (["past_0", "past_1"], ["present_0", "present_1"]),
        (["past.0.key"], ["present.0.key"]),
        (["cached_len_0", "cached_len_1"], ["new_cached_len_0", "new_cached_len_1"]),
        (["in_cache0", "in_cache1"], ["out_cache0", "out_cache1"]),
        (["conv_cache", "tra_cache"], ["conv_cache_out", "tra_cache_out"]),
        (["state_in"], ["state_out"]),
        (["prevState"], ["state"]),
        (["prev_mask"], ["next_mask"]),
        (["lstmHiddenInput"], ["lstmHiddenOutput"]),
        (["rnn/state:0"], ["rnn/state_out:0"]),
    ],
)
def test_names_that_leave_no_doubt_are_paired(
    before: list[str], after: list[str]
) -> None:
    assert paired(before, after) == dict(zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["audio"], ["audio_out"]),  # what goes in and comes out is no state
        (["image_in"], ["image_out"]),
        (["a"], ["b"]),
        (["state"], ["probabilities"]),
        (["mask"], ["masks"]),
        (["h"], ["h1"]),
        (["x1"], ["x2"]),
        (["state"], ["new_state", "state_out"]),  # one of two
        (["state", "prev_state"], ["new_state"]),
        (["n"], ["n"]),
        (["new"], ["out"]),
    ],
)
def test_others_are_not(before: list[str], after: list[str]) -> None:
    assert paired(before, after) == {}


def test_shapes_have_to_be_the_same() -> None:
    named = with_borders([("x", (1,)), ("h", (2, 4))], [("y", (1,)), ("hn", (2, 5))])
    assert pairs_by_name(named) == {}


def test_a_model_has_more_than_state() -> None:
    named = with_borders([("h", (2, 4))], [("hn", (2, 4)), ("y", (1,))])
    assert pairs_by_name(named) == {}


def test_a_cache_that_grows_is_none() -> None:
    growing = written(
        "float[1, 1, 4] x, float[1, past, 4] past_cache"
        " => float[1, total, 4] present_cache, float[1, 1, 4] y",
        "present_cache = Concat<axis=1>(past_cache, x); y = Neg(x)",
    )
    named = asyncnn.load(growing.SerializeToString())
    assert named.inputs[1].dimensions == named.outputs[0].dimensions == (1, 0, 4)
    assert named.pairs == ()
