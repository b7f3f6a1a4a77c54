"""How fast LiteRT is found to be, and what follows for where runs can stop."""

import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import astuple, replace

from asyncnn.devices.litert import engine as engines
from asyncnn.devices.litert import speed_trials
from asyncnn.devices.litert.cuts import (
    BARRIER_NS,
    MOST_BARRIER_NS,
    MOST_STEPS,
    SLACK,
    barriers,
    cuts,
)
from asyncnn.devices.litert.delegate import LiteRtDelegate
from asyncnn.devices.litert.engine import load_engine
from asyncnn.devices.litert.self_test import speeds_of
from asyncnn.devices.litert.speed_trials import measured_speeds
from asyncnn.engine import PlanExecution, Program
from asyncnn.engine.costs import USUAL, Speeds, TypeSpeeds, estimated_ns
from asyncnn.engine.delegation import Step
from asyncnn.hal.types import Model
from asyncnn.runtime.model_file import load
from asyncnn.tools.mobilenets import mobilenet_v1
from tests.devices.litert.test_self_test import VERSION, litert
from tests.measuring import best_of
from tests.networks import chain

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")


def scaled(speeds: TypeSpeeds, factor: float) -> TypeSpeeds:
    return TypeSpeeds(*(each * factor for each in astuple(speeds)))


def steps_of(program: Program) -> list[Step]:
    assert program.declared_shapes is not None
    steps = program.plan(program.declared_shapes).steps
    return [part for step in steps for part in step.parts]


def at(speeds: Speeds, steps: Sequence[Step]) -> list[Step]:
    """Return steps that take as long as an engine of these speeds does."""
    return [replace(s, costs_ns=(estimated_ns(s.operation, speeds),)) for s in steps]


def mobilenet(folder: Path) -> Model:
    """Return one that takes some milliseconds."""
    path = folder / "mobilenet.tflite"
    path.write_bytes(mobilenet_v1(quantized=False, size=160, width=0.5))
    return load(path, strict=True).model


def test_speeds_are_those_of_the_time_that_runs_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = load_engine()
    for run_ns in (50_000, 200_000):
        monkeypatch.setattr(speed_trials, "_timed", lambda graph, ns=run_ns: ns)
        speeds = measured_speeds(engine)
        outputs = math.prod(speed_trials._PIXELS)
        for found, itemsize in ((speeds.floats, 4), (speeds.integers, 1)):
            # Within half of a step.
            assert found.bytes / (3 * outputs * itemsize / run_ns) < 2**0.26
            assert (3 * outputs * itemsize / run_ns) / found.bytes < 2**0.26
            assert found.macs >= found.depthwise_macs


def test_what_cannot_be_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    for run_ns, factor in ((1, 16.0), (10**12, 1 / 16)):
        monkeypatch.setattr(speed_trials, "_timed", lambda graph, ns=run_ns: ns)
        speeds = measured_speeds(load_engine())
        assert speeds.floats == scaled(USUAL.floats, factor)
        assert speeds.integers == scaled(USUAL.integers, factor)


def test_the_engine_has_those_that_were_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(engines, "_engines", {})
    assert speeds_of(litert(), VERSION) == USUAL
    found = load_engine("c_api").speeds
    assert found == speeds_of(litert(), VERSION)
    assert found != USUAL


def test_a_slower_machine_has_shorter_parts(tmp_path: Path) -> None:
    program = Program(mobilenet(tmp_path), delegate=LiteRtDelegate(load_engine()))
    steps = steps_of(program)
    counts = []
    for factor in (4.0, 1.0, 0.25):
        speeds = Speeds(scaled(USUAL.floats, factor), scaled(USUAL.integers, factor))
        counts.append(len(cuts(at(speeds, steps), BARRIER_NS)))
    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


def test_caches_of_other_speeds_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_engine()
    before = LiteRtDelegate(engine).version
    monkeypatch.setattr(engine, "speeds", Speeds(USUAL.integers, USUAL.floats))
    assert LiteRtDelegate(engine).version != before


@pytest.mark.alone
async def test_estimates_are_about_what_runs_take(tmp_path: Path) -> None:
    engine = load_engine("c_api")
    program = Program(mobilenet(tmp_path), delegate=LiteRtDelegate(engine))
    estimate_ns = sum(step.cost_ns for step in steps_of(program))
    assert program.declared_shapes is not None
    plan = program.plan(program.declared_shapes)
    x = np.zeros(plan.inputs[0].shape or (), plan.inputs[0].dtype)

    async def factor() -> float:
        PlanExecution(program, plan, [x], [None]).advance()
        started_ns = time.perf_counter_ns()
        PlanExecution(program, plan, [x], [None]).advance()
        ratio = (time.perf_counter_ns() - started_ns) / estimate_ns
        return max(ratio, 1 / ratio)

    await best_of(20, factor, 2.5)


@pytest.mark.parametrize("part_ns", [20_000.0, 150_000.0, 1e6])
def test_parts_are_no_longer_than_wanted_but_for_single_operations(
    tmp_path: Path, part_ns: float
) -> None:
    program = Program(mobilenet(tmp_path), delegate=LiteRtDelegate(load_engine()))
    steps = steps_of(program)
    costs = [step.cost_ns for step in steps]
    edges = [0, *cuts(steps, part_ns), len(steps)]
    assert edges == sorted(set(edges))
    parts = [costs[start:end] for start, end in pairwise(edges)]
    assert all(len(part) == 1 or sum(part) <= part_ns for part in parts)
    # Two neighbours are more than one, but for slack.
    for before, after in pairwise(parts):
        assert sum(before) + sum(after) > (1 - SLACK) * part_ns


def test_barriers_need_not_be_closer_than_the_longest_operation(tmp_path: Path) -> None:
    program = Program(mobilenet(tmp_path), delegate=LiteRtDelegate(load_engine()))
    steps = at(USUAL, steps_of(program))
    longest_ns = max(step.cost_ns for step in steps)
    assert longest_ns > MOST_BARRIER_NS
    assert barriers(steps) == cuts(steps, MOST_BARRIER_NS)
    fast = Speeds(scaled(USUAL.floats, 1000.0), USUAL.integers)
    assert not barriers(at(fast, steps))
    last = steps[-2:]
    assert barriers(last * 3) == cuts(last * 3, BARRIER_NS)


def test_no_graph_has_so_many_operations_that_nothing_stops_its_compilation() -> None:
    count = 3 * MOST_STEPS + MOST_STEPS // 2
    delegate = LiteRtDelegate(load_engine())
    program = Program(chain(count, 4).model, delegate=delegate)
    assert program.declared_shapes is not None
    parts = [len(s.parts) for s in program.plan(program.declared_shapes).steps]
    assert sum(parts) == count
    assert max(parts) <= MOST_STEPS
    # Nor more graphs than that takes, but for slack.
    assert len(parts) <= 1 + count / ((1 - SLACK) * MOST_STEPS)
