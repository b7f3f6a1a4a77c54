"""Profiles of models that are made up, on devices of every kind."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import asyncnn
from asyncnn.hal.errors import AsyncnnError, InvalidArgumentError
from asyncnn.hal.types import Model, Operand, OperationType
from asyncnn.runtime.device import Device
from asyncnn.runtime.model import NamedModel
from asyncnn.service.process import can_connect
from asyncnn.tools.profiling import Profile
from asyncnn.tools.profiling.observed_runs import LEAST_RUNS, ProfileOrder, measure
from asyncnn.tools.profiling.page import headlines
from asyncnn.tools.samples import Sample, random_sample
from asyncnn.tracing import active, recording_to
from tests.engine.test_control_flow import if_model, scalar, while_model
from tests.engine.test_observation import shaped_by_data_model
from tests.networks import F32, chain, picking
from tests.runtime.framework import mixed
from tests.runtime.stateful import counting

FEW = 6


async def on(
    device: Device, model: NamedModel, inputs: Sample | None = None
) -> Profile:
    """Return the profile of a few runs, in which there are no holes."""
    given = random_sample(model.inputs) if inputs is None else inputs
    profile = await measure(device, ProfileOrder("model", model, given, "made up", FEW))
    assert active.recorder is None
    assert profile.runs == FEW
    assert 0.95 <= profile.accounted <= 1.05
    shares = [each.share for each in (*profile.operations, *profile.stages)]
    assert sum(shares) == pytest.approx(profile.accounted)
    assert all(share >= 0 for share in shares)
    assert profile.run_us > 0
    return profile


async def profiled(
    model: NamedModel | Model, inputs: Sample | None = None, device: str = "reference"
) -> Profile:
    if isinstance(model, Model):
        count = len(model.main.input_indexes)
        names = [f"x{number}" for number in range(count)]
        outputs = [f"y{number}" for number in range(len(model.main.output_indexes))]
        model = NamedModel.of(model, names, outputs)
    async with asyncnn.open_device(device) as opened:
        return await on(opened, model, inputs)


def types(profile: Profile) -> list[str]:
    return [each.type for each in profile.operations]


def stages(profile: Profile) -> set[str]:
    return {each.name for each in profile.stages}


async def test_every_operation_has_a_time_and_what_is_known_of_it() -> None:
    profile = await profiled(chain(5, 1000))
    assert types(profile) == ["ADD"] * 5
    for number, each in enumerate(profile.operations):
        assert each.index == number
        assert each.place == str(number)
        assert (each.subgraph, each.partition, each.segment) == (None, 0, None)
        assert (each.device, each.kernel) == ("reference", "arithmetic")
        assert each.rounding == "float32"
        assert each.time_us > 0
        assert each.calls == 1
        assert not each.is_apportioned
        assert (each.input_bytes, each.output_bytes) == (4000, 4000)
        assert each.weight_bytes == 4 + 4  # one, and that there is no activation
        assert each.moved_bytes == 8008
        assert each.temporary_bytes == (0 if number == 4 else 4000)
        assert each.shapes == ((1000,),)
        assert each.reads == ((number - 1,) if number else ())
    (partition,) = profile.partitions
    assert partition.operations == (0, 1, 2, 3, 4)
    assert partition.time_us is not None
    assert partition.time_us >= sum(each.time_us for each in profile.operations) / 2
    assert partition.arena_bytes >= 8000
    assert {"to the device", "binding arrays", "to the caller"} <= stages(profile)
    assert profile.folded == 0
    assert profile.segments == ()


async def test_longer_operations_have_longer_times() -> None:
    builder = asyncnn.ModelBuilder()
    x = builder.input("x", F32, (1000, 1000))
    y = builder.operation(OperationType.EXP, [x], Operand(F32, (1000, 1000)))
    axis = builder.constant(np.array([0, 1], np.int32))
    total = builder.operation(
        OperationType.REDUCE_MAX, [y, axis, builder.scalar(True)], Operand(F32, (1, 1))
    )
    last = builder.operation(OperationType.ABS, [total], Operand(F32, (1, 1)))
    builder.output(last, "y")
    long, short, shortest = (await profiled(builder.build())).operations
    assert long.time_us > short.time_us > shortest.time_us
    assert long.share > short.share > shortest.share


async def test_an_operation_alone_is_a_model() -> None:
    profile = await profiled(chain(1, 4))
    assert types(profile) == ["ADD"]
    assert profile.operations[0].time_us < profile.run_us


async def test_what_is_computed_at_preparation_is_counted() -> None:
    builder = asyncnn.ModelBuilder()
    x = builder.input("x", F32, (4,))
    two = builder.constant(np.full(4, 2, np.float32))
    four = builder.operation(OperationType.SQRT, [two], Operand(F32, (4,)))
    none = builder.scalar(0)
    y = builder.operation(OperationType.ADD, [x, four, none], Operand(F32, (4,)))
    builder.output(y, "y")
    profile = await profiled(builder.build())
    assert types(profile) == ["ADD"]
    assert profile.operations[0].weight_bytes == 16 + 4
    assert profile.folded == 1


@pytest.mark.parametrize("condition", [True, False])
async def test_the_branch_that_is_run_is_shown(condition: bool) -> None:
    x = np.array([1, -2, 3], np.float32)
    profile = await profiled(if_model((3,)), {"x0": np.array([condition]), "x1": x})
    whole, branch = profile.operations
    assert (whole.type, whole.subgraph) == ("IF", None)
    assert branch.type == ("ADD" if condition else "MUL")
    assert branch.subgraph == (0 if condition else 1)
    assert branch.place == f"0 of {branch.subgraph}"
    assert branch.reads == (0,)


async def test_rounds_of_a_loop_add_up() -> None:
    x = np.array([1, -2, 3], np.float32)
    rounds = 20
    inputs = {"x0": scalar(0), "x1": x, "x2": scalar(rounds)}
    profile = await profiled(while_model((3,)), inputs)
    calls = {(e.type, e.subgraph, e.index): e.calls for e in profile.operations}
    assert calls == {
        ("WHILE", None, 0): 1,
        ("LESS", 0, 0): rounds + 1,
        ("ADD", 1, 0): rounds,
        ("ADD", 1, 1): rounds,
    }
    loop, condition, *_ = profile.operations
    assert condition.reads == (0,)
    assert 0 < condition.time_us < profile.run_us
    assert 0 < loop.time_us < profile.run_us


async def test_shapes_that_come_with_the_data_are_those_of_the_run() -> None:
    profile = await profiled(shaped_by_data_model(), {"shape": np.array([6], np.int32)})
    assert types(profile) == ["FILL", "ADD"]
    assert [each.shapes for each in profile.operations] == [((6,),), ((6,),)]
    assert [each.output_bytes for each in profile.operations] == [24, 24]
    assert all(each.kernel.endswith(", anew") for each in profile.operations)


async def test_inputs_of_open_shape_have_the_shape_they_are_given() -> None:
    x = np.zeros((7,), np.float32)
    profile = await profiled(chain(2, 0), {"x": x})
    assert [each.shapes for each in profile.operations] == [((7,),)] * 2


async def test_state_begins_anew_with_each_run() -> None:
    model = counting()
    profile = await profiled(model)
    assert len(profile.operations) == len(model.model.main.operations)


async def test_partitions_have_their_devices_and_what_lies_between_them() -> None:
    async with asyncnn.open_devices(
        *mixed.DEVICES, framework=mixed.WHEREVER_BETTER
    ) as device:
        profile = await on(device, mixed.mixed(), mixed.inputs())
    fast, quant = mixed.DEVICES
    assert [(each.device, each.operations) for each in profile.partitions] == [
        (fast, (0, 1, 2)),
        (quant, (3, 4)),
        (fast, (5,)),
    ]
    assert all(each.time_us for each in profile.partitions)
    found = {each.index: each for each in profile.operations}
    assert [found[k].type for k in range(6)] == [
        *("ABS", "SQRT", "QUANTIZE", "RELU6", "DEQUANTIZE", "NEG")
    ]
    assert [found[k].partition for k in range(6)] == [0, 0, 0, 1, 1, 2]
    assert [found[k].device for k in range(6)] == [fast] * 3 + [quant] * 2 + [fast]
    assert [profile.operations[found[k].reads[0]].index for k in range(1, 6)] == [
        *(0, 1, 2, 3, 4)
    ]
    assert "between partitions" in stages(profile)


async def test_a_device_that_fails_is_named_beside_the_one_that_computes() -> None:
    async with asyncnn.open_devices(
        *mixed.DEVICES, framework=mixed.WHEREVER_BETTER, partition=0
    ) as device:
        profile = await on(device, mixed.mixed(), mixed.inputs())
    (partition,) = profile.partitions
    assert partition.device == "reference"
    assert len(partition.operations) == 6


async def test_a_driver_process_shows_how_long_it_takes() -> None:
    async with asyncnn.connect(device="reference") as device:
        profile = await on(device, chain(5, 4))
    assert profile.operations == ()
    assert stages(profile) == {"on the device"}
    (partition,) = profile.partitions
    assert partition.is_reported
    assert partition.time_us is not None
    assert 0 < partition.time_us <= profile.observed_us
    assert partition.share is not None
    assert 0 < partition.share < 1
    assert "Operations of partition 0 are not seen" in " ".join(headlines(profile))


@pytest.fixture
def quant_driver(tmp_path: Path) -> Iterator[Path]:
    """The socket of a driver process with the second of `mixed.DEVICES`."""
    path = tmp_path / "driver.sock"
    options = ["--socket", str(path), "--device", mixed.DEVICES[1]]
    command = [sys.executable, "-m", "asyncnn", "serve", *options]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while not can_connect(path):
            assert process.poll() is None
            time.sleep(0.02)
        yield path
        process.terminate()


async def test_partitions_of_driver_processes_have_the_times_these_report(
    quant_driver: Path,
) -> None:
    fast, _ = mixed.DEVICES
    async with (
        asyncnn.connect(quant_driver) as remote,
        asyncnn.open_devices(remote, fast, framework=mixed.WHEREVER_BETTER) as device,
    ):
        profile = await on(device, mixed.mixed(), mixed.inputs())
    here, there, again = profile.partitions
    assert (here.device, again.device) == (fast, fast)
    assert [each.is_reported for each in profile.partitions] == [False, True, False]
    assert there.time_us is not None
    assert 0 < there.time_us < profile.observed_us
    assert {each.partition for each in profile.operations} == {0, 2}
    told = [line for line in headlines(profile) if "are not seen" in line]
    assert len(told) == 1
    assert told[0].startswith("Operations of partition 1 are not seen")


async def test_segments_are_measured_and_their_operations_apportioned() -> None:
    pytest.importorskip("ai_edge_litert")
    builder = asyncnn.ModelBuilder()
    rng = np.random.default_rng(0)
    value, none = builder.input("x", F32, (64, 256)), builder.scalar(0)
    for size in (256, 1024, 8):
        shape = (size, 256 if size != 8 else 1024)
        weights = builder.constant(rng.normal(size=shape).astype(np.float32))
        bias = builder.constant(np.zeros(size, np.float32))
        value = builder.operation(
            OperationType.FULLY_CONNECTED,
            [value, weights, bias, none],
            Operand(F32, (64, size)),
        )
    builder.output(value, "y")
    profile = await profiled(builder.build(), device="accelerated")
    (segment,) = profile.segments
    assert segment.operations == (0, 1, 2)
    assert segment.engine.startswith("LiteRT 2.")
    assert segment.parts_us is not None
    assert segment.parts_us < 20 * segment.time_us
    assert types(profile) == ["FULLY_CONNECTED"] * 3
    first, second, third = profile.operations
    total_us = first.time_us + second.time_us + third.time_us
    assert total_us == pytest.approx(segment.time_us)
    # As many multiply-adds as 4 to 16 to 0.5; 8 results of 1024 products.
    assert second.time_us > 2 * first.time_us > 0
    for each in profile.operations:
        assert each.is_apportioned
        assert each.segment == 0
        assert each.kernel == "LiteRT, segment 0"
        assert each.temporary_bytes is None
    assert first.weight_bytes == 4 * (256 * 256 + 256 + 1)


async def test_time_bounds_runs_that_nobody_has_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncnn.tools.profiling.observed_runs.LONGEST_S", 0.0)
    model = chain(2, 4)
    async with asyncnn.open_device("reference") as device:
        order = ProfileOrder("model", model, random_sample(model.inputs), "made up")
        assert (await measure(device, order)).runs == LEAST_RUNS


async def test_what_fails_and_what_is_recorded_is_refused() -> None:
    bad = {"x": np.ones(3, np.float32), "index": np.full(3, 9, np.int32)}
    with pytest.raises(AsyncnnError, match="GATHER"):
        await profiled(picking(3), bad)
    assert active.recorder is None
    with (
        recording_to(lambda spans: None),
        pytest.raises(InvalidArgumentError, match="traced"),
    ):
        await profiled(chain(1, 4))
