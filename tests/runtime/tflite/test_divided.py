"""Regions of long graphs run in segments: what a pause finds done is not done again."""

import asyncio
import gc
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.devices.litert import region_parts
from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.litert.flat_file import FlatFile
from asyncnn.devices.litert.region_kernels import LiteRtRegions
from asyncnn.engine import Program
from asyncnn.engine.job import Job
from asyncnn.engine.plan import Plan
from asyncnn.engine.plan_execution import PlanExecution
from asyncnn.extensions import Extensions
from asyncnn.memory.pages import ROOM_BYTES, room_before
from asyncnn.memory.pools import from_buffer, view
from asyncnn.memory.shared import shareable
from asyncnn.pacing import Pause, TimedPause
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.tflite import scan
from asyncnn.tools.mobilenets import mobilenet_v1, mobilenet_v2
from tests.devices.cache.client import prepared_in
from tests.runtime.tflite.cases import const, f32
from tests.runtime.tflite.files import Op, T, write
from tests.runtime.tflite.importing import region_of_tflite
from tests.runtime.tflite.test_regions import (
    assert_equal,
    by_litert,
    dense_layers,
    samples,
)
from tests.runtime.tflite.test_whole_files import is_region, of_branches

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
pytestmark = pytest.mark.skipif(scan._built is None, reason="no scan was compiled")


@pytest.fixture
def at_each_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_parts, "SEGMENT_NS", 1)


@pytest.fixture
def at_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_parts, "SEGMENT_NS", 30_000)


def planned(named: NamedModel) -> tuple[Program, Plan]:
    extensions = Extensions([LiteRtRegions(load_engine()).extension()])
    program = Program(named.model, extensions=extensions)
    assert program.declared_shapes is not None
    return program, program.plan(program.declared_shapes)


def segments(named: NamedModel) -> int:
    return len(planned(named)[1].steps)


X, A, B, Y = f32(2, 3), f32(2, 3), f32(2, 3), f32(2, 3)
SUM, TRUE, ROW = f32(), T(np.bool_, (2, 3)), T(np.int64, (2,))
HALVES = const(np.linspace(-1, 1, 9).reshape(3, 3), np.float16)
WEIGHTS, AXES = f32(3, 3), const([0, 1])
NEG = Op("NEG", [X], [A], "NegOptions")
DENSE = "FullyConnectedOptions"
GRAPHS = {
    "read by several": write(
        [
            NEG,
            Op("EXP", [A], [B]),
            Op("ADD", [A, B], [C := f32(2, 3)], "AddOptions"),
            Op("MUL", [A, C], [Y], "MulOptions"),
        ],
        [X],
        [Y],
    ),
    "an output that is read": write([NEG, Op("EXP", [A], [Y])], [X], [Y, A]),
    "an input that is not": write([NEG, Op("EXP", [A], [Y])], [f32(7), X], [Y]),
    "an input that is read late": write(
        [NEG, Op("EXP", [A], [B]), Op("ADD", [X, B], [Y], "AddOptions")], [X], [Y]
    ),
    "no axes": write(
        [
            Op("SUM", [X, AXES], [SUM], "ReducerOptions"),
            Op("ADD", [X, SUM], [Y], "AddOptions"),
        ],
        [X],
        [Y],
    ),
    "other types": write(
        [
            Op("GREATER", [X, A], [TRUE], "GreaterOptions"),
            Op("ARG_MAX", [X, const(1)], [ROW], "ArgMaxOptions", {"OutputType": 4}),
            Op("SELECT", [TRUE, X, A], [B], "SelectOptions"),
            Op("CAST", [ROW], [C := f32(2)], "CastOptions"),
            Op("EXP", [B], [Y]),
            Op("EXP", [C], [D := f32(2)]),
        ],
        [X, A],
        [D, Y],
    ),
    "weights that two compute": write(
        [
            Op("DEQUANTIZE", [HALVES], [WEIGHTS], "DequantizeOptions"),
            Op("FULLY_CONNECTED", [X, WEIGHTS], [A], DENSE),
            Op("EXP", [A], [B]),
            Op("FULLY_CONNECTED", [B, WEIGHTS], [Y], DENSE),
        ],
        [X],
        [Y],
    ),
    "results for nobody": write(
        [NEG, Op("EXP", [A], [Y]), Op("EXP", [X], [B]), Op("EXP", [B], [f32(2, 3)])],
        [X],
        [Y],
    ),
}


@pytest.mark.usefixtures("at_each_operator")
@pytest.mark.parametrize("name", GRAPHS)
async def test_whatever_crosses_is_as_in_one_graph(name: str) -> None:
    file = GRAPHS[name]
    named = region_of_tflite(from_buffer(file))
    assert segments(named) > 1
    inputs = samples(named)
    async with asyncnn.open_device("accelerated") as device:
        prepared = await device.prepare(named)
        for _ in range(2):
            assert_equal(await prepared.run(inputs), by_litert(file, inputs))


@pytest.mark.usefixtures("at_each_operator")
def test_graphs_that_others_run_are_one() -> None:
    assert segments(region_of_tflite(from_buffer(of_branches()))) == 1


@pytest.mark.usefixtures("at_some")
@pytest.mark.parametrize("make", [mobilenet_v1, mobilenet_v2])
@pytest.mark.parametrize("quantized", [False, True], ids=["float", "int8"])
@pytest.mark.parametrize("source", ["bytes", "path", "path, isolated"])
async def test_networks_give_what_they_do_in_litert(
    make: Any, quantized: bool, source: str, tmp_path: Path
) -> None:
    file = make(quantized=quantized, size=96, width=0.7)
    path = tmp_path / "file.tflite"
    path.write_bytes(file)
    named = load(file if source == "bytes" else path)
    path.write_bytes(bytes(len(file)))
    assert is_region(named)
    assert segments(named) > 2
    inputs = samples(named, below=100)
    wanted = by_litert(file, inputs)
    isolated = "isolated" in source
    async with asyncnn.open_device("accelerated", isolated=isolated) as device:
        for _ in range(2):  # at last from the cache
            prepared = await prepared_in(tmp_path, device, named)
            runs = [prepared.run(inputs) for _ in range(8)]
            for outputs in await asyncio.gather(*runs):
                assert_equal(outputs, wanted)


@pytest.mark.usefixtures("at_some")
def test_heads_that_find_no_room_in_front_of_a_file_have_it_behind_them(
    tmp_path: Path,
) -> None:
    file = mobilenet_v1(quantized=False, size=96, width=0.5)
    (tmp_path / "file.tflite").write_bytes(file)
    named = load(tmp_path / "file.tflite")
    data = np.frombuffer(view(named.model.pools[0]), np.uint8)
    inputs = samples(named, below=100)
    (wanted,) = by_litert(file, inputs)
    for _ in range(2):  # the rooms of the first are free again
        assert room_before(data) is not None
        kept = []
        while room_before(data) is not None:
            kept.append(planned(named))
        for program, plan in (kept[0], kept[-1]):
            out = np.empty_like(wanted)
            execution = PlanExecution(program, plan, inputs, [out])
            while not execution.advance(Pause()):
                pass
            np.testing.assert_array_equal(out, wanted)
        del kept, program, plan, execution
        gc.collect()


def test_heads_longer_than_room_are_written_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = [f32(4) for _ in range(8300)]
    operators = [Op("NEG", [one], [other]) for one, other in pairwise(values)]
    data = write(operators, values[:1], values[-1:]) + bytes(1 << 20)
    file = shareable(from_buffer(data))
    assert room_before(np.frombuffer(view(file), np.uint8)) is not None
    sizes = list[int]()
    joined = FlatFile.joined

    def see(*arguments: Any) -> bytes:
        head = joined(*arguments)
        sizes.append(len(head))
        return head

    monkeypatch.setattr(FlatFile, "joined", see)
    planned(region_of_tflite(file))
    assert len(sizes) == 1
    assert sizes[0] > ROOM_BYTES


def test_a_run_goes_on_where_it_was_paused() -> None:
    file = dense_layers()
    named = load(file)
    assert is_region(named)
    program, plan = planned(named)
    x, out = np.ones((64, 1024), np.float32), np.empty((64, 1024), np.float32)
    execution = PlanExecution(program, plan, [x], [out])
    pause = TimedPause(1) if Job is None else Pause()
    pause.from_ns = 1  # long ago: what is done in any case is a segment
    turns = 1
    while not execution.advance(pause):
        turns += 1
    assert turns == len(plan.steps) > 2
    np.testing.assert_array_equal(out, x / 2.0**24)


def test_another_division_is_not_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    named = load(mobilenet_v1(quantized=False, size=96, width=0.25))
    monkeypatch.setattr(region_parts, "SEGMENT_NS", 30_000)
    records = planned(named)[0].records()
    monkeypatch.setattr(region_parts, "SEGMENT_NS", 60_000)
    extensions = Extensions([LiteRtRegions(load_engine()).extension()])
    ways = {number: lambda each=each: each for number, each in records.items()}
    with pytest.raises(asyncnn.GeneralFailureError, match="another engine"):
        Program(named.model, ways, extensions).records()
