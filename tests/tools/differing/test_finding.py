"""Which operation is named, and as what."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from asyncnn import open_device
from asyncnn.hal.errors import InvalidArgumentError
from asyncnn.hal.operations.bound import Array
from asyncnn.hal.types import (
    FusedActivationFunc,
    Model,
    Operand,
    OperandType,
    OperationType,
)
from asyncnn.runtime.builder import ModelBuilder
from asyncnn.runtime.graph_builder import GraphBuilder
from asyncnn.runtime.model import NamedModel
from asyncnn.runtime.model_file import load
from asyncnn.tools.conformance.random_graphs.families import RandomGraph as Drawn
from asyncnn.tools.differing import Inquiry, answer
from asyncnn.tools.differing.distances import Allowed
from asyncnn.tools.differing.extracts import ModelGraph
from asyncnn.tools.differing.finding import Finding, Question, find
from asyncnn.tools.differing.levels import pair
from asyncnn.tools.differing.sides import DeviceSide
from asyncnn.tools.other_runtimes import LiteRt, OnnxFile
from asyncnn.tools.samples import Sample
from tests.random_graphs.trying import on_graphs
from tests.tools.differing.faults import Fault, FaultyDevice, Injected, targets
from tests.tools.test_comparison import addition_in_onnx

F32, I32 = OperandType.TENSOR_FLOAT32, OperandType.TENSOR_INT32
FLOATS = Operand(F32, (4,))
NONE = FusedActivationFunc.NONE

USUAL = Allowed()

Change = Callable[[Array], None]
"""Changes results of an operation where they are."""


class Wrapping:
    """A device that changes the first output of those models that are ``chosen``."""

    def __init__(
        self, device: Any, chosen: Callable[[Model], bool], change: Any
    ) -> None:
        self.version = device.version
        self._device = device
        self._chosen = chosen
        self._change = change

    async def prepare(self, named: NamedModel) -> Any:
        prepared = await self._device.prepare(named)
        if not self._chosen(named.model):
            return prepared
        change = self._change

        class Prepared:
            async def run(self, inputs: Any) -> dict[str, Array]:
                outputs = dict(await prepared.run(inputs))
                name = next(iter(outputs))
                outputs[name] = change(outputs[name])
                return outputs

        return Prepared()


def hides_exp(model: Model) -> bool:
    return any(
        each.type == OperationType.EXP
        and each.outputs[0] not in model.main.output_indexes
        for each in model.main.operations
    )


def ends_with_abs(model: Model) -> bool:
    first = model.main.output_indexes[0]
    return any(
        each.type == OperationType.ABS and each.outputs == (first,)
        for each in model.main.operations
    )


def sums() -> NamedModel:
    """``z = abs(-exp(x + y))``: ADD, EXP, NEG, ABS."""
    builder = ModelBuilder()
    x, y = (builder.input(name, F32, (4,)) for name in "xy")
    value = builder.operation(OperationType.ADD, [x, y, builder.scalar(NONE)], FLOATS)
    for type_ in (OperationType.EXP, OperationType.NEG, OperationType.ABS):
        value = builder.operation(type_, [value], FLOATS)
    builder.output(value, "z")
    return builder.build()


def running_sum() -> NamedModel:
    """A sum of all inputs so far, twice: ADD, MUL."""
    builder = ModelBuilder()
    x = builder.input("x", F32, (4,))
    before = builder.state("sum", F32, (4,), initial=np.ones(4, np.float32))
    none = builder.scalar(NONE)
    after = builder.operation(OperationType.ADD, [x, before, none], FLOATS)
    two = builder.constant(np.full(4, 2, np.float32))
    y = builder.operation(OperationType.MUL, [after, two, none], FLOATS)
    builder.output(y, "y")
    builder.next_state(before, after)
    return builder.build()


def branching() -> NamedModel:
    """``exp(x)`` or ``-x``, then ABS."""
    builder = ModelBuilder()
    is_true = builder.input("is_true", OperandType.TENSOR_BOOL8, (1,))
    x = builder.input("x", F32, (4,))

    def body(type_: OperationType) -> int:
        inner = builder.body()
        value = inner.input("x", F32, (4,))
        inner.output(inner.operation(type_, [value], FLOATS), "y")
        return builder.subgraph(inner)

    bodies = [body(OperationType.EXP), body(OperationType.NEG)]
    y = builder.operation(OperationType.IF, [is_true, *bodies, x], FLOATS)
    builder.output(builder.operation(OperationType.ABS, [y], FLOATS), "y")
    return builder.build()


def looping() -> NamedModel:
    """``x`` halved three times: a WHILE with LESS, and ADD and MUL in its body."""
    builder = ModelBuilder()
    x = builder.input("x", F32, (4,))
    count = Operand(I32, (1,))

    def inner() -> tuple[GraphBuilder, int, int]:
        body = builder.body()
        return body, body.input("k", I32, (1,)), body.input("x", F32, (4,))

    condition, k, _ = inner()
    three = condition.constant(np.int32([3]))
    truth = Operand(OperandType.TENSOR_BOOL8, (1,))
    condition.output(condition.operation(OperationType.LESS, [k, three], truth), "on")
    body, k, value = inner()
    none = body.scalar(NONE)
    one, half = body.constant(np.int32([1])), body.constant(np.float32([0.5]))
    body.output(body.operation(OperationType.ADD, [k, one, none], count), "k")
    body.output(body.operation(OperationType.MUL, [value, half, none], FLOATS), "x")
    zero = builder.constant(np.int32([0]))
    _, y = builder.operation(
        OperationType.WHILE,
        [builder.subgraph(condition), builder.subgraph(body), zero, x],
        [count, FLOATS],
    )
    builder.output(y, "y")
    return builder.build()


def inputs_of(named: NamedModel, count: int = 1) -> list[Sample]:
    rng = np.random.default_rng(5)
    return [
        {
            info.name: np.array([True])
            if info.dtype == np.bool_
            else rng.uniform(0.5, 1, info.dimensions).astype(info.dtype)
            for info in named.inputs
        }
        for _ in range(count)
    ]


async def between(
    named: NamedModel,
    type_: int,
    change: Change,
    *,
    samples: int = 1,
    is_first: bool = False,
    allowed: Allowed = USUAL,
    then: Callable[[Finding], Awaitable[None]] | None = None,
) -> Finding:
    """Find the kernel of one type of operations, which is another on one side."""
    (target,) = (t for t in targets(named.model) if t.operation.type == type_)
    fault = Fault("kernel", target, results=lambda outputs: change(outputs[0]))
    injected = Injected(fault)
    async with open_device("reference") as device:
        with injected.among_kernels():
            faulty = FaultyDevice(device, injected)
            devices = (faulty, device) if is_first else (device, faulty)
            found = await asked(named, devices, samples, allowed)
            if then is not None:
                await then(found)
            return found


async def asked(
    named: NamedModel, devices: Sequence[Any], count: int = 1, allowed: Allowed = USUAL
) -> Finding:
    samples = inputs_of(named, count)
    graph = ModelGraph(named.with_open_states())
    first, second = (
        DeviceSide(title, device, graph, named.states)
        for title, device in zip(("one", "other"), devices, strict=True)
    )
    return await find(
        Question(
            first=first,
            second=second,
            samples=samples,
            converted=samples,
            allowed=allowed,
        )
    )


def plus(amount: float) -> Change:
    def change(array: Array) -> None:
        array += np.float32(amount)

    return change


def never(array: Array) -> None:
    array[...] = False


def places(found: Finding) -> list[str | None]:
    return [each and each.place for each in (found.first, found.most)]


async def test_the_operation_that_adds_the_error_is_told_from_those_behind() -> None:
    found = await between(sums(), OperationType.EXP, plus(0.25))
    assert not found.passed
    assert places(found) == ["1", "1"]
    errors = [entry.error is not None and entry.error.units for entry in found.entries]
    own = [entry.own is not None and entry.own.units for entry in found.entries]
    assert [bool(each) for each in errors] == [False, True, True, True]
    assert [bool(each) for each in own] == [False, True, False, False]


@pytest.mark.parametrize("is_first", [False, True])
async def test_it_is_found_on_either_side(is_first: bool) -> None:
    found = await between(sums(), OperationType.ABS, plus(1), is_first=is_first)
    assert places(found) == ["3", "3"]


async def test_equal_sides_have_no_error_at_all() -> None:
    found = await between(sums(), OperationType.EXP, plus(0))
    assert found.passed
    assert places(found) == [None, None]
    assert found.behind is None
    assert found.level.tensors == 4


async def test_error_within_tolerance_is_named_but_does_not_diverge() -> None:
    found = await between(
        sums(), OperationType.EXP, plus(0.25), allowed=Allowed(atol=10.0)
    )
    assert found.passed
    assert places(found) == [None, "1"]
    assert found.to_look_into is found.most


async def test_what_is_no_number_on_one_side_diverges() -> None:
    found = await between(sums(), OperationType.EXP, plus(np.nan))
    assert places(found) == ["1", "1"]
    assert found.first is not None
    assert found.first.own is not None
    assert found.first.own.units == np.inf


async def test_other_shapes_are_told() -> None:
    async with open_device("reference") as device:
        shorter = Wrapping(device, ends_with_abs, lambda array: array[:2])
        found = await asked(sums(), (device, shorter))
    assert places(found) == ["3", "3"]
    assert found.first is not None
    assert str(found.first.error) == "shape [2], not [4]"


async def test_state_goes_on_from_sample_to_sample() -> None:
    found = await between(running_sum(), OperationType.MUL, plus(0.5), samples=3)
    assert places(found) == ["1", "1"]
    assert [len(found.level.here), len(found.level.there)] == [3, 3]
    before = found.level.graph.main.input_indexes[1]
    after = found.level.graph.main.output_indexes[1]
    for one, following in zip(found.level.here, found.level.here[1:], strict=False):
        np.testing.assert_array_equal(following[before], one[after])
    np.testing.assert_array_equal(found.level.here[0][before], np.ones(4))


async def test_the_branch_that_is_taken_is_looked_into() -> None:
    found = await between(branching(), OperationType.EXP, plus(0.5))
    assert places(found) == ["0/then/0", "0/then/0"]
    found = await between(branching(), OperationType.NEG, plus(0.5))
    assert found.passed


@pytest.mark.parametrize(
    ("type_", "change", "place"),
    [
        (OperationType.MUL, plus(0.5), "0/body/1"),
        (OperationType.LESS, never, "0/condition/0"),
    ],
)
async def test_loops_are_looked_into(
    type_: OperationType, change: Change, place: str
) -> None:
    found = await between(looping(), type_, change)
    assert places(found) == [place, place]


async def test_what_only_the_whole_model_does_otherwise_is_narrowed_down() -> None:
    async with open_device("reference") as device:
        fusing = Wrapping(device, hides_exp, lambda array: array + 1)
        found = await asked(sums(), (device, fusing))
    assert not found.passed
    assert places(found) == [None, None]
    assert found.only_whole is not None
    assert found.only_whole.place == "2"  # the first that hides the results of EXP


@on_graphs(0.05)
def test_a_graph_does_not_differ_from_itself(graph: Drawn) -> None:
    asyncio.run(check_itself(graph))


async def check_itself(drawn: Drawn) -> None:
    graph = ModelGraph(drawn.named)
    names = [info.name for info in drawn.named.inputs]
    sets = (drawn.inputs, drawn.other_inputs)
    samples = [dict(zip(names, each, strict=True)) for each in sets]
    async with open_device("reference") as device:
        side = DeviceSide("reference", device, graph, ())
        found = await find(
            Question(
                first=side,
                second=side,
                samples=samples,
                converted=samples,
                allowed=Allowed(lsb=0, rtol=0.0, atol=0.0),
            )
        )
    assert found.passed
    assert places(found) == [None, None]
    assert found.level.problems == {}
    assert found.level.own.keys() == set(range(len(graph.main.operations)))


class TestPairing:
    def test_names_go_before_places(self) -> None:
        named = sums()
        outputs = [each.outputs[0] for each in named.model.main.operations]

        def called(*names: str) -> ModelGraph:
            listed = dict(zip(outputs, names, strict=True))
            known = tuple(listed.get(i, "") for i in range(max(outputs) + 1))
            return ModelGraph(replace(named, operand_names=known))

        one, other = called("a", "b", "c", "d"), called("a", "c", "b", "d")
        tensors = pair(one, other).tensors
        assert [tensors[i] for i in outputs] == [
            outputs[0],
            outputs[2],
            outputs[1],
            outputs[3],
        ]
        tensors = pair(one, called("", "", "", "")).tensors
        assert [tensors[i] for i in outputs] == outputs

    def test_operations_that_only_one_has_are_left_out(self) -> None:
        builder = ModelBuilder()
        x, y = (builder.input(name, F32, (4,)) for name in "xy")
        none = builder.scalar(NONE)
        value = builder.operation(OperationType.ADD, [x, y, none], FLOATS)
        value = builder.operation(OperationType.EXP, [value], FLOATS)
        builder.output(builder.operation(OperationType.ABS, [value], FLOATS), "z")
        fewer, more = ModelGraph(builder.build()), ModelGraph(sums())
        tensors = pair(more, fewer).tensors
        paired = [
            [tensors.get(i) for i in each.outputs] for each in more.main.operations
        ]
        assert paired[2] == [None]
        assert [None] not in (paired[0], paired[1], paired[3])

    def test_other_shapes_are_no_pair(self) -> None:
        named = sums()
        last = named.model.main.operations[1].outputs[0]
        operands = list(named.model.main.operands)
        operands[last] = replace(operands[last], dimensions=(5,))
        main = replace(named.model.main, operands=tuple(operands))
        other = ModelGraph(replace(named, model=replace(named.model, main=main)))
        assert last not in pair(ModelGraph(named), other).tensors

    def test_models_of_other_inputs_are_refused(self) -> None:
        with pytest.raises(InvalidArgumentError, match="2 inputs"):
            pair(ModelGraph(sums()), ModelGraph(looping()))


class TestPeers:
    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("ai_edge_litert")

    def test_files_name_tensors_as_litert_does(self, shared: Path) -> None:
        path = shared / "models" / "kws_ref_model.tflite"
        named = load(path, strict=True)
        main = named.model.main
        written = [index for each in main.operations for index in each.outputs]
        names = {named.operand_names[index]: index for index in written}
        assert len(names) == len(written)
        peer = LiteRt(path, shows_all=True)
        peer.run([np.zeros(shape, dtype) for shape, dtype in peer.input_kinds()])
        tensors = peer.tensors(names)
        assert tensors.keys() == names.keys()
        for name, index in names.items():
            assert tensors[name].shape == main.operands[index].dimensions
        assert load(path, strict=True).knowing(()).operand_names == named.operand_names

    def test_files_name_tensors_as_onnx_runtime_does(self) -> None:
        pytest.importorskip("onnxruntime")
        data = addition_in_onnx()
        named = load(data, strict=True)
        (written,) = named.model.main.operations[-1].outputs
        assert named.operand_names[written] == "y"
        peer = OnnxFile(data, shows_all=True)
        peer.run([np.ones((3, 2), np.float32), np.array(1, np.float32)])
        np.testing.assert_array_equal(peer.tensors({"y"})["y"], np.full((3, 2), 2))

    async def test_all_tensors_of_litert_are_compared(self, shared: Path) -> None:
        path = shared / "models" / "kws_ref_model.tflite"
        for between_ in (("reference", "litert"), ("litert", "reference")):
            named = load(path, strict=True)
            report = await answer(
                Inquiry(path=path, named=named, against=None, between=between_)
            )
            assert report.first is None
            assert report.tensors == len(report.operations) == 13
            assert report.most is not None

    async def test_state_in_litert_goes_on_as_here(self, shared: Path) -> None:
        path = shared / "models" / "trained_lstm_int8.tflite"
        report = await answer(
            Inquiry(
                path=path,
                named=load(path, strict=True),
                against=None,
                between=("reference", "litert"),
                random=4,
            )
        )
        assert report.passed
        assert report.most is None  # not one step, in any of the steps of time
