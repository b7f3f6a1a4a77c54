"""How models are divided: properties that hold for every graph, and choices."""

import itertools
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asyncnn.hal.errors import GeneralFailureError
from asyncnn.hal.performance import uniform_performance
from asyncnn.hal.types import (
    Capabilities,
    ExecutionPreference,
    Model,
    Operand,
    OperandLifeTime,
    OperandType,
    OperationType,
    PerformanceInfo,
)
from asyncnn.hal.validate import validate_model
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.framework.partition import (
    DeviceCandidate,
    Division,
    dependencies_of,
    divide,
    grow,
)
from asyncnn.runtime.framework.submodels import Kind, build_submodels
from asyncnn.tools.conformance.random_graphs.families import RandomGraph, graphs
from tests.networks import chain
from tests.runtime.framework.mixed import mixed

FAST = ExecutionPreference.FAST_SINGLE_ANSWER
FRUGAL = ExecutionPreference.LOW_POWER

properties = settings(
    max_examples=40,
    phases=(Phase.generate,),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=tuple(HealthCheck),
)


def capabilities(time: float, power: float | None = None) -> Capabilities:
    info = PerformanceInfo(time, time if power is None else power)
    return Capabilities(info, info, uniform_performance(info), info, info)


def candidate(
    name: str, supports: tuple[bool, ...], time: float = 0.5, **others
) -> DeviceCandidate:
    power = others.pop("power", None)
    return DeviceCandidate(name, supports, capabilities(time, power), **others)


def cpu(model: Model) -> DeviceCandidate:
    every = (True,) * len(model.main.operations)
    return candidate("cpu", every, 1.0, is_cpu=True)


def candidates_for(model: Model, seed: int) -> list[DeviceCandidate]:
    choice = random.Random(seed)
    count = len(model.main.operations)
    found = [
        candidate(
            f"d{k}",
            tuple(choice.random() < 0.6 for _ in range(count)),
            choice.choice((0.2, 0.5, 1.0, 3.0)),
            is_remote=choice.random() < 0.3,
            tells_shapes=choice.random() < 0.8,
        )
        for k in range(choice.randint(1, 3))
    ]
    return [*found, cpu(model)]


def parts_of(division: Division) -> list[tuple[int, ...]]:
    return [each.operations for each in division.partitions]


@pytest.mark.unrecorded
@properties
@given(
    graph=graphs(), seed=st.integers(0, 999), weight=st.sampled_from([0.0, 0.01, 1.0])
)
def test_every_graph_is_divided_into_valid_models(
    graph: RandomGraph, seed: int, weight: float
) -> None:
    model = graph.named.model
    candidates = candidates_for(model, seed)
    division = divide(model, candidates, FAST, weight)
    parts = parts_of(division)
    # Each operation is in exactly one partition, on a device that supports it.
    assert sorted(p for part in parts for p in part) == list(
        range(len(division.reasons))
    )
    for each in division.partitions:
        supports = candidates[each.device].supports
        assert all(supports[position] for position in each.operations)
        assert list(each.operations) == sorted(each.operations)
    # What a partition needs is in earlier ones: the order is topological, and hence no
    # partition depends on itself by way of another one.
    of = {position: number for number, part in enumerate(parts) for position in part}
    for position, needed in enumerate(dependencies_of(model.main)):
        assert all(of[each] <= of[position] for each in needed)
    check_submodels(model, parts)


def check_submodels(model: Model, parts: list[tuple[int, ...]]) -> None:
    found = build_submodels(model, parts)
    written: set[tuple[Kind, int]] = set()
    for step, part in zip(found.steps, parts, strict=True):
        validate_model(step.model)
        assert step.operations == part
        assert len(step.model.main.operations) == len(part)
        assert len(step.inputs) == len(step.model.main.input_indexes)
        assert len(step.outputs) == len(step.model.main.output_indexes) > 0
        for source, index in zip(
            step.inputs, step.model.main.input_indexes, strict=True
        ):
            assert step.model.main.operands[index].type == source.operand.type
            given_before = source.kind is Kind.INPUT
            assert given_before or (source.kind, source.position) in written
        fresh = {(source.kind, source.position) for source in step.outputs}
        assert fresh.isdisjoint(written)
        written |= fresh
    outputs = {position for kind, position in written if kind is Kind.OUTPUT}
    assert outputs == set(range(len(model.main.output_indexes)))
    spans = sorted((i.offset, i.offset + i.size) for i in found.intermediates if i.size)
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert end <= start
    assert all(end <= found.total_bytes for _, end in spans)


def test_constants_are_shared_with_the_model() -> None:
    model = chain(6).model
    count = len(model.main.operations)
    found = build_submodels(model, [tuple(range(count // 2)), tuple(range(3, count))])
    for step in found.steps:
        assert step.model.operand_values in (b"", model.operand_values)
        assert all(pool in model.pools for pool in step.model.pools)


@pytest.mark.parametrize(
    ("preference", "chosen"), [(FAST, "quick"), (FRUGAL, "frugal")]
)
def test_time_or_power_decides_by_the_preference(
    preference: ExecutionPreference, chosen: str
) -> None:
    model = mixed((512, 512)).model
    every = (True,) * len(model.main.operations)
    candidates = [
        candidate("quick", every, 0.3, power=5.0),
        candidate("frugal", every, 3.0, power=0.2),
        cpu(model),
    ]
    division = divide(model, candidates, preference)
    assert [candidates[p.device].name for p in division.partitions] == [chosen]


def test_the_cpu_wins_a_tie_and_else_the_first() -> None:
    model = mixed().model
    every = (True,) * len(model.main.operations)
    same = [candidate("a", every, 1.0), candidate("b", every, 1.0), cpu(model)]
    assert divide(model, same, FAST, 0).partitions[0].device == 2
    same = [candidate("a", every, 0.5), candidate("b", every, 0.5), cpu(model)]
    assert divide(model, same, FAST, 0).partitions[0].device == 0


def test_a_model_is_divided_only_where_moving_costs_less_than_is_gained() -> None:
    small, large = mixed((2, 2)).model, mixed((1024, 1024)).model
    supports = (True, True, False, False, False, True)
    for model, partitions in ((small, 1), (large, 3)):
        candidates = [candidate("floats", supports, 0.05), cpu(model)]
        assert len(divide(model, candidates, FAST).partitions) == partitions
        assert len(divide(model, candidates, FAST, 0).partitions) == 3


def test_another_process_has_to_be_better_by_more() -> None:
    model = mixed((128, 128)).model
    supports = (True, True, False, False, False, False)
    counts = []
    for is_remote in (False, True):
        near = candidate("floats", supports, 0.3, is_remote=is_remote)
        counts.append(len(divide(model, [near, cpu(model)], FAST).partitions))
    assert counts == [2, 1]


def test_a_small_partition_goes_to_its_neighbour() -> None:
    model = mixed((256, 256)).model
    first = candidate("a", (True, True, True, True, True, True), 0.30)
    second = candidate("b", (False, False, False, True, False, False), 0.29)
    division = divide(model, [first, second, cpu(model)], FAST)
    assert parts_of(division) == [(0, 1, 2, 3, 4, 5)]
    assert len(divide(model, [first, second, cpu(model)], FAST, 0).partitions) == 3


def test_a_shape_that_is_not_told_keeps_the_model_in_one_piece() -> None:
    model = mixed(open_axis=0).model
    supports = (True, True, False, False, False, True)
    for tells, partitions in ((True, 3), (False, 1)):
        old = candidate("old", supports, 0.1, tells_shapes=tells)
        division = divide(model, [old, cpu(model)], FAST, 0)
        assert len(division.partitions) == partitions


@pytest.mark.unrecorded
def test_control_flow_of_unknown_size_is_for_the_cpu() -> None:
    @properties
    @given(graph=graphs({OperationType.IF, OperationType.WHILE, OperationType.ADD}))
    def check(graph: RandomGraph) -> None:
        model = graph.named.model
        every = (True,) * len(model.main.operations)
        division = divide(model, [candidate("a", every, 0.1), cpu(model)], FAST, 0)
        for each in division.partitions:
            for position in each.operations:
                operation = model.main.operations[position]
                operands = [
                    model.main.operands[index]
                    for index in (*operation.inputs, *operation.outputs)
                ]
                is_open = any(
                    0 in o.dimensions
                    for o in operands
                    if o.lifetime != OperandLifeTime.SUBGRAPH
                )
                if is_open and operation.type != OperationType.ADD:
                    assert each.device == 1

    check()


def test_what_no_device_supports_is_named() -> None:
    model = mixed().model
    nobody = candidate("a", (True, False, True, True, True, True))
    with pytest.raises(GeneralFailureError, match="operation 1, SQRT"):
        divide(model, [nobody], FAST)


def test_a_large_model_is_divided_soon() -> None:
    model = chain(3000).model
    count = len(model.main.operations)
    choice = random.Random(1)
    some = tuple(choice.random() < 0.5 for _ in range(count))
    division = divide(model, [candidate("a", some, 0.9), cpu(model)], FAST, 0)
    assert len(division.partitions) > 100
    check_submodels(model, parts_of(division))
    assert OperandType.TENSOR_FLOAT32 in {o.type for o in model.main.operands}


def dequantised(layers: int) -> Model:
    """Return layers whose weights are constants that are dequantised first."""
    builder = ModelBuilder()
    real = Operand(OperandType.TENSOR_FLOAT32, (4, 4))
    value = builder.input("x", OperandType.TENSOR_FLOAT32, (4, 4))
    bias = builder.constant(np.zeros(4, np.float32))
    none = builder.scalar(0)
    weights = []
    for number in range(layers):
        codes = np.full((4, 4), number + 3, np.uint8)
        stored = builder.constant(
            codes, OperandType.TENSOR_QUANT8_ASYMM, scale=0.5, zero_point=3
        )
        weights.append(builder.operation(OperationType.DEQUANTIZE, [stored], real))
    for each in weights:
        arguments = [value, each, bias, none]
        value = builder.operation(OperationType.FULLY_CONNECTED, arguments, real)
    builder.output(value, "y")
    return builder.build().model


def test_constants_are_computed_by_the_device_that_reads_them() -> None:
    model = dequantised(4)
    # The first device has two layers, and would have all of the constants as well.
    first = candidate("d0", (True,) * 6 + (False,) * 2, 0.3)
    later = candidate("d1", (True,) * 4 + (False,) * 2 + (True,) * 2, 0.5)
    division = divide(model, [first, later, cpu(model)], FAST, 0.0)
    assert [each.device for each in division.partitions] == [0, 1]
    assert parts_of(division) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    assert set(division.reasons[:4]) == {"constant, beside what reads it"}
    check_submodels(model, parts_of(division))


def test_a_constant_stays_where_what_reads_it_is_not_supported() -> None:
    model = dequantised(2)
    able = candidate("d0", (False, False, True, True), 0.3)
    division = divide(model, [able, cpu(model)], FAST, 0.0)
    assert parts_of(division) == [(0, 1), (2, 3)]
    assert "only one that supports it" in division.reasons[0]


def test_a_constant_that_another_device_has_a_part_in_waits_for_it() -> None:
    builder = ModelBuilder()
    real = Operand(OperandType.TENSOR_FLOAT32, (4, 4))
    value = builder.input("x", OperandType.TENSOR_FLOAT32, (4, 4))
    ones = builder.constant(np.ones((4, 4), np.float32))
    root = builder.operation(OperationType.SQRT, [ones], real)
    sine = builder.operation(OperationType.SIN, [root], real)
    least = builder.operation(OperationType.MINIMUM, [root, sine], real)
    builder.output(builder.operation(OperationType.MAXIMUM, [value, least], real), "y")
    model = builder.build().model
    able = candidate("d0", (True, False, True, True), 0.3)
    division = divide(model, [able, cpu(model)], FAST, 0.0)
    assert parts_of(division) == [(0,), (1,), (2, 3)]
    check_submodels(model, parts_of(division))


@pytest.mark.parametrize("root", range(8))
def test_a_constant_that_comes_by_two_ways_is_computed_once(root: int) -> None:
    dependencies: list[set[int]] = [set() for _ in range(8)]
    dependencies += [{root}, {root, 8}]
    assert grow(dependencies, [0] * 10, 1, {root, 8}) == [(0, list(range(10)))]
