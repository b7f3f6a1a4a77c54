"""Which engine of a device computes what, as it is explained and drawn."""

from typing import Any

import numpy as np
import pytest

import asyncnn
from asyncnn.cli.graph import print_explanation
from asyncnn.engine.costs import ModelCosts
from asyncnn.hal.types import FusedActivationFunc, Operand, OperationType
from asyncnn.runtime.dot import dot
from asyncnn.runtime.framework import FrameworkSettings
from tests.networks import F32, chain

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")

SHAPE = (64, 256)
T = OperationType


def with_a_sine(open_axis: int | None = None) -> asyncnn.NamedModel:
    """Return three operations that LiteRT computes, one that it does not, and three."""
    declared = tuple(0 if k == open_axis else n for k, n in enumerate(SHAPE))
    builder = asyncnn.ModelBuilder()
    value = builder.input("x", F32, declared)
    tensor = Operand(F32, declared)
    weights = builder.constant(np.eye(SHAPE[1], dtype=np.float32))
    bias = builder.constant(np.zeros(SHAPE[1], np.float32))
    none = builder.scalar(FusedActivationFunc.NONE)
    for number in range(2):
        for _ in range(3):
            inputs = [value, weights, bias, none]
            value = builder.operation(T.FULLY_CONNECTED, inputs, tensor)
        if not number:
            value = builder.operation(T.SIN, [value], tensor)
    builder.output(value, "y")
    return builder.build()


@pytest.mark.parametrize("name", ["accelerated", "framework:accelerated"])
async def test_each_operation_has_its_engine(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = with_a_sine()
    async with asyncnn.open_device(name) as device:
        explanation = await asyncnn.explain(device, model)
    first, middle, last = explanation.segments
    assert [each.engine for each in explanation.segments] == [
        "LiteRT",
        "kernels",
        "LiteRT",
    ]
    assert {each.device for each in explanation.segments} == {"accelerated"}
    assert (first.operations, middle.operations, last.operations) == (
        (0, 1, 2),
        (3,),
        (4, 5, 6),
    )
    assert first.expected_us > middle.expected_us > 0
    engines = [report.engine for report in explanation.operations]
    assert engines == ["LiteRT"] * 3 + ["kernels"] + ["LiteRT"] * 3
    obstacles = [report.obstacle for report in explanation.operations]
    assert "SIN" in obstacles.pop(3)
    assert not any(obstacles)
    print_explanation(explanation)
    out = capsys.readouterr().out
    assert "accelerated: operations 0-2 by LiteRT, about " in out
    assert "accelerated: operation 3 by kernels, about " in out
    assert "; kernels, as SIN" in out
    text = dot(model, explanation)
    assert "accelerated: LiteRT, 3 operations, about " in text
    assert r"3: SIN\naccelerated: kernels" in text


async def test_those_of_a_framework_are_of_the_whole_model() -> None:
    model = with_a_sine()
    framework = FrameworkSettings(moving_weight=0)
    async with asyncnn.open_devices(
        "sample-float-fast", "accelerated", framework=framework
    ) as device:
        monopoly = device.hal.members[0]
        whole = await device.hal.plan(model.model, 1)
        assert whole.devices[0] == monopoly.name
        explanation = await asyncnn.explain(device, model)
    told = {k for each in explanation.segments for k in each.operations}
    of_accelerated = {
        k
        for each in explanation.partitions
        if each.device == "accelerated"
        for k in each.operations
    }
    assert told == of_accelerated


async def test_without_shapes_nothing_is_known_yet() -> None:
    async with asyncnn.open_device("accelerated") as device:
        explanation = await asyncnn.explain(device, with_a_sine(0))
    assert explanation.is_supported
    assert explanation.segments == ()


async def test_a_device_of_one_engine_says_nothing_of_it() -> None:
    async with asyncnn.open_device("reference") as device:
        explanation = await asyncnn.explain(device, with_a_sine())
    assert explanation.segments == ()
    assert {report.engine for report in explanation.operations} == {""}


async def test_costs_are_found_once_however_many_segments_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_main, asked = ModelCosts.of_main, []

    def counted(self: ModelCosts, *arguments: Any) -> tuple[float, ...]:
        asked.append(self)
        return of_main(self, *arguments)

    monkeypatch.setattr(ModelCosts, "of_main", counted)
    async with asyncnn.open_device("accelerated") as device:
        explanation = await asyncnn.explain(device, chain(3000, 4))
    assert len(explanation.segments) > 2
    assert len(asked) == 1
    each_us = [each.expected_us / len(each.operations) for each in explanation.segments]
    assert each_us == pytest.approx(each_us[:1] * len(each_us))
