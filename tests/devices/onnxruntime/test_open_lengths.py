"""Graphs with open lengths run on one session, planned once for each length."""

import asyncio
import gc
from collections.abc import Callable
from itertools import count, cycle
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from asyncnn import Device, load, logs, open_device
from asyncnn.devices import DeviceSettings, executable
from asyncnn.devices.compiled_graph import GraphRun
from asyncnn.devices.onnxruntime.sessions import RegionSession
from asyncnn.engine import program
from asyncnn.engine.program import MAX_PLANS, MAX_SMALL_PLANS, RUNS_WORTH_A_PLAN
from asyncnn.execution import IInProcess
from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.types import DEFAULT_OPTIONS, ExecutionPreference
from tests.devices.onnxruntime.graphs import (
    F32,
    FLOAT,
    INT64,
    graph,
    port,
    region,
    sessions,
    tiling,
)
from tests.mappings import resident_bytes


def summing() -> bytes:
    """Return a graph whose second output is without axes."""
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["sum"], keepdims=0),
    ]
    ends = [("y", FLOAT, ["n", 3]), ("sum", FLOAT, [])]
    return graph(nodes, [("x", FLOAT, ["n", 3])], ends)


@pytest.mark.parametrize("path", ["async", "sync", "burst"])
async def test_open_lengths_are_those_of_each_request(
    device: Device, path: Any
) -> None:
    model = region(summing(), [port(F32, 0, 3)], [port(F32, 0, 3), port(F32, 1)])
    prepared = await device.prepare(model)
    many = range(1, MAX_PLANS + 3)
    async with prepared.runner(path) as run_one:
        for rows in (1, 4, 2, 4, 4, 4, *many, 4, 4, 4, *many):
            x = np.arange(rows * 3, dtype=F32).reshape(rows, 3) - 2
            outputs = await run_one([x])
            np.testing.assert_array_equal(outputs["y0"], np.maximum(x, 0))
            assert outputs["y1"].tolist() == [np.maximum(x, 0).sum()]


async def test_lengths_are_planned_once_if_they_come_again_and_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with open_device("onnxruntime") as device:
        ends = [port(F32, 0, 3)], [port(F32, 0, 3), port(F32, 1)]
        prepared = await device.prepare(region(summing(), *ends))
        lengths = range(1, MAX_SMALL_PLANS)

        async def run_all() -> None:
            for rows in lengths:
                outputs = await prepared.run([np.ones((rows, 3), F32)])
                assert outputs["y1"].tolist() == [3 * rows]

        for _ in range(RUNS_WORTH_A_PLAN + 1):  # the first need none
            await run_all()
        logs.set_tags("compilation")
        try:
            await run_all()
            assert "planned" not in caplog.text
            for _ in range(RUNS_WORTH_A_PLAN):
                await prepared.run([np.ones((MAX_SMALL_PLANS, 3), F32)])
                assert "planned" not in caplog.text
            await prepared.run([np.ones((MAX_SMALL_PLANS, 3), F32)])
            assert "planned" in caplog.text
        finally:
            logs.set_tags("")


async def test_more_lengths_than_are_kept_are_planned_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(program, "MAX_SMALL_PLANS", 4)
    async with open_device("onnxruntime") as device:
        ends = [port(F32, 0, 3)], [port(F32, 0, 3), port(F32, 1)]
        prepared = await device.prepare(region(summing(), *ends))
        for rows in [*range(1, 9)] * 3:
            outputs = await prepared.run([np.ones((rows, 3), F32)])
            assert outputs["y1"].tolist() == [3 * rows]


async def test_runs_of_many_lengths_at_once_use_one_session() -> None:
    ends = [port(F32, 0, 3)], [port(F32, 0, 3), port(F32, 1)]
    async with open_device("onnxruntime", settings=DeviceSettings(lanes=2)) as device:
        # For a fast single answer, there may be one of several threads, too.
        preference = ExecutionPreference.SUSTAINED_SPEED
        prepared = await device.prepare(region(summing(), *ends), preference=preference)

        async def one(rows: int) -> None:
            x = np.arange(rows * 3, dtype=F32).reshape(rows, 3)
            outputs = await prepared.run([x])
            np.testing.assert_array_equal(outputs["y0"], x)
            assert outputs["y1"].tolist() == [x.sum()]

        await one(1)
        before = sessions()
        for _ in range(4):
            await asyncio.gather(*map(one, range(1, 40)))
            assert sessions() == before


@pytest.mark.parametrize("path", ["async", "sync", "burst"])
@pytest.mark.parametrize("length", [4, "n"])
async def test_what_runs_had_before_may_be_otherwise_by_values(
    device: Device, length: int | str, path: Any
) -> None:
    prepared = await device.prepare(tiling(length))
    x = np.arange(4, dtype=F32)
    async with prepared.runner(path) as run:
        for times in (2, 2, 2, 2, 3, 2, 1, 5, 5, 5, 5, 700, 700, 700, 700, 2):
            outputs = await run([x, np.array([times])])
            np.testing.assert_array_equal(outputs["y"], np.tile(x, times))


def looping() -> bytes:
    """Return a graph that adds 1 so many times, and has each sum."""
    ends = [("i", INT64, []), ("go", TensorProto.BOOL, []), ("s", FLOAT, [3])]
    results = [
        ("go_on", TensorProto.BOOL, []),
        ("sum", FLOAT, [3]),
        ("each", FLOAT, [3]),
    ]
    infos = [
        [helper.make_tensor_value_info(*each) for each in side]
        for side in (ends, results)
    ]
    inner = [
        helper.make_node("Add", ["s", "one"], ["sum"]),
        helper.make_node("Identity", ["go"], ["go_on"]),
        helper.make_node("Identity", ["sum"], ["each"]),
    ]
    body = helper.make_graph(inner, "body", *infos)
    loop = helper.make_node("Loop", ["times", "", "x"], ["y", "all"], body=body)
    one = helper.make_tensor("one", FLOAT, [], [1])
    given = [("x", FLOAT, [3]), ("times", INT64, [])]
    return graph([loop], given, [("y", FLOAT, [3]), ("all", FLOAT, ["n", 3])], [one])


@pytest.mark.parametrize("path", ["async", "sync", "burst"])
async def test_loops_that_turn_as_often_as_before_need_not(
    device: Device, path: Any
) -> None:
    prepared = await device.prepare(load(looping()))
    x = np.arange(3, dtype=F32)
    often = [RUNS_WORTH_A_PLAN + 2, 1, 2, 0, 3, RUNS_WORTH_A_PLAN + 2]
    async with prepared.runner(path) as run:
        for times, count_ in zip((4, 2, 4, 1, 0, 9), often, strict=True):
            for _ in range(count_):
                outputs = await run([x, np.array([times])])
                np.testing.assert_array_equal(outputs["y"], x + times)
                sums = x + np.arange(1, times + 1)[:, None]
                np.testing.assert_array_equal(outputs["all"], sums.reshape(-1, 3))


async def test_a_run_that_fails_says_why_though_its_shapes_were_known(
    device: Device,
) -> None:
    nodes = [helper.make_node("Gather", ["x", "at"], ["y"])]
    ends = [("x", FLOAT, ["n"]), ("at", INT64, ["m"])]
    prepared = await device.prepare(load(graph(nodes, ends, [("y", FLOAT, ["m"])])))
    x = np.arange(3, dtype=F32)
    for _ in range(5):
        assert (await prepared.run([x, np.array([2, 1])]))["y"].tolist() == [2, 1]
        with pytest.raises(GeneralFailureError, match="indices element out of"):
            await prepared.run([x, np.array([5, 1])])


async def test_lengths_that_have_run_are_bound_to_arrays() -> None:
    x = np.linspace(-1, 1, 12, dtype=F32).reshape(3, 4)
    space = np.empty(20, F32)
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(load(doubled()))
        hal = prepared.hal
        assert isinstance(hal, IInProcess)
        assert hal.bind([x, space]) is None
        for _ in range(RUNS_WORTH_A_PLAN + 1):
            await prepared.run([x])
        assert hal.bind([x, np.empty(11, F32)]) is None
        bound = hal.bind([x, space])
        assert bound is not None
        result = await hal.launch(bound, DEFAULT_OPTIONS)
        assert [shape.dimensions for shape in result.output_shapes] == [(3, 4)]
        np.testing.assert_array_equal(space[:12], 2 * x.reshape(-1))


def doubled() -> bytes:
    node = helper.make_node("Add", ["x", "x"], ["y"])
    lengths: list[int | str] = ["rows", "columns"]
    return graph([node], [("x", FLOAT, lengths)], [("y", FLOAT, ["m", "n"])])


async def test_outputs_last_longer_than_the_device() -> None:
    x = np.arange(12, dtype=F32).reshape(3, 4)
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(load(doubled()))
        runs = range(RUNS_WORTH_A_PLAN + 2)
        results = [(await prepared.run([x]))["y"] for _ in runs]
    del prepared, device
    gc.collect()
    for number, result in enumerate(results):
        np.testing.assert_array_equal(result, 2 * x)
        result[...] = number
    assert [result.max() for result in results] == list(runs)


async def test_an_output_that_is_kept_keeps_no_other() -> None:
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["large"]),
        helper.make_node("Neg", ["x"], ["small"]),
    ]
    ends = [("x", FLOAT, ["n"]), ("shape", INT64, [1])]
    results = [("large", FLOAT, ["m"]), ("small", FLOAT, ["n"])]
    kept: list[Any] = []
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(load(graph(nodes, ends, results)))
        length, before = 1 << 22, resident_bytes()
        for number in range(40):  # of 16 MiB each, for lengths that differ
            given = [np.ones(1, F32), np.array([length + number])]
            kept.append((await prepared.run(given))["small"])
        assert resident_bytes() - before < 20 * 4 * length


async def test_bound_again_it_leaves_earlier_outputs_alone() -> None:
    x = np.ones((3, 4), F32)
    async with open_device("onnxruntime") as device:
        hal = (await device.prepare(load(doubled()))).hal
        assert isinstance(hal, IInProcess)
        for wrong in ([], [x], [x, None, None], [None, x], (x, None)):
            assert hal.bind(wrong) is None
        tensors: list[Any] = [x, None]
        bound = hal.bind(tensors)
        assert bound is not None
        await hal.launch(bound, DEFAULT_OPTIONS)
        first = tensors[1]
        x[...] = 2
        await hal.launch(bound, DEFAULT_OPTIONS)
        assert (first.max(), tensors[1].max()) == (2, 4)


async def test_an_input_that_is_an_output_is_copied() -> None:
    ends = [("x", FLOAT, ["n"]), ("y", FLOAT, ["n"])]
    node = helper.make_node("Relu", ["x"], ["y"])
    prepared_of = load(graph([node], ends[:1], ends))
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(prepared_of)
        for _ in range(RUNS_WORTH_A_PLAN + 2):
            x = np.array([-1, 2], F32)
            outputs = await prepared.run([x])
            assert not np.shares_memory(outputs[0], x)
            np.testing.assert_array_equal(outputs[0], x)
            assert outputs[1].tolist() == [0, 2]


def positives() -> bytes:
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["is"]),
        helper.make_node("NonZero", ["is"], ["y"]),
    ]
    ends = [("x", FLOAT, [20_000])], [("y", INT64, [1, "n"])]
    return graph(nodes, *ends, [helper.make_tensor("zero", FLOAT, [], [0])])


@pytest.mark.parametrize("made", [doubled, positives])
async def test_outputs_of_any_size_take_one_run(
    caplog: pytest.LogCaptureFixture, made: Callable[[], bytes]
) -> None:
    caplog.set_level("INFO")
    counts = (1, 10_000, 100, 10_000, 0, 7, 10_000, 7)
    async with open_device("onnxruntime") as device:
        prepared = await device.prepare(load(made()))
        logs.set_tags("execution")
        try:
            for count_ in counts:
                ones = np.ones(count_, F32)
                if made is doubled:
                    outputs = await prepared.run([ones[None]])
                    np.testing.assert_array_equal(outputs["y"], 2 * ones[None])
                else:
                    x = np.concatenate([ones, np.zeros(20_000 - count_, F32)])
                    outputs = await prepared.run([x])
                    np.testing.assert_array_equal(outputs["y"], [np.arange(count_)])
        finally:
            logs.set_tags("")
    assert caplog.text.count("done") == len(counts)


@pytest.mark.parametrize("are_known", [True, False])
async def test_open_lengths_have_several_threads_as_fixed_ones_have(
    monkeypatch: pytest.MonkeyPatch, are_known: bool
) -> None:
    monkeypatch.setattr(executable, "WORTH_SPREADING_NS", 0)
    monkeypatch.setattr(executable, "WORTH_SPREADING_NS", 0)
    made = RegionSession.__init__
    threads: list[int] = []
    used: set[int] = set()
    attempt = GraphRun.attempt

    def attempted(run: GraphRun, *arrays: Any) -> bool:
        used.add(run._threads)
        return attempt(run, *arrays)

    def remember(
        session: RegionSession, library: Any, content: bytes, *rest: Any
    ) -> None:
        threads.append(rest[0])
        made(session, library, content, *rest)

    monkeypatch.setattr(RegionSession, "__init__", remember)
    monkeypatch.setattr(GraphRun, "attempt", attempted)
    settings = DeviceSettings(lanes=2, inline_below_us=0)
    async with open_device("onnxruntime", settings=settings) as device:
        prepared = await device.prepare(load(doubled()))
        async with asyncio.timeout(30):
            for rows in cycle(range(1, 4)) if are_known else count(1):
                x = np.full((rows, 4), rows, F32)
                np.testing.assert_array_equal((await prepared.run([x]))["y"], 2 * x)
                if 2 in used:
                    break
    assert threads == [1, 2]
