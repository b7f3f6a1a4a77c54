"""Seeded faults in one operation: which one it is has to be found, exactly."""

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from asyncnn import open_device
from asyncnn.hal.errors import AsyncnnError
from asyncnn.hal.operations.bound import Array
from asyncnn.runtime.dot import dot
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.tools.conformance.random_graphs.families import RandomGraph as Drawn
from asyncnn.tools.conformance.random_graphs.families import graphs
from asyncnn.tools.differing.distances import Allowed, distance
from asyncnn.tools.differing.extracts import ModelGraph
from asyncnn.tools.differing.finding import Finding, PlacedOperation, Question, find
from asyncnn.tools.differing.sides import DeviceSide
from asyncnn.tools.samples import random_sample
from tests.tools.differing.faults import (
    KINDS,
    AlteringDevice,
    Fault,
    FaultyDevice,
    Injected,
    Target,
    altered_constant,
    draw,
    effects,
    is_seen,
    targets,
)

EXACTLY = Allowed(lsb=0, rtol=0.0, atol=0.0)
"""Both sides have the same kernels, but for the fault."""

NAMED_SHARE = 0.99

ATTEMPTS = 12
"""Faults that are drawn until one has an effect."""

REAL = (
    *("ad01_fp32", "dtln_noise_suppression", "hello_world_float", "hello_world_int8"),
    *("kws_ref_model", "kws_ref_model_float32", "micro_speech_quantized"),
    *("person_detect", "trained_lstm", "trained_lstm_int8"),
    *("vww_96_float", "vww_96_int8"),
)
WITH_WEIGHTS = ("ad01_fp32", "kws_ref_model", "person_detect", "vww_96_int8")


class Tally:
    """How many faults there were of each kind, and which were not named."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.missed: list[str] = []

    @property
    def rarest(self) -> str:
        """The kind of which there were fewest."""
        return min(KINDS, key=lambda kind: self.kinds[kind])

    def add(self, fault: Fault, found: Finding) -> None:
        self.kinds[fault.kind] += 1
        is_first = points_to(found.first, fault.target)
        if not is_first or not points_to(found.most, fault.target):
            operation = fault.target.operation
            places = [each and each.place for each in (found.first, found.most)]
            where = dot(fault.target.model)
            self.missed.append(f"{fault.kind} in {operation}: {places} of {where}")

    def check(self, wanted: int) -> None:
        total = self.kinds.total()
        assert total >= wanted, f"only {self.kinds} had an effect"
        assert len(self.missed) <= (1 - NAMED_SHARE) * total, self.missed


def points_to(entry: PlacedOperation | None, target: Target) -> bool:
    if entry is None or entry.position != target.position:
        return False
    return entry.level.graph.main.operations == target.subgraph.operations


def observable(
    named: NamedModel, inputs: Sequence[Array], rng: np.random.Generator, kind: str
) -> Injected | None:
    """Draw faults of a model until one makes a difference to its operation.

    Faults of another kind are drawn where no operation seems to have one of ``kind``.
    """
    candidates = targets(named.model)
    for attempt in range(ATTEMPTS if candidates else 0):
        target = candidates[int(rng.integers(len(candidates)))]
        if attempt > ATTEMPTS // 2:
            kind = str(rng.choice(KINDS))
        fault = draw(target, kind, rng)
        if fault is None:
            continue
        injected = Injected(fault)
        if any(is_seen(*pair) for pair in effects(injected, inputs)):
            return injected
    return None


async def differ(
    named: NamedModel, inputs: Sequence[Array], injected: Injected, is_second: bool
) -> Finding | None:
    """Compare a model with itself, with a fault on one side.

    None if that side cannot run all of the model, as the fault leads to illegal values.
    """
    graph = ModelGraph(named.with_open_states())
    names = [info.name for info in named.inputs]
    samples = [dict(zip(names, inputs, strict=False))]
    async with open_device("reference") as device:
        with injected.among_kernels():
            faulty = FaultyDevice(device, injected)
            try:
                await DeviceSide("f", faulty, graph, named.states).tensors(samples)
            except AsyncnnError:
                return None
            sides = [
                DeviceSide("right", device, graph, named.states),
                DeviceSide("faulty", faulty, graph, named.states),
            ]
            first, second = sides if is_second else reversed(sides)
            return await find(
                Question(
                    first=first,
                    second=second,
                    samples=samples,
                    converted=samples,
                    allowed=EXACTLY,
                )
            )


def in_random_graphs(wanted: int, number: int) -> Tally:
    tally = Tally()

    @seed(number)
    @settings(
        max_examples=2 * wanted + 60,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(graphs(), st.integers(0, 1 << 30))
    def trial(graph: Drawn, more: int) -> None:
        if tally.kinds.total() >= wanted and set(KINDS) <= set(tally.kinds):
            return
        rng = np.random.default_rng([more, tally.kinds.total()])
        injected = observable(graph.named, graph.inputs, rng, tally.rarest)
        if injected is None:
            return
        is_second = bool(rng.integers(2))
        found = asyncio.run(differ(graph.named, graph.inputs, injected, is_second))
        if found is not None:
            tally.add(injected.fault, found)

    trial()
    return tally


def in_real_models(
    wanted: int,
    names: Sequence[str],
    shared: Path,
    trial: Callable[[NamedModel, np.random.Generator, Tally], Awaitable[None]],
    number: int = 0,
) -> Tally:
    tally = Tally()
    models = [load(shared / "models" / f"{name}.tflite", strict=True) for name in names]
    for attempt in range(3 * wanted):
        if tally.kinds.total() >= wanted:
            break
        place = attempt % len(models)
        rng = np.random.default_rng(
            [zlib.crc32(names[place].encode()), attempt, number]
        )
        asyncio.run(trial(models[place], rng, tally))
    return tally


async def of_kernels(named: NamedModel, rng: np.random.Generator, tally: Tally) -> None:
    sample = random_sample(named.inputs, rng)
    inputs = [sample[info.name] for info in named.inputs]
    inputs += [state.first_value() for state in named.states]
    opened = named.with_open_states()
    injected = observable(opened, inputs, rng, tally.rarest)
    if injected is None:
        return
    found = await differ(named, inputs, injected, bool(rng.integers(2)))
    if found is not None:
        tally.add(injected.fault, found)


async def of_weights_elsewhere(
    named: NamedModel, rng: np.random.Generator, tally: Tally
) -> None:
    """Alter a constant on the accelerated device, by more than that may be off."""
    candidates = [
        (target, value)
        for target in targets(named.model)
        for index in target.operation.inputs[1:3]
        if (value := target.constant(index)) is not None and value.size > 1
    ]
    target, value = candidates[int(rng.integers(len(candidates)))]
    altered = altered_constant(value, int(rng.integers(1 << 31)))
    if altered.dtype == np.int32:
        altered = value + (altered != value) * np.int32(5000)
    sample = random_sample(named.inputs, rng)
    place = next(
        at
        for at, index in enumerate(target.operation.inputs)
        if target.constant(index) is value
        or np.array_equal(target.constant(index), value)
    )
    fault = Fault("weights", target, _replacing(place, altered))
    pairs = effects(Injected(fault), [sample[info.name] for info in named.inputs])
    operand = target.subgraph.operands[target.operation.outputs[0]]
    if not pairs:
        return
    apart = distance(pairs[0][1][0], operand, pairs[0][0][0], operand, Allowed())
    if apart.units < 3:
        return
    graph = ModelGraph(named)
    async with open_device("reference") as one, open_device("accelerated") as other:
        found = await find(
            Question(
                first=DeviceSide("reference", one, graph, ()),
                second=DeviceSide(
                    "accelerated", AlteringDevice(other, value, altered), graph, ()
                ),
                samples=[sample],
                converted=[sample],
            )
        )
    tally.add(fault, found)


def _replacing(place: int, value: Array):
    from msgspec.structs import replace

    def alter(operation):
        inputs = list(operation.inputs)
        inputs[place] = replace(inputs[place], value=value)
        return replace(operation, inputs=tuple(inputs), packed={})

    return alter


some = pytest.param(15, 0, id="some")
parts = [
    pytest.param(80, number, id=f"part-{number}", marks=pytest.mark.exhaustive)
    for number in range(1, 5)
]


@pytest.mark.parametrize(("wanted", "number"), [some, *parts])
def test_operations_of_random_graphs_are_named(wanted: int, number: int) -> None:
    tally = in_random_graphs(wanted, number)
    tally.check(wanted)
    assert set(KINDS) <= set(tally.kinds)


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        pytest.param(7, 0, id="some"),
        pytest.param(65, 1, id="part-1", marks=pytest.mark.exhaustive),
        pytest.param(65, 2, id="part-2", marks=pytest.mark.exhaustive),
    ],
)
def test_operations_of_trained_models_are_named(
    wanted: int, number: int, shared: Path
) -> None:
    tally = in_real_models(wanted, REAL, shared, of_kernels, number)
    tally.check(wanted)
    assert set(KINDS) <= set(tally.kinds)


@pytest.mark.parametrize(
    "wanted",
    [
        pytest.param(3, id="some"),
        pytest.param(50, id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_weights_that_an_engine_has_wrong_are_named(wanted: int, shared: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    tally = in_real_models(wanted, WITH_WEIGHTS, shared, of_weights_elsewhere)
    tally.check(wanted)
